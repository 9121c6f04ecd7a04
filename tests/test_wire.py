"""The `--wire` option: parsing, stages on uploads, noise and its accounting, and private runs on the command line."""

from __future__ import annotations

import json
import math
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting import pld, rdp
from hypothesis import given
from hypothesis import strategies as st

from fedtaste.core import Download, Examples, StageContext, Upload
from fedtaste.engine.checkpoint import load_params, load_state, same_bytes, save_state
from fedtaste.engine.run import begin, run
from fedtaste.errors import SettingError
from fedtaste.experiment.folder import RunFolder
from fedtaste.experiment.progress import Progress
from fedtaste.federation import of_histories
from fedtaste.wire import stages
from fedtaste.wire.accounting import Epsilons, Mechanism, default_delta, epsilons, solve
from fedtaste.wire.messages import Ledger
from fedtaste.wire.parse import RANGES, assemble, parse, upload_of, uploads_of
from fedtaste.wire.rng import coins, derive, device_keys, fresh_key, seeded_key, stream, uniforms, words
from support.command import fedtaste
from support.states import assert_close, everything
from support.worlds import ITEMS, PEOPLE, histories, world

pytestmark = pytest.mark.usefixtures("here")

CONTEXT = StageContext(bytes(range(32)), 0, 10.0)
ITEM = torch.zeros(1, 1, dtype=torch.int64)


def world_on_wire(text, name, settings=None, task="ranking", **options):
    """(method with the stages of its wire, model, federation, stage)."""
    method, model, federation = world(name, settings or {}, task, **options)
    wire = assemble(parse(text), method, uploads_of(method, model, ITEM), everybody=PEOPLE)
    return wire.method, model, federation, wire.stage


def train(text, name, settings=None, *, rounds=3, task="ranking", **options):
    method, model, federation, stage = world_on_wire(text, name, settings, task)
    options = {"seed": 1} | options
    return list(run(method, model, federation, rounds=len(method.privacy.bounds) or rounds, wire=stage, **options))


# Parsing


@pytest.mark.parametrize(
    "text, says",
    [
        ("clip", "positive norm"),
        ("clip=0", "got clip=0"),
        ("clip=-1", "positive norm"),
        ("clip=nan", "positive norm"),
        ("clip=much", "got clip=much"),
        ("clip=1,clip=2", "more than once"),
        ("clp=1", 'Did you mean "clip"'),
        ("noise=0.8,clip=1.0", "out of order. Devices apply clip -> noise: --wire clip=1.0,noise=0.8."),
        ("secure,clip=1.0,noise=1", "--wire clip=1.0,noise=1,secure."),
        ("clip=1,quantise=8", "--wire quantise=8,clip=1."),
        ("quantise=1", "2 to 16 bits"),
        ("quantise=8.5", "2 to 16 bits"),
        ("sparsify=1.5", "between 0 and 1"),
        ("secure=2", "3 people or more"),
        ("secure=10.5", "3 people or more"),
        *((f"{name}={value}", f"got {name}={value}") for name in RANGES for value in ("abc", "nan", "inf", "-inf", "")),
        (",,,", "has a stage without a name"),
        ("clip=1,", "has a stage without a name"),
        (" ", "has a stage without a name"),
        ("clip=1,local=1,noise=1", "Keep one"),
        ("secure,median", "reads single uploads"),
        ("clip=1,noise=1,trim=0.1", "no epsilon would be true"),
        ("trim=0.6", "below one half"),
        ("median=3", "takes no value"),
        ("krum=0.1,median", "Keep one"),
    ],
)
def test_an_invalid_wire_is_refused_with_a_correction(text, says):
    with pytest.raises(SettingError) as error:
        parse(text)
    assert says in str(error.value)


@given(st.text(max_size=40))
def test_any_text_is_parsed_or_refused(text):
    try:
        assert isinstance(parse(text), tuple)
    except SettingError as error:
        assert len(str(error)) > 20


def test_spaces_in_a_wire_are_ignored():
    assert parse(" clip = 1.0 , noise=0.8,secure ") == (("clip", 1.0), ("noise", 0.8), ("secure", None))
    assert parse("") == ()


# Random streams


def test_keys_of_different_purposes_differ():
    key = fresh_key()
    keys = [
        derive(key, *purpose) for purpose in (("noise", 1), ("noise", 2), ("noise", "1"), ("coins", 1), ("n", "oise1"))
    ]
    assert len(set(keys)) == len(keys) and all(len(derived) == 32 for derived in keys)
    assert derive(key, "noise", 1) == keys[0] and fresh_key() != fresh_key() and seeded_key(1) != seeded_key(2)


def test_a_stream_is_chacha20():
    """RFC 8439, A.1, test vectors 1 and 3: key 0 or 1, nonce 0, block 0 (and 1)."""
    assert stream(bytes(32), 8).hex() == "76b8e0ada0f13d90"
    assert stream(bytes(31) + b"\x01", 72)[64:].hex() == "3aeb5224ecf84992"


def test_coins_and_device_keys_depend_on_the_person_and_not_on_the_cohort():
    key, people = fresh_key(), np.array([3, 900, 17])
    single = [coins(key, np.array([person]))[0] for person in people]
    assert coins(key, people).tolist() == single
    assert device_keys(key, people) == [device_keys(key, np.array([person]))[0] for person in people]
    many = coins(key, np.arange(20_000))
    assert many.min() >= 0 and many.max() < 1 and abs(many.mean() - 0.5) < 0.01
    assert abs(uniforms(key, 20_000).mean() - 0.5) < 0.01 and len(np.unique(words(key, 1000))) == 1000


# Clip and noise


@given(st.floats(0.01, 100), st.floats(0.1, 50), st.integers(0, 2**31))
def test_clipped_uploads_have_at_most_the_norm_of_the_clip_and_weight_one(limit, weight, seed):
    draw = torch.Generator().manual_seed(seed)
    total = {"item": torch.randn(7, 3, generator=draw), "bias": torch.randn((), generator=draw)}
    upload = Upload({n: weight * v for n, v in total.items()}, torch.tensor(weight))
    clipped = stages.clip(limit).client(upload, CONTEXT)
    norm = math.sqrt(sum(float((v.double() ** 2).sum()) for v in clipped.total.values()))
    before = math.sqrt(sum(float((v.double() ** 2).sum()) for v in total.values()))
    assert norm <= limit * (1 + 1e-5) and clipped.weight == 1
    assert norm == pytest.approx(min(limit, before), rel=1e-4)
    ratio = norm / before
    for name, value in total.items():
        assert torch.allclose(clipped.total[name], value * ratio, atol=1e-4 * before)


def test_clipped_uploads_omit_the_training_loss():
    method, model, _ = world("fedrap", {"lr": 0.1, "table_lr": 5.0, "passes": 2}, "ranking")
    up = Upload(upload_of(method, model, ITEM), torch.ones(()))
    clipped = stages.clip(1.0, method.privacy.curve_only).client(up, CONTEXT)
    assert "loss" in up.total and set(clipped.total) == {"item", "decay"}
    assert train("clip=1", "fedrap", {"lr": 0.1, "table_lr": 5.0, "passes": 2})[-1].loss is None


@pytest.mark.parametrize("name", ["popularity", "fedals", "fedrap"])
def test_a_clip_above_all_norms_changes_nothing(name):
    """The uploads of these methods have weight 1 without clipping."""
    method, model, federation = world(name, {}, "ranking")
    method = replace(method, privacy=replace(method.privacy, curve_only=()))
    open_wire = stages.clip(1e11)
    plain = list(run(method, model, federation, rounds=2, backend="vmap"))[-1]
    through = list(run(method, model, federation, rounds=2, backend="vmap", wire=open_wire))[-1]
    assert_close(everything(plain.state), everything(through.state), 1e-6)


def test_noise_on_the_sum_has_the_stated_deviation_and_the_expected_count():
    zeros = {"item": torch.zeros(300, 50, dtype=torch.int64), "one": torch.zeros((), dtype=torch.int64)}
    upload = Upload(zeros, torch.tensor(7.0))
    noisy = stages.noise(0.8, 2.5).server(upload, CONTEXT)
    assert float(noisy.total["item"].std()) == pytest.approx(2.0, rel=0.02) and noisy.weight == CONTEXT.people
    by_round = stages.noise(0.8, releases=((1.0, 0.25), (3.0, 0.75)))
    first, second = (by_round.server(upload, CONTEXT._replace(round=n)).total["item"] for n in (0, 1))
    assert float(first.std()) == pytest.approx(1.6, rel=0.02)
    assert float(second.std()) == pytest.approx(0.8 * 3 / math.sqrt(0.75), rel=0.02)


def test_rounds_and_runs_have_independent_noise():
    """Equal noise could be removed by subtracting one release from the other."""
    plain, noisy = train("clip=1", "fedmf", {"lr": 0.1}), train("clip=1,noise=1", "fedmf", {"lr": 0.1})
    secret, once, again, other = (
        train("clip=1,noise=1", "fedmf", {"lr": 0.1}, noise_seed=seed) for seed in (None, 1, 1, 2)
    )
    gaps = [(n.state.shared["item"] - p.state.shared["item"]) for n, p in zip(noisy, plain)]
    assert same_bytes(once[-1].state.shared, again[-1].state.shared)
    for rounds in (secret, other, noisy):
        assert not torch.allclose(once[0].state.shared["item"], rounds[0].state.shared["item"], atol=1e-3)
    assert not torch.allclose(secret[0].state.shared["item"], noisy[0].state.shared["item"], atol=1e-3)
    first, second = gaps[0].flatten(), (gaps[1] - gaps[0]).flatten()
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.3


def test_in_secure_sums_devices_add_the_noise_and_every_group_has_all_of_it():
    """Of 6 people in a group 4 must stay: each adds a quarter of the variance, so each of 4 groups has 1.5 times it."""
    for backend in ("loop", "vmap"):
        sums = [
            train("clip=1,noise=50,secure=6", "popularity", backend=backend, rounds=1, noise_seed=seed)[-1]
            for seed in range(8)
        ]
        noise = torch.cat([round_result.state.shared["count"] for round_result in sums])
        assert float(noise.std()) == pytest.approx(50 * math.sqrt(4 * 1.5), rel=0.13), backend


def test_a_secure_sum_contains_its_noise_before_it_is_opened():
    """The sum that the server opens in the loop backend has all of the noise, and the server adds none."""
    method, model, federation, stage = world_on_wire("clip=1,noise=50,secure=6", "popularity")
    sums = []
    observed = replace(stage, server=lambda upload, context: (sums.append(upload), stage.server(upload, context))[1])
    *_, last = run(method, model, federation, rounds=1, wire=observed, backend="loop", seed=1)
    step = 2.0 ** round(math.log2(float(last.state.shared["count"][0] / sums[0].total["count"][0])))
    assert float((sums[0].total["count"] * step).std()) > 60
    assert torch.equal((sums[0].total["count"] * step).float(), last.state.shared["count"]), "the server adds none"


METHOD_SETTINGS = {
    "fedmf": {"lr": 0.1},
    "fedrap": {"lr": 0.1, "table_lr": 5.0, "passes": 2},
    "fedrecon": {"lr": 0.1, "recon_lr": 0.1},
    "fedals": {},
    "popularity": {},
}


@pytest.mark.parametrize("text", ["clip=0.1,noise=1", "clip=0.1,secure=6"])
@pytest.mark.parametrize("name", METHOD_SETTINGS)
def test_loop_and_vmap_give_the_same_result_on_every_wire(name, text):
    settings = dict(METHOD_SETTINGS[name])
    loop, vmap = (train(text, name, settings, rounds=2, backend=b, noise_seed=3) for b in ("loop", "vmap"))
    assert_close(everything(loop[-1].state), everything(vmap[-1].state), 1e-4)
    assert loop[-1].up_bytes == vmap[-1].up_bytes and loop[-1].answered == vmap[-1].answered == PEOPLE


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_local_noise_adds_up_over_people(backend):
    """24 people add noise of deviation 50 each: the sum has 50 sqrt(24). vmap draws one sample with this variance."""
    sums = [train("clip=1,local=50", "popularity", backend=backend, rounds=1)[-1] for _ in range(12)]
    noise = torch.cat([round_result.state.shared["count"] for round_result in sums])
    assert float(noise.std()) == pytest.approx(50 * math.sqrt(PEOPLE), rel=0.13)
    assert sums[0].up_bytes == train("", "popularity", rounds=1)[-1].up_bytes, "32 bits a number, as without noise"


def test_quantise_gives_the_same_on_whole_tables_and_on_touched_rows():
    """Except that a last bit may change the direction of rounding: a difference of one step of one person."""
    loop, vmap = (train("quantise=4", "fedmf", {"lr": 0.1}, rounds=1, backend=b)[-1].state for b in ("loop", "vmap"))
    gap = (loop.shared["item"] - vmap.shared["item"]).abs()
    assert float((gap > 1e-6).float().mean()) < 0.02


@pytest.mark.parametrize("name", ["fedmf", "fedrap", "fedrecon", "popularity"])  # fedals amplifies small differences
def test_sparsify_gives_the_same_on_whole_tables_and_on_touched_rows(name):
    """Except for numbers of nearly the same size, of which either may be sent."""
    loop, vmap = (train("sparsify=0.1", name, METHOD_SETTINGS[name], rounds=1, backend=b)[-1] for b in ("loop", "vmap"))
    for leaf, value in everything(loop.state).items():
        gap = (value - everything(vmap.state)[leaf]).abs()
        assert float((gap > 1e-4).float().mean()) < 0.02, leaf
    assert loop.up_bytes == vmap.up_bytes


@pytest.mark.parametrize(
    "name", ["fedals", "fedtrail", "fedmf", "fedprox", "fedrep", "fedrecon", "ditto", "apfl", "lgmix", "fcf", "pfedrec"]
)
def test_every_kind_of_method_trains_on_a_private_wire(name):
    last = train("clip=0.5,noise=0.5,secure", name, backend="vmap")[-1]
    assert all(bool(torch.isfinite(v).all()) for v in last.state.shared.values()) and last.answered == PEOPLE


def test_rates_measured_by_fedclup_stay_valid_under_noise():
    """Its rate and `lam` come from sums that are positive without noise, and may be negative with noise."""
    method, model, federation = world("fedclup", {"passes": 3}, "labels")
    wire = assemble(parse("clip=1,noise=5"), method, [upload_of(method, model, torch.zeros(1, 1, 6))], everybody=PEOPLE)
    for seed in range(4):
        *_, last = run(method, model, federation, rounds=3, wire=wire.stage, noise_seed=seed)
        assert all(bool(torch.isfinite(v).all()) for v in last.state.shared.values())
        assert float(last.state.shared["lam"]) > 0


# Quantise and sparsify


@given(st.integers(2, 12), st.integers(0, 2**31))
def test_rounding_is_unbiased_and_moves_by_at_most_one_step(bits, seed):
    value = torch.randn(6, 5, generator=torch.Generator().manual_seed(seed))
    stage, step = stages.quantise(bits), float(value.abs().max()) / (2 ** (bits - 1) - 1)
    upload, uniform = Upload({"w": value}, torch.ones(())), torch.Generator().manual_seed(seed)
    rounded = torch.func.vmap(lambda draw: stage.client(upload, CONTEXT._replace(draws={"w": draw})).total["w"])
    draws = rounded(torch.rand(200, 30, dtype=torch.float64, generator=uniform))
    assert float((draws - value).abs().max()) <= step * (1 + 1e-4)
    assert float((draws.mean(0) - value).abs().max()) < 5 * step / 2 / math.sqrt(200)
    levels = draws / step
    assert torch.allclose(levels, levels.round(), atol=1e-3)


def test_zeros_are_quantised_to_zeros():
    up = Upload({"w": torch.zeros(4, 3), "x": torch.zeros(0, 3)[:0].reshape(0, 3).sum(1).sum()}, torch.ones(()))
    context = CONTEXT._replace(draws={"w": torch.rand(12), "x": torch.rand(1)})
    assert all(bool((v == 0).all()) for v in stages.quantise(8).client(up, context).total.values())


def test_a_quantised_message_is_a_quarter_and_a_sparse_one_a_tenth():
    texts = ("", "quantise=8", "quantise=16", "sparsify=0.1", "sparsify=0.5", "sparsify=0.5,quantise=8")
    texts = (*texts, "clip=1,secure", "secure")
    sizes = {text: train(text, "fedmf", {"lr": 0.1}, rounds=1)[0].up_bytes for text in texts}
    numbers = 4 * ITEMS * 5 * PEOPLE
    frame = sizes[""] - numbers  # names, shapes, weight, head
    assert sizes["quantise=8"] - frame < numbers / 4 + 150 * PEOPLE
    assert sizes["quantise=16"] > sizes["quantise=8"] + 0.9 * numbers / 4
    assert sizes["sparsify=0.1"] - frame < numbers * (0.1 + 1 / 32) + 150 * PEOPLE
    assert sizes["sparsify=0.5,quantise=8"] < sizes["sparsify=0.5"]
    assert sizes["secure"] > sizes["clip=1,secure"] > sizes[""]


def test_sparsify_sends_the_remainder_later():
    """Sum of sent uploads + unsent remainder = sum of dense uploads."""
    method, model, federation, _ = world_on_wire("sparsify=0.05", "fedmf", {"lr": 0.1})
    dense_method, _, _ = world("fedmf", {"lr": 0.1}, "ranking")
    state = begin(method, model, federation, 1)

    private = {n: v[0] for n, v in state.private.gather(np.array([3])).items()}
    sent_sum, dense_sum = torch.zeros(ITEMS, 5), torch.zeros(ITEMS, 5)
    for number in range(6):
        examples = Examples(*(x[0] for x in federation.examples(np.array([3]), number, method.examples).pad()))
        download = Download(state.shared, torch.tensor(float(number)))
        dense_sum += dense_method.client(download, {"user": private["user"]}, examples)[0].total["item"]
        upload, private = method.client(download, private, examples)
        assert int((upload.total["item"] != 0).sum()) <= math.ceil(0.05 * ITEMS * 5)
        sent_sum += upload.total["item"]
    assert torch.allclose(sent_sum + private["unsent.item"], dense_sum, atol=1e-5)
    assert float(private["unsent.item"].abs().max()) > 0


def test_the_unsent_remainder_survives_a_restart(tmp_path):
    method, model, federation, stage = world_on_wire("sparsify=0.05,quantise=8,clip=1,noise=0.1", "fedmf", {"lr": 0.1})
    options = {"wire": stage, "seed": 1, "noise_key": fresh_key()}
    uninterrupted = list(run(method, model, federation, rounds=4, **options))[-1].state
    half = list(run(method, model, federation, rounds=2, **options))[-1].state
    save_state(tmp_path / "state", half, {})
    loaded, _ = load_state(tmp_path / "state", begin(method, model, federation, 1))
    resumed = list(run(method, model, federation, rounds=4, state=loaded, **options))[-1].state
    assert same_bytes(everything(uninterrupted), everything(resumed))


def test_the_ledger_counts_bytes_of_packed_messages():
    up, plain, small = Upload({"w": torch.zeros(100, 10)}, torch.ones(())), Ledger(), Ledger()
    plain.sent_up(up, 1)
    small.sent_up(up, 1, stages.quantise(8).message_layout)
    assert plain.up_bytes - small.up_bytes > 2_800


def test_a_stage_that_would_do_nothing_is_refused():
    for name, says in (("local", "sends nothing"), ("centralised", "everybody's data")):
        method, model, _ = world(name, {}, "ranking")
        like = {} if method.pooled else upload_of(method, model, ITEM)
        with pytest.raises(SettingError, match=says):
            assemble(parse("clip=1"), method, [like], everybody=9)
    method, model, _ = world("fedveil", {}, "ranking")
    with pytest.raises(SettingError, match="bounds its own uploads"):
        assemble(parse("quantise=8"), method, [upload_of(method, model, ITEM)], everybody=9)


# The accountant


SETTINGS = [(1.1, 1.0, 5, 1e-5), (0.9, 0.2, 3, 1e-6), (4.0, 1.0, 1, 1e-3)]


@pytest.mark.parametrize("noise, rate, rounds, delta", SETTINGS)
def test_epsilon_equals_that_of_dp_accounting(noise, rate, rounds, delta):
    event = dp_accounting.GaussianDpEvent(noise)
    event = event if rate == 1 else dp_accounting.PoissonSampledDpEvent(rate, event)
    event = dp_accounting.SelfComposedDpEvent(event, rounds)
    expected = [type().compose(event).get_epsilon(delta) for type in (pld.PLDAccountant, rdp.RdpAccountant)]
    spent = epsilons(Mechanism(noise, rate), rounds, delta)
    assert spent.epsilon == pytest.approx(expected[0], rel=1e-9)
    assert spent.epsilon_rdp == pytest.approx(expected[1], rel=1e-9)
    assert spent.epsilon <= spent.epsilon_rdp


def test_releases_that_share_a_budget_have_the_epsilon_of_one_release():
    one_release = epsilons(Mechanism(2.0), 1, 1e-4).epsilon
    assert epsilons(Mechanism(2.0, 1.0, (0.2, 0.3, 0.5)), 3, 1e-4).epsilon == pytest.approx(one_release, rel=1e-3)
    assert epsilons(Mechanism(2.0, 1.0, (0.2, 0.3, 0.5)), 2, 1e-4).epsilon < one_release
    assert epsilons(Mechanism(2.0), 0, 1e-4) == Epsilons(0.0, 0.0)


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_solved_noise_spends_just_below_the_epsilon(rate):
    noise = solve(3.0, 1e-4, 4, rate, False)  # as test_noise_is_solved_for_epsilon_and_printed: solved once
    spent = epsilons(Mechanism(noise, rate), 4, 1e-4).epsilon
    assert 2.97 < spent <= 3.0
    if rate == 1:  # with sampling, the accountant takes seconds for every noise that it tries
        assert solve(1.0, 1e-4, 4, rate) > noise > solve(3.0, 1e-4, 2, rate)


def test_epsilon_of_local_noise_is_that_of_half_the_noise_without_sampling():
    """The uploads of two people differ by up to twice the clip, so local noise counts half. Sampling does not help."""
    local = Mechanism(3.0, 0.1, (), True)
    assert epsilons(local, 4, 1e-5) == epsilons(Mechanism(1.5), 4, 1e-5)
    assert solve(2.0, 1e-5, 4, 0.1, True) == pytest.approx(2 * solve(2.0, 1e-5, 4), rel=1e-2)


def test_the_default_delta_is_at_most_1e_6_and_falls_with_the_number_of_people():
    assert default_delta(943) == 1e-6 and default_delta(10**8) < 1e-8


def test_coins_sample_the_accounted_share_of_people():
    data = histories(people=400)
    federation = of_histories(data, ITEMS)
    sizes = [len(federation.cohort(n, size=0.2, coins=fresh_key())[0]) for n in range(50)]
    assert np.mean(sizes) == pytest.approx(80, abs=5) and np.std(sizes) == pytest.approx(8, abs=2.5)
    assert {len(federation.cohort(n, size=0.2)[0]) for n in range(5)} == {80}


# The command

QUICK = ("--data", "synthetic:40x30x400", "--set", "k=4", "--threads", "1", "--json")
PRIVATE = ("--method", "fedmf", "--rounds", "4", "--delta", "1e-4", *QUICK)


def test_a_result_contains_its_epsilon(here):
    result = fedtaste("run", *PRIVATE, "--wire", "clip=1,noise=2,secure", "--out", "run").json
    privacy = result["privacy"]
    expected = epsilons(Mechanism(2.0), 4, 1e-4)
    assert privacy["epsilon"] == expected.epsilon <= privacy["epsilon_rdp"] and privacy["delta"] == 1e-4
    assert result["notes"][0].startswith(f"Private: epsilon {privacy['epsilon']:.3g} with delta 0.0001")
    assert privacy["rounds"] == result["rounds"] == 4 and result["wire"] == "clip=1,noise=2,secure"
    checkpoint = load_params(here / "run/state.safetensors")[1]["progress"]["privacy"]
    assert checkpoint["epsilon"] == privacy["epsilon"] and checkpoint["rounds"] == 4
    assert "ε" in (here / "run/report.html").read_text()


def test_noise_is_solved_for_epsilon_and_printed():
    output = fedtaste("run", *PRIVATE, "--wire", "clip=1", "--epsilon", "3", "--cohort", "0.5")
    assert 2.9 < output.json["privacy"]["epsilon"] <= 3 and output.json["privacy"]["rate"] == 0.5
    assert "Noise" in output.err and "epsilon 3" in output.err


def test_noise_without_clipping_has_no_epsilon_and_a_reason():
    result = fedtaste("run", *PRIVATE[:4], *QUICK, "--wire", "noise=2").json
    assert result["privacy"]["epsilon"] is None and "no finite epsilon" in result["privacy"]["why"]
    assert any("No epsilon is printed" in note for note in result["notes"])


def interrupt(folder, monkeypatch, *args):
    """Run a command and interrupt it in its third round, as Ctrl-C would."""
    from fedtaste.experiment.progress_bars import Bars

    rounds = []

    def stop(self, number, metrics):
        rounds.append(number)
        if len(rounds) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Bars, "round", stop)
    assert fedtaste(*args).code == 2
    monkeypatch.undo()
    monkeypatch.chdir(folder)


def test_a_resumed_run_has_the_same_epsilon_and_bytes(here, monkeypatch):
    args = ("run", *PRIVATE, "--wire", "clip=1,noise=2", "--noise-seed", "3", "--out")
    uninterrupted = fedtaste(*args, "whole").json
    interrupt(here, monkeypatch, *args, "half")
    resumed = fedtaste("resume", "half", "--json").json
    assert resumed["privacy"] == uninterrupted["privacy"]
    for name in ("model.safetensors", "final.safetensors"):
        assert (here / "half" / name).read_bytes() == (here / "whole" / name).read_bytes()


def test_secure_sums_without_noise_report_their_leak_or_are_refused():
    base = ("run", "--data", "synthetic:60x120x1200", "--method", "fedals", "--set", "k=12", "--threads", "1", "--json")
    result = fedtaste(*base, "--wire", "secure=10").json
    assert result["secure"]["f1"] > 2 * result["secure"]["popularity_f1"] and result["secure"]["rounds"] == 6
    assert f"F1 {result['secure']['f1']:.3f}" in result["notes"][0]
    for args in (("--cohort", "0.5"), ("--dropout", "0.1")):
        fedtaste(*base, "--wire", "secure", *args).refused("one person's list")
    assert "secure" not in fedtaste(*base, "--wire", "clip=1,noise=1,secure=10").json
    assert fedtaste(*base, "--wire", "clip=1,noise=1,secure", "--cohort", "0.5").code == 0


def test_two_private_runs_differ_and_resumed_copies_are_byte_equal(here, monkeypatch):
    """An interrupted run is copied with its key. Both copies end with the same bytes, and another run does not."""
    args = ("run", *PRIVATE, "--wire", "clip=1,noise=2,secure", "--cohort", "0.5", "--out")
    interrupt(here, monkeypatch, *args, "half")
    shutil.copytree(here / "half", here / "copy")
    resumed = [fedtaste("resume", name, "--json").json for name in ("half", "copy")]
    other = fedtaste(*args, "other").json
    assert resumed[0]["privacy"] == resumed[1]["privacy"]
    assert resumed[0]["privacy"]["epsilon"] == other["privacy"]["epsilon"]
    contents = [(here / name / "model.safetensors").read_bytes() for name in ("half", "copy", "other")]
    assert contents[0] == contents[1] != contents[2]


@pytest.mark.parametrize(
    "args, says",
    [
        (("--wire", "noise=1,clip=1"), "clip -> noise"),
        (("--wire", "clip=1", "--epsilon", "0"), "--epsilon"),
        (("--wire", "clip=1", "--epsilon", "-2"), "--epsilon"),
        (("--wire", "clip=1", "--epsilon", "nan"), "--epsilon"),
        (("--epsilon", "3"), "--wire clip=1.0"),
        (("--wire", "clip=1,noise=1", "--epsilon", "3"), "Give one"),
        (("--wire", "clip=1,noise"), "--epsilon 3"),
        (("--wire", "clip=1", "--epsilon", "3", "--delta", "1"), "--delta"),
        (("--delta", "1e-5"), "there is no noise"),
        (("--wire", "clip=1,noise=1", "--backend", "kernel", "--method", "fedals"), "--backend vmap"),
        (("--wire", "clip=1,noise=1", "--noise-seed", "dice"), "whole number"),
        (("--method", "fedveil", "--epsilon", "1", "--cohort", "0.5"), "everybody takes part"),
        (("--method", "fedveil", "--epsilon", "1", "--rounds", "9"), "Leave --rounds out"),
        (("--method", "fedveil", "--set", "noise=1"), "noise"),
    ],
)
def test_settings_without_a_valid_epsilon_are_refused(args, says):
    base = ("--method", "fedmf") if "--method" not in args else ()
    fedtaste("run", "--data", "synthetic:40x30x400", *base, *args, "--json").refused(says)


def test_an_early_stop_does_not_lower_epsilon():
    """`--tolerance 1` stops after the first round; the printed epsilon is that of all planned rounds."""
    long, short = (
        fedtaste("run", *PRIVATE, "--wire", "clip=1,noise=2", *args).json for args in ((), ("--tolerance", "1"))
    )
    assert short["rounds"] < long["rounds"] and "tolerance" in short["stopped"]["reason"]
    assert short["privacy"]["epsilon"] == long["privacy"]["epsilon"] and short["privacy"]["rounds"] == 4


def test_a_private_run_publishes_no_exact_counts(here):
    result = fedtaste("run", *PRIVATE, "--wire", "clip=1,noise=2", "--cohort", "0.5", "--out", "run").json
    assert result["interactions"] is None and all(point["answered"] is None for point in result["curve"])
    assert len({point["up_bytes"] - before for point, before in zip(
        result["curve"], [0, *(point["up_bytes"] for point in result["curve"])]
    )}) == 1, "traffic is that of the expected people"  # fmt: skip
    assert "counts" not in json.loads((here / "run/items.json").read_text())
    page = (here / "run/report.html").read_text()
    assert "Activity" not in page and "Popularity" not in page and "not covered" in page
    card = fedtaste("export", "run", "site", "--json")
    assert card.code == 0
    text = (here / "site/MODEL_CARD.md").read_text()
    assert "in the first ten for" not in text and "not covered" in text and "planned rounds: 4" in text
    manifest = (here / "site/manifest.json").read_text()
    assert "in the first ten for" not in manifest


def test_a_cohort_that_may_be_empty_is_refused():
    """A round without clients releases nothing, which would reveal something about the coins."""
    for wire in ("clip=1,noise=1", "clip=1,noise=1,secure"):
        fedtaste("run", *PRIVATE, "--wire", wire, "--cohort", "3").refused("Ask more people")


def test_an_epsilon_too_large_to_protect_is_noted():
    weak = ("--wire", "clip=1,noise=0.011")
    assert any("promises nothing" in note for note in fedtaste("run", *PRIVATE, *weak).json["notes"])
    assert "promises nothing" in fedtaste("run", *PRIVATE, *weak, "--promise").err


def test_other_settings_draw_other_noise_from_the_same_key(here):
    from fedtaste.experiment.privacy import phase_key

    fedtaste("run", *PRIVATE, "--wire", "clip=1,noise=2", "--out", "run")
    folder = RunFolder(here / "run")
    first = phase_key(folder.settings(), folder, "final")
    settings_file = folder.read("settings.json")
    folder.write("settings.json", settings_file | {"settings": settings_file["settings"] | {"wire": "clip=1,noise=5"}})
    assert phase_key(folder.settings(), folder, "final") != first != phase_key(folder.settings(), folder, "search")


def test_a_private_run_without_answers_is_noted_or_refused():
    result = fedtaste("run", *PRIVATE, "--wire", "clip=1,noise=2", "--dropout", "0.99999").json
    assert any("Nobody answered" in note for note in result["notes"])
    fedtaste("run", *PRIVATE, "--wire", "clip=1,noise=2,secure", "--dropout", "0.9").refused(
        "No secure sum could be opened"
    )


def test_a_weak_delta_is_noted():
    result = fedtaste("run", *PRIVATE[:4], "--delta", "0.1", *QUICK, "--wire", "clip=1", "--epsilon", "3").json
    assert any("not below 1 in" in note for note in result["notes"])


def test_the_secret_key_is_in_one_file_and_only_the_owner_can_read_the_folder(here):
    output = fedtaste("run", *PRIVATE, "--wire", "clip=1,noise=2", "--out", "run")
    secret = (here / "run/noise.key").read_bytes()
    assert len(secret) == 32 and secret.hex() not in output.out + output.err
    assert (here / "run").stat().st_mode & 0o077 == 0
    for path in (here / "run").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
        assert path.name == "noise.key" or path.is_dir() or secret not in path.read_bytes()


def test_too_many_dropouts_abandon_a_secure_sum():
    result = fedtaste("run", *PRIVATE[:4], *QUICK, "--wire", "secure=5", "--dropout", "0.4").json
    assert result["rejected_updates"]["abandoned"] > 0


def test_a_killed_and_resumed_run_has_the_same_epsilon_and_bytes(here):
    """After kill -9 in the middle of a private run, nothing is spent twice."""
    args = [
        "run", "--data", "synthetic:200x150x3000", "--method", "fedmf", "--rounds", "30", "--set", "k=4", "--threads",
        "1", "--wire", "clip=1,noise=3,secure", "--delta", "1e-4", "--json", "--noise-seed", "5", "--out",
    ]  # fmt: skip
    uninterrupted = fedtaste(*args, "whole").json
    command = [sys.executable, "-m", "fedtaste", *args, "half"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not (here / "half/state.safetensors").exists():
            time.sleep(0.01)
        process.kill()
    assert process.returncode == -signal.SIGKILL, "it was over before it could be killed"
    checkpoint = load_params(here / "half/state.safetensors")[1]["progress"]["privacy"]
    assert checkpoint["rounds"] == 30
    assert checkpoint["repeatable_epsilon"] == uninterrupted["privacy"]["repeatable_epsilon"]
    resumed = fedtaste("resume", "half", "--json").json
    assert resumed["privacy"] == uninterrupted["privacy"] and resumed["privacy"]["rounds"] == 30
    assert (here / "half/final.safetensors").read_bytes() == (here / "whole/final.safetensors").read_bytes()


@pytest.mark.parametrize("name, value", [("wire", "clip=1,noise=20"), ("noise_seed", 5), ("delta", 0.5)])
def test_a_checkpoint_with_changed_privacy_settings_is_refused(here, monkeypatch, name, value):
    """The rounds of a checkpoint were computed with its noise: with other settings its epsilon would be false."""
    from fedtaste.experiment.progress_bars import Bars

    monkeypatch.setattr(Bars, "round", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    fedtaste("run", *PRIVATE, "--wire", "clip=1,noise=2", "--out", "run")
    monkeypatch.undo()
    monkeypatch.chdir(here)
    folder = RunFolder(here / "run")
    folder.save(None, Progress(phase="final"))
    settings_file = folder.read("settings.json")
    folder.write("settings.json", settings_file | {"settings": settings_file["settings"] | {name: value}})
    fedtaste("resume", "run", "--json").refused("was not written with the settings")
    folder.write("settings.json", settings_file | {"settings": settings_file["settings"] | {"backend": "loop"}})
    assert folder.restore(lambda: None)[1] is not None, "how it is computed may change"


def test_the_backend_does_not_change_the_noise(here):
    results = [
        fedtaste(
            "run", *PRIVATE, "--wire", "clip=1,noise=2", "--backend", backend, "--out", backend, "--noise-seed", "1"
        ).json
        for backend in ("loop", "vmap")
    ]
    assert results[0]["seen"] == results[1]["seen"] and results[0]["privacy"] == results[1]["privacy"]


@pytest.mark.parametrize(
    "args, says",
    [
        (("--wire", "clip=1,noise=1e-9"), "from 0.01"),
        (("--wire", "clip=1", "--epsilon", "1e9"), "promises nothing"),
        (("--wire", "clip=1", "--epsilon", "1e-9"), "cannot be reached"),
        (("--wire", "clip=1", "--epsilon", "3", "--delta", "1e-300"), "1e-15"),
        (("--wire", "secure=1000"), "a group of at most"),
        (("--wire", "secure", "--cohort", "1"), "No secure sum could be opened"),
    ],
)
def test_meaningless_privacy_numbers_are_refused(args, says):
    fedtaste("run", *PRIVATE[:4], "--data", "synthetic:40x30x400", *args, "--json").refused(says)


def test_repeatable_noise_has_no_epsilon_and_a_reason(here):
    known = fedtaste("run", *PRIVATE, "--wire", "clip=1,noise=2", "--noise-seed", "7", "--out", "known").json
    secret = fedtaste("run", *PRIVATE, "--wire", "clip=1,noise=2", "--out", "secret").json
    assert known["privacy"]["epsilon"] is None and "repeatable" in known["privacy"]["why"]
    assert known["privacy"]["repeatable_epsilon"] == secret["privacy"]["epsilon"] > 0
    assert any("No epsilon is promised" in note for note in known["notes"])
    assert not any("repeatable" in note for note in secret["notes"])
    assert "repeatable" in (here / "known/report.html").read_text()


def test_option_promise_refuses_runs_without_an_epsilon():
    wire = ("--wire", "clip=1,noise=2")
    assert fedtaste("run", *PRIVATE, *wire, "--promise").json["privacy"]["epsilon"] > 0
    for args in (
        (*PRIVATE, *wire, "--noise-seed", "7"),
        (*PRIVATE[:4], *QUICK),
        (*PRIVATE[:4], *QUICK, "--wire", "noise=2"),
    ):
        fedtaste("run", *args, "--promise").refused("no epsilon can be promised")


def test_a_huge_epsilon_is_computed_quickly():
    bounds = epsilons(Mechanism(0.01), 1000, 1e-6)
    assert bounds.epsilon == bounds.epsilon_rdp > 1000


@pytest.mark.parametrize("name", ["fedavg", "fedals"])
@pytest.mark.parametrize("group", ["secure", "secure=6"])
def test_quantised_secure_sums_are_the_same_by_the_protocol_and_by_adding(name, group):
    text = f"quantise=6,clip=2,{group}"
    loop, vmap = (train(text, name, rounds=2, backend=backend)[-1] for backend in ("loop", "vmap"))
    assert_close(everything(vmap.state), everything(loop.state), 1e-6)
    assert vmap.up_bytes == loop.up_bytes


def test_quantised_secure_sums_carry_the_bits_of_a_number_and_of_the_count_of_people():
    """8 bits and log2(24) rounded up, 13, in place of 32, packed."""
    few, many = (train(f"{text}clip=1,secure", "fedavg", rounds=1)[-1] for text in ("quantise=8,", ""))
    numbers = few.state.shared["item"].numel()
    saved = (many.up_bytes - few.up_bytes) / PEOPLE
    assert saved == pytest.approx(numbers * 4 - math.ceil(numbers * 13 / 8), abs=60)  # shapes in a header differ


def test_quantised_clipped_numbers_are_right_on_average_and_within_one_step():
    stage, value = stages.quantise_clipped(4, 2.0), torch.full((2000,), 0.3)
    draws = torch.from_numpy(uniforms(bytes(32), 2000))
    sent = stage.client(Upload({"w": value}, torch.ones(())), CONTEXT._replace(draws={"w": draws}))
    assert sent.total["w"].dtype == torch.int32 and set(sent.total["w"].tolist()) == {1, 2}  # 0.3 / (2 / 7) = 1.05
    assert float(stage.server(sent, CONTEXT).total["w"].mean()) == pytest.approx(0.3, abs=4 * 2 / 7 * 0.22 / 2000**0.5)


def test_quantise_with_secure_needs_a_clip():
    with pytest.raises(SettingError, match="needs clip"):
        world_on_wire("quantise=8,secure", "fedavg")


@pytest.mark.parametrize("bits, length", [(2, 10), (4, 20), (7, 35), (8, 40), (12, 60), (16, 80)])
def test_quantised_numbers_are_packed_into_their_bits(bits, length):
    message = stages.quantise(bits).message_layout({"item": torch.ones(20, 2)})
    assert message["item"].numel() * message["item"].element_size() == length
