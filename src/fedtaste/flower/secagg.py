"""Secure sums of integers between nodes by Flower's SecAgg+ workflow: the server sees the sum and no part of it.

    on a node      if is_secure(message): return secure_reply(message, context, vector)
    on the server  outcome = secure_sum(grid, {node: request, ...}, words, least=3, timeout=600)
SecAgg+ is a protocol for floats: it clips a float, rounds it at random to a level, adds levels modulo 2^32 and divides
by the number of nodes. So a word of 64 bits is cut into 3 limbs of 22 bits, and a limb enters as limb - 2^21 with 2^22
levels of width 1: it is a level already, and rounding does not change it. Sums of 1,023 nodes cannot wrap. The mean
times the number of nodes is off by less than 2^-20, as sums stay below 2^31 and float64 rounds three times. This is
checked for every number; sums of limbs must be possible, and a limb that everybody knows must come out right. So a sum
whose masks did not cancel is never returned.

Changes to Flower, in private copies of two of its modules:
- Masks are ChaCha20 of the whole secret. Flower uses numpy's generator with a seed of 32 bits, and the first number
  under a mask is known, so a server could find the seeds by trial.
- Nodes that are gone before keys were shared are left out. Flower asks the others for shares that do not exist.
- Numbers travel as 4 bytes, not 8. Every message of a node is checked and rebuilt before Flower reads it.
- A node refuses requests that would reveal a vector: both shares of one node, a threshold of half or less, a sum of
  fewer than 3, other ranges, another message type (which Flower answers in clear). At the end it forgets its secrets.
Guarantee: a node's numbers are hidden from a server that follows the protocol and keeps all it sees, also together with
fewer than `least` - 1 other nodes. A server that invents nodes or keys is not covered: nobody signs the keys. `aux` is
sent in clear. A node that lies about its numbers moves the sum undetected. A node that lies about keys or shares can
void a round; it is named in `refused` only if its message shows the lie.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

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

from fedtaste.errors import ProtocolError, SettingError
from fedtaste.wire.masks import expand, stream

if TYPE_CHECKING:
    from flwr.common import Scalar
    from flwr.server.workflow.secure_aggregation.secaggplus_workflow import WorkflowState

Integers = NDArray[np.int64]
ClearValues = dict[str, int | float | str | bytes]  # that a node sends in clear
MakeVector = Callable[[bytes], tuple[Integers, ClearValues]]
Observer = Callable[[Message], None] | None
Fields = Mapping[str, Any]  # of Flower's config records, whose values are untyped

MODULUS = 2**32
FEWEST = 3  # as in wire/secure_sums.py, which imports torch: most messages of a node do without
LIMBS, LIMB_BITS = 3, 22  # of a word
LEVELS = 2**LIMB_BITS
MAX_NODES = (MODULUS - 1) >> LIMB_BITS  # sums of so many nodes cannot wrap
ROUNDING = 2.0**-20  # bound of what three roundings of float64 add to a sum below 2^31
SHARE_BYTES, AUX_BYTES = 4096, 2**20  # bounds of a key or a share, and of the values in clear
RANGES: dict[str, float] = {  # one level for every limb, and every weight 1
    Key.CLIPPING_RANGE: LEVELS / 2,
    Key.TARGET_RANGE: LEVELS,
    Key.MOD_RANGE: MODULUS,
    Key.MAX_WEIGHT: 1.0,
}
REQUEST, POLL_SECONDS = "ask", 0.2
NOTHING = Parameters([], "numpy.ndarray")


def _mask(seed: bytes, num_range: int, dimensions_list: list[tuple[int, ...]]) -> list[Integers]:
    """Replaces Flower's generator: numbers below 2^32, our only modulus, from one key stream, in these shapes."""
    ends = np.cumsum([int(np.prod(shape)) for shape in dimensions_list])
    words = stream(expand(seed, "flower mask"), np.empty(ends[-1], np.uint32)).astype(np.int64)
    return [part.reshape(shape) for part, shape in zip(np.split(words, ends[:-1]), dimensions_list)]


def _copy_module(name: str) -> ModuleType:
    """A copy of one of Flower's modules with our masks; Flower's own module stays as it is."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "pseudo_rand_gen"):
        raise ImportError(f"{name} does not draw masks as in flwr 1.41. Install flwr 1.41.")
    vars(module)["pseudo_rand_gen"] = _mask
    return module


_node_module = _copy_module("flwr.client.mod.secure_aggregation.secaggplus_mod")
_Workflow = _copy_module("flwr.server.workflow.secure_aggregation.secaggplus_workflow").SecAggPlusWorkflow


def min_threshold(nodes: int) -> int:
    """The smallest `least`: above half, or both secrets of a node could be revealed; and a sum of two hides nothing."""
    return max(FEWEST, nodes // 2 + 1)


def to_limbs(words: Integers) -> NDArray[np.float64]:
    """The limb that everybody knows, then every word's lowest limb, then every word's next; centred at 0."""
    rest = words.view(np.uint64)
    parts = [(rest >> np.uint64(LIMB_BITS * limb)) & np.uint64(LEVELS - 1) for limb in range(LIMBS)]
    limbs: NDArray[np.float64] = np.concatenate([[LEVELS - 1.0], *parts]) - LEVELS / 2
    return limbs


def from_mean(mean: NDArray[np.float64], nodes: int, words: int) -> Integers | None:
    """The sum of the nodes' words from the mean of their limbs; None if it is not possible."""
    total, top = mean * nodes, nodes * (LEVELS - 1.0)
    rounded = np.rint(total)
    sums = rounded + nodes * LEVELS / 2
    if not (sums[0] == top and 0 <= sums.min() <= sums.max() <= top and np.abs(total - rounded).max() <= ROUNDING):
        return None  # also for NaN
    limbs = sums[1:].astype(np.uint64).reshape(LIMBS, words)
    joined = np.zeros(words, np.uint64)  # modulo 2^64
    for limb, values in enumerate(limbs):
        joined += values << np.uint64(LIMB_BITS * limb)
    return joined.view(np.int64)


# A node


def is_secure(message: Message) -> bool:
    """Whether a message belongs to this protocol."""
    return message.has_content() and RECORD_KEY_CONFIGS in message.content.config_records


def secure_reply(message: Message, context: Context, vector: MakeVector) -> Message:
    """A node's reply to any message of the protocol. `vector` turns the server's request into this node's numbers and
    the values that it sends in clear; it is called in the third of the four messages only. The state between messages
    is in `context.state`."""
    configs: Fields = message.content.config_records[RECORD_KEY_CONFIGS]
    stage, problem = configs.get(Key.STAGE), _problem(message, configs)
    if problem:
        raise ProtocolError(f"The server violates the protocol of secure sums: {problem}. Nothing was revealed.")

    def work(ask: Message, _: Context) -> Message:
        request = ask.content.config_records["fitins.config"][REQUEST]
        if not isinstance(request, bytes):
            raise ProtocolError("The request of a secure sum must be bytes.")
        words, aux = vector(request)
        if words.ndim != 1 or words.dtype != np.int64:
            raise ValueError(f"words must be a vector of int64, got {words.dtype} of shape {words.shape}.")
        tensors = Parameters([ndarray_to_bytes(to_limbs(words))], "numpy.ndarray")
        return Message(fitres_to_recorddict(FitRes(Status(Code.OK, ""), tensors, 1, dict(aux)), False), reply_to=ask)

    reply: Message = _node_module.secaggplus_mod(message, context, work)
    if stage == Stage.COLLECT_MASKED_VECTORS:
        record = reply.content.config_records[RECORD_KEY_CONFIGS]
        fields: Fields = record
        masked = [bytes_to_ndarray(part).astype("<u4").tobytes() for part in fields[Key.MASKED_PARAMETERS]]
        record[Key.MASKED_PARAMETERS] = [b"".join(masked)]
    if stage == Stage.UNMASK:
        context.state.config_records[RECORD_KEY_STATE] = ConfigRecord({})
    return reply


def _problem(message: Message, configs: Fields) -> str:
    """What no honest server would ask; empty if nothing. Flower itself checks types and the order of messages."""
    stage = configs.get(Key.STAGE)
    if message.metadata.message_type != "train":
        return f'a message of type "{message.metadata.message_type}", expected "train"'
    if stage == Stage.SETUP:
        ranges = {name: configs.get(name) for name in RANGES}
        nodes, least = configs[Key.SAMPLE_NUMBER], configs[Key.THRESHOLD]
        if ranges != RANGES:
            return f"ranges {ranges}, expected {RANGES} (has the server another wire or version?)"
        if configs.get(Key.SHARE_NUMBER) != nodes or not min_threshold(nodes) <= least <= nodes:
            return f"a sum of {least} of {nodes} nodes, expected at least {min_threshold(nodes)}, and a share for each"
    if stage == Stage.COLLECT_MASKED_VECTORS and len({*configs[Key.SOURCE_LIST]}) < len(configs[Key.SOURCE_LIST]):
        return "masks with one node twice"
    if stage == Stage.UNMASK:
        active, dead = configs[Key.ACTIVE_NODE_ID_LIST], configs[Key.DEAD_NODE_ID_LIST]
        if len({*active, *dead}) < len(active) + len(dead):
            return "two shares of one node's secrets"
        if message.metadata.dst_node_id not in active:
            return "shares for a sum without this node"
    return ""


# The server


@dataclass(frozen=True)
class SecureOutcome:
    """The end of a secure sum. `total` is None if too few nodes were left or masks did not cancel; `why` then has the
    reason, and nobody `answered`."""

    total: Integers | None
    answered: list[int]  # nodes in the sum
    aux: dict[int, ClearValues]  # what they sent in clear
    refused: dict[int, str] = field(default_factory=dict)  # nodes whose message was an error or malformed, and why
    why: str = ""


def secure_sum(
    grid: Grid, requests: dict[int, bytes], words: int, *, least: int, timeout: float, round: int = 0,
    observe: Observer = None,
) -> SecureOutcome:  # fmt: skip
    """The sum of so many words over the nodes of `requests`, each with its own request, if `least` nodes stay to the
    end. `timeout`: seconds for each of the four stages. `observe` sees every message as it arrives. Raises what the
    grid raises; whatever nodes do ends in an outcome."""
    nodes = len(requests)
    if least < min_threshold(nodes) or nodes > MAX_NODES:
        raise SettingError(
            f"A secure sum of {nodes:,} nodes needs a threshold of at least {min_threshold(nodes):,} (above half, and "
            f"{FEWEST}), got {least}, and at most {MAX_NODES:,} nodes, as sums could wrap. Raise the least number of "
            "nodes, or put more people on a node."
        )
    if nodes < least:
        return SecureOutcome(None, [], {}, why=f"{nodes} nodes take part and {least} are needed.")
    checker, why = _ReplyChecker(grid, requests, words, observe), ""
    try:
        _run_workflow(checker, least / nodes, timeout, round)
    except Exception as error:
        if checker.asking:
            raise
        why = f"Flower's workflow stopped ({type(error).__name__}: {error}): a node's keys or shares are not valid."
    total = None if checker.mean is None else from_mean(checker.mean, len(checker.aux), words)
    if total is not None:
        return SecureOutcome(total, sorted(checker.aux), checker.aux, checker.refused)
    few = f"Fewer than {least} of {nodes} nodes were left."
    why = why or (few if checker.mean is None else "Masks did not cancel: some node's are not valid.")
    return SecureOutcome(None, [], {}, checker.refused, why)


def _run_workflow(checker: _ReplyChecker, threshold: float, timeout: float, round: int) -> None:
    """Run Flower's workflow with the checker as its grid and its strategy."""
    state = RecordDict({constant.MAIN_CONFIGS_RECORD: ConfigRecord({constant.Key.CURRENT_ROUND: round})})
    state.array_records[constant.MAIN_PARAMS_RECORD] = parameters_to_arrayrecord(NOTHING, True)
    context = LegacyContext(Context(0, 0, {}, state, {}), strategy=checker)  # type: ignore[arg-type]
    names = ["clipping_range", "quantization_range", "modulus_range", "max_weight"]
    workflow = _WorkflowOfPresent(1.0, threshold, **dict(zip(names, RANGES.values())), timeout=timeout)
    with np.errstate(all="ignore"):  # a lie about a weight may divide by 0; the result is checked
        workflow(checker, context)


class _WorkflowOfPresent(_Workflow):  # type: ignore[misc, valid-type]
    """Flower's workflow without the nodes that were gone before masks were agreed on."""

    def share_keys_stage(self, grid: Grid, context: LegacyContext, state: WorkflowState) -> bool:
        enough = super().share_keys_stage(grid, context, state)
        present = state.sampled_node_ids = set(state.active_node_ids)
        state.nid_to_neighbours = {node: state.nid_to_neighbours[node] & present for node in present}
        return bool(enough)


class _ReplyChecker:
    """Stands between Flower's workflow and the nodes. As the workflow's grid it passes on one reply of every node in
    each stage, checked and rebuilt. As its strategy it says which nodes to ask, and receives the mean."""

    def __init__(self, grid: Grid, requests: dict[int, bytes], words: int, observe: Observer) -> None:
        self._grid, self._requests, self._observe = grid, requests, observe or (lambda _: None)
        self._size = 4 * (2 + LIMBS * words)  # bytes of the weight, the known limb and the limbs
        self._keys: set[bytes] = set()
        self._holders: dict[int, list[int]] = {}  # who holds a node's first share, its second, ...
        self.refused: dict[int, str] = {}
        self.asking = False  # an exception that is raised meanwhile is the grid's
        self.aux: dict[int, ClearValues] = {}
        self.mean: NDArray[np.float64] | None = None

    def configure_fit(self, *_: object) -> list[tuple[SimpleNamespace, FitIns]]:
        requests = self._requests.items()
        return [(SimpleNamespace(node_id=node), FitIns(NOTHING, {REQUEST: request})) for node, request in requests]

    def aggregate_fit(
        self, _: int, results: list[tuple[SimpleNamespace, FitRes]], __: object
    ) -> tuple[None, dict[str, Scalar]]:
        self.aux = {proxy.node_id: dict(result.metrics) for proxy, result in results}
        self.mean = bytes_to_ndarray(results[0][1].parameters.tensors[0])
        return None, {}

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float) -> list[Message]:
        self.asking = True
        replies = self._exchange(list(messages), timeout)
        self.asking = False
        checked = []
        for ask, reply in replies:
            try:
                checked.append(Message(self._checked(ask, reply), reply_to=ask))
            except (ValueError, TypeError, KeyError, UnsupportedAlgorithm) as error:
                self.refused[ask.metadata.dst_node_id] = str(error)
        return checked

    def _exchange(self, asks: list[Message], timeout: float) -> list[tuple[Message, Message]]:
        """Every message that was answered in time, with the first reply to it."""
        waiting = {name: ask for name, ask in zip(self._grid.push_messages(asks), asks) if name}
        end, out = time.monotonic() + timeout, []
        while waiting:
            for reply in self._grid.pull_messages(list(waiting)):
                self._observe(reply)
                ask = waiting.pop(reply.metadata.reply_to_message_id, None)
                out += [] if ask is None else [(ask, reply)]
            if time.monotonic() >= end:
                break
            time.sleep(POLL_SECONDS if waiting else 0)
        return out

    def _checked(self, ask: Message, reply: Message) -> RecordDict:
        """The content of a reply that Flower may read. Raises an error if it is not valid."""
        node, request = ask.metadata.dst_node_id, ask.content.config_records[RECORD_KEY_CONFIGS]
        if reply.has_error():
            raise ValueError(f"error {reply.error.code}: {reply.error.reason}")
        if reply.metadata.src_node_id != node:
            raise ValueError(f"node {reply.metadata.src_node_id} replied in place of node {node}")
        values: Fields = reply.content.config_records[RECORD_KEY_CONFIGS]
        stage, out = str(request[Key.STAGE]), RecordDict()
        clean = getattr(self, f"_{stage}")(node, request, values)
        if stage == Stage.COLLECT_MASKED_VECTORS:
            record = reply.content.config_records["fitres.metrics"]
            aux: Fields = record
            if any(isinstance(value, list) for value in aux.values()) or len(record.deflate()) > AUX_BYTES:
                raise ValueError("the values in clear are lists, or too large")
            out = fitres_to_recorddict(FitRes(Status(Code.OK, ""), NOTHING, 1, dict(aux)), True)
        out.config_records[RECORD_KEY_CONFIGS] = ConfigRecord(clean)
        return out

    def _setup(self, _: int, __: Fields, values: Fields) -> Fields:
        keys = _check_bytes([values[Key.PUBLIC_KEY_1], values[Key.PUBLIC_KEY_2]], 2, SHARE_BYTES)
        for key in keys:
            if key in self._keys or not isinstance(getattr(bytes_to_public_key(key), "curve", None), SECP384R1):
                raise ValueError("a public key is of another kind, or not new")
            self._keys.add(key)
        return dict(zip([Key.PUBLIC_KEY_1, Key.PUBLIC_KEY_2], keys))

    def _share_keys(self, node: int, request: Fields, values: Fields) -> Fields:
        self._holders[node] = [int(name) for name in request if name != Key.STAGE]
        others = [other for other in self._holders[node] if other != node]
        ciphertexts = _check_bytes(values[Key.CIPHERTEXT_LIST], len(others), SHARE_BYTES)
        if values[Key.DESTINATION_LIST] != others:
            raise ValueError("there is not one share for every other node")
        return {Key.DESTINATION_LIST: others, Key.CIPHERTEXT_LIST: ciphertexts}

    def _collect_masked_vectors(self, _: int, __: Fields, values: Fields) -> Fields:
        numbers = np.frombuffer(_check_bytes(values[Key.MASKED_PARAMETERS], 1, self._size)[0], "<u4").astype(np.int64)
        if 4 * len(numbers) != self._size:
            raise ValueError(f"masked numbers must have {self._size} bytes, got {4 * len(numbers)}")
        return {Key.MASKED_PARAMETERS: [ndarray_to_bytes(part) for part in (numbers[:1], numbers[1:])]}

    def _unmask(self, node: int, request: Fields, values: Fields) -> Fields:
        owners = request[Key.ACTIVE_NODE_ID_LIST] + request[Key.DEAD_NODE_ID_LIST]
        shares = _check_bytes(values[Key.SHARE_LIST], len(owners), SHARE_BYTES)
        positions = [int.from_bytes(share[:4], "little") for share in shares]
        expected = [1 + self._holders[owner].index(node) for owner in owners]
        if values[Key.NODE_ID_LIST] != owners or positions != expected:
            raise ValueError("the shares are of other secrets than were requested, or of another node")
        return {Key.NODE_ID_LIST: owners, Key.SHARE_LIST: shares}


def _check_bytes(values: object, many: int, most: int) -> list[bytes]:
    """Check that these are so many bytes objects, none of them too long."""
    if (
        not isinstance(values, list)
        or len(values) != many
        or not all(isinstance(value, bytes) and len(value) <= most for value in values)
    ):
        raise ValueError(f"expected {many} byte strings of at most {most} bytes each")
    return values
