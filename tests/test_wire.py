"""What crosses the wire: stages, their order, and what they promise."""

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
from fedtaste.wire.parse import assemble, parse, upload_of, uploads_of
from fedtaste.wire.rng import coins, derive, device_keys, fresh_key, seeded_key, stream, uniforms, words
from support.command import fedtaste
from support.states import assert_close, everything
from support.worlds import ITEMS, PEOPLE, histories, world

pytestmark = pytest.mark.usefixtures("here")

SEAT = StageContext(bytes(range(32)), 0, 10.0)
ITEM = torch.zeros(1, 1, dtype=torch.int64)


def wired(text, name, settings=None, task="ranking", **options):
    """(method on its wire, model, federation, stage)."""
    method, model, federation = world(name, settings or {}, task, **options)
    wire = assemble(parse(text), method, uploads_of(method, model, ITEM), everybody=PEOPLE)
    return wire.method, model, federation, wire.stage


def trained(text, name, settings=None, *, rounds=3, task="ranking", **options):
    method, model, federation, stage = wired(text, name, settings, task)
    options = {"seed": 1} | options
    return list(run(method, model, federation, rounds=len(method.privacy.bounds) or rounds, wire=stage, **options))


# The string


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
        ("clip=1,local=1,noise=1", "Keep one"),
        ("secure,median", "reads single uploads"),
        ("clip=1,noise=1,trim=0.1", "no epsilon would be true"),
        ("trim=0.6", "below one half"),
        ("median=3", "takes no value"),
        ("krum=0.1,median", "Keep one"),
    ],
)
def test_a_wire_that_makes_no_sense_is_refused_with_the_right_one_shown(text, says):
    with pytest.raises(SettingError) as error:
        parse(text)
    assert says in str(error.value)


@given(st.text(max_size=40))
def test_any_text_is_a_wire_or_a_clear_refusal(text):
    try:
        assert isinstance(parse(text), tuple)
    except SettingError as error:
        assert len(str(error)) > 20


def test_spaces_do_no_harm():
    assert parse(" clip = 1.0 , noise=0.8,secure ") == (("clip", 1.0), ("noise", 0.8), ("secure", None))
    assert parse("") == ()


# Random streams


def test_streams_of_two_parties_or_purposes_have_nothing_in_common():
    key = fresh_key()
    keys = [
        derive(key, *purpose) for purpose in (("noise", 1), ("noise", 2), ("noise", "1"), ("coins", 1), ("n", "oise1"))
    ]
    assert len(set(keys)) == len(keys) and all(len(found) == 32 for found in keys)
    assert derive(key, "noise", 1) == keys[0] and fresh_key() != fresh_key() and seeded_key(1) != seeded_key(2)


def test_a_stream_is_chacha20():
    """RFC 8439, A.1, test vectors 1 and 3: key 0 or 1, nonce 0, block 0 (and 1)."""
    assert stream(bytes(32), 8).hex() == "76b8e0ada0f13d90"
    assert stream(bytes(31) + b"\x01", 72)[64:].hex() == "3aeb5224ecf84992"


def test_coins_and_device_keys_are_of_the_person_and_not_of_the_cohort():
    key, people = fresh_key(), np.array([3, 900, 17])
    alone = [coins(key, np.array([who]))[0] for who in people]
    assert coins(key, people).tolist() == alone
    assert device_keys(key, people) == [device_keys(key, np.array([who]))[0] for who in people]
    many = coins(key, np.arange(20_000))
    assert many.min() >= 0 and many.max() < 1 and abs(many.mean() - 0.5) < 0.01
    assert abs(uniforms(key, 20_000).mean() - 0.5) < 0.01 and len(np.unique(words(key, 1000))) == 1000


# Clip and noise


@given(st.floats(0.01, 100), st.floats(0.1, 50), st.integers(0, 2**31))
def test_nobody_is_longer_than_the_clip_and_everybody_weighs_one(limit, weight, seed):
    draw = torch.Generator().manual_seed(seed)
    total = {"item": torch.randn(7, 3, generator=draw), "bias": torch.randn((), generator=draw)}
    up = Upload({n: weight * v for n, v in total.items()}, torch.tensor(weight))
    got = stages.clip(limit).client(up, SEAT)
    norm = math.sqrt(sum(float((v.double() ** 2).sum()) for v in got.total.values()))
    before = math.sqrt(sum(float((v.double() ** 2).sum()) for v in total.values()))
    assert norm <= limit * (1 + 1e-5) and got.weight == 1
    assert norm == pytest.approx(min(limit, before), rel=1e-4)
    ratio = norm / before
    for name, value in total.items():
        assert torch.allclose(got.total[name], value * ratio, atol=1e-4 * before)


def test_what_is_told_for_the_curve_is_not_sent_where_uploads_are_clipped():
    method, model, _ = world("fedrap", {"lr": 0.1, "table_lr": 5.0, "passes": 2}, "ranking")
    up = Upload(upload_of(method, model, ITEM), torch.ones(()))
    assert "loss" in up.total and set(stages.clip(1.0, method.privacy.curve_only).client(up, SEAT).total) == {
        "item",
        "decay",
    }
    assert trained("clip=1", "fedrap", {"lr": 0.1, "table_lr": 5.0, "passes": 2})[-1].loss is None


@pytest.mark.parametrize("name", ["popularity", "fedals", "fedrap"])
def test_a_clip_that_nobody_reaches_changes_nothing(name):
    """Methods whose uploads weigh 1 already."""
    method, model, federation = world(name, {}, "ranking")
    method = replace(method, privacy=replace(method.privacy, curve_only=()))
    open_wire = stages.clip(1e11)
    plain = list(run(method, model, federation, rounds=2, backend="vmap"))[-1]
    through = list(run(method, model, federation, rounds=2, backend="vmap", wire=open_wire))[-1]
    assert_close(everything(plain.state), everything(through.state), 1e-6)


def test_noise_on_the_sum_is_as_large_as_told_and_the_count_is_public():
    zeros = {"item": torch.zeros(300, 50, dtype=torch.int64), "one": torch.zeros((), dtype=torch.int64)}
    up = Upload(zeros, torch.tensor(7.0))
    got = stages.noise(0.8, 2.5).server(up, SEAT)
    assert float(got.total["item"].std()) == pytest.approx(2.0, rel=0.02) and got.weight == SEAT.people
    by_round = stages.noise(0.8, releases=((1.0, 0.25), (3.0, 0.75)))
    first, second = (by_round.server(up, SEAT._replace(round=n)).total["item"] for n in (0, 1))
    assert float(first.std()) == pytest.approx(1.6, rel=0.02)
    assert float(second.std()) == pytest.approx(0.8 * 3 / math.sqrt(0.75), rel=0.02)


def test_noise_of_two_rounds_or_two_runs_is_not_the_same():
    """What is the same could be taken off by subtracting one from the other."""
    plain, noisy = trained("clip=1", "fedmf", {"lr": 0.1}), trained("clip=1,noise=1", "fedmf", {"lr": 0.1})
    secret, once, again, other = (
        trained("clip=1,noise=1", "fedmf", {"lr": 0.1}, noise_seed=seed) for seed in (None, 1, 1, 2)
    )
    gaps = [(n.state.shared["item"] - p.state.shared["item"]) for n, p in zip(noisy, plain)]
    assert same_bytes(once[-1].state.shared, again[-1].state.shared)
    for one in (secret, other, noisy):
        assert not torch.allclose(once[0].state.shared["item"], one[0].state.shared["item"], atol=1e-3)
    assert not torch.allclose(secret[0].state.shared["item"], noisy[0].state.shared["item"], atol=1e-3)
    first, second = gaps[0].flatten(), (gaps[1] - gaps[0]).flatten()
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.3


def test_in_a_sealed_sum_devices_add_the_noise_and_every_group_has_all_of_it():
    """24 people in groups of 6, of whom 4 must be left: everybody adds a quarter, so 4 groups have 1.5 each."""
    for backend in ("loop", "vmap"):
        sums = [
            trained("clip=1,noise=50,secure=6", "popularity", backend=backend, rounds=1, noise_seed=seed)[-1]
            for seed in range(8)
        ]
        drawn = torch.cat([done.state.shared["count"] for done in sums])
        assert float(drawn.std()) == pytest.approx(50 * math.sqrt(4 * 1.5), rel=0.13), backend


def test_the_noise_of_a_sealed_sum_is_there_before_anybody_opens_it():
    """What the protocol's server opens in the loop has the noise on it: without the server's part it is no less."""
    method, model, federation, stage = wired("clip=1,noise=50,secure=6", "popularity")
    seen = []
    bare = replace(stage, server=lambda upload, context: (seen.append(upload), stage.server(upload, context))[1])
    *_, done = run(method, model, federation, rounds=1, wire=bare, backend="loop", seed=1)
    step = 2.0 ** round(math.log2(float(done.state.shared["count"][0] / seen[0].total["count"][0])))
    assert float((seen[0].total["count"] * step).std()) > 60
    assert torch.equal((seen[0].total["count"] * step).float(), done.state.shared["count"]), "the server adds none"


LIVELY = {
    "fedmf": {"lr": 0.1},
    "fedrap": {"lr": 0.1, "table_lr": 5.0, "passes": 2},
    "fedrecon": {"lr": 0.1, "recon_lr": 0.1},
    "fedals": {},
    "popularity": {},
}


@pytest.mark.parametrize("text", ["clip=0.1", "clip=0.1,noise=1", "clip=0.1,secure=6"])
@pytest.mark.parametrize("name", LIVELY)
def test_loop_and_vmap_mean_the_same_on_every_wire(name, text):
    settings = dict(LIVELY[name])
    loop, vmap = (trained(text, name, settings, rounds=2, backend=b, noise_seed=3) for b in ("loop", "vmap"))
    assert_close(everything(loop[-1].state), everything(vmap[-1].state), 1e-4)
    assert loop[-1].up_bytes == vmap[-1].up_bytes and loop[-1].answered == vmap[-1].answered == PEOPLE


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_local_noise_is_every_person_s_own(backend):
    """24 people, each with noise of 50: the sum has 50 sqrt(24). vmap draws one sample with the summed variance."""
    sums = [trained("clip=1,local=50", "popularity", backend=backend, rounds=1)[-1] for _ in range(12)]
    drawn = torch.cat([done.state.shared["count"] for done in sums])
    assert float(drawn.std()) == pytest.approx(50 * math.sqrt(PEOPLE), rel=0.13)
    assert sums[0].up_bytes == trained("", "popularity", rounds=1)[-1].up_bytes, "32 bits a number, as without noise"


def test_what_quantise_rounds_is_the_same_on_whole_tables_and_on_touched_rows():
    """Up to a last bit of what is rounded, which may fall on the other side: one step of one person."""
    loop, vmap = (trained("quantise=4", "fedmf", {"lr": 0.1}, rounds=1, backend=b)[-1].state for b in ("loop", "vmap"))
    gap = (loop.shared["item"] - vmap.shared["item"]).abs()
    assert float((gap > 1e-6).float().mean()) < 0.02


@pytest.mark.parametrize("name", ["fedmf", "fedrap", "fedrecon", "popularity"])  # fedals solves what is left: it jumps
def test_what_is_sparse_is_the_same_on_whole_tables_and_on_touched_rows(name):
    """Up to numbers of nearly one size, of which either may be sent."""
    loop, vmap = (trained("sparsify=0.1", name, LIVELY[name], rounds=1, backend=b)[-1] for b in ("loop", "vmap"))
    for leaf, value in everything(loop.state).items():
        gap = (value - everything(vmap.state)[leaf]).abs()
        assert float((gap > 1e-4).float().mean()) < 0.02, leaf
    assert loop.up_bytes == vmap.up_bytes


@pytest.mark.parametrize(
    "name", ["fedals", "fedtrail", "fedmf", "fedprox", "fedrep", "fedrecon", "ditto", "apfl", "lgmix", "fcf", "pfedrec"]
)
def test_every_kind_of_method_takes_a_private_wire(name):
    done = trained("clip=0.5,noise=0.5,secure", name, backend="vmap")[-1]
    assert all(bool(torch.isfinite(v).all()) for v in done.state.shared.values()) and done.answered == PEOPLE


def test_what_fedclup_measures_survives_noise():
    """Its step and its spring are made of sums that are positive by nature, and are not after noise."""
    method, model, federation = world("fedclup", {"passes": 3}, "labels")
    wire = assemble(parse("clip=1,noise=5"), method, [upload_of(method, model, torch.zeros(1, 1, 6))], everybody=PEOPLE)
    for seed in range(4):
        *_, done = run(method, model, federation, rounds=3, wire=wire.stage, noise_seed=seed)
        assert all(bool(torch.isfinite(v).all()) for v in done.state.shared.values())
        assert float(done.state.shared["lam"]) > 0


# Quantise and sparsify


@given(st.integers(2, 12), st.integers(0, 2**31))
def test_rounding_is_right_in_the_mean_and_at_most_a_step_away(bits, seed):
    value = torch.randn(6, 5, generator=torch.Generator().manual_seed(seed))
    stage, step = stages.quantise(bits), float(value.abs().max()) / (2 ** (bits - 1) - 1)
    draws = torch.stack([
        stage.client(Upload({"w": value}, torch.ones(())), SEAT._replace(draws={"w": draw})).total["w"]
        for draw in torch.rand(200, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    ])  # fmt: skip
    assert float((draws - value).abs().max()) <= step * (1 + 1e-4)
    assert float((draws.mean(0) - value).abs().max()) < 5 * step / 2 / math.sqrt(200)
    levels = draws / step
    assert torch.allclose(levels, levels.round(), atol=1e-3)


def test_a_zero_stays_zero_and_an_empty_upload_is_one():
    up = Upload({"w": torch.zeros(4, 3), "x": torch.zeros(0, 3)[:0].reshape(0, 3).sum(1).sum()}, torch.ones(()))
    context = SEAT._replace(draws={"w": torch.rand(12), "x": torch.rand(1)})
    assert all(bool((v == 0).all()) for v in stages.quantise(8).client(up, context).total.values())


def test_a_quantised_message_is_a_quarter_and_a_sparse_one_a_tenth():
    texts = ("", "quantise=8", "quantise=16", "sparsify=0.1", "sparsify=0.5", "sparsify=0.5,quantise=8")
    texts = (*texts, "clip=1,secure", "secure")
    sizes = {text: trained(text, "fedmf", {"lr": 0.1}, rounds=1)[0].up_bytes for text in texts}
    numbers = 4 * ITEMS * 5 * PEOPLE
    frame = sizes[""] - numbers  # names, shapes, weight, head
    assert sizes["quantise=8"] - frame < numbers / 4 + 150 * PEOPLE
    assert sizes["quantise=16"] > sizes["quantise=8"] + 0.9 * numbers / 4
    assert sizes["sparsify=0.1"] - frame < numbers * (0.1 + 1 / 32) + 150 * PEOPLE
    assert sizes["sparsify=0.5,quantise=8"] < sizes["sparsify=0.5"]
    assert sizes["secure"] > sizes["clip=1,secure"] > sizes[""]


def test_what_was_not_sent_is_sent_later():
    """Sum of what was sent + what is left = sum of what there was to send, for every person."""
    method, model, federation, _ = wired("sparsify=0.05", "fedmf", {"lr": 0.1})
    plain, _, _ = world("fedmf", {"lr": 0.1}, "ranking")
    state = begin(method, model, federation, 1)

    own = {n: v[0] for n, v in state.private.gather(np.array([3])).items()}
    sent, meant = torch.zeros(ITEMS, 5), torch.zeros(ITEMS, 5)
    for number in range(6):
        held = Examples(*(x[0] for x in federation.examples(np.array([3]), number, method.examples).pad()))
        down = Download(state.shared, torch.tensor(float(number)))
        meant += plain.client(down, {"user": own["user"]}, held)[0].total["item"]
        up, own = method.client(down, own, held)
        assert int((up.total["item"] != 0).sum()) <= math.ceil(0.05 * ITEMS * 5)
        sent += up.total["item"]
    assert torch.allclose(sent + own["unsent.item"], meant, atol=1e-5)
    assert float(own["unsent.item"].abs().max()) > 0


def test_what_is_left_to_send_survives_a_crash(tmp_path):
    method, model, federation, stage = wired("sparsify=0.05,quantise=8,clip=1,noise=0.1", "fedmf", {"lr": 0.1})
    options = {"wire": stage, "seed": 1, "noise_key": fresh_key()}
    whole = list(run(method, model, federation, rounds=4, **options))[-1].state
    half = list(run(method, model, federation, rounds=2, **options))[-1].state
    save_state(tmp_path / "state", half, {})
    loaded, _ = load_state(tmp_path / "state", begin(method, model, federation, 1))
    resumed = list(run(method, model, federation, rounds=4, state=loaded, **options))[-1].state
    assert same_bytes(everything(whole), everything(resumed))


def test_the_ledger_counts_what_is_written():
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


SETTINGS = [(1.1, 1.0, 12, 1e-5), (0.9, 0.2, 8, 1e-6), (4.0, 1.0, 1, 1e-3)]


@pytest.mark.parametrize("noise, rate, rounds, delta", SETTINGS)
def test_epsilon_is_what_dp_accounting_says(noise, rate, rounds, delta):
    event = dp_accounting.GaussianDpEvent(noise)
    event = event if rate == 1 else dp_accounting.PoissonSampledDpEvent(rate, event)
    expected = []
    for accountant in (pld.PLDAccountant(), rdp.RdpAccountant()):
        for _ in range(rounds):
            accountant.compose(event)
        expected.append(accountant.get_epsilon(delta))
    got = epsilons(Mechanism(noise, rate), rounds, delta)
    assert got.epsilon == pytest.approx(expected[0], rel=1e-3)
    assert got.epsilon_rdp == pytest.approx(expected[1], rel=1e-9)
    assert got.epsilon <= got.epsilon_rdp


def test_shares_of_a_budget_cost_what_one_release_costs():
    whole = epsilons(Mechanism(2.0), 1, 1e-4).epsilon
    assert epsilons(Mechanism(2.0, 1.0, (0.2, 0.3, 0.5)), 3, 1e-4).epsilon == pytest.approx(whole, rel=1e-3)
    assert epsilons(Mechanism(2.0, 1.0, (0.2, 0.3, 0.5)), 2, 1e-4).epsilon < whole
    assert epsilons(Mechanism(2.0), 0, 1e-4) == Epsilons(0.0, 0.0)


@pytest.mark.parametrize("rate", [1.0, 0.25])
def test_the_noise_that_is_solved_for_costs_no_more_and_hardly_less(rate):
    noise = solve(3.0, 1e-5, 4, rate)
    spent = epsilons(Mechanism(noise, rate), 4, 1e-5).epsilon
    assert 2.97 < spent <= 3.0
    assert solve(1.0, 1e-5, 4, rate) > noise > solve(3.0, 1e-5, 2, rate)


def test_local_noise_covers_two_uploads_apart():
    """Two people's uploads are up to twice the clip apart, so local noise is worth half; sampling does not count."""
    local = Mechanism(3.0, 0.1, (), True)
    assert epsilons(local, 4, 1e-5) == epsilons(Mechanism(1.5), 4, 1e-5)
    assert solve(2.0, 1e-5, 4, 0.1, True) == pytest.approx(2 * solve(2.0, 1e-5, 4), rel=1e-2)


def test_delta_by_default_is_small():
    assert default_delta(943) == 1e-6 and default_delta(10**8) < 1e-8


def test_coins_ask_the_share_of_people_that_is_accounted_for():
    data = histories(people=400)
    federation = of_histories(data, ITEMS)
    sizes = [len(federation.cohort(n, size=0.2, coins=fresh_key())[0]) for n in range(50)]
    assert np.mean(sizes) == pytest.approx(80, abs=5) and np.std(sizes) == pytest.approx(8, abs=2.5)
    assert {len(federation.cohort(n, size=0.2)[0]) for n in range(5)} == {80}


# The command

QUICK = ("--data", "synthetic:40x30x400", "--set", "k=4", "--threads", "1", "--json")
PRIVATE = ("--method", "fedmf", "--rounds", "4", "--delta", "1e-4", *QUICK)


def test_a_result_says_what_it_cost(here):  # noqa: F811
    result = fedtaste("run", *PRIVATE, "--wire", "clip=1,noise=2,secure", "--out", "run").json
    told = result["privacy"]
    expected = epsilons(Mechanism(2.0), 4, 1e-4)
    assert told["epsilon"] == expected.epsilon <= told["epsilon_rdp"] and told["delta"] == 1e-4
    assert result["notes"][0].startswith(f"Private: epsilon {told['epsilon']:.3g} with delta 0.0001, against whoever")
    assert told["rounds"] == result["rounds"] == 4 and result["wire"] == "clip=1,noise=2,secure"
    kept = load_params(here / "run/state.safetensors")[1]["progress"]["privacy"]
    assert kept["epsilon"] == told["epsilon"] and kept["rounds"] == 4
    assert "ε" in (here / "run/report.html").read_text()


def test_epsilon_is_met_and_the_noise_told():
    said = fedtaste("run", *PRIVATE, "--wire", "clip=1", "--epsilon", "3", "--cohort", "0.5")
    assert 2.9 < said.json["privacy"]["epsilon"] <= 3 and said.json["privacy"]["rate"] == 0.5
    assert "Noise" in said.err and "epsilon 3" in said.err


def test_noise_without_clipping_has_no_epsilon_and_says_why():
    result = fedtaste("run", *PRIVATE[:4], *QUICK, "--wire", "noise=2").json
    assert result["privacy"]["epsilon"] is None and "no finite epsilon" in result["privacy"]["why"]
    assert any("No epsilon is printed" in note for note in result["notes"])


def interrupt(folder, monkeypatch, *args):
    """Run a command until its third round, as if somebody pressed Ctrl-C then."""
    from fedtaste.cli.output import Bars

    seen = []

    def stop(self, number, metrics):
        seen.append(number)
        if len(seen) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Bars, "round", stop)
    assert fedtaste(*args).code == 2
    monkeypatch.undo()
    monkeypatch.chdir(folder)


def test_a_run_that_is_resumed_has_spent_the_same(here, monkeypatch):  # noqa: F811
    args = ("run", *PRIVATE, "--wire", "clip=1,noise=2", "--noise-seed", "3", "--out")
    whole = fedtaste(*args, "whole").json
    interrupt(here, monkeypatch, *args, "half")
    resumed = fedtaste("resume", "half", "--json").json
    assert resumed["privacy"] == whole["privacy"]
    for name in ("model.safetensors", "final.safetensors"):
        assert (here / "half" / name).read_bytes() == (here / "whole" / name).read_bytes()


def test_secure_sums_without_noise_say_what_they_give_away_or_are_refused():
    base = ("run", "--data", "synthetic:60x120x1200", "--method", "fedals", "--set", "k=12", "--threads", "1", "--json")
    result = fedtaste(*base, "--wire", "secure=10").json
    assert result["secure"]["f1"] > 2 * result["secure"]["popularity_f1"] and result["secure"]["rounds"] == 6
    assert f"F1 {result['secure']['f1']:.3f}" in result["notes"][0]
    for args in (("--cohort", "0.5"), ("--dropout", "0.1")):
        said = fedtaste(*base, "--wire", "secure", *args)
        assert said.code == 2 and "one person's list" in said.err and not said.out
    assert "secure" not in fedtaste(*base, "--wire", "clip=1,noise=1,secure=10").json
    assert fedtaste(*base, "--wire", "clip=1,noise=1,secure", "--cohort", "0.5").code == 0


def test_two_private_runs_differ_and_a_resumed_one_is_byte_equal(here, monkeypatch):  # noqa: F811
    """Secret noise: a run that is killed is copied with its key; both copies end in the same bytes, another run does
    not."""
    args = ("run", *PRIVATE, "--wire", "clip=1,noise=2,secure", "--cohort", "0.5", "--out")
    interrupt(here, monkeypatch, *args, "half")
    shutil.copytree(here / "half", here / "copy")
    ended = [fedtaste("resume", name, "--json").json for name in ("half", "copy")]
    other = fedtaste(*args, "other").json
    assert ended[0]["privacy"] == ended[1]["privacy"] and ended[0]["privacy"]["epsilon"] == other["privacy"]["epsilon"]
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
def test_what_cannot_be_promised_is_refused(args, says):
    base = ("--method", "fedmf") if "--method" not in args else ()
    said = fedtaste("run", "--data", "synthetic:40x30x400", *base, *args, "--json")
    assert said.code == 2 and says in said.err and not said.out


def test_a_stop_that_depends_on_the_data_does_not_lower_epsilon():
    """`--tolerance 1` stops after the first round; the printed epsilon is that of all planned rounds."""
    long, short = (
        fedtaste("run", *PRIVATE, "--wire", "clip=1,noise=2", *args).json for args in ((), ("--tolerance", "1"))
    )
    assert short["rounds"] < long["rounds"] and "tolerance" in short["stopped"]["reason"]
    assert short["privacy"]["epsilon"] == long["privacy"]["epsilon"] and short["privacy"]["rounds"] == 4


def test_a_private_run_tells_no_counts_and_nobody_s_name(here):  # noqa: F811
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


def test_a_cohort_that_may_be_empty_has_no_promise():
    """A round that asks nobody releases nothing, which tells something about the coins."""
    for wire in ("clip=1,noise=1", "clip=1,noise=1,secure"):
        said = fedtaste("run", *PRIVATE, "--wire", wire, "--cohort", "3")
        assert said.code == 2 and "Ask more people" in said.err and not said.out


def test_an_epsilon_that_promises_nothing_is_said_so():
    weak = ("--wire", "clip=1,noise=0.011")
    assert any("promises nothing" in note for note in fedtaste("run", *PRIVATE, *weak).json["notes"])
    assert "promises nothing" in fedtaste("run", *PRIVATE, *weak, "--promise").err


def test_other_settings_draw_other_noise_from_the_same_key(here):  # noqa: F811
    from fedtaste.experiment.privacy import phase_key

    fedtaste("run", *PRIVATE, "--wire", "clip=1,noise=2", "--out", "run")
    folder = RunFolder(here / "run")
    first = phase_key(folder.settings(), folder, "final")
    kept = folder.read("settings.json")
    folder.write("settings.json", kept | {"settings": kept["settings"] | {"wire": "clip=1,noise=5"}})
    assert phase_key(folder.settings(), folder, "final") != first != phase_key(folder.settings(), folder, "search")


def test_a_private_run_in_which_nobody_answers_says_so():
    result = fedtaste("run", *PRIVATE, "--wire", "clip=1,noise=2", "--dropout", "1.0").json
    assert any("Nobody answered" in note for note in result["notes"])
    said = fedtaste("run", *PRIVATE, "--wire", "clip=1,noise=2,secure", "--dropout", "0.9")
    assert said.code == 2 and "No secure sum could be opened" in said.err


def test_a_weak_delta_is_told():
    result = fedtaste("run", *PRIVATE[:4], "--delta", "0.1", *QUICK, "--wire", "clip=1", "--epsilon", "3").json
    assert any("not below 1 in" in note for note in result["notes"])


def test_the_secret_key_is_in_the_folder_only_and_all_files_are_the_owner_s(here):  # noqa: F811
    said = fedtaste("run", *PRIVATE, "--wire", "clip=1,noise=2", "--out", "run")
    secret = (here / "run/noise.key").read_bytes()
    assert len(secret) == 32 and secret.hex() not in said.out + said.err
    assert (here / "run").stat().st_mode & 0o077 == 0
    for path in (here / "run").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
        assert path.name == "noise.key" or path.is_dir() or secret not in path.read_bytes()


def test_too_many_drop_outs_abandon_a_round_and_reveal_nothing():
    result = fedtaste("run", *PRIVATE[:4], *QUICK, "--wire", "secure=5", "--dropout", "0.6").json
    assert result["rejected_updates"]["abandoned"] > 0


def test_killed_and_resumed_it_has_spent_the_same(here):  # noqa: F811
    """kill -9 in the middle of a private run: the same epsilon, the same bytes, nothing spent twice."""
    words = [
        "run", "--data", "synthetic:200x150x3000", "--method", "fedmf", "--rounds", "60", "--set", "k=4", "--threads",
        "1", "--wire", "clip=1,noise=3,secure", "--delta", "1e-4", "--json", "--noise-seed", "5", "--out",
    ]  # fmt: skip
    whole = fedtaste(*words, "whole").json
    command = [sys.executable, "-m", "fedtaste", *words, "half"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not (here / "half/state.safetensors").exists():
            time.sleep(0.01)
        process.kill()
    assert process.returncode == -signal.SIGKILL, "it was over before it could be killed"
    kept = load_params(here / "half/state.safetensors")[1]["progress"]["privacy"]
    assert kept["rounds"] == 60 and kept["repeatable_epsilon"] == whole["privacy"]["repeatable_epsilon"]
    resumed = fedtaste("resume", "half", "--json").json
    assert resumed["privacy"] == whole["privacy"] and resumed["privacy"]["rounds"] == 60
    assert (here / "half/final.safetensors").read_bytes() == (here / "whole/final.safetensors").read_bytes()


@pytest.mark.parametrize("name, value", [("wire", "clip=1,noise=20"), ("noise_seed", 5), ("delta", 0.5)])
def test_settings_changed_behind_a_checkpoint_are_refused(here, monkeypatch, name, value):  # noqa: F811
    """A checkpoint's rounds were made with its own noise: with another one its epsilon would be untrue."""
    from fedtaste.cli.output import Bars

    monkeypatch.setattr(Bars, "round", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    fedtaste("run", *PRIVATE, "--wire", "clip=1,noise=2", "--out", "run")
    monkeypatch.undo()
    monkeypatch.chdir(here)
    folder = RunFolder(here / "run")
    folder.save(None, Progress(phase="final"))
    kept = folder.read("settings.json")
    folder.write("settings.json", kept | {"settings": kept["settings"] | {name: value}})
    said = fedtaste("resume", "run", "--json")
    assert said.code == 2 and "was not written with the settings" in said.err and not said.out
    folder.write("settings.json", kept | {"settings": kept["settings"] | {"backend": "loop"}})
    assert folder.restore(lambda: None)[1] is not None, "how it is computed may change"


def test_how_it_is_computed_does_not_change_the_noise(here):  # noqa: F811
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
def test_numbers_that_mean_nothing_are_refused(args, says):
    said = fedtaste("run", *PRIVATE[:4], "--data", "synthetic:40x30x400", *args, "--json")
    assert said.code == 2 and says in said.err


def test_repeatable_noise_promises_nothing_and_says_so(here):  # noqa: F811
    known = fedtaste("run", *PRIVATE, "--wire", "clip=1,noise=2", "--noise-seed", "7", "--out", "known").json
    secret = fedtaste("run", *PRIVATE, "--wire", "clip=1,noise=2", "--out", "secret").json
    assert known["privacy"]["epsilon"] is None and "repeatable" in known["privacy"]["why"]
    assert known["privacy"]["repeatable_epsilon"] == secret["privacy"]["epsilon"] > 0
    assert any("No epsilon is promised" in note for note in known["notes"])
    assert not any("repeatable" in note for note in secret["notes"])
    assert "repeatable" in (here / "known/report.html").read_text()


def test_a_demand_for_a_promise_is_met_or_refused():
    wire = ("--wire", "clip=1,noise=2")
    assert fedtaste("run", *PRIVATE, *wire, "--promise").json["privacy"]["epsilon"] > 0
    for args in (
        (*PRIVATE, *wire, "--noise-seed", "7"),
        (*PRIVATE[:4], *QUICK),
        (*PRIVATE[:4], *QUICK, "--wire", "noise=2"),
    ):
        said = fedtaste("run", *args, "--promise")
        assert said.code == 2 and "no epsilon can be promised" in said.err and not said.out


def test_an_epsilon_beyond_meaning_is_told_without_a_long_computation():
    bounds = epsilons(Mechanism(0.01), 1000, 1e-6)
    assert bounds.epsilon == bounds.epsilon_rdp > 1000
