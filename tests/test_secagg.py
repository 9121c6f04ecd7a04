"""Secure sums over Flower: exact whatever drop-outs there are, nothing of one node to be seen, nobody's lie a crash."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st
from scipy.stats import chisquare

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.secure_aggregation import secaggplus_utils
from flwr.common.secure_aggregation.quantization import dequantize, quantize
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, RECORD_KEY_STATE, Key, Stage
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes

from fedtaste.core import Upload
from fedtaste.errors import ProtocolError, SettingError
from fedtaste.flower import secagg
from fedtaste.flower.secagg import (
    LIMB_BITS,
    LIMBS,
    MAX_NODES,
    RANGES,
    ROUNDING,
    SecureOutcome,
    from_mean,
    is_secure,
    secure_reply,
    secure_sum,
    to_limbs,
)
from fedtaste.wire.secure_sums import FEWEST, SecureSum, from_words, to_words
from support.flower_grid import Late, LocalGrid, new_context

RARE = 1e-7  # a chi-square test of true randomness fails so often
LOW, HIGH = -(2**63), 2**63 - 1
STAGES = Stage.all()
Vectors = dict[int, np.ndarray]


def vectors(nodes: int, words: int, seed: int = 0) -> Vectors:
    """Random, with the limits among them, under ids as Flower draws them: some beyond an int64."""
    rng = np.random.default_rng(seed)
    ids = [int(node) for node in rng.integers(2**60, 2**64 - 1, nodes, dtype=np.uint64)]
    out = {node: rng.integers(LOW, HIGH, words, dtype=np.int64, endpoint=True) for node in ids}
    for at, edge in enumerate([LOW, HIGH, 0, -1, 1][:words]):
        for node in ids:
            out[node][at] = edge
    return out


def app_of(words: np.ndarray, asked: list[bytes]) -> ClientApp:
    app = ClientApp()

    def answer(ask: bytes) -> tuple[np.ndarray, dict[str, Any]]:
        asked.append(ask)
        return words, {"people": len(ask), "who": ask[:50]}

    @app.train()
    def train(message: Message, context: Any) -> Message:
        assert is_secure(message)
        return secure_reply(message, context, answer)

    return app


def grid_of(data: Vectors, asked: list[bytes] | None = None, **faults: Any) -> LocalGrid:
    calls = [] if asked is None else asked
    return LocalGrid({node: (app_of(data[node], calls), new_context(node)) for node in data}, **faults)


def summed(grid: LocalGrid, data: Vectors, **options: Any) -> SecureOutcome:
    words = len(next(iter(data.values())))
    settings: dict[str, Any] = {"least": max(3, len(data) // 2 + 1), "timeout": 0.3} | options
    return secure_sum(grid, {node: str(node).encode() for node in data}, words, **settings)


def plain(data: Vectors, nodes: Any) -> np.ndarray:
    total = np.sum([data[node].view(np.uint64) for node in nodes], axis=0, dtype=np.uint64)
    return total.view(np.int64)


def stage_of(ask: Message) -> str:
    return str(ask.content.config_records[RECORD_KEY_CONFIGS][Key.STAGE])


def said(reply: Message) -> Any:
    return reply.content.config_records[RECORD_KEY_CONFIGS]


def shorter(values: list[Any]) -> list[Any]:
    return values[:-1]


# The sum is exact


@pytest.mark.parametrize("nodes", [3, 4, 8])
@pytest.mark.parametrize("words", [0, 1, 500])
def test_exact(nodes, words):
    data = vectors(nodes, words)
    outcome = summed(grid_of(data), data)
    assert outcome.total is not None and outcome.total.dtype == np.int64
    assert np.array_equal(outcome.total, plain(data, data))
    assert (outcome.answered, outcome.refused, outcome.why) == (sorted(data), {}, "")
    assert outcome.aux == {node: {"people": len(str(node)), "who": str(node).encode()} for node in data}


@pytest.mark.parametrize("secure", [SecureSum(most=8), SecureSum(clip=1.0, most=8)])
def test_sealed_uploads(secure):
    """The words of wire/secure.py, there and back."""
    rng = np.random.default_rng(1)
    tables = [torch.from_numpy(rng.uniform(-0.9, 0.9, (7, 3)).astype(np.float32)) for _ in range(4)]
    sealed = [secure.encode(Upload({"item": table}, torch.tensor(1.0))) for table in tables]
    kind: Any = np.uint64 if secure.bits == 64 else np.uint32
    data = {node: to_words(upload, kind).astype(np.int64) for node, upload in enumerate(sealed, start=10)}
    outcome = summed(grid_of(data), data)
    assert outcome.total is not None
    opened = secure.decode(from_words(outcome.total.astype(kind), sealed[0]))
    expected = secure.decode(sealed[0] + sealed[1] + sealed[2] + sealed[3])
    assert torch.equal(opened.total["item"], expected.total["item"]) and float(opened.weight) == 4


def through_flower(limbs: list[np.ndarray]) -> np.ndarray:
    """Flower's arithmetic between to_limbs and from_mean, without masks."""
    clip, levels = RANGES[Key.CLIPPING_RANGE], RANGES[Key.TARGET_RANGE]
    total = sum(quantize([one], clip, levels)[0].astype(np.int64) for one in limbs) % RANGES[Key.MOD_RANGE]
    mean = dequantize([total], clip, levels)[0]
    mean += -(len(limbs) - 1) * clip
    mean *= levels / np.int64(len(limbs) * levels % RANGES[Key.MOD_RANGE])
    return mean


@given(st.lists(st.integers(LOW, HIGH), min_size=1, max_size=6), st.integers(1, 6))
@effort(max_examples=200)
def test_limbs(numbers, nodes):
    words = np.array(numbers, np.int64)
    data = {node: np.roll(words, node) for node in range(nodes)}
    mean = through_flower([to_limbs(data[node]) for node in data])
    assert np.array_equal(from_mean(mean, nodes, len(words)), plain(data, data))


def test_rounding_at_random_leaves_limbs_alone():
    many, width = LIMBS, LIMB_BITS
    every = np.arange(2**width) - 2.0 ** (width - 1)
    assert np.array_equal(quantize([every], 2.0 ** (width - 1), 2**width)[0], np.arange(2**width))
    assert to_limbs(np.array([LOW, HIGH, -1, 0])).min() == -(2.0 ** (width - 1)) and many * width >= 64


def test_division_is_undone_for_every_number_of_nodes():
    """The bound of the docstring, at the largest sums, the smallest, and in between."""
    worst = 0.0
    for nodes in range(1, MAX_NODES + 1):
        sums = np.array([0, 1, nodes * 2**21 - 1, nodes * 2**21 + 1, nodes * (2**22 - 1) - 1, nodes * (2**22 - 1)])
        mean = (sums - nodes * 2.0**21) * (2**22 / np.int64(nodes * 2**22))
        worst = max(worst, float(np.abs(mean * nodes - (sums - nodes * 2.0**21)).max()))
    assert 0 < worst < ROUNDING
    assert MAX_NODES * 2**22 < 2**32 <= (MAX_NODES + 1) * 2**22


def test_wrong_means_are_none():
    words = np.arange(5)
    mean = through_flower([to_limbs(words)] * 3)
    assert np.array_equal(from_mean(mean, 3, 5), 3 * words)
    for at, change in [(0, 1.0), (1, 0.01), (3, np.nan), (4, 1e9), (5, -1e9), (2, np.inf)]:
        wrong = mean.copy()
        wrong[at] += change
        assert from_mean(wrong, 3, 5) is None


def test_rounds_follow_each_other_and_asks_are_large():
    """State is in the Context; every node gets its own bytes, once, in the third stage."""
    data, asked = vectors(4, 20), []
    grid = grid_of(data, asked=asked)
    for turn in range(3):
        asks = {node: os.urandom(2**20) for node in data}
        outcome = secure_sum(grid, asks, 20, least=3, timeout=5, round=turn)
        assert np.array_equal(outcome.total, plain(data, data)) and sorted(asked) == sorted(asks.values())
        assert all(outcome.aux[node] == {"people": 2**20, "who": asks[node][:50]} for node in data)
        asked.clear()
    assert {ask.metadata.group_id for ask in grid.asks} == {"0", "1", "2"}


# Who drops out


def killer(victims: dict[int, str], how: str) -> Callable[[LocalGrid], None]:
    """From this stage on, the node is silent, or the SuperLink says so, or its app raises."""

    def arm(grid: LocalGrid) -> None:
        def deliver(ask: Message) -> bool:
            node = ask.metadata.dst_node_id
            return node not in victims or STAGES.index(stage_of(ask)) < STAGES.index(victims[node])

        def unavailable(ask: Message, reply: Message) -> Message:
            if deliver(ask):
                return reply
            grid.offline.add(ask.metadata.dst_node_id)
            return grid._replies(ask)[0].message

        def broken(ask: Message, context: Any, app: ClientApp) -> Message:
            if not deliver(ask):
                raise RuntimeError("out of order")
            return app(ask, context)

        if how == "silent":
            grid.deliver = deliver
        elif how == "offline":
            grid.hook = unavailable
        else:
            apps: Any = {n: (lambda ask, context, app=app: broken(ask, context, app)) for n, app in grid.apps.items()}
            grid.apps = apps

    return arm


@pytest.mark.parametrize("how", ["silent", "offline", "raising"])
@pytest.mark.parametrize("stage", STAGES)
def test_one_drops_out(stage, how):
    data = vectors(4, 50, seed=2)
    victim = sorted(data)[1]
    grid = grid_of(data)
    killer({victim: stage}, how)(grid)
    outcome = summed(grid, data)
    inside = sorted(data) if stage == Stage.UNMASK else sorted(set(data) - {victim})
    assert outcome.answered == inside and np.array_equal(outcome.total, plain(data, inside))
    assert sorted(outcome.aux) == inside
    assert (victim in outcome.refused) == (how != "silent")
    assert how != "raising" or "out of order" in outcome.refused[victim]


def test_drop_outs_at_every_stage_of_one_round():
    data = vectors(9, 30, seed=3)
    ids = list(data)
    grid = grid_of(data)
    killer(dict(zip(ids, [STAGES[0], STAGES[1], STAGES[2], STAGES[3]])), "offline")(grid)
    outcome = summed(grid, data, least=5)
    assert outcome.answered == sorted(ids[3:]) and np.array_equal(outcome.total, plain(data, ids[3:]))


@pytest.mark.parametrize("seed", range(6))
def test_drop_outs_drawn(seed):
    """Whatever happens: the exact sum of those who answered, or None; and None only where fewer than `least` stayed."""
    rng = np.random.default_rng(seed)
    data = vectors(8, 10, seed)
    victims = {node: STAGES[int(rng.integers(4))] for node in data if rng.random() < 0.4}
    grid = grid_of(data)
    killer(victims, "offline")(grid)
    outcome = summed(grid, data, least=5)
    assert (outcome.total is None) == (len(data) - len(victims) < 5)
    if outcome.total is not None:
        assert outcome.answered == sorted(n for n in data if victims.get(n) in (None, Stage.UNMASK))
        assert np.array_equal(outcome.total, plain(data, outcome.answered))


@pytest.mark.parametrize("how", ["silent", "offline", "raising"])
@pytest.mark.parametrize("stage", STAGES)
def test_too_few_is_none_and_ends_in_time(stage, how):
    data = vectors(4, 20)
    gone = sorted(data)[:2]
    grid = grid_of(data)
    killer(dict.fromkeys(gone, stage), how)(grid)
    start = time.monotonic()
    outcome = summed(grid, data)
    assert time.monotonic() - start < 4 * 0.3 + 3
    assert (outcome.total, outcome.answered, outcome.aux) == (None, [], {})
    assert "Fewer than 3 of 4" in outcome.why
    shares = [reply for reply in grid.replies if reply.has_content() and Key.SHARE_LIST in said(reply)]
    assert len(shares) == (2 if stage == Stage.UNMASK else 0)  # fewer than three: masks stay on


def test_after_a_round_that_failed_comes_one_that_does_not():
    data = vectors(4, 20)
    grid = grid_of(data)
    killer(dict.fromkeys(sorted(data)[:2], Stage.COLLECT_MASKED_VECTORS), "silent")(grid)
    assert summed(grid, data).total is None
    grid.deliver = None
    grid.restart(sorted(data)[0])
    outcome = summed(grid, data)
    assert np.array_equal(outcome.total, plain(data, data))


def test_late_and_duplicate_replies():
    data = vectors(5, 20)
    late, twice = sorted(data)[:2]

    def hook(ask: Message, reply: Message) -> Any:
        if ask.metadata.dst_node_id == late and stage_of(ask) == Stage.COLLECT_MASKED_VECTORS:
            return Late(1.0, reply)
        return [reply, reply] if ask.metadata.dst_node_id == twice else reply

    outcome = summed(grid_of(data, hook=hook), data)
    inside = sorted(set(data) - {late})
    assert outcome.answered == inside and np.array_equal(outcome.total, plain(data, inside))


def test_what_cannot_be_asked():
    data = vectors(4, 5)
    grid = grid_of(data)
    for least in (0, 2):
        with pytest.raises(SettingError, match=f"threshold of at least 3 .* got {least}"):
            summed(grid, data, least=least)
    outcome = summed(grid, data, least=5)
    assert outcome.total is None and "4 nodes take part and 5 are needed" in outcome.why and not grid.asks
    two = dict(list(data.items())[:2])
    assert summed(grid, two).total is None and not grid.asks
    with pytest.raises(SettingError, match="at most 1,023 nodes"):
        secure_sum(grid, dict.fromkeys(range(1024), b""), 1, least=1000, timeout=1)


def test_what_the_grid_raises_is_raised():
    data = vectors(4, 5)

    class Torn(LocalGrid):
        def pull_messages(self, message_ids: Any) -> Any:
            raise ConnectionError("the SuperLink is gone")

    grid = Torn({node: (app_of(data[node], []), new_context(node)) for node in data})
    with pytest.raises(ConnectionError, match="the SuperLink is gone"):
        summed(grid, data)


# What nodes may send


def other_key() -> bytes:
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

    return public_key_to_bytes(generate_private_key(SECP256R1()).public_key())


SHOWN: list[tuple[str, str, Any]] = [  # stage, what is changed, how; every one is seen in the message itself
    (Stage.SETUP, Key.PUBLIC_KEY_1, lambda _: b"no key"),
    (Stage.SETUP, Key.PUBLIC_KEY_1, lambda _: 7),
    (Stage.SETUP, Key.PUBLIC_KEY_2, lambda _: [b"", b""]),
    (Stage.SETUP, Key.PUBLIC_KEY_2, lambda _: other_key()),
    (Stage.SETUP, Key.PUBLIC_KEY_2, lambda _: b"x" * 10**6),
    (Stage.SETUP, Key.PUBLIC_KEY_1, None),
    (Stage.SHARE_KEYS, Key.DESTINATION_LIST, lambda ids: [1, *ids[1:]]),
    (Stage.SHARE_KEYS, Key.DESTINATION_LIST, lambda ids: [ids[0]] * len(ids)),
    (Stage.SHARE_KEYS, Key.DESTINATION_LIST, lambda _: "all"),
    (Stage.SHARE_KEYS, Key.DESTINATION_LIST, None),
    (Stage.SHARE_KEYS, Key.CIPHERTEXT_LIST, shorter),
    (Stage.SHARE_KEYS, Key.CIPHERTEXT_LIST, lambda letters: [1] * len(letters)),
    (Stage.SHARE_KEYS, Key.CIPHERTEXT_LIST, lambda letters: [b"x" * 10**6, *letters[1:]]),
    (Stage.COLLECT_MASKED_VECTORS, Key.MASKED_PARAMETERS, lambda parts: [parts[0][:-4]]),
    (Stage.COLLECT_MASKED_VECTORS, Key.MASKED_PARAMETERS, lambda parts: [parts[0][:-1]]),
    (Stage.COLLECT_MASKED_VECTORS, Key.MASKED_PARAMETERS, lambda parts: [parts[0] + b"long"]),
    (Stage.COLLECT_MASKED_VECTORS, Key.MASKED_PARAMETERS, lambda parts: [*parts, b""]),
    (Stage.COLLECT_MASKED_VECTORS, Key.MASKED_PARAMETERS, lambda _: []),
    (Stage.COLLECT_MASKED_VECTORS, Key.MASKED_PARAMETERS, lambda _: [1.5]),
    (Stage.COLLECT_MASKED_VECTORS, Key.MASKED_PARAMETERS, None),
    (Stage.UNMASK, Key.NODE_ID_LIST, shorter),
    (Stage.UNMASK, Key.NODE_ID_LIST, lambda ids: [123, *ids[1:]]),
    (Stage.UNMASK, Key.NODE_ID_LIST, lambda ids: [*ids[1:], ids[0]]),
    (Stage.UNMASK, Key.SHARE_LIST, shorter),
    (Stage.UNMASK, Key.SHARE_LIST, lambda shares: [b""] * len(shares)),
    (Stage.UNMASK, Key.SHARE_LIST, lambda shares: [b"\xff" + share[1:] for share in shares]),
    (Stage.UNMASK, Key.SHARE_LIST, lambda shares: [0] * len(shares)),
    (Stage.UNMASK, Key.SHARE_LIST, None),
]


def liar(node: int, stage: str, name: str, change: Any) -> Callable[[Message, Message], Message]:
    def hook(ask: Message, reply: Message) -> Message:
        if ask.metadata.dst_node_id == node and stage_of(ask) == stage:
            record = said(reply)
            value = record.pop(name)
            if change is not None:
                record[name] = change(value)
        return reply

    return hook


@pytest.mark.parametrize("stage, name, change", SHOWN)
def test_malformed_replies_are_refused_and_the_rest_goes_on(stage, name, change):
    data = vectors(4, 20)
    bad = sorted(data)[2]
    outcome = summed(grid_of(data, hook=liar(bad, stage, name, change)), data)
    inside = sorted(data) if stage == Stage.UNMASK else sorted(set(data) - {bad})
    assert list(outcome.refused) == [bad] and outcome.answered == inside
    assert np.array_equal(outcome.total, plain(data, inside))


def whole_reply(node: int, stage: str, change: Callable[[Message, Message], Message]) -> Any:
    def hook(ask: Message, reply: Message) -> Message:
        return change(ask, reply) if (ask.metadata.dst_node_id, stage_of(ask)) == (node, stage) else reply

    return hook


def impersonate(ask: Message, reply: Message) -> Message:
    reply.metadata.__dict__["_src_node_id"] = 3
    return reply


def empty(ask: Message, reply: Message) -> Message:
    return Message(RecordDict(), reply_to=ask)


def other_record(ask: Message, reply: Message) -> Message:
    return Message(RecordDict({RECORD_KEY_CONFIGS: ConfigRecord({"a": 1})}), reply_to=ask)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("change", [impersonate, empty, other_record])
def test_other_replies_are_refused(stage, change):
    data = vectors(4, 20)
    bad = sorted(data)[0]
    outcome = summed(grid_of(data, hook=whole_reply(bad, stage, change)), data)
    inside = sorted(data) if stage == Stage.UNMASK else sorted(set(data) - {bad})
    assert list(outcome.refused) == [bad] and np.array_equal(outcome.total, plain(data, inside))


def in_clear(values: dict[str, Any] | None) -> Callable[[Message, Message], Message]:
    def change(ask: Message, reply: Message) -> Message:
        del reply.content["fitres.metrics"]
        if values is not None:
            reply.content["fitres.metrics"] = ConfigRecord(values)
        return reply

    return change


@pytest.mark.parametrize("values", [None, {"people": [1, 2]}, {"people": b"x" * (2**20 + 1)}])
def test_values_in_clear_are_checked(values):
    data = vectors(4, 20)
    bad = sorted(data)[3]
    outcome = summed(grid_of(data, hook=whole_reply(bad, Stage.COLLECT_MASKED_VECTORS, in_clear(values))), data)
    assert list(outcome.refused) == [bad] and outcome.answered == sorted(set(data) - {bad})


def test_anothers_key_is_refused():
    data = vectors(4, 20)
    first: list[bytes] = []

    def hook(ask: Message, reply: Message) -> Message:
        if stage_of(ask) == Stage.SETUP:
            first.append(said(reply)[Key.PUBLIC_KEY_1])
            if len(first) == 2:
                said(reply)[Key.PUBLIC_KEY_1] = first[0]
        return reply

    outcome = summed(grid_of(data, hook=hook), data)
    assert len(outcome.refused) == 1 and np.array_equal(outcome.total, plain(data, outcome.answered))


HIDDEN: list[tuple[str, str, Any]] = [  # lies that no message shows: a round may be void, and never wrong
    (Stage.SETUP, Key.PUBLIC_KEY_1, lambda _: public_key_to_bytes(generate_key_pairs()[1])),
    (Stage.SHARE_KEYS, Key.CIPHERTEXT_LIST, lambda letters: [b"x" * len(letter) for letter in letters]),
    (Stage.SHARE_KEYS, Key.CIPHERTEXT_LIST, lambda letters: [*letters[1:], letters[0]]),
    (Stage.COLLECT_MASKED_VECTORS, Key.MASKED_PARAMETERS, lambda parts: [os.urandom(len(parts[0]))]),
    (Stage.COLLECT_MASKED_VECTORS, Key.MASKED_PARAMETERS, lambda parts: [bytes(len(parts[0]))]),
    (Stage.UNMASK, Key.SHARE_LIST, lambda shares: [share[:4] + bytes(len(share) - 4) for share in shares]),
    (Stage.UNMASK, Key.SHARE_LIST, lambda shares: [share[:-16] for share in shares]),
    (Stage.UNMASK, Key.SHARE_LIST, lambda shares: [share[:4] for share in shares]),
]


@pytest.mark.parametrize("stage, name, change", HIDDEN)
@pytest.mark.parametrize("nodes", [4, 7])
def test_lies_that_nobody_sees_void_a_round_and_do_not_crash(stage, name, change, nodes):
    data = vectors(nodes, 20)
    bad = sorted(data)[2]
    outcome = summed(grid_of(data, hook=liar(bad, stage, name, change)), data)
    if outcome.total is None:
        assert outcome.why and outcome.answered == []
    else:
        assert np.array_equal(outcome.total, plain(data, outcome.answered))
    assert stage in (Stage.SETUP, Stage.SHARE_KEYS) or outcome.total is None


def test_a_weight_of_nothing_is_no_crash():
    """The weight under the mask can be moved by any amount: also so that Flower divides by zero."""
    data, levels = vectors(3, 4), 2**22

    def less(parts: list[bytes]) -> list[bytes]:
        numbers = np.frombuffer(parts[0], "<u4").copy()
        numbers[0] -= np.uint32(3 * levels)
        return [numbers.tobytes()]

    bad = sorted(data)[0]
    outcome = summed(grid_of(data, hook=liar(bad, Stage.COLLECT_MASKED_VECTORS, Key.MASKED_PARAMETERS, less)), data)
    assert outcome.total is None and "Masks did not cancel" in outcome.why


# What a node refuses


def first_asks(data: Vectors) -> tuple[LocalGrid, dict[str, Message]]:
    """The four messages that one node gets in an honest round."""
    grid = grid_of(data)
    assert summed(grid, data).total is not None
    node = sorted(data)[0]
    return grid, {stage_of(ask): ask for ask in grid.asks if ask.metadata.dst_node_id == node}


ASKED: list[tuple[str, dict[str, Any], str]] = [
    (Stage.SETUP, {Key.THRESHOLD: 2}, "a sum of 2 of 4 nodes"),
    (Stage.SETUP, {Key.THRESHOLD: 5}, "a sum of 5 of 4 nodes"),
    (Stage.SETUP, {Key.SAMPLE_NUMBER: 8, Key.SHARE_NUMBER: 8}, "a sum of 3 of 8 nodes"),
    (Stage.SETUP, {Key.SAMPLE_NUMBER: 2, Key.SHARE_NUMBER: 2, Key.THRESHOLD: 2}, "a sum of 2 of 2 nodes"),
    (Stage.SETUP, {Key.SHARE_NUMBER: 9}, "a share for each"),
    (Stage.SETUP, {Key.MOD_RANGE: 2**40}, "ranges"),
    (Stage.SETUP, {Key.TARGET_RANGE: 2**16, Key.CLIPPING_RANGE: 2.0**15}, "wire or version"),
    (Stage.SETUP, {Key.MAX_WEIGHT: 1e-9}, "ranges"),
]


@pytest.mark.parametrize("stage, change, text", ASKED)
def test_setups_that_a_node_refuses(stage, change, text):
    data = vectors(4, 5)
    _, asks = first_asks(data)
    said(asks[stage]).update(change)
    with pytest.raises(ProtocolError, match=text):
        secure_reply(asks[stage], new_context(sorted(data)[0]), lambda _: pytest.fail("worked"))


def test_a_node_never_gives_both_shares():
    """A server that asks for both secrets of a node, or for shares of a sum without the node that it asks."""
    data = vectors(4, 5)
    victim, *others = sorted(data)
    for active, dead, text in [
        (sorted(data), [victim], "two shares"),
        ([*others, others[0]], [victim], "two shares"),
        ([*others[1:], victim], [others[0]], "without this node"),
    ]:
        seen: list[str] = []
        grid = grid_of(data)

        def deliver(ask: Message, active: list[int] = active, dead: list[int] = dead) -> bool:
            if stage_of(ask) == Stage.UNMASK and ask.metadata.dst_node_id == others[0]:
                said(ask)[Key.ACTIVE_NODE_ID_LIST], said(ask)[Key.DEAD_NODE_ID_LIST] = active, dead
            return True

        grid.deliver = deliver
        outcome = summed(grid, data)
        seen.append(outcome.refused[others[0]])
        assert text in seen[0] and np.array_equal(outcome.total, plain(data, data))  # three others' shares suffice


def test_a_node_does_not_mask_with_one_node_twice():
    data = vectors(4, 5)
    grid = grid_of(data)

    def deliver(ask: Message) -> bool:
        if stage_of(ask) == Stage.COLLECT_MASKED_VECTORS and ask.metadata.dst_node_id == sorted(data)[0]:
            for name in (Key.SOURCE_LIST, Key.CIPHERTEXT_LIST):
                said(ask)[name] = [said(ask)[name][0]] * 3
        return True

    grid.deliver = deliver
    assert "one node twice" in summed(grid, data).refused[sorted(data)[0]]


def test_another_type_of_message_is_not_answered_in_clear():
    """Flower's mod hands any message that is not of type "train" on, and what comes back goes out as it is."""
    data = vectors(4, 5)
    _, asks = first_asks(data)
    ask = asks[Stage.COLLECT_MASKED_VECTORS]
    ask.metadata.message_type = "train.other"
    with pytest.raises(ProtocolError, match="train.other"):
        secure_reply(ask, new_context(1), lambda _: pytest.fail("worked"))


def test_stages_out_of_order_and_replays_are_errors():
    data = vectors(4, 5)
    grid, asks = first_asks(data)
    for stage in STAGES[1:]:
        replies = list(grid.send_and_receive([asks[stage]], timeout=1))
        assert len(replies) == 1 and replies[0].has_error()


def test_a_node_forgets_its_secrets():
    data = vectors(4, 5)
    grid, _ = first_asks(data)
    for node in data:
        assert dict(grid.context(node).state.config_records[RECORD_KEY_STATE]) == {}


def test_keys_are_made_without_torch():
    """Every message is a new process of a node's, and three of four need no more than this module."""
    code = "import sys, fedtaste.flower.secagg as s; assert 'torch' not in sys.modules; print(s.FEWEST)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == FEWEST


def test_what_is_not_secure():
    LocalGrid({})
    assert not is_secure(Message(RecordDict({"round": ConfigRecord({"ask": b"1"})}), 1, "train"))


def test_words_of_another_type_are_an_error_of_the_node():
    data: Vectors = {node: np.zeros(4, np.float32 if node == 2 else np.int64) for node in range(1, 6)}
    outcome = summed(grid_of(data), data)
    assert "got float32" in outcome.refused[2] and outcome.answered == [1, 3, 4, 5]


# Nothing is to be seen


def masked(messages: list[Message]) -> dict[int, np.ndarray]:
    return {
        message.metadata.src_node_id: np.frombuffer(said(message)[Key.MASKED_PARAMETERS][0], "<u4")
        for message in messages
        if message.has_content() and Key.MASKED_PARAMETERS in said(message)
    }


def all_bytes(messages: list[Message]) -> bytes:
    """Everything that stands in messages, as it was on the wire."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    return b"".join(item.deflate() for message in messages for item in get_all_nested_objects(message).values())


def looks_uniform(words: np.ndarray) -> bool:
    return bool(chisquare(np.bincount(np.frombuffer(words.tobytes(), np.uint8), minlength=256)).pvalue > RARE)


@pytest.mark.parametrize("drop", [None, Stage.SHARE_KEYS, Stage.COLLECT_MASKED_VECTORS, Stage.UNMASK])
def test_the_server_sees_no_single_vector(drop):
    """All that the server received is read: words, limbs in any of the types that they have on the way, and masked
    numbers. The vectors are planted: 4,000 times the same word."""
    data = {node: np.full(4000, 1234567890123 * node, np.int64) for node in range(11, 16)}
    grid, seen = grid_of(data), []
    if drop:
        killer({13: drop}, "silent")(grid)
    outcome = summed(grid, data, observe=seen.append)
    assert np.array_equal(outcome.total, plain(data, outcome.answered)) and len(outcome.answered) >= 4
    assert {id(message) for message in seen} == {id(message) for message in grid.replies}

    text = all_bytes(seen)
    many, width = LIMBS, LIMB_BITS
    for words in data.values():
        limbs = to_limbs(words[:4])[1:]
        levels = (limbs + 2.0 ** (width - 1)).astype(np.int64)
        plain_forms = [words[:4].tobytes(), words[:4].astype(np.int32).tobytes()]
        for at in range(many):
            part, level = limbs[at * 4 : at * 4 + 4], levels[at * 4 : at * 4 + 4]
            plain_forms += [part.astype(kind).tobytes() for kind in (np.float64, np.float32, np.int64, np.int32)]
            plain_forms += [level.astype(kind).tobytes() for kind in (np.float64, np.float32, np.int64, np.int32)]
        assert not any(form in text for form in plain_forms)
    assert not any(message.content.array_records[name] for message in seen for name in message.content.array_records)

    vectors_seen = masked(seen)
    assert sorted(vectors_seen) == outcome.answered
    for node, numbers in vectors_seen.items():
        assert looks_uniform(numbers)
        levels = to_limbs(data[node]) + 2.0 ** (width - 1)
        assert np.mean(numbers[1:] == levels) < 0.01
        rest = [other for other in vectors_seen if other != node]
        assert all(looks_uniform(numbers - vectors_seen[other]) for other in rest)  # pairs' masks do not cancel
        assert looks_uniform(np.sum([vectors_seen[other] for other in rest], axis=0, dtype=np.uint32))


def test_the_check_can_fail():
    """The reading above finds what is there: the same data sent without masks."""
    words = np.full(4000, 1234567890123 * 11, np.int64)
    levels = (to_limbs(words) + 2.0**21).astype("<u4")
    assert not looks_uniform(levels)
    sent = Message(RecordDict({"a": ConfigRecord({"b": words.tobytes()})}), 1, "train")
    assert words[:4].tobytes() in all_bytes([sent])


def test_masks_are_new_every_time():
    data = vectors(4, 1000)
    runs = []
    for _ in range(2):
        seen: list[Message] = []
        summed(grid_of(data), data, observe=seen.append)
        runs.append(masked(seen))
    for node in data:
        assert np.mean(runs[0][node] == runs[1][node]) < 0.01 and looks_uniform(runs[0][node] - runs[1][node])


def test_masks_are_made_of_the_whole_secret():
    """Flower folds a secret to 32 bits: these two give the same masks there. Its own modules keep doing so."""
    one, two = bytes(32), b"\x01\x00\x00\x00" * 2 + bytes(24)
    shapes: list[tuple[int, ...]] = [(1,), (3, 1000)]
    flowers = secaggplus_utils.pseudo_rand_gen
    assert all(np.array_equal(a, b) for a, b in zip(flowers(one, 2**32, shapes), flowers(two, 2**32, shapes)))
    ours = secagg._mask(one, 2**32, shapes), secagg._mask(two, 2**32, shapes)
    assert [part.shape for part in ours[0]] == shapes and np.mean(ours[0][1] == ours[1][1]) < 0.01
    assert looks_uniform(ours[0][1].astype(np.uint32)) and ours[0][1].min() >= 0
    assert secagg._node_module.pseudo_rand_gen is secagg._mask
    for name in (
        "client.mod.secure_aggregation.secaggplus_mod",
        "server.workflow.secure_aggregation.secaggplus_workflow",
    ):
        assert sys.modules[f"flwr.{name}"].pseudo_rand_gen is flowers


# What it costs


def test_half_a_million_words():
    """12 bytes a word up; seconds are of one process that is server and three nodes."""
    words = 500_000
    data = vectors(3, words)
    grid = grid_of(data)
    start = time.monotonic()
    outcome = summed(grid, data, timeout=60)
    seconds = time.monotonic() - start
    assert np.array_equal(outcome.total, plain(data, data))
    assert 12 * words < grid.up_bytes / 3 < 12 * words + 10_000 and seconds < 60
