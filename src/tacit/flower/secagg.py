"""Exact sums of whole numbers between nodes by Flower's SecAgg+ workflow: the server sees the sum alone.

    on a node      if is_secure(message): return secure_reply(message, context, answer, bits=64)
    on the server  outcome = secure_sum(grid, {node: ask, ...}, words, bits=64, least=3, timeout=600)
Whole numbers in a protocol for floats. SecAgg+ clips a float, rounds it at random to a level, adds levels modulo 2^32
and divides by the number of nodes. So a word is cut into limbs (64 bits: 3 of 22; 32 bits: 2 of 16), and a limb of L
bits goes in as limb - 2^(L-1) with 2^L levels of width 1: it is a level, and stays as it is. Sums of 1,023 nodes (with
32 bits 65,535) cannot wrap. The mean times the nodes is off by less than 2^-20: sums stay below 2^31, float64 rounds
three times. That is checked for every number; limbs' sums must be possible ones, and a limb that all know must come out
right: a sum in which masks did not cancel is not returned.

What we change, in copies of two modules of Flower's that only we use:
- masks are ChaCha20 of the whole secret. Flower's are numpy's generator with a seed of 32 bits, and the first number
  under a mask is known: a server could find the seeds of a node's masks by trying;
- nodes that are gone before keys were shared are forgotten. Flower asks the others for shares that never were made;
- numbers travel as 4 bytes, not 8; a node's every message is checked, and written anew before Flower reads it;
- a node refuses what would bare a vector: both shares of one node, a threshold of half or less, a sum of fewer than 3,
  other ranges, another type of message (Flower answers that in clear). At the end it forgets its secrets.
Protected: a node's numbers from a server that follows the protocol and keeps all it sees, also together with fewer than
`least` - 1 other nodes. Not from a server that invents nodes or keys: nobody signs keys. `aux` goes in clear. A node
that lies about its numbers moves the sum as it likes, and is not found out. One that lies about keys or shares can void
a round, and is named in `refused` only if its message shows the lie.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common import Code, FitIns, FitRes, Parameters, Status, bytes_to_ndarray, ndarray_to_bytes
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, RECORD_KEY_STATE, Key, Stage
from flwr.compat.common.recorddict_compat import fitres_to_recorddict, parameters_to_arrayrecord
from flwr.server import LegacyContext
from flwr.server.workflow import constant
from flwr.serverapp import Grid
from flwr.supercore.primitives.asymmetric import bytes_to_public_key
from numpy.typing import NDArray

from ..errors import ProtocolError, SettingError
from ..wire.masks import expand, stream

Whole = NDArray[np.int64]
Aux = dict[str, int | float | str | bytes]
Answer = Callable[[bytes], tuple[Whole, Aux]]
Asks = dict[int, bytes]
Watch = Callable[[Message], None] | None

MODULUS = 2**32
FEWEST = 3  # as in wire/secure.py, which imports torch: most messages of a node do without
LIMBS = {32: (2, 16), 64: (3, 22)}  # how many, and of how many bits
SLIP = 2.0**-20  # what three roundings of float64 can add to a sum below 2^31
SHARE_BYTES, AUX_BYTES = 4096, 2**20  # no honest node sends more in a key or a share, or in clear
ASK, POLL = "ask", 0.2  # seconds
NOTHING = Parameters([], "numpy.ndarray")


def _mask(seed: bytes, num_range: int, dimensions_list: list[tuple[int, ...]]) -> list[Whole]:
    """In place of Flower's generator: numbers below 2^32, our only modulus, of one key stream and in these shapes."""
    ends = np.cumsum([int(np.prod(shape)) for shape in dimensions_list])
    words = stream(expand(seed, "flower mask"), np.empty(ends[-1], np.uint32)).astype(np.int64)
    return [part.reshape(shape) for part, shape in zip(np.split(words, ends[:-1]), dimensions_list)]


def _copy(name: str) -> Any:
    """A copy of a module of Flower's with our masks; Flower's own stays as it is."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "pseudo_rand_gen"):
        raise ImportError(f"{name} does not draw masks as in flwr 1.41. Install flwr 1.41.")
    module.pseudo_rand_gen = _mask
    return module


_node = _copy("flwr.client.mod.secure_aggregation.secaggplus_mod")
_Workflow: Any = _copy("flwr.server.workflow.secure_aggregation.secaggplus_workflow").SecAggPlusWorkflow


# Words and limbs


def most_nodes(bits: int) -> int:
    """Sums of so many nodes cannot wrap."""
    return (MODULUS - 1) >> LIMBS[bits][1]


def fewest(nodes: int) -> int:
    """The smallest `least`: above half, or both secrets of a node could be had; and a sum of two hides nothing."""
    return max(FEWEST, nodes // 2 + 1)


def to_limbs(words: Whole, bits: int) -> NDArray[np.float64]:
    """The limb that all know, then every word's lowest limb, every word's next; around 0."""
    many, width = LIMBS[bits]
    rest = words.view(np.uint64) & np.uint64(2**bits - 1)
    parts = [(rest >> np.uint64(width * at)) & np.uint64(2**width - 1) for at in range(many)]
    return np.concatenate([[2.0**width - 1], *parts]) - 2.0 ** (width - 1)


def from_mean(mean: NDArray[np.float64], nodes: int, words: int, bits: int) -> Whole | None:
    """The sum of so many nodes' words from the mean of their limbs; None if it cannot be one."""
    many, width = LIMBS[bits]
    total, top = mean * nodes, nodes * (2.0**width - 1)
    whole = np.rint(total)
    sums = whole + nodes * 2.0 ** (width - 1)
    if not (sums[0] == top and 0 <= sums.min() <= sums.max() <= top and np.abs(total - whole).max() <= SLIP):
        return None  # NaN comes here too
    limbs = sums[1:].astype(np.uint64).reshape(many, words)
    joined = sum((limbs[at] << np.uint64(width * at) for at in range(many)), np.zeros(words, np.uint64))  # modulo 2^64
    return joined.view(np.int64) if bits == 64 else joined.astype(np.uint32).view(np.int32).astype(np.int64)


def _ranges(bits: int) -> dict[str, Any]:
    """A level for every limb, and every weight 1."""
    levels = 2 ** LIMBS[bits][1]
    return {Key.CLIPPING_RANGE: levels / 2, Key.TARGET_RANGE: levels, Key.MOD_RANGE: MODULUS, Key.MAX_WEIGHT: 1.0}


# A node


def is_secure(message: Message) -> bool:
    """Whether the message is one of this protocol's."""
    return message.has_content() and RECORD_KEY_CONFIGS in message.content.config_records


def secure_reply(message: Message, context: Context, answer: Answer, bits: int) -> Message:
    """A node's reply to any message of the protocol. `answer` turns the bytes that the server sent into this node's
    words, and a few values that go in clear; it is called in the third of the four messages alone. What has to be kept
    between messages is in `context.state`."""
    configs: Any = message.content.config_records[RECORD_KEY_CONFIGS]
    stage, problem = configs.get(Key.STAGE), _problem(message, configs, bits)
    if problem:
        raise ProtocolError(f"The server asked for what a node does not do: {problem}. Nothing was revealed.")

    def work(ask: Message, _: Context) -> Message:
        asked: Any = ask.content.config_records["fitins.config"][ASK]
        words, aux = answer(asked)
        if words.ndim != 1 or words.dtype != np.int64:
            raise ValueError(f"{words.dtype} words of shape {words.shape} were got; expected a vector of int64.")
        tensors = Parameters([ndarray_to_bytes(to_limbs(words, bits))], "numpy.ndarray")
        return Message(fitres_to_recorddict(FitRes(Status(Code.OK, ""), tensors, 1, dict(aux)), False), reply_to=ask)

    reply: Message = _node.secaggplus_mod(message, context, work)
    if stage == Stage.COLLECT_MASKED_VECTORS:
        said: Any = reply.content.config_records[RECORD_KEY_CONFIGS]
        masked = [bytes_to_ndarray(part).astype("<u4").tobytes() for part in said[Key.MASKED_PARAMETERS]]
        said[Key.MASKED_PARAMETERS] = [b"".join(masked)]
    if stage == Stage.UNMASK:
        context.state.config_records[RECORD_KEY_STATE] = ConfigRecord({})
    return reply


def _problem(message: Message, said: Any, bits: int) -> str:
    """What an honest server would not ask; empty if nothing. Types and the order of messages Flower checks itself."""
    stage, ours = said.get(Key.STAGE), _ranges(bits)
    if message.metadata.message_type != "train":
        return f'a message of type "{message.metadata.message_type}", expected "train"'
    if stage == Stage.SETUP:
        got = {name: said.get(name) for name in ours}
        nodes, least = said.get(Key.SAMPLE_NUMBER), said.get(Key.THRESHOLD)
        if got != ours:
            return f"ranges {got}, expected {ours} (is the server's wire or version another?)"
        if said.get(Key.SHARE_NUMBER) != nodes or not fewest(nodes) <= least <= nodes:
            return f"a sum of {least} of {nodes} nodes, expected {fewest(nodes)} at least, and a share for every node"
    if stage == Stage.COLLECT_MASKED_VECTORS and len({*said[Key.SOURCE_LIST]}) < len(said[Key.SOURCE_LIST]):
        return "masks with one node twice"
    if stage == Stage.UNMASK:
        active, dead = said[Key.ACTIVE_NODE_ID_LIST], said[Key.DEAD_NODE_ID_LIST]
        if len({*active, *dead}) < len(active) + len(dead):
            return "two shares of one node's secrets"
        if message.metadata.dst_node_id not in active:
            return "shares for a sum without this node"
    return ""


# The server


@dataclass(frozen=True)
class SecureOutcome:
    """`total` is None where too few nodes were left, or masks did not cancel: then `why`, and nobody `answered`."""

    total: Whole | None
    answered: list[int]  # nodes that are in the sum
    aux: dict[int, Aux]  # what they said in clear
    silent: list[int]  # asked, and not in the sum, or gone before there was one
    refused: dict[int, str] = field(default_factory=dict)  # whose message was an error or malformed, and why
    why: str = ""


def secure_sum(
    grid: Grid, asks: Asks, words: int, *, bits: int, least: int, timeout: float, round: int = 0, observe: Watch = None
) -> SecureOutcome:
    """The sum of so many words of every node in `asks`, each asked with its own bytes, if `least` stay to the end.
    `timeout`: seconds that each of the four stages may take. `observe` is shown all that arrives, as it arrives.
    Raises what the grid itself raises; whatever nodes do ends in an outcome."""
    if least < fewest(len(asks)) or len(asks) > most_nodes(bits):
        raise SettingError(
            f"A secure sum of {least} of {len(asks):,} nodes was got; expected {fewest(len(asks)):,} or more (above "
            f"half, and {FEWEST}) of {most_nodes(bits):,} at most (sums of {bits} bits could wrap). Raise the least "
            "number of nodes, or put more people on a node."
        )
    if len(asks) < least:
        return SecureOutcome(None, [], {}, [], why=f"{len(asks)} nodes were asked and {least} are needed.")
    door, why = _Door(grid, asks, words, bits, observe), ""
    state = RecordDict({constant.MAIN_CONFIGS_RECORD: ConfigRecord({constant.Key.CURRENT_ROUND: round})})
    state.array_records[constant.MAIN_PARAMS_RECORD] = parameters_to_arrayrecord(NOTHING, True)
    context = LegacyContext(Context(0, 0, {}, state, {}), strategy=door)  # type: ignore[arg-type]
    names = ["clipping_range", "quantization_range", "modulus_range", "max_weight"]
    workflow = _Sums(1.0, least / len(asks), **dict(zip(names, _ranges(bits).values())), timeout=timeout)
    try:
        with np.errstate(all="ignore"):  # a lie about a weight may divide by 0; the result is checked
            workflow(door, context)
    except Exception as error:
        if door.asking:
            raise
        why = f"Flower's workflow stopped ({type(error).__name__}: {error}): a node's keys or shares are not sound."
    total = None if door.mean is None else from_mean(door.mean, len(door.aux), words, bits)
    if total is not None:
        return SecureOutcome(total, sorted(door.aux), door.aux, sorted({*asks} - {*door.aux}), door.refused)
    few = f"Fewer than {least} of {len(asks)} nodes were left."
    why = why or (few if door.mean is None else "Masks did not cancel: some node's are not sound.")
    return SecureOutcome(None, [], {}, sorted(door.lost), door.refused, why)


class _Sums(_Workflow):
    """Flower's workflow; nodes that are gone before masks were agreed on are left out of all that follows."""

    def share_keys_stage(self, grid: Any, context: Any, state: Any) -> bool:
        enough = super().share_keys_stage(grid, context, state)
        here = state.sampled_node_ids = set(state.active_node_ids)
        state.nid_to_neighbours = {node: state.nid_to_neighbours[node] & here for node in here}
        return bool(enough)


class _Door:
    """What the workflow sees. As its grid: of every node one reply a stage, checked, and written anew from what was
    checked. As its strategy: whom to ask for what, and somebody to give the mean to."""

    def __init__(self, grid: Grid, asks: Asks, words: int, bits: int, observe: Watch) -> None:
        self._grid, self._asks, self._observe = grid, asks, observe or (lambda _: None)
        self._size = 4 * (2 + LIMBS[bits][0] * words)  # the weight, the limb that all know, limbs
        self._keys: set[bytes] = set()
        self._places: dict[int, list[int]] = {}  # who holds a node's first share, its second, ...
        self.lost: set[int] = set()
        self.refused: dict[int, str] = {}
        self.asking = False  # what is raised meanwhile is the grid's
        self.aux: dict[int, Aux] = {}
        self.mean: NDArray[np.float64] | None = None

    def configure_fit(self, *_: Any) -> list[tuple[Any, FitIns]]:
        return [(SimpleNamespace(node_id=node), FitIns(NOTHING, {ASK: ask})) for node, ask in self._asks.items()]

    def aggregate_fit(self, _: int, results: list[tuple[Any, FitRes]], __: Any) -> tuple[None, dict[str, Any]]:
        self.aux = {seat.node_id: dict(result.metrics) for seat, result in results}
        self.mean = bytes_to_ndarray(results[0][1].parameters.tensors[0])
        return None, {}

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float) -> list[Message]:
        asks, out = list(messages), []
        self.asking = True
        replies = self._exchange(asks, timeout)
        self.asking = False
        for ask, reply in replies:
            try:
                out.append(Message(self._checked(ask, reply), reply_to=ask))
            except (ValueError, TypeError, KeyError, UnsupportedAlgorithm) as error:
                self.refused[ask.metadata.dst_node_id] = str(error)
        self.lost |= {ask.metadata.dst_node_id for ask in asks} - {reply.metadata.src_node_id for reply in out}
        return out

    def _exchange(self, asks: list[Message], timeout: float) -> list[tuple[Message, Message]]:
        """Every ask that was answered in time, with the first answer to it."""
        waiting = {name: ask for name, ask in zip(self._grid.push_messages(asks), asks) if name}
        end, out = time.monotonic() + timeout, []
        while waiting:
            for reply in self._grid.pull_messages(list(waiting)):
                self._observe(reply)
                ask = waiting.pop(reply.metadata.reply_to_message_id, None)
                out += [] if ask is None else [(ask, reply)]
            if time.monotonic() >= end:
                break
            time.sleep(POLL if waiting else 0)
        return out

    def _checked(self, ask: Message, reply: Message) -> RecordDict:
        """What Flower may read of a reply. Raises what the matter is."""
        node, asked = ask.metadata.dst_node_id, ask.content.config_records[RECORD_KEY_CONFIGS]
        if reply.has_error():
            raise ValueError(f"error {reply.error.code}: {reply.error.reason}")
        if reply.metadata.src_node_id != node:
            raise ValueError(f"a reply of node {reply.metadata.src_node_id} to what node {node} was asked")
        said: Any = reply.content.config_records[RECORD_KEY_CONFIGS]
        stage, out = str(asked[Key.STAGE]), RecordDict()
        clean = getattr(self, f"_{stage}")(node, asked, said)
        if stage == Stage.COLLECT_MASKED_VECTORS:
            aux: Any = reply.content.config_records["fitres.metrics"]
            if any(isinstance(value, list) for value in aux.values()) or len(aux.deflate()) > AUX_BYTES:
                raise ValueError("values in clear that are lists, or too large")
            out = fitres_to_recorddict(FitRes(Status(Code.OK, ""), NOTHING, 1, dict(aux)), True)
        out.config_records[RECORD_KEY_CONFIGS] = ConfigRecord(clean)
        return out

    def _setup(self, _: int, __: Any, said: Any) -> dict[str, Any]:
        keys = _listed([said[Key.PUBLIC_KEY_1], said[Key.PUBLIC_KEY_2]], 2, SHARE_BYTES)
        for key in keys:
            if key in self._keys or not isinstance(getattr(bytes_to_public_key(key), "curve", None), SECP384R1):
                raise ValueError("a public key of another kind, or one that was there already")
            self._keys.add(key)
        return dict(zip([Key.PUBLIC_KEY_1, Key.PUBLIC_KEY_2], keys))

    def _share_keys(self, node: int, asked: Any, said: Any) -> dict[str, Any]:
        self._places[node] = [int(name) for name in asked if name != Key.STAGE]
        others = [other for other in self._places[node] if other != node]
        letters = _listed(said[Key.CIPHERTEXT_LIST], len(others), SHARE_BYTES)
        if said[Key.DESTINATION_LIST] != others:
            raise ValueError("shares that are not one for every other node")
        return {Key.DESTINATION_LIST: others, Key.CIPHERTEXT_LIST: letters}

    def _collect_masked_vectors(self, _: int, __: Any, said: Any) -> dict[str, Any]:
        numbers = np.frombuffer(_listed(said[Key.MASKED_PARAMETERS], 1, self._size)[0], "<u4").astype(np.int64)
        if 4 * len(numbers) != self._size:
            raise ValueError(f"{4 * len(numbers)} bytes of masked numbers, expected {self._size}")
        return {Key.MASKED_PARAMETERS: [ndarray_to_bytes(part) for part in (numbers[:1], numbers[1:])]}

    def _unmask(self, node: int, asked: Any, said: Any) -> dict[str, Any]:
        owners = asked[Key.ACTIVE_NODE_ID_LIST] + asked[Key.DEAD_NODE_ID_LIST]
        shares = _listed(said[Key.SHARE_LIST], len(owners), SHARE_BYTES)
        places = [int.from_bytes(share[:4], "little") for share in shares]
        if said[Key.NODE_ID_LIST] != owners or places != [1 + self._places[owner].index(node) for owner in owners]:
            raise ValueError("shares of other nodes' secrets than were asked for, or another node's")
        return {Key.NODE_ID_LIST: owners, Key.SHARE_LIST: shares}


def _listed(values: Any, many: int, most: int) -> list[bytes]:
    """A list of so many bytes objects, none of them too long."""
    good = isinstance(values, list) and all(isinstance(value, bytes) and len(value) <= most for value in values)
    if not good or len(values) != many:
        raise ValueError(f"something else than {many} strings of bytes, {most} long at most")
    return values
