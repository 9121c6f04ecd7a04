"""Turns (`--wire turns`, `common_turns`): which rows are sent, what the server makes of them, bytes and refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedtaste.core import StageContext, Upload
from fedtaste.engine.run import begin, run
from fedtaste.errors import SettingError
from fedtaste.experiment.settings import Settings
from fedtaste.flower.validation import refuse_unfit
from fedtaste.wire.messages import Ledger, encode
from fedtaste.wire.parse import assemble, parse, uploads_of
from fedtaste.wire.turns import Turns, take_turns
from support.flower_worlds import clients_of, facts_of, nodes_of, over_flower
from support.states import assert_close, everything
from support.worlds import ITEMS, PEOPLE, world

ITEM = torch.zeros(1, 1, dtype=torch.int64)
PERSONS = np.arange(PEOPLE)


def on_wire(text, name, settings=None):
    method, model, federation = world(name, settings or {}, "ranking")
    return assemble(parse(text), method, uploads_of(method, model, ITEM), everybody=PEOPLE, seed=1), model, federation


def train(text, name, rounds=3, settings=None, **options):
    wire, model, federation = on_wire(text, name, settings)
    return list(run(wire.method, model, federation, rounds=rounds, wire=wire.stage, seed=1, **options))


@pytest.mark.parametrize("common", [False, True])
@pytest.mark.parametrize("items, share, rounds", [(40, 0.2, 5), (41, 0.25, 4), (7, 0.5, 2)])
def test_everybody_sends_every_row_within_one_over_share_rounds(common, items, share, rounds):
    turns = Turns(share, common, ("item",), items, seed=3)
    sent = np.stack([turns.sent(PERSONS, round) for round in range(rounds)])
    assert (sent.sum(2) == turns.length).all()
    assert (sent.sum(0) >= 1).all()
    assert (sent.sum(0).sum(1) == rounds * turns.length).all()  # so a row comes twice only where the ring is over
    assert (sent == sent[:, :1]).all() == common


def test_turns_depend_on_seed_round_and_person_alone():
    turns = Turns(0.2, False, ("item",), 40, seed=3)
    alone = turns.sent(np.array([7]), 4)
    np.testing.assert_array_equal(turns.sent(PERSONS, 4)[7], alone[0])
    assert (Turns(0.2, False, ("item",), 40, seed=4).sent(np.array([7]), 4) != alone).any()
    np.testing.assert_array_equal(turns.sent(np.array([7]), 4, np.array([[5, 0, 39]]))[0], alone[0, [5, 0, 39]])


def test_a_restored_message_is_the_masked_upload():
    turns = Turns(0.3, False, ("item",), 10, seed=0)
    upload = Upload({"item": torch.arange(20.0).reshape(10, 2), "bias": torch.ones(3)}, torch.ones(()))
    message = turns.cut(upload, 5, 2)
    assert message.total["item"].shape == (3, 2)
    stacked = Upload({n: v[None] for n, v in upload.total.items()}, upload.weight[None])
    masked = turns.mask(stacked, np.array([5]), 2).total["item"][0]
    assert torch.equal(turns.restore(message, 5, 2).total["item"], masked)
    assert torch.equal(masked[masked.sum(1) > 0], message.total["item"])


def test_the_servers_estimate_of_a_mean_is_unbiased_over_a_cycle():
    """Four people of whom each sends half of the rows: over the two rounds of a cycle the estimates have the mean of
    everybody's whole uploads, exactly."""
    changes = torch.randn(4, 6, 2, generator=torch.Generator().manual_seed(0))
    turns = Turns(0.5, False, ("item",), 6, seed=0)
    _, stage = take_turns(world("fedavg", {}, "ranking")[0], turns)
    estimates = []
    for round in range(2):
        sent = turns.mask(Upload({"item": changes}, torch.ones(4)), np.arange(4), round)
        total = Upload({"item": sent.total["item"].sum(0)}, torch.tensor(4.0))
        estimates.append(stage.server(total, StageContext(b"", round, 4.0)).mean()["item"])
    torch.testing.assert_close(torch.stack(estimates).mean(0), changes.mean(0))


def test_a_row_that_nobody_sends_keeps_its_value():
    before = world("fedavg", {}, "ranking")
    start = begin(*before, seed=1).shared["item"].clone()
    after = train("common_turns=0.2", "fedavg", rounds=1)[-1].state.shared["item"]
    sent = Turns(0.2, True, ("item",), ITEMS, seed=1).sent(np.zeros(1, np.int64), 0)[0]
    assert torch.equal(after[~sent], start[~sent])
    assert (after[sent] != start[sent]).any(1).all()


def test_fedals_with_common_turns_solves_the_rows_that_are_sent_exactly():
    """After the first round rows in the turn are those of a round without turns."""
    whole = train("", "fedals", rounds=1)[-1].state.shared["item"]
    part = train("common_turns=0.25", "fedals", rounds=1)[-1].state.shared["item"]
    sent = Turns(0.25, True, ("sums",), ITEMS, seed=1).sent(np.zeros(1, np.int64), 0)[0]
    torch.testing.assert_close(part[sent], whole[sent])


def test_fedals_averages_its_sums_over_rounds():
    """With constant uploads of which half is sent in a round, the average over a whole number of cycles weights both
    halves as (1 - q)^age, and after many rounds the sums are near those of whole uploads."""
    turns = Turns(0.5, False, ("sums",), 2, seed=0)
    read = []

    def server(shared, memory, upload):
        read.append(upload.total["sums"].clone())
        return shared, memory | {"begun": torch.ones(())}

    method = world("fedals", {}, "ranking")[0].replace(server=server)
    averaged, _ = take_turns(method, turns)
    memory = {}
    for sums in ([2.0, 0.0], [0.0, 2.0], [2.0, 0.0]):  # scaled by the stage: 1 sent, a half of the people
        upload = Upload({"sums": torch.tensor(sums)[:, None]}, torch.ones(()))
        _, memory = averaged.server({}, memory, upload)
    torch.testing.assert_close(read[0][:, 0], torch.tensor([2.0, 0.0]))
    torch.testing.assert_close(read[1][:, 0], torch.tensor([2 / 3, 4 / 3]))
    torch.testing.assert_close(read[2][:, 0], torch.tensor([10 / 7, 4 / 7]))
    assert set(memory) == {"begun", "turns.seen", "turns.sums"}


@pytest.mark.parametrize(
    "name, text",
    [
        ("fedals", "turns=0.3"),
        ("fedals", "common_turns=0.3"),
        ("fedals", "turns=0.3,quantise=8"),
        ("fedavg", "turns=0.3,clip=1"),
        ("fedrap", "turns=0.3"),
        ("ditto", "turns=0.3"),
        ("fedavg", "common_turns=0.3,clip=1,secure=5"),
        ("fedals", "common_turns=0.3,median"),
    ],
)
def test_all_backends_train_the_same_state(name, text):
    settings = {"passes": 2} if name == "fedrap" else {}  # of 10
    loop = train(text, name, settings=settings, backend="loop")[-1]
    for backend in ("vmap", "auto"):
        other = train(text, name, settings=settings, backend=backend)[-1]
        assert_close(everything(other.state), everything(loop.state), 1e-4)
        assert (other.up_bytes, other.answered) == (loop.up_bytes, loop.answered)


def test_fedals_keeps_its_kernel_with_turns_and_other_kernels_are_refused():
    assert train("turns=0.3", "fedals", backend="kernel")[-1].answered == PEOPLE
    with pytest.raises(SettingError, match="turns"):
        train("turns=0.3", "fedrap", backend="kernel")


@pytest.mark.parametrize("text", ["turns=0.25", "common_turns=0.25"])
def test_the_ledger_counts_the_rows_that_are_sent(text):
    """The loop backend's messages have a quarter of the rows, and the ledger has their length."""
    lengths = []

    def network(blobs):
        for blob in blobs:
            lengths.append(len(blob))
            yield blob

    done = train(text, "fedavg", rounds=1, backend="loop", network=network)[-1]
    assert done.up_bytes == sum(lengths)
    k = done.state.shared["item"].shape[1]
    whole = train("", "fedavg", rounds=1)[-1].up_bytes
    assert whole - done.up_bytes == pytest.approx(PEOPLE * 4 * k * ITEMS * 3 / 4, abs=PEOPLE * 16)  # lengths are padded


def test_turns_and_quantise_multiply():
    """A quarter of the rows in a quarter of the bytes."""
    wire, _, _ = on_wire("turns=0.25,quantise=8", "fedavg")
    ledger = Ledger()
    ledger.sent_up(Upload({"item": torch.zeros(ITEMS, 5)}, torch.ones(())), 1, wire.stage.message_layout)
    like = {"item": torch.zeros(ITEMS // 4, 5, dtype=torch.int8), "item.step": torch.zeros(())}
    assert ledger.up_bytes == len(encode(Upload(like, torch.ones(()))))


@pytest.mark.parametrize("text", ["common_turns=0.3", "common_turns=0.3,secure"])
@pytest.mark.parametrize("name", ["fedals", "fedavg"])
def test_nodes_send_only_the_rows_of_the_turn(tmp_path, name, text):
    wire, model, federation = on_wire(text, name)
    expected = train(text, name, rounds=2)[-1]
    grid, plan, _ = nodes_of(wire.method, model, federation, facts_of("ranking", federation), tmp_path, wire)
    clients = clients_of(grid, plan, nodes=3)
    state = over_flower(clients, plan, 2)
    assert_close(state.shared, expected.state.shared, 1e-5)
    whole, _, _ = on_wire(text.partition(",")[2], name)
    grid, plan, _ = nodes_of(whole.method, model, federation, facts_of("ranking", federation), tmp_path / "w", whole)
    dense = clients_of(grid, plan, nodes=3)
    over_flower(dense, plan, 2)
    assert clients.membership.up_bytes < 0.75 * dense.membership.up_bytes


@pytest.mark.parametrize(
    "text, says",
    [
        ("turns=0", "0.001 to below 1"),
        ("turns=2", "got turns=2"),
        ("turns=abc", "got turns=abc"),
        ("turns", "got turns"),
        ("common_turns=1", "below 1"),
        ("turns=nan", "below 1"),
        ("quantise=0", "2 to 16 bits"),
        ("turns=0.2,secure", "Use common_turns"),
        ("turns=0.2,median", "Use common_turns"),
        ("turns=0.2,clip=1,local=1", "Use common_turns"),
        ("turns=0.2,common_turns=0.2", "not both"),
        ("turns=0.2,sparsify=0.1", "Keep one"),
        ("quantise=8,turns=0.2", "--wire turns=0.2,quantise=8."),
    ],
)
def test_turns_that_cannot_be_are_refused(text, says):
    with pytest.raises(SettingError, match=says.replace(".", r"\.")):
        parse(text)


@pytest.mark.parametrize(
    "name, settings, text, says",
    [
        ("popularity", {}, "turns=0.2", "every row in every round"),
        ("fedeigen", {}, "turns=0.2", "every row in every round"),
        ("fedals", {"block": 2}, "turns=0.2", "every row in every round"),
        ("fedrap", {}, "common_turns=0.2", "Use turns"),
        ("fedtrail", {}, "turns=0.2", "no table by items"),
    ],
)
def test_methods_that_need_whole_tables_refuse_turns(name, settings, text, says):
    with pytest.raises(SettingError, match=says):
        on_wire(text, name, settings)


def test_nodes_cannot_send_sums_of_different_rows():
    with pytest.raises(SettingError, match="common_turns"):
        refuse_unfit(Settings(wire="turns=0.2"))


def test_the_plain_server_adds_what_turns_give_it():
    """A share of nearly 1 sends everything: the same state as without turns."""
    turned, plain = (train(text, "fedavg", rounds=2)[-1].state.shared for text in ("turns=0.999", ""))
    assert_close(turned, plain, 1e-6)
