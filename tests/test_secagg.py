"""Secure sums over Flower: exact under drop-outs, no vector of one node visible, no crash by invalid messages."""

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
from hypothesis import settings as hypothesis_settings
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

RARE = 1e-7  # the share of true random numbers for which a chi-square test fails
LOW, HIGH = -(2**63), 2**63 - 1
STAGES = Stage.all()
Vectors = dict[int, np.ndarray]


def vectors(nodes: int, words: int, seed: int = 0) -> Vectors:
    """Random vectors with the limits of int64, by node ids as Flower draws them (some above the int64 range)."""
    rng = np.random.default_rng(seed)
    ids = [int(node) for node in rng.integers(2**60, 2**64 - 1, nodes, dtype=np.uint64)]
    out = {node: rng.integers(LOW, HIGH, words, dtype=np.int64, endpoint=True) for node in ids}
    for at, edge in enumerate([LOW, HIGH, 0, -1, 1][:words]):
        for node in ids:
            out[node][at] = edge
    return out


def app_of(words: np.ndarray, requests: list[bytes]) -> ClientApp:
    """A ClientApp that contributes these words to every secure sum, and records its requests."""
    app = ClientApp()

    def answer(request: bytes) -> tuple[np.ndarray, dict[str, Any]]:
        requests.append(request)
        return words, {"people": len(request), "who": request[:50]}

    @app.train()
    def train(message: Message, context: Any) -> Message:
        assert is_secure(message)
        return secure_reply(message, context, answer)

    return app


def grid_of(data: Vectors, requests: list[bytes] | None = None, **faults: Any) -> LocalGrid:
    calls = [] if requests is None else requests
    return LocalGrid({node: (app_of(data[node], calls), new_context(node)) for node in data}, **faults)


def run_sum(grid: LocalGrid, data: Vectors, **options: Any) -> SecureOutcome:
    words = len(next(iter(data.values())))
    settings: dict[str, Any] = {"least": max(3, len(data) // 2 + 1), "timeout": 0.3} | options
    return secure_sum(grid, {node: str(node).encode() for node in data}, words, **settings)


def plain_sum(data: Vectors, nodes: Any) -> np.ndarray:
    total = np.sum([data[node].view(np.uint64) for node in nodes], axis=0, dtype=np.uint64)
    return total.view(np.int64)


def stage_of(ask: Message) -> str:
    return str(ask.content.config_records[RECORD_KEY_CONFIGS][Key.STAGE])


def config_of(reply: Message) -> Any:
    return reply.content.config_records[RECORD_KEY_CONFIGS]


def shorter(values: list[Any]) -> list[Any]:
    return values[:-1]


# Exact sums


@pytest.mark.parametrize("nodes", [3, 4, 8])
@pytest.mark.parametrize("words", [0, 1, 500])
def test_the_sum_is_exact(nodes, words):
    data = vectors(nodes, words)
    outcome = run_sum(grid_of(data), data)
    assert outcome.total is not None and outcome.total.dtype == np.int64
    assert np.array_equal(outcome.total, plain_sum(data, data))
    assert (outcome.answered, outcome.refused, outcome.why) == (sorted(data), {}, "")
    assert outcome.aux == {node: {"people": len(str(node)), "who": str(node).encode()} for node in data}


@pytest.mark.parametrize("secure", [SecureSum(most=8), SecureSum(clip=1.0, most=8)])
def test_encoded_uploads_are_summed_and_decoded(secure):
    """The words of wire/secure_sums.py are summed over Flower and decoded."""
    rng = np.random.default_rng(1)
    tables = [torch.from_numpy(rng.uniform(-0.9, 0.9, (7, 3)).astype(np.float32)) for _ in range(4)]
    encoded = [secure.encode(Upload({"item": table}, torch.tensor(1.0))) for table in tables]
    kind: Any = np.uint64 if secure.bits == 64 else np.uint32
    data = {node: to_words(upload, kind).astype(np.int64) for node, upload in enumerate(encoded, start=10)}
    outcome = run_sum(grid_of(data), data)
    assert outcome.total is not None
    decoded = secure.decode(from_words(outcome.total.astype(kind), encoded[0]))
    expected = secure.decode(encoded[0] + encoded[1] + encoded[2] + encoded[3])
    assert torch.equal(decoded.total["item"], expected.total["item"]) and float(decoded.weight) == 4


def through_flower(limbs: list[np.ndarray]) -> np.ndarray:
    """Flower's arithmetic between to_limbs and from_mean, without masks."""
    clip, levels = RANGES[Key.CLIPPING_RANGE], RANGES[Key.TARGET_RANGE]
    total = sum(quantize([part], clip, levels)[0].astype(np.int64) for part in limbs) % RANGES[Key.MOD_RANGE]
    mean = dequantize([total], clip, levels)[0]
    mean += -(len(limbs) - 1) * clip
    mean *= levels / np.int64(len(limbs) * levels % RANGES[Key.MOD_RANGE])
    return mean


@given(st.lists(st.integers(LOW, HIGH), min_size=1, max_size=6), st.integers(1, 6))
@hypothesis_settings(max_examples=200)
def test_words_split_into_limbs_are_summed_exactly_by_flower(numbers, nodes):
    words = np.array(numbers, np.int64)
    data = {node: np.roll(words, node) for node in range(nodes)}
    mean = through_flower([to_limbs(data[node]) for node in data])
    assert np.array_equal(from_mean(mean, nodes, len(words)), plain_sum(data, data))


def test_stochastic_rounding_does_not_change_limbs():
    many, width = LIMBS, LIMB_BITS
    every = np.arange(2**width) - 2.0 ** (width - 1)
    assert np.array_equal(quantize([every], 2.0 ** (width - 1), 2**width)[0], np.arange(2**width))
    assert to_limbs(np.array([LOW, HIGH, -1, 0])).min() == -(2.0 ** (width - 1)) and many * width >= 64


def test_the_division_by_flower_is_undone_for_every_number_of_nodes():
    """The rounding error stays below the documented bound for the largest sums, the smallest, and some in between."""
    worst = 0.0
    for nodes in range(1, MAX_NODES + 1):
        sums = np.array([0, 1, nodes * 2**21 - 1, nodes * 2**21 + 1, nodes * (2**22 - 1) - 1, nodes * (2**22 - 1)])
        mean = (sums - nodes * 2.0**21) * (2**22 / np.int64(nodes * 2**22))
        worst = max(worst, float(np.abs(mean * nodes - (sums - nodes * 2.0**21)).max()))
    assert 0 < worst < ROUNDING
    assert MAX_NODES * 2**22 < 2**32 <= (MAX_NODES + 1) * 2**22


def test_from_mean_returns_none_for_a_changed_mean():
    words = np.arange(5)
    mean = through_flower([to_limbs(words)] * 3)
    assert np.array_equal(from_mean(mean, 3, 5), 3 * words)
    for at, change in [(0, 1.0), (1, 0.01), (3, np.nan), (4, 1e9), (5, -1e9), (2, np.inf)]:
        wrong = mean.copy()
        wrong[at] += change
        assert from_mean(wrong, 3, 5) is None


def test_in_every_round_each_node_gets_its_own_request_of_a_megabyte_once():
    """Every node receives its own bytes once, in the third stage."""
    data, requests = vectors(4, 20), []
    grid = grid_of(data, requests=requests)
    for turn in range(3):
        asks = {node: os.urandom(2**20) for node in data}
        outcome = secure_sum(grid, asks, 20, least=3, timeout=5, round=turn)
        assert np.array_equal(outcome.total, plain_sum(data, data)) and sorted(requests) == sorted(asks.values())
        assert all(outcome.aux[node] == {"people": 2**20, "who": asks[node][:50]} for node in data)
        requests.clear()
    assert {ask.metadata.group_id for ask in grid.asks} == {"0", "1", "2"}


# Drop-outs


def kill_at(victims: dict[int, str], fault: str) -> Callable[[LocalGrid], None]:
    """A function that makes nodes fail from a stage on: silent, offline for the SuperLink, or raising errors."""

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

        if fault == "silent":
            grid.deliver = deliver
        elif fault == "offline":
            grid.hook = unavailable
        else:
            apps: Any = {n: (lambda ask, context, app=app: broken(ask, context, app)) for n, app in grid.apps.items()}
            grid.apps = apps

    return arm


@pytest.mark.parametrize("fault", ["silent", "offline", "raising"])
@pytest.mark.parametrize("stage", STAGES)
def test_the_sum_is_exact_when_one_node_drops_out(stage, fault):
    data = vectors(4, 50, seed=2)
    victim = sorted(data)[1]
    grid = grid_of(data)
    kill_at({victim: stage}, fault)(grid)
    outcome = run_sum(grid, data)
    inside = sorted(data) if stage == Stage.UNMASK else sorted(set(data) - {victim})
    assert outcome.answered == inside and np.array_equal(outcome.total, plain_sum(data, inside))
    assert sorted(outcome.aux) == inside
    assert (victim in outcome.refused) == (fault != "silent")
    assert fault != "raising" or "out of order" in outcome.refused[victim]


def test_the_sum_is_exact_when_nodes_drop_out_at_every_stage():
    data = vectors(9, 30, seed=3)
    ids = list(data)
    grid = grid_of(data)
    kill_at(dict(zip(ids, [STAGES[0], STAGES[1], STAGES[2], STAGES[3]])), "offline")(grid)
    outcome = run_sum(grid, data, least=5)
    assert outcome.answered == sorted(ids[3:]) and np.array_equal(outcome.total, plain_sum(data, ids[3:]))


@pytest.mark.parametrize("seed", range(6))
def test_random_dropouts_give_the_exact_sum_or_none(seed):
    """The result is the exact sum of those who answered, or None if fewer than `least` stayed."""
    rng = np.random.default_rng(seed)
    data = vectors(8, 10, seed)
    victims = {node: STAGES[int(rng.integers(4))] for node in data if rng.random() < 0.4}
    grid = grid_of(data)
    kill_at(victims, "offline")(grid)
    outcome = run_sum(grid, data, least=5)
    assert (outcome.total is None) == (len(data) - len(victims) < 5)
    if outcome.total is not None:
        assert outcome.answered == sorted(n for n in data if victims.get(n) in (None, Stage.UNMASK))
        assert np.array_equal(outcome.total, plain_sum(data, outcome.answered))


@pytest.mark.parametrize("fault", ["silent", "offline", "raising"])
@pytest.mark.parametrize("stage", STAGES)
def test_too_few_nodes_give_none_within_the_timeout(stage, fault):
    data = vectors(4, 20)
    gone = sorted(data)[:2]
    grid = grid_of(data)
    kill_at(dict.fromkeys(gone, stage), fault)(grid)
    start = time.monotonic()
    outcome = run_sum(grid, data)
    assert time.monotonic() - start < 4 * 0.3 + 3
    assert (outcome.total, outcome.answered, outcome.aux) == (None, [], {})
    assert "Fewer than 3 of 4" in outcome.why
    shares = [reply for reply in grid.replies if reply.has_content() and Key.SHARE_LIST in config_of(reply)]
    assert len(shares) == (2 if stage == Stage.UNMASK else 0)  # fewer than three: masks stay on


def test_a_round_succeeds_after_a_failed_one():
    data = vectors(4, 20)
    grid = grid_of(data)
    kill_at(dict.fromkeys(sorted(data)[:2], Stage.COLLECT_MASKED_VECTORS), "silent")(grid)
    assert run_sum(grid, data).total is None
    grid.deliver = None
    grid.restart(sorted(data)[0])
    outcome = run_sum(grid, data)
    assert np.array_equal(outcome.total, plain_sum(data, data))


def test_late_replies_are_left_out_and_duplicates_count_once():
    data = vectors(5, 20)
    late, twice = sorted(data)[:2]

    def hook(ask: Message, reply: Message) -> Any:
        if ask.metadata.dst_node_id == late and stage_of(ask) == Stage.COLLECT_MASKED_VECTORS:
            return Late(1.0, reply)
        return [reply, reply] if ask.metadata.dst_node_id == twice else reply

    outcome = run_sum(grid_of(data, hook=hook), data)
    inside = sorted(set(data) - {late})
    assert outcome.answered == inside
    assert np.array_equal(outcome.total, plain_sum(data, inside))


def test_low_thresholds_and_too_few_or_too_many_nodes_are_refused():
    data = vectors(4, 5)
    grid = grid_of(data)
    for least in (0, 2):
        with pytest.raises(SettingError, match=f"at least 3 .* got {least}"):
            run_sum(grid, data, least=least)
    outcome = run_sum(grid, data, least=5)
    assert outcome.total is None and "4 nodes take part and 5 are needed" in outcome.why and not grid.asks
    two_nodes = dict(list(data.items())[:2])
    assert run_sum(grid, two_nodes).total is None and not grid.asks
    with pytest.raises(SettingError, match="at most 1,023 nodes"):
        secure_sum(grid, dict.fromkeys(range(1024), b""), 1, least=1000, timeout=1)


def test_errors_of_the_grid_are_raised():
    data = vectors(4, 5)

    class Torn(LocalGrid):
        def pull_messages(self, message_ids: Any) -> Any:
            raise ConnectionError("the SuperLink is gone")

    grid = Torn({node: (app_of(data[node], []), new_context(node)) for node in data})
    with pytest.raises(ConnectionError, match="the SuperLink is gone"):
        run_sum(grid, data)


# Validation of replies


def other_key() -> bytes:
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

    return public_key_to_bytes(generate_private_key(SECP256R1()).public_key())


DETECTABLE: list[tuple[str, str, Any]] = [  # stage, entry, change; every one is visible in the message itself
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


def change_reply_entry(node: int, stage: str, name: str, change: Any) -> Callable[[Message, Message], Message]:
    """A hook that changes one entry of a reply of this node, or removes it where `change` is None."""

    def hook(ask: Message, reply: Message) -> Message:
        if ask.metadata.dst_node_id == node and stage_of(ask) == stage:
            record = config_of(reply)
            value = record.pop(name)
            if change is not None:
                record[name] = change(value)
        return reply

    return hook


@pytest.mark.parametrize("stage, name, change", DETECTABLE)
def test_malformed_replies_are_refused_and_the_sum_of_the_others_is_exact(stage, name, change):
    data = vectors(4, 20)
    bad = sorted(data)[2]
    outcome = run_sum(grid_of(data, hook=change_reply_entry(bad, stage, name, change)), data)
    inside = sorted(data) if stage == Stage.UNMASK else sorted(set(data) - {bad})
    assert list(outcome.refused) == [bad] and outcome.answered == inside
    assert np.array_equal(outcome.total, plain_sum(data, inside))


def change_reply(node: int, stage: str, change: Callable[[Message, Message], Message]) -> Any:
    """A hook that changes the whole reply of this node in this stage."""

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
def test_replies_with_another_sender_or_record_are_refused(stage, change):
    data = vectors(4, 20)
    bad = sorted(data)[0]
    outcome = run_sum(grid_of(data, hook=change_reply(bad, stage, change)), data)
    inside = sorted(data) if stage == Stage.UNMASK else sorted(set(data) - {bad})
    assert list(outcome.refused) == [bad] and np.array_equal(outcome.total, plain_sum(data, inside))


def change_plain_values(values: dict[str, Any] | None) -> Callable[[Message, Message], Message]:
    """Replace the unmasked values of a reply, or remove them where `values` is None."""

    def change(ask: Message, reply: Message) -> Message:
        del reply.content["fitres.metrics"]
        if values is not None:
            reply.content["fitres.metrics"] = ConfigRecord(values)
        return reply

    return change


@pytest.mark.parametrize("values", [None, {"people": [1, 2]}, {"people": b"x" * (2**20 + 1)}])
def test_a_node_with_invalid_unmasked_values_is_refused(values):
    data = vectors(4, 20)
    bad = sorted(data)[3]
    outcome = run_sum(
        grid_of(data, hook=change_reply(bad, Stage.COLLECT_MASKED_VECTORS, change_plain_values(values))), data
    )
    assert list(outcome.refused) == [bad] and outcome.answered == sorted(set(data) - {bad})


def test_the_public_key_of_another_node_is_refused():
    data = vectors(4, 20)
    first: list[bytes] = []

    def hook(ask: Message, reply: Message) -> Message:
        if stage_of(ask) == Stage.SETUP:
            first.append(config_of(reply)[Key.PUBLIC_KEY_1])
            if len(first) == 2:
                config_of(reply)[Key.PUBLIC_KEY_1] = first[0]
        return reply

    outcome = run_sum(grid_of(data, hook=hook), data)
    assert len(outcome.refused) == 1 and np.array_equal(outcome.total, plain_sum(data, outcome.answered))


UNDETECTABLE: list[tuple[str, str, Any]] = [  # changes that no message reveals: a round may be void, but never wrong
    (Stage.SETUP, Key.PUBLIC_KEY_1, lambda _: public_key_to_bytes(generate_key_pairs()[1])),
    (Stage.SHARE_KEYS, Key.CIPHERTEXT_LIST, lambda letters: [b"x" * len(letter) for letter in letters]),
    (Stage.SHARE_KEYS, Key.CIPHERTEXT_LIST, lambda letters: [*letters[1:], letters[0]]),
    (Stage.COLLECT_MASKED_VECTORS, Key.MASKED_PARAMETERS, lambda parts: [os.urandom(len(parts[0]))]),
    (Stage.COLLECT_MASKED_VECTORS, Key.MASKED_PARAMETERS, lambda parts: [bytes(len(parts[0]))]),
    (Stage.UNMASK, Key.SHARE_LIST, lambda shares: [share[:4] + bytes(len(share) - 4) for share in shares]),
    (Stage.UNMASK, Key.SHARE_LIST, lambda shares: [share[:-16] for share in shares]),
    (Stage.UNMASK, Key.SHARE_LIST, lambda shares: [share[:4] for share in shares]),
]


@pytest.mark.parametrize("stage, name, change", UNDETECTABLE)
@pytest.mark.parametrize("nodes", [4, 7])
def test_undetectable_changes_void_a_round_or_leave_the_sum_exact(stage, name, change, nodes):
    data = vectors(nodes, 20)
    bad = sorted(data)[2]
    outcome = run_sum(grid_of(data, hook=change_reply_entry(bad, stage, name, change)), data)
    if outcome.total is None:
        assert outcome.why and outcome.answered == []
    else:
        assert np.array_equal(outcome.total, plain_sum(data, outcome.answered))
    assert stage in (Stage.SETUP, Stage.SHARE_KEYS) or outcome.total is None


def test_a_total_weight_of_zero_gives_none():
    """A node can move the masked weight by any amount, also so that Flower divides by zero."""
    data, levels = vectors(3, 4), 2**22

    def less(parts: list[bytes]) -> list[bytes]:
        numbers = np.frombuffer(parts[0], "<u4").copy()
        numbers[0] -= np.uint32(3 * levels)
        return [numbers.tobytes()]

    bad = sorted(data)[0]
    outcome = run_sum(
        grid_of(data, hook=change_reply_entry(bad, Stage.COLLECT_MASKED_VECTORS, Key.MASKED_PARAMETERS, less)), data
    )
    assert outcome.total is None and "Masks did not cancel" in outcome.why


# Validation of requests by nodes


def requests_of_a_node(data: Vectors) -> tuple[LocalGrid, dict[str, Message]]:
    """The grid after a round without faults, and the four messages that its first node received."""
    grid = grid_of(data)
    assert run_sum(grid, data).total is not None
    node = sorted(data)[0]
    return grid, {stage_of(ask): ask for ask in grid.asks if ask.metadata.dst_node_id == node}


WRONG_SETUPS: list[tuple[str, dict[str, Any], str]] = [
    (Stage.SETUP, {Key.THRESHOLD: 2}, "a sum of 2 of 4 nodes"),
    (Stage.SETUP, {Key.THRESHOLD: 5}, "a sum of 5 of 4 nodes"),
    (Stage.SETUP, {Key.SAMPLE_NUMBER: 8, Key.SHARE_NUMBER: 8}, "a sum of 3 of 8 nodes"),
    (Stage.SETUP, {Key.SAMPLE_NUMBER: 2, Key.SHARE_NUMBER: 2, Key.THRESHOLD: 2}, "a sum of 2 of 2 nodes"),
    (Stage.SETUP, {Key.SHARE_NUMBER: 9}, "a share for each"),
    (Stage.SETUP, {Key.MOD_RANGE: 2**40}, "ranges"),
    (Stage.SETUP, {Key.TARGET_RANGE: 2**16, Key.CLIPPING_RANGE: 2.0**15}, "wire or version"),
    (Stage.SETUP, {Key.MAX_WEIGHT: 1e-9}, "ranges"),
]


@pytest.mark.parametrize("stage, change, text", WRONG_SETUPS)
def test_a_node_refuses_wrong_setups(stage, change, text):
    data = vectors(4, 5)
    _, asks = requests_of_a_node(data)
    config_of(asks[stage]).update(change)
    with pytest.raises(ProtocolError, match=text):
        secure_reply(asks[stage], new_context(sorted(data)[0]), lambda _: pytest.fail("worked"))


def test_a_node_never_reveals_both_shares_of_another():
    """A server requests both secrets of a node, or shares of a sum that lacks the node it asks."""
    data = vectors(4, 5)
    victim, *others = sorted(data)
    for active, dead, text in [
        (sorted(data), [victim], "two shares"),
        ([*others, others[0]], [victim], "two shares"),
        ([*others[1:], victim], [others[0]], "without this node"),
    ]:
        grid = grid_of(data)

        def deliver(ask: Message, active: list[int] = active, dead: list[int] = dead) -> bool:
            if stage_of(ask) == Stage.UNMASK and ask.metadata.dst_node_id == others[0]:
                config_of(ask)[Key.ACTIVE_NODE_ID_LIST], config_of(ask)[Key.DEAD_NODE_ID_LIST] = active, dead
            return True

        grid.deliver = deliver
        outcome = run_sum(grid, data)
        assert text in outcome.refused[others[0]] and np.array_equal(
            outcome.total, plain_sum(data, data)
        )  # three others' shares suffice


def test_a_node_does_not_mask_with_one_node_twice():
    data = vectors(4, 5)
    grid = grid_of(data)

    def deliver(ask: Message) -> bool:
        if stage_of(ask) == Stage.COLLECT_MASKED_VECTORS and ask.metadata.dst_node_id == sorted(data)[0]:
            for name in (Key.SOURCE_LIST, Key.CIPHERTEXT_LIST):
                config_of(ask)[name] = [config_of(ask)[name][0]] * 3
        return True

    grid.deliver = deliver
    assert "one node twice" in run_sum(grid, data).refused[sorted(data)[0]]


def test_a_message_of_another_type_is_refused():
    """Flower's mod passes on any message that is not of type "train", and sends the reply without masks."""
    data = vectors(4, 5)
    _, asks = requests_of_a_node(data)
    ask = asks[Stage.COLLECT_MASKED_VECTORS]
    ask.metadata.message_type = "train.other"
    with pytest.raises(ProtocolError, match="train.other"):
        secure_reply(ask, new_context(1), lambda _: pytest.fail("worked"))


def test_stages_out_of_order_and_replays_are_refused():
    data = vectors(4, 5)
    grid, asks = requests_of_a_node(data)
    for stage in STAGES[1:]:
        replies = list(grid.send_and_receive([asks[stage]], timeout=1))
        assert len(replies) == 1 and replies[0].has_error()


def test_a_node_deletes_its_secrets_after_the_round():
    data = vectors(4, 5)
    grid, _ = requests_of_a_node(data)
    for node in data:
        assert dict(grid.context(node).state.config_records[RECORD_KEY_STATE]) == {}


def test_the_module_imports_no_torch():
    """A node handles every message in a new process, and three of four messages need only this module."""
    code = "import sys, fedtaste.flower.secagg as s; assert 'torch' not in sys.modules; print(s.FEWEST)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(process.stdout) == FEWEST


def test_is_secure_is_false_for_a_plain_message():
    LocalGrid({})  # sets the identity that Flower needs for a message
    assert not is_secure(Message(RecordDict({"round": ConfigRecord({"ask": b"1"})}), 1, "train"))


def test_a_node_with_another_number_type_is_refused():
    data: Vectors = {node: np.zeros(4, np.float32 if node == 2 else np.int64) for node in range(1, 6)}
    outcome = run_sum(grid_of(data), data)
    assert "got float32" in outcome.refused[2] and outcome.answered == [1, 3, 4, 5]


# Secrecy


def masked_vectors_of(messages: list[Message]) -> dict[int, np.ndarray]:
    """The masked vectors in these messages, by node."""
    return {
        message.metadata.src_node_id: np.frombuffer(config_of(message)[Key.MASKED_PARAMETERS][0], "<u4")
        for message in messages
        if message.has_content() and Key.MASKED_PARAMETERS in config_of(message)
    }


def all_bytes(messages: list[Message]) -> bytes:
    """The contents of messages, as bytes on the wire."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    return b"".join(item.deflate() for message in messages for item in get_all_nested_objects(message).values())


def looks_uniform(words: np.ndarray) -> bool:
    return bool(chisquare(np.bincount(np.frombuffer(words.tobytes(), np.uint8), minlength=256)).pvalue > RARE)


@pytest.mark.parametrize("drop", [None, Stage.SHARE_KEYS, Stage.COLLECT_MASKED_VECTORS, Stage.UNMASK])
def test_messages_to_the_server_reveal_no_single_vector(drop):
    """All bytes that the server received are searched for words and for limbs in every type that they have on the way,
    and masked numbers are tested for uniformity. Each vector is one word, repeated 4,000 times."""
    data = {node: np.full(4000, 1234567890123 * node, np.int64) for node in range(11, 16)}
    grid, received = grid_of(data), []
    if drop:
        kill_at({13: drop}, "silent")(grid)
    outcome = run_sum(grid, data, observe=received.append)
    assert np.array_equal(outcome.total, plain_sum(data, outcome.answered)) and len(outcome.answered) >= 4
    assert {id(message) for message in received} == {id(message) for message in grid.replies}

    received_bytes = all_bytes(received)
    many, width = LIMBS, LIMB_BITS
    for words in data.values():
        limbs = to_limbs(words[:4])[1:]
        levels = (limbs + 2.0 ** (width - 1)).astype(np.int64)
        plain_forms = [words[:4].tobytes(), words[:4].astype(np.int32).tobytes()]
        for at in range(many):
            part, level = limbs[at * 4 : at * 4 + 4], levels[at * 4 : at * 4 + 4]
            plain_forms += [part.astype(kind).tobytes() for kind in (np.float64, np.float32, np.int64, np.int32)]
            plain_forms += [level.astype(kind).tobytes() for kind in (np.float64, np.float32, np.int64, np.int32)]
        assert not any(form in received_bytes for form in plain_forms)
    assert not any(
        message.content.array_records[name] for message in received for name in message.content.array_records
    )

    masked_vectors = masked_vectors_of(received)
    assert sorted(masked_vectors) == outcome.answered
    for node, numbers in masked_vectors.items():
        assert looks_uniform(numbers)
        levels = to_limbs(data[node]) + 2.0 ** (width - 1)
        assert np.mean(numbers[1:] == levels) < 0.01
        rest = [other for other in masked_vectors if other != node]
        assert all(looks_uniform(numbers - masked_vectors[other]) for other in rest)  # pairs' masks do not cancel
        assert looks_uniform(np.sum([masked_vectors[other] for other in rest], axis=0, dtype=np.uint32))


def test_the_search_for_vectors_finds_unmasked_ones():
    """The checks above detect the same data when they are sent without masks."""
    words = np.full(4000, 1234567890123 * 11, np.int64)
    levels = (to_limbs(words) + 2.0**21).astype("<u4")
    assert not looks_uniform(levels)
    message = Message(RecordDict({"a": ConfigRecord({"b": words.tobytes()})}), 1, "train")
    assert words[:4].tobytes() in all_bytes([message])


def test_every_round_has_new_masks():
    data = vectors(4, 1000)
    runs = []
    for _ in range(2):
        received: list[Message] = []
        run_sum(grid_of(data), data, observe=received.append)
        runs.append(masked_vectors_of(received))
    for node in data:
        assert np.mean(runs[0][node] == runs[1][node]) < 0.01 and looks_uniform(runs[0][node] - runs[1][node])


def test_masks_depend_on_all_bits_of_the_secret():
    """Flower folds a secret to 32 bits, so these two give the same masks there. Flower's own modules stay unchanged."""
    first, second = bytes(32), b"\x01\x00\x00\x00" * 2 + bytes(24)
    shapes: list[tuple[int, ...]] = [(1,), (3, 1000)]
    flower_mask = secaggplus_utils.pseudo_rand_gen
    assert all(
        np.array_equal(a, b) for a, b in zip(flower_mask(first, 2**32, shapes), flower_mask(second, 2**32, shapes))
    )
    ours = secagg._mask(first, 2**32, shapes), secagg._mask(second, 2**32, shapes)
    assert [part.shape for part in ours[0]] == shapes and np.mean(ours[0][1] == ours[1][1]) < 0.01
    assert looks_uniform(ours[0][1].astype(np.uint32)) and ours[0][1].min() >= 0
    assert secagg._node_module.pseudo_rand_gen is secagg._mask
    for name in (
        "client.mod.secure_aggregation.secaggplus_mod",
        "server.workflow.secure_aggregation.secaggplus_workflow",
    ):
        assert sys.modules[f"flwr.{name}"].pseudo_rand_gen is flower_mask


# Cost


def test_half_a_million_words_need_12_bytes_each_and_less_than_a_minute():
    """A node uploads 12 bytes per word. The time is that of one process for the server and three nodes."""
    words = 500_000
    data = vectors(3, words)
    grid = grid_of(data)
    start = time.monotonic()
    outcome = run_sum(grid, data, timeout=60)
    seconds = time.monotonic() - start
    assert np.array_equal(outcome.total, plain_sum(data, data))
    assert 12 * words < grid.up_bytes / 3 < 12 * words + 10_000 and seconds < 60
