"""FedSeq against its loss by loops, against finite differences, and on sequences with one answer."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedtaste.core import Cohort, Download, Examples, StageContext, Upload
from fedtaste.data.interactions import Histories
from fedtaste.data.sources import load
from fedtaste.engine.run import begin, run
from fedtaste.errors import DivergedError, SettingError
from fedtaste.evaluation.scoring import personal_scores
from fedtaste.experiment.continuation import continue_from, shortened
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.plan import plan
from fedtaste.experiment.progress import Silent
from fedtaste.experiment.settings import Settings
from fedtaste.experiment.train import Training, checked_plan, make_task, prepare
from fedtaste.federation import of_histories
from fedtaste.methods import METHODS, announced_steps, build
from fedtaste.methods import sequence_loss as losses
from fedtaste.methods.fedseq import FIXED, FedSeq
from fedtaste.methods.registry import PublicFacts
from fedtaste.methods.server_optimizers import scheduled_rate, server_step, with_server
from fedtaste.models import factorization
from fedtaste.models.sequence import Network, network_params, network_states
from fedtaste.tasks.base import Facts
from support.states import assert_close, everything
from support.worlds import ITEMS, PEOPLE, histories

SMALL = {"length": 6, "negatives": 20, "heads": 2}
RANKING = Facts("ranking", ITEMS, timed=True, people=PEOPLE)


def train(settings, data=None, items=ITEMS, k=4, rounds=3, **options):
    data = histories() if data is None else data
    model = factorization(items, k=k)
    method = build("fedseq", model, SMALL | settings)
    return method, model, list(run(method, model, of_histories(data, items), rounds=rounds, seed=1, **options))


def history(*lists):
    """Histories from lists of items."""
    starts = np.cumsum([0, *map(len, lists)])
    items = np.concatenate(lists).astype(np.int32)
    return Histories(starts, items, np.ones(len(items), np.float32))


def one_person(items):
    inputs = torch.tensor([items])
    return Examples(inputs, torch.ones(inputs.shape), torch.ones(inputs.shape))


def test_parameters_of_the_recipe_are_307_963():
    method = FedSeq(factorization(3706, k=64))
    assert 3706 * 65 + method.network_size == 307_963
    assert 3706 * 129 + FedSeq(factorization(3706, k=128)).network_size == 742_779


@pytest.mark.parametrize("kind", ["attention", "gru"])
def test_states_do_not_depend_on_later_items(kind):
    network = Network(kind, 4, 2, 2, 9)
    params = network_params(network, torch.Generator().manual_seed(0))
    x = torch.randn(7, 4, generator=torch.Generator().manual_seed(1))
    whole, part = network_states(network, params, x), network_states(network, params, x[:3])
    assert torch.allclose(whole[:3], part, atol=1e-6) and not torch.allclose(whole[0], whole[1])


def trail_by_loops(shared, items, candidate, place, upto):
    """t_q at position `upto` by the formula, one pair after the other; `place` is where the person takes it."""
    total = 0.0
    for s in range(upto + 1):
        own = losses.FADE ** (place - s - 1) if 0 < place - s <= losses.WINDOW else 0.0
        own *= float(shared["from_scale"][items[s]] * shared["to_scale"][candidate])
        age = upto - s
        weight = losses.MIX * losses.FAST**age + (1 - losses.MIX) * losses.SLOW**age
        total += weight * max(float(shared["trail"][items[s], candidate]) - own, 0.0)
    return total


@pytest.mark.parametrize("backend", ["loop", "kernel"])
def test_loss_equals_the_formula_by_loops(backend):
    method, model, done = train({"hidden_dropout": 0.0, "length": 30})
    shared, person = done[-1].state.shared, 3
    items = histories().of(person).tolist()
    algorithm = FedSeq(model, length=30, negatives=20, heads=2, hidden_dropout=0.0)
    examples = Examples(*(x[None] for x in one_person(items)))
    download = Download(shared, torch.tensor(5.0))
    if backend == "kernel":
        loss, weight = algorithm.cohort_loss(download, {}, examples)
    else:
        context, weight = algorithm.context(download, examples)
        loss = losses.sampled_softmax(algorithm.shape, shared, context)
    drawn = losses.shared_negatives(shared["items"], 20, int(shared["key"] * 2**24), 5)
    x = shared["item"][torch.tensor(items[:-1])] * (0.5 * 2.0)
    h = network_states(algorithm.shape, shared, x)
    alpha, eps, expected = 10 * float(shared["theta"]), float(shared["eps"]), 0.0

    def logit(t, q, place):
        trail = trail_by_loops(shared, items, q, place, t)
        return float(h[t] @ shared["item"][q] + shared["bias"][q]) + alpha * math.log(trail + eps)

    for t in range(len(items) - 1):
        target = logit(t, items[t + 1], t + 1)
        others = 0.0
        for q, correction in zip(drawn.items.tolist(), drawn.correction.tolist()):
            if q not in items[: t + 2]:
                place = items.index(q) if q in items else losses.NEVER
                others += math.exp(logit(t, q, place) - correction)
        expected += math.log(math.exp(target) + others) - target
    assert float(loss[0]) == pytest.approx(expected, rel=1e-4) and float(weight[0]) == len(items) - 1


@pytest.mark.parametrize("network", ["attention", "gru"])
def test_upload_is_the_gradient_by_finite_differences(network):
    method, model, done = train({"network": network})
    shared, examples = done[-1].state.shared, one_person(histories().of(2).tolist())
    upload, _ = method.client(Download(shared, torch.tensor(4.0)), {}, examples)
    algorithm = FedSeq(model, network=network, **SMALL)
    context, _ = algorithm.context(Download(shared, torch.tensor(4.0)), examples)

    def loss(params):
        wide = {name: value.double() for name, value in params.items()}
        names = ("keep", "target", "negative")
        own = context._replace(**{name: getattr(context, name).double() for name in names})
        return float(losses.sampled_softmax(algorithm.shape, wide, own))

    for name, slope in upload.total.items():
        at = int(slope.abs().argmax())
        step = torch.zeros(slope.numel(), dtype=torch.float64)
        step[at] = 1e-5
        moved = [shared | {name: shared[name].double() + sign * step.reshape(slope.shape)} for sign in (1, -1)]
        difference = (loss(moved[0]) - loss(moved[1])) / 2e-5
        assert -float(slope.flatten()[at]) == pytest.approx(difference, rel=2e-3, abs=1e-4), name


def test_negatives_are_drawn_with_the_stated_probabilities():
    counts = torch.tensor([0.0, 3.0, 8.0, 99.0, 0.0])
    chance = losses.inclusion(counts.numpy().astype(float), 3)
    assert chance.sum() == pytest.approx(3) and chance[3] == 1 and chance[1] == pytest.approx(2 * chance[0])
    drawn = [losses.shared_negatives(counts, 3, 7, round) for round in range(4000)]
    shares = np.bincount(np.concatenate([d.items.numpy() for d in drawn]), minlength=5) / 4000
    assert np.abs(shares - chance).max() < 0.03
    assert all(torch.allclose(d.correction, torch.tensor(np.log(chance[d.items])).float()) for d in drawn[:3])


def test_windows_are_the_whole_history_or_a_part_of_the_right_size():
    items = torch.arange(20)[None].expand(3, 20)
    drawn = torch.tensor([[0, 0, 0, 0], [255, 0, 0, 0], [255, 255, 255, 255]], dtype=torch.uint8)
    window = losses.draw_window(items, torch.ones(3, 20), 5, drawn)
    assert window.first.tolist() == [14, 0, 14] and window.items[1].tolist() == [0, 1, 2, 3, 4, 5]
    short = losses.draw_window(items, torch.ones(3, 20), 50, drawn)
    assert short.first.tolist() == [0, 0, 0] and short.items.shape == (3, 20) and short.mask.sum() == 57


@pytest.mark.parametrize("network", ["attention", "gru"])
def test_a_chain_that_depends_on_two_items_is_learnt(network):
    """After a, b comes c, and after d, b comes e: item 1 is followed by 2 or 4, by what came before it."""
    data = history(*[[0, 1, 2, 5 + p % 5] if p % 2 else [3, 1, 4, 5 + p % 5] for p in range(24)])
    settings = {"network": network, "server": "adam-unbiased", "server_lr": 0.03, "tau": 1e-8, "negatives": 10}
    method, model, done = train(
        settings | {"start": "random", "trail": False, "hidden_dropout": 0.0}, data, 10, 8, rounds=80, cohort=24
    )
    asked = history([0, 1], [3, 1])
    examples = of_histories(asked, 10).examples(np.arange(2), 0, "history")
    state = done[-1].state
    ((_, scores),) = personal_scores(
        method, model, state.shared, state.private, np.zeros(2, int), examples, torch.arange(10)
    )
    scores[:, [0, 1, 3]] = -torch.inf  # what they have is not recommended
    assert scores.argmax(1).tolist() == [2, 4]


def test_order_of_the_history_changes_the_scores():
    method, model, done = train({})
    shared = done[-1].state.shared
    first, second = (method.personalize(shared, {}, one_person(items))["item"] for items in ([1, 2, 3], [3, 2, 1]))
    assert not torch.allclose(first, second)


def test_only_the_newest_items_are_seen():
    method, _, done = train({})
    shared, items = done[-1].state.shared, list(range(12))
    long, short = (method.personalize(shared, {}, one_person(part))["item"] for part in (items, items[-6:]))
    assert torch.allclose(long, short, atol=1e-6)


@pytest.mark.parametrize("network", ["attention", "gru"])
@pytest.mark.parametrize("others", [([1, 2, 3, 4], [2, 3, 1]), ()])
def test_histories_of_one_item_send_zeros_and_change_nothing(others, network):
    data = history([5], *others, [1])
    ends = []
    for backend in ("loop", "vmap", "kernel"):
        _, _, done = train({"network": network}, data, 8, backend=backend)
        assert done[-1].answered == 2 + len(others) and not done[-1].rejected
        ends.append(done[-1].state.shared)
    assert_close(ends[0], ends[1]), assert_close(ends[0], ends[2])


def test_length_beyond_every_history_and_more_negatives_than_items_are_possible():
    ends = [train({"length": 500, "negatives": 5_000, "hidden_dropout": 0.0}, backend=b)[2] for b in ("loop", "kernel")]
    assert_close(*(everything(done[-1].state) for done in ends))
    assert len(losses.shared_negatives(torch.zeros(9), 5_000, 1, 1).items) == 9
    assert all(len(losses.shared_negatives(torch.zeros(900), 1, 1, round).items) > 0 for round in range(20))


def test_cohorts_are_drawn_in_passes_after_a_round_of_everybody():
    _, _, done = train({"cohort": 10}, rounds=7)
    assert [d.requested for d in done] == [PEOPLE, 8, 8, 8, 8, 8, 8]  # a pass has three rounds
    federation = of_histories(histories(), ITEMS)
    asked = [federation.cohort(number, size=10, counting=1)[0] for number in range(1, 7)]
    for begin_at in (0, 3):
        assert np.sort(np.concatenate(asked[begin_at : begin_at + 3])).tolist() == list(range(PEOPLE))


def test_fixed_tables_are_downloaded_once():
    _, _, done = train({"cohort": 12}, rounds=6)
    table = 4 * ITEMS * ITEMS
    per_person = [d.down_bytes // d.requested for d in done]
    assert per_person[1] == per_person[2] > table and per_person[3] == per_person[5] < table


@pytest.mark.parametrize("wire", ["quantise=8", "clip=1", "clip=1,secure"])
def test_wires_carry_the_uploads(wire):
    settings = Settings(method="fedseq", wire=wire, set={"k": "4", "length": "6", "negatives": "20"})
    run_plan, data = plan(settings, replace(RANKING, people=6)), histories(people=6)
    ends = [
        list(run(run_plan.method, run_plan.model, of_histories(data, ITEMS), rounds=2, wire=run_plan.wire.stage,
                 backend=backend, seed=1))[-1]
        for backend in ("loop", "vmap")
    ]  # fmt: skip
    assert not ends[0].rejected and ends[0].answered == 6
    assert_close(ends[0].state.shared, ends[1].state.shared, 1e-4)


def test_whole_numbers_have_the_right_mean_and_the_next_step_follows_from_the_sum():
    steps, gradient = torch.tensor([0.5, 2.0]), {"b": torch.full((1000,), 0.5), "a": torch.full((1000,), -0.3)}
    sent = announced_steps.to_whole_numbers(gradient, steps, 8, torch.tensor(7))
    assert {*sent["b"].tolist()} == {0.0, 1.0} and abs(sent["b"].mean() - 0.25) < 0.06  # 4 standard deviations
    assert {*sent["a"].tolist()} == {-1.0, 0.0} and abs(sent["a"].mean() + 0.6) < 0.06
    far = announced_steps.to_whole_numbers(
        {"a": torch.tensor([1e3]), "b": torch.tensor([-1e4])}, steps, 8, torch.tensor(7)
    )
    assert far == {"a": torch.tensor([127.0]), "b": torch.tensor([-127.0])}
    total = {"a": torch.tensor([254.0, 0]), "b": torch.tensor([-1.0])}
    sums, after = announced_steps.from_whole_numbers(total, steps, 8, cohort=2)
    assert sums["a"].tolist() == [127, 0] and sums["b"].tolist() == [-2]
    assert torch.allclose(after, torch.tensor([1.0, 1.8]))  # 127 / 127, and FADE x 2


def test_a_false_upload_changes_sums_and_steps_little():
    total = {"a": torch.tensor([1e8, 3.0])}
    sums, after = announced_steps.from_whole_numbers(total, torch.tensor([0.5]), 8, cohort=4)
    assert sums["a"].tolist() == [4 * 127 * 0.5, 1.5] and after.tolist() == [1.0]  # GROWTH x 0.5


def test_a_training_cohort_larger_than_planned_is_refused_in_secure_sums():
    settings = Settings(method="fedseq", wire="secure", set={"k": "4", "length": "6", "bits": "8"}, cohort=8)
    stage = plan(settings, RANKING).wire.stage
    context = StageContext(bytes(32), round=1, people=9.0)
    with pytest.raises(SettingError, match="at most 8 people, got 9"):
        stage.secure_sum.groups(np.arange(9), context)
    assert stage.secure_sum.groups(np.arange(9), context._replace(round=0))


@pytest.mark.parametrize("wire", ["", "secure"])
def test_whole_numbers_are_added_alike_by_all_backends_and_in_secure_sums(wire):
    settings = Settings(method="fedseq", wire=wire, set={"k": "4", "length": "6", "negatives": "20", "bits": "8"})
    run_plan, data = plan(settings, replace(RANKING, people=6)), histories(people=6)
    ends = [
        list(run(run_plan.method, run_plan.model, of_histories(data, ITEMS), rounds=3, wire=run_plan.wire.stage,
                 backend=backend, seed=1))
        for backend in ("loop", "vmap")
    ]  # fmt: skip
    assert not any(done.rejected for done in ends[0])
    assert_close(ends[0][-1].state.shared, ends[1][-1].state.shared, 1e-4)
    sent = {name: ends[0][-1].state.shared[name] for name in run_plan.wire.stage.leaves}
    layout = run_plan.wire.stage.message_layout(sent)
    written = sum(value.numel() * value.element_size() for name, value in layout.items() if name != "secure")
    assert written == (2 if wire else 1) * sum(value.numel() for value in sent.values())


def test_rounds_follow_from_participations_people_and_cohort():
    def rounds(cohort=None, **chosen):
        values = {name: str(value) for name, value in chosen.items()}
        return plan(Settings(method="fedseq", cohort=cohort, set=values), RANKING)

    assert rounds().settings["negatives"] == 768  # and not the four of other methods
    assert rounds(participations=3).rounds == 1 + 3 * 1  # 24 people are fewer than a cohort
    assert rounds(8, participations=3).rounds == 1 + 3 * 3
    assert rounds(8, participations=3, start="random", trail="false").rounds == 9
    small = rounds(k=4, length=6, participations=50, upload_mb=0.01)
    assert small.settings["participations"] == int(
        0.01 / (4e-6 * (ITEMS * 5 + FedSeq(small.model, length=6).network_size))
    )
    assert small.method.schedule.rounds == 1 + small.settings["participations"]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"set": {"upload_mb": "0.0001"}}, "does not allow one participation"),
        ({"set": {"cpu_minutes": "0.00001"}}, "does not allow one participation"),
        ({"set": {"participations": "0"}}, "at least 1"),
        ({"rounds": 2, "cohort": 8}, "does not let everybody take part once"),
        ({"set": {"participations": "100000000"}}, "at most 1,000,000"),
        ({"set": {"layers": "65"}}, "at most 64"),
        ({"set": {"k": "9", "heads": "2"}}, "one of 1, 3, 9"),
        ({"rounds": 1}, "--rounds 2 or more"),
        ({"rounds": 50, "set": {"participations": "2"}}, "Give one of them"),
        ({"set": {"k": "5"}}, "heads must divide k"),
        ({"set": {"start": "random"}}, "trail=true needs counts"),
        ({"set": {"hidden_dropout": "1"}}, "below 1"),
        ({"set": {"model": "ncf"}}, "factorization"),
        ({"wire": "clip=1,noise=1"}, "fedveil is made for noise"),
        ({"wire": "sparsify=0.1"}, "sparsify is not for"),
        ({"wire": "clip=1", "set": {"bits": "8"}}, "clip is not for uploads of whole numbers"),
        ({"cohort": 4, "set": {"bits": "8"}}, "a --cohort of 8 people or more"),
    ],
)
def test_settings_that_cannot_work_are_refused(options, message):
    with pytest.raises(SettingError, match=message):
        plan(Settings(method="fedseq", **options), RANKING)


@pytest.mark.parametrize(("items", "k"), [(51, 50), (50, 50), (63, 62), (64, 64), (3706, 64)])
def test_k_is_even_in_small_catalogues(items, k):
    assert plan(Settings(method="fedseq"), replace(RANKING, items=items)).settings["k"] == k


def test_auto_takes_what_the_budgets_allow():
    def used(people=1500, **chosen):
        return FedSeq(factorization(3706, k=64), learners=people, **chosen).used_participations

    step = 1500 * FedSeq(factorization(3706, k=64)).step_seconds / 60
    assert used() == 16 and used(2000) == used(5400) == 24 and used(participations=40) == 40
    assert used(6000) == 21 and used(64_000) == 2 and used(10**6) == 1  # about 4,000 rounds of 32 people
    assert used(6000, cohort=64) == 24 and used(64_000, cohort=320) == 20
    assert used(1235) == used(1235, upload_mb=1000.0) == 4 and used(1236) == 16  # 3 x 1,235 people < items
    assert used(upload_mb=5.0) == 4 and used(upload_mb=1000.0) == 16 and used(6000, upload_mb=1000.0) == 64
    assert used(cpu_minutes=3.5 * step) == 3 and used(cpu_minutes=3.5 * step, upload_mb=2.5) == 2
    assert used(6000, participations=2, cpu_minutes=1000.0) == 2


def test_eigen_start_gives_the_embeddings_of_the_gram_matrix():
    model = factorization(ITEMS, k=4, spread=0.0)  # no noise in the embeddings
    products = []
    for start, rounds in (("gram", 1), ("eigen", 4)):
        method = build("fedseq", model, SMALL | {"start": start})
        item = list(run(method, model, of_histories(histories(), ITEMS), rounds=rounds))[-1].state.shared["item"]
        products.append(item @ item.T)
    assert torch.allclose(*products, atol=2e-2) and products[0].diagonal().min() > 0.1


def test_als_start_gives_the_factors_of_fedals():
    model, federation = factorization(ITEMS, k=4), of_histories(histories(), ITEMS)
    begun = begin(build("fedseq", model, SMALL | {"start": "als"}), model, federation)
    rule = METHODS["fedals"].scaled["ranking"](PublicFacts(PEOPLE, ITEMS, True))
    fedals = build("fedals", model, {"alpha0": rule["alpha0"], "lam": rule["lam"]})
    alone = list(run(fedals, model, federation, rounds=6))[-1].state.shared["item"]
    method = build("fedseq", model, SMALL | {"start": "als"})
    shared = list(run(method, model, federation, rounds=7))[-1].state.shared
    assert torch.allclose(shared["start.item"], alone, atol=1e-5)
    alone = alone / alone.square().sum(1).mean().sqrt()
    noise = begun.shared["item"] / 2
    expected = 0.5 * alone / (alone.norm(dim=1, keepdim=True) + 0.05) + noise
    assert torch.allclose(shared["item"], expected, atol=1e-5)


def test_features_start_gives_their_main_directions():
    rng = np.random.default_rng(0)
    features = torch.from_numpy(rng.integers(0, 2, (ITEMS, 3)).astype(np.float32))
    method = build(
        "fedseq", factorization(ITEMS, k=4, spread=0.0), {"start": "features", "trail": False, "features": features}
    )
    item = method.init(factorization(ITEMS, k=4, spread=0.0).init(torch.Generator().manual_seed(0)))[0]["item"]
    centred = features - features.mean(0)
    expected = centred @ centred.T  # directions have signs, products of rows have none
    size = expected.diagonal().sqrt()
    expected = 0.25 * expected / torch.outer(size + 0.05, size + 0.05)
    assert torch.allclose(item @ item.T, expected, atol=1e-5) and (item[:, 3] == 0).all()
    federation = of_histories(histories(), ITEMS)
    first = next(run(method, factorization(ITEMS, k=4), federation, rounds=2, cohort=12))
    assert first.requested == 12 and first.state.shared["items"].sum() == 0  # nothing is counted


def test_features_are_needed_where_the_server_is():
    node = build("fedseq", factorization(ITEMS, k=4), {"start": "features", "trail": False, "feature_count": 3})
    with pytest.raises(SettingError, match="no genres and no years"):
        next(run(node, factorization(ITEMS, k=4), of_histories(histories(), ITEMS), rounds=2, cohort=12))


@pytest.mark.parametrize(("bits", "others"), [(32, ("vmap", "kernel")), (8, ("vmap",))])
def test_als_start_is_equal_in_all_backends(bits, others):
    chosen = {"start": "als", "trail": False, "cohort": 12, "bits": bits}
    loop, *ends = [train(chosen, rounds=9, backend=b)[2][-1].state.shared for b in ("loop", *others)]
    for other in ends:
        assert_close(loop, other)


@pytest.mark.parametrize(
    ("k", "chosen"),
    [
        (34, {"length": 40, "negatives": 100}), (32, {"length": 17, "negatives": 64, "trail": False, "layers": 3}),
        (6, {"heads": 3}), (18, {"heads": 1, "hidden_dropout": 0.0, "length": 16}),
    ],
)  # fmt: skip
def test_fast_path_is_the_sum_of_the_gradients_of_single_people(k, chosen):
    rng = np.random.default_rng(0)
    people = [rng.choice(150, size, replace=False).tolist() for size in (1, 2, 3, 16, 17, 18, 40, 41, 90)]
    method, _, done = train(chosen, history(*people), 150, k, rounds=2)
    draws, shared = torch.Generator().manual_seed(0), done[-1].state.shared
    shared = {n: v if n in FIXED else v + 0.1 * torch.randn(v.shape, generator=draws) for n, v in shared.items()}
    download = Download(shared, torch.tensor(7.0))
    uploads = [method.client(download, {}, one_person(items))[0] for items in people]
    federation = of_histories(history(*people), 150)
    everybody = np.arange(len(people))
    cohort = Cohort(everybody, federation.examples(everybody, 0, method.examples), done[-1].state.private)
    total, counted = method.fast.kernel(download, cohort)
    assert float(total.weight) == sum(float(upload.weight) for upload in uploads) and not counted["non-finite"]
    for name, slope in total.total.items():
        single = sum(upload.total[name] for upload in uploads)
        assert float(slope.abs().max()) > 0, name
        assert torch.allclose(slope, single, rtol=0, atol=1e-5 * float(single.abs().max())), name


def test_eigen_start_is_equal_in_all_backends_and_sends_no_pairs():
    chosen = {"start": "eigen", "trail": False, "cohort": 12}
    ends = [train(chosen, rounds=6, backend=backend)[2] for backend in ("loop", "vmap", "kernel")]
    for other in ends[1:]:
        assert_close(ends[0][-1].state.shared, other[-1].state.shared)
    table = 4 * ITEMS * (4 + 16)
    sent = [done.up_bytes // done.requested for done in ends[0]]
    assert sent[0] < 4 * ITEMS + 300 and all(table <= size < table + 300 for size in sent[1:4])
    assert [done.requested for done in ends[0]] == [PEOPLE] * 4 + [12, 12]


@pytest.mark.parametrize("start", ["random", "features"])
def test_a_private_run_without_counts_is_possible(start):
    chosen = {"start": start, "trail": "false", "participations": "2"}
    settings = Settings(method="fedseq", wire="clip=1,noise=0.5", cohort=100, set=chosen)
    facts = Facts("ranking", ITEMS, timed=True, people=1000, features=torch.ones(ITEMS, 2))
    assert plan(settings, facts).rounds == 20


def test_data_without_order_are_refused_with_advice():
    settings = Settings(method="fedseq", data="synthetic:30x20x300")
    task = make_task(settings, load("synthetic:30x20x300"))
    task.facts = replace(task.facts, timed=False)
    with pytest.raises(SettingError, match="fedals"):
        checked_plan(settings, task)


@pytest.mark.parametrize("network", ["attention", "gru"])
@pytest.mark.parametrize("backend", ["loop", "vmap", "kernel"])
def test_a_run_that_diverges_says_so(backend, network):
    chosen = {"network": network, "server": "adam-unbiased", "server_lr": 1e20, "max_norm": 0.0}
    with pytest.raises(DivergedError):
        train(chosen, rounds=12, backend=backend)


@pytest.mark.parametrize("name", ["bias", "block0.o", "norm.weight"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_losses_that_are_not_finite_are_not_in_the_sum_of_a_cohort(name, value):
    method, model, done = train({}, rounds=2)
    algorithm, shared = FedSeq(model, **SMALL), done[-1].state.shared
    changed = shared[name].clone()
    drawn = losses.shared_negatives(shared["items"], 20, int(shared["key"] * 2**24), 4).items
    changed[drawn[0] if name == "bias" else 0] = value
    download = Download(shared | {name: changed}, torch.tensor(4.0))
    federation, everybody = of_histories(histories(), ITEMS), np.arange(PEOPLE)
    cohort = Cohort(everybody, federation.examples(everybody, 0, method.examples), done[-1].state.private)
    total, counted = method.fast.kernel(download, cohort)
    sound = 0
    for person in everybody:
        context, _ = algorithm.context(download, one_person(histories().of(person).tolist()))
        sound += int(losses.sampled_softmax(algorithm.shape, download.params, context).isfinite())
    assert sound < PEOPLE and counted["non-finite"] >= PEOPLE - sound
    assert all(bool(v.isfinite().all()) for v in total.total.values())


def test_adam_with_a_schedule_equals_torch():
    """Against torch.optim.Adam with clipping, warm-up and cosine, over ten rounds."""
    generator = torch.Generator().manual_seed(0)
    value = torch.nn.Parameter(torch.zeros(5))
    adam = torch.optim.Adam([value], lr=0.1, betas=(0.9, 0.98), eps=1e-8)
    step = server_step("adam-unbiased", lr=0.1, tau=1e-8, warmup=3, final=0.1, max_norm=1.0, rounds=10)
    shared, memory = {"w": torch.zeros(5)}, {}
    for number in range(1, 11):
        gradient = torch.randn(5, generator=generator)
        done = (number - 3) / 7
        share = number / 3 if number <= 3 else 0.1 + 0.9 * (1 + math.cos(math.pi * done)) / 2
        adam.param_groups[0]["lr"] = 0.1 * share
        value.grad = gradient.clone()
        torch.nn.utils.clip_grad_norm_([value], 1.0)
        adam.step()
        shared, memory = step(shared, memory, Upload({"w": -4 * gradient}, torch.tensor(4.0)))
    assert torch.allclose(shared["w"], value.detach(), atol=1e-6)


def test_an_update_begins_the_schedule_again():
    settings = {"start": "random", "trail": False, "server": "adam-unbiased", "server_lr": 0.01, "tau": 1e-8}
    settings |= {"final_rate": 0.02, "learners": PEOPLE, "participations": 3}
    method, model, done = train(settings, rounds=3)
    old, federation = done[-1].state, of_histories(histories(), ITEMS)
    state = continue_from(old, ITEMS, ITEMS)(begin(method, model, federation))
    assert state.memory.keys() == {"begun"} and torch.equal(state.shared["item"], old.shared["item"])
    moved = next(run(method, model, federation, rounds=1, state=state, seed=1)).state.shared["item"]
    share = scheduled_rate(1, 0, 0.02, 3)  # the first step of Adam has the length of the rate
    assert float((moved - old.shared["item"]).abs().max()) == pytest.approx(0.01 * share, rel=1e-3)


def test_an_update_trains_for_a_third_of_the_participations():
    settings = Settings(method="fedseq", set={"participations": "12", "k": "4"})
    shorter = shortened(settings, plan(settings, RANKING).settings, 13, {})
    assert shorter.set["participations"] == "4" and plan(shorter, RANKING).rounds == 1 + 4
    chosen = shortened(settings, plan(settings, RANKING).settings, 13, {"rounds": 9})
    assert plan(chosen.model_copy(update={"rounds": 9}), RANKING).rounds == 9
    assert shortened(Settings(), plan(Settings(), RANKING).settings, 8, {}).rounds == 3


def test_the_schedule_ends_with_the_rounds_that_are_asked_for():
    """--rounds in place of participations: the last step has the lowest rate."""
    settings = {"start": "random", "trail": False, "server": "adam-unbiased", "server_lr": 0.01, "tau": 1e-8}
    model = factorization(ITEMS, k=4)
    method = with_server(FedSeq(model, start="random", trail=False, learners=PEOPLE).method(), "fedseq",
                         settings | {"final_rate": 0.0}, rounds=2)  # fmt: skip
    done = list(run(method, model, of_histories(histories(), ITEMS), rounds=2, seed=1))
    assert torch.equal(done[0].state.shared["item"], done[1].state.shared["item"])


def test_histories_without_a_second_item_are_refused():
    settings = Settings(method="fedseq", data="synthetic:30x20x300", new_people=0.0)
    data = load("synthetic:30x20x300")
    task = make_task(settings, data)
    task.train = history(*[[1]] * task.people)
    with pytest.raises(SettingError, match="two items"):
        prepare(settings, data, task=task)


def test_validations_add_a_search_whose_last_round_is_taken(tmp_path):
    chosen = {"k": "4", "length": "6", "negatives": "20", "participations": "3"}
    settings = Settings(method="fedseq", data="synthetic:30x20x300", validations=1, set=chosen)
    prepared = prepare(settings, load(settings.data))
    folder = RunFolder.create(tmp_path / "run", settings.model_dump(), prepared.data, "0", "run")
    training = Training(prepared, folder, Silent(), None)
    assert training.run().round == training.progress.best_round == prepared.plan.rounds == 4
    assert [bool(point["valid"]) for point in training.progress.curve] == [False, False, False, True]


def test_an_update_keeps_the_network_and_counts_again():
    method, _, done = train({}, rounds=3)
    state = done[-1].state
    counts = {
        "items": torch.ones(ITEMS),
        "pairs": torch.ones(ITEMS, ITEMS),
        "both": torch.ones(ITEMS * (ITEMS + 1) // 2),
    }
    shared, memory = method.server(state.shared, state.memory, Upload(counts, torch.ones(())))
    assert torch.equal(shared["item"], state.shared["item"]) and shared["items"].tolist() == [1.0] * ITEMS
    assert begin(method, factorization(ITEMS, k=4), of_histories(histories(), ITEMS)).shared.keys() == shared.keys()
    assert memory.keys() == {"begun"} and "optimizer.steps" in state.memory
