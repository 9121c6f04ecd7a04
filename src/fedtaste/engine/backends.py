"""Backends: three ways to run the clients of one cohort, with equal results and different speed.

    loop     one person at a time on whole tables, every upload encoded to bytes and decoded again: slow and simple,
             the reference for the others
    vmap     people of similar length at once, each on a compact table of the rows they touch
    kernel   a method's own client for the whole cohort, compiled or as one backward pass (methods that have one)

A backend returns the sum of the admitted uploads and counts the refused ones by reason. It stores the new private
parameters of admitted people only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from fedtaste.core import (
    Cohort,
    Download,
    Examples,
    Method,
    Params,
    People,
    SecureSummation,
    Stage,
    StageContext,
    Upload,
)
from fedtaste.data.sampling import Ragged
from fedtaste.engine.store import Store
from fedtaste.errors import SettingError
from fedtaste.text import did_you_mean
from fedtaste.wire.messages import Head, encode
from fedtaste.wire.rng import derive, device_keys, uniforms
from fedtaste.wire.validation import UploadValidator, soundness

Network = Callable[[Iterator[bytes]], Iterator[bytes]]  # messages sent -> messages that arrive
PADDED = 4_000_000  # numbers in the largest array of a chunk: it should stay in the outer cache
NO_EXAMPLES = Ragged(np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32))


class Outcome(NamedTuple):
    """What the clients of one round sent."""

    upload: Upload | None  # the sum of the admitted uploads
    refused: Counter[str]  # uploads by the reason for which they were refused
    first: int | None  # the first person whose upload was refused
    answered: int  # people whose upload was admitted
    bytes: tuple[int, int] | None = None  # (up, down) as they were sent, where messages were really sent
    noise: float = 0.0  # the share of a release's variance that remote clients have added already


def choose_backend(backend: str, method: Method, wire: Stage) -> str:
    """The backend to use; `auto` is the fastest one that gives the same result."""
    known = ("auto", "loop", "vmap", "kernel")
    if backend not in known:
        raise SettingError(did_you_mean(backend, known, "backend"))
    if method.pooled:  # there is one client only
        return "loop"
    obstacle = None
    if method.fast.kernel is None:
        obstacle = "this method has none"
    elif wire.client and not wire.accepts_plain_sums or wire.combine or wire.secure_sum:
        obstacle = "it sums before a stage could see single uploads"
    elif wire.turns and not method.fast.turns:
        obstacle = "it sends whole tables, and --wire has turns"
    if backend == "auto":
        return "vmap" if obstacle else "kernel"
    if backend == "kernel" and obstacle:
        raise SettingError(f"The kernel backend cannot be used here: {obstacle}. Use --backend vmap.")
    return backend


@dataclass(frozen=True, eq=False)
class Call:
    """Inputs of the client phase of one round."""

    down: Download
    people: People  # who compute
    examples: Ragged  # theirs, where they are in this process
    context: StageContext
    wire: Stage = Stage()
    requested: People | None = None  # `people` and those who dropped out; only secure sums tell them apart
    run_id: int = 0  # which run a message belongs to
    network: Network | None = None  # what the network does to messages; only the loop backend has messages
    noise_shares: dict[int, float] = field(default_factory=dict)  # of a release's variance, that each device adds
    written: Params = field(default_factory=dict)  # `down` as it is written into messages (wire/packing.py)

    def device_keys(self) -> list[bytes]:
        """The random key of each of these people's devices; empty where no stage draws on a device."""
        if not (self.noise_shares or self.wire.random):
            return [b""] * len(self.people)
        return device_keys(self.context.key, self.people)

    def sent_entries(self) -> NDArray[np.bool_] | None:
        """Which examples are of rows that are sent; None where all rows are."""
        turns, examples = self.wire.turns, self.examples
        if turns is None:
            return None
        return turns.entries(self.people, examples.starts, np.asarray(examples.inputs, np.int32), self.context.round)


def collect(backend: str, method: Method, call: Call, store: Store) -> Outcome:
    """Run these people's clients and sum what they upload; new private parameters go into the store."""
    fits = not method.fast.one_batch or not call.examples.batch
    if backend == "kernel" and (fits or call.examples.lengths.max(initial=0) <= call.examples.batch):
        assert method.fast.kernel is not None
        upload, refused = method.fast.kernel(call.down, Cohort(call.people, call.examples, store, call.sent_entries()))
        return Outcome(upload, +Counter(refused), None, len(call.people) - sum(refused.values()))
    return (ClientLoop if backend == "loop" else BatchedClients)(method, call, store).run()


def staged(
    wire: Stage, context: StageContext, uploads: Upload, keys: list[bytes], people: People, rows: Tensor | None = None
) -> Upload:
    """Apply the client stages of the wire to these people's stacked uploads; `keys` are the random keys of the devices,
    `rows` the numbers of the rows of compact tables."""
    if wire.turns:
        uploads = wire.turns.mask(uploads, people, context.round, rows)
    if wire.client is None:
        return uploads
    client = wire.client
    draws = rounding_draws(uploads, keys) if wire.random else {}
    return vmap(lambda upload, drawn: client(upload, context._replace(draws=drawn)))(uploads, draws)


def rounding_draws(uploads: Upload, keys: list[bytes]) -> Params:
    """Numbers in [0, 1) for random rounding, as many as each leaf of one upload has: name -> [people, numbers]. A
    leaf's first numbers are the same whether its table is whole or compact."""
    return {
        name: torch.from_numpy(np.stack([uniforms(derive(key, "rounding", name), value[0].numel()) for key in keys]))
        for name, value in uploads.total.items()
    }


@dataclass(eq=False)
class ClientLoop:
    """The loop backend: one device after the other, on whole tables.

    Each upload is encoded, goes through the network and is validated by the server. Sealed uploads are validated on
    the device, as nobody else can read them, and go through the real secure-aggregation protocol.
    """

    method: Method
    call: Call
    store: Store
    private: dict[int, Params] = field(default_factory=dict)  # new values of people whose upload is on its way

    def run(self) -> Outcome:
        """Run every client and add up the admitted uploads."""
        call = self.call
        turns, validator = call.wire.turns, UploadValidator(call.run_id, call.context.round, call.people)
        separate: dict[int, Upload] = {}  # uploads that are not simply added
        total: Upload | None = None
        first: int | None = None
        for arrival in self._arrivals(validator):
            if arrival is not None and not finite(self.private[arrival[0]], 0):
                arrival = validator.refuse("non-finite", arrival[0])
            if arrival is None:
                first = next(reversed(self.private), None) if first is None else first
                continue
            person, upload = arrival
            private = {name: value[None] for name, value in self.private.pop(person).items()}
            self.store.put(np.array([person]), private)
            if turns and not call.wire.secure_sum:
                upload = turns.restore(upload, person, call.context.round)
            if call.wire.secure_sum or call.wire.combine:
                separate[person] = upload
            else:
                total = wide(upload) if total is None else total + upload
        if separate and call.wire.secure_sum:
            total = self._secure_sum(call.wire.secure_sum, separate)
            if turns and total is not None:
                total = turns.restore(total, next(iter(separate)), call.context.round)  # everybody's turn is the same
        elif separate and call.wire.combine:
            total = call.wire.combine(stacked([separate[person] for person in sorted(separate)]))
        return Outcome(total, validator.refused, first, len(validator.answered))

    def _uploads(self, validator: UploadValidator) -> Iterator[tuple[int, Upload]]:
        """Run the clients; the validator learns from each upload which shapes this method sends."""
        call = self.call
        for place, (person, key) in enumerate(zip(call.people.tolist(), call.device_keys())):
            examples = Examples(*(x[0] for x in call.examples.pad(np.array([place]))))
            private = {name: value[0] for name, value in self.store.gather(call.people[place : place + 1]).items()}
            upload, self.private[person] = self.method.client(call.down, private, examples)
            upload = one_of(staged(call.wire, call.context, stacked([upload]), [key], np.array([person])))
            upload = with_noise(call, person, key, upload)
            if call.wire.turns:
                upload = call.wire.turns.cut(upload, person, call.context.round)
            validator.expect(upload.total, person)
            yield person, upload

    def _arrivals(self, validator: UploadValidator) -> Iterator[tuple[int, Upload] | None]:
        """The uploads as the server gets them; None for each that it refuses."""
        call = self.call
        if call.wire.secure_sum:
            return (validator.admit_upload(person, upload) for person, upload in self._uploads(validator))
        run, round = call.run_id, call.context.round
        blobs = (encode(upload, Head(run, round, person)) for person, upload in self._uploads(validator))
        return (validator.admit(blob) for blob in (call.network(blobs) if call.network else blobs))

    def _secure_sum(self, protocol: SecureSummation, admitted: dict[int, Upload]) -> Upload | None:
        """Sum by the real protocol. Rejected clients send zeros, so that pairwise masks still cancel."""
        call, like = self.call, next(iter(admitted.values()))
        nothing = Upload({name: torch.zeros_like(v) for name, v in like.total.items()}, torch.zeros_like(like.weight))
        keys = dict(zip(call.people.tolist(), call.device_keys()))
        rejected = {who: with_noise(call, who, key, nothing) for who, key in keys.items() if who not in admitted}
        requested = call.people if call.requested is None else call.requested
        return protocol.run_protocol(admitted | rejected, requested, call.context)


def with_noise(call: Call, person: int, key: bytes, upload: Upload) -> Upload:
    """The upload with the noise that this person's device adds, where devices add noise."""
    if person not in call.noise_shares or call.wire.device_noise is None:
        return upload
    context = call.context._replace(key=derive(key, "noise"), shares=call.noise_shares[person])
    noisy = call.wire.device_noise(upload, context)
    if not call.wire.local:
        return noisy
    # A device sends 32 bits: the grid of local noise is chosen so that its numbers fit.
    return Upload({name: value.int() for name, value in noisy.total.items()}, noisy.weight)


def wide(upload: Upload) -> Upload:
    """Whole numbers as 64 bits, so that a sum of them cannot overflow."""
    if all(value.is_floating_point() for value in upload.total.values()):
        return upload
    return Upload({name: value.long() for name, value in upload.total.items()}, upload.weight)


def one_of(uploads: Upload) -> Upload:
    """The only upload of a stack of one."""
    return Upload({name: value[0] for name, value in uploads.total.items()}, uploads.weight[0])


def stacked(uploads: list[Upload]) -> Upload:
    """Uploads stacked into one along a new first axis, of people."""
    total = {name: torch.stack([up.total[name] for up in uploads]) for name in uploads[0].total}
    return Upload(total, torch.stack([up.weight for up in uploads]))


@dataclass(eq=False)
class BatchedClients:
    """The vmap backend: people of similar length at once, each on a compact table of the rows they touch."""

    method: Method
    call: Call
    store: Store
    total: Upload | None = None
    separate: list[Upload] = field(default_factory=list)  # uploads that are not simply added, in pieces
    refused: Counter[str] = field(default_factory=Counter)
    first: int | None = None

    def run(self) -> Outcome:
        """Run every client and add up the admitted uploads."""
        call, down, wire = self.call, self.call.down, self.call.wire
        width = _example_width(self.method, down, self.store, call.examples)
        bulk = self.method.fast.bulk
        if not bulk and not self._compact:  # a person's whole model, and its gradient
            bulk = 2 * sum(v.numel() for v in (*down.params.values(), *self.store.initial.values()))
        keys = call.device_keys()
        for chunk in chunks(call.examples, width, bulk):
            self._run_chunk(chunk, [keys[place] for place in chunk])
        total, pieces = self.total, self.separate
        if wire.combine and pieces:
            tables = {name: torch.cat([up.total[name] for up in pieces]) for name in pieces[0].total}
            total = wire.combine(Upload(tables, torch.cat([up.weight for up in pieces])))
        if wire.secure_sum and total is not None:
            total = wire.secure_sum.decode(total)
        return Outcome(total, self.refused, self.first, len(call.people) - sum(self.refused.values()))

    def _run_chunk(self, chunk: People, keys: list[bytes]) -> None:
        """Run these clients (places in `call.people`), and keep what the admitted ones send and store."""
        call, people = self.call, self.call.people[chunk]
        examples, params, rows = call.examples.pad(chunk), call.down.params, None
        if self._compact:
            examples, rows = compacted(examples, self._catalogue)
            params = {n: v[rows] if n in self.method.rows else v for n, v in params.items()}
        dims = {n: 0 if self._compact and n in self.method.rows else None for n in params}
        client = vmap(self.method.client, in_dims=(Download(dims, None), 0, 0))  # type: ignore[arg-type]
        uploads, private = client(Download(params, call.down.round), self.store.gather(people, rows), examples)
        uploads = staged(call.wire, call.context, uploads, keys, people, rows)
        good, reasons = admitted(uploads, finite(private, 1))
        self.refused += reasons
        if self.first is None and not good.all():
            self.first = int(people[int((~good).nonzero()[0])])
        if good.any():
            uploads = call.wire.secure_sum.encode(uploads) if call.wire.secure_sum else uploads
            table = Compact(rows, self.method.rows, self._catalogue)
            if call.wire.combine:
                self.separate.append(expanded(uploads, good, table))
            else:
                self.total = add_people(self.total, uploads, good, table)
        kept = good.nonzero()[:, 0]
        private = {n: v[kept] for n, v in private.items()}
        self.store.put(people[kept.numpy()], private, None if rows is None else rows[kept])

    @property
    def _compact(self) -> bool:
        """Whether clients see compact tables: where something follows the catalogue and no stage fills whole tables."""
        follow = any(name in self.method.rows for name in self.call.down.params) or bool(self.store.rows)
        return follow and not self.call.wire.dense

    @property
    def _catalogue(self) -> int:
        """Rows of the tables that follow the catalogue."""
        shared = [value for name, value in self.call.down.params.items() if name in self.method.rows]
        tables = shared[:1] or [self.store.initial[name] for name in self.store.rows]
        return max((len(table) for table in tables), default=0)


class Compact(NamedTuple):
    """Which uploads have compact tables, and where their rows are in the catalogue."""

    rows: Tensor | None  # [people, r] numbers in the catalogue, -1: none; None: tables are whole
    follow: tuple[str, ...]  # names of the tables
    catalogue: int


def expanded(uploads: Upload, good: Tensor, table: Compact) -> Upload:
    """The uploads of the people who are `good`, stacked, with whole tables."""
    out: Params = {}
    rows, follow, catalogue = table
    for name, value in uploads.total.items():
        if name in follow and rows is not None:
            empty = torch.zeros(len(value), catalogue, *value.shape[2:], dtype=value.dtype)
            at = rows.clamp(min=0).reshape(*rows.shape, *[1] * (value.ndim - 2)).expand_as(value)
            value = empty.scatter_add(1, at, value)
        out[name] = value[good]
    return Upload(out, uploads.weight[good])


def _example_width(method: Method, down: Download, store: Store, examples: Ragged) -> int:
    """Numbers that one example may occupy: of the widest catalogue table (a factorisation's outer products, where a
    method learns from histories), or of the example itself, where it has features."""
    if examples.inputs.ndim > 1:
        return 4 * int(np.prod(examples.inputs.shape[1:]))
    leaves = [*down.params.items(), *store.initial.items()]
    width = max((v[0].numel() for n, v in leaves if n in method.rows), default=1)
    return width * (width + 3) // 2 if method.examples == "history" else 2 * width


def chunks(examples: Ragged, width: int, bulk: int = 0) -> Iterator[People]:
    """Split people into groups of similar length, so that padding is at most a quarter, and of a size that fits the
    cache, with `width` numbers for an example and at least `bulk` for a person."""
    lengths = examples.lengths
    order = np.argsort(lengths, kind="stable")
    begin = 0
    while begin < len(order):
        end, shortest = begin, max(int(lengths[order[begin]]), 1)
        while end < len(order):
            longest = int(lengths[order[end]])
            size = (end + 1 - begin) * max(longest * width, bulk)
            if end > begin and (longest > 1.25 * shortest + 8 or size > PADDED):
                break
            end += 1
        yield order[begin:end]
        begin = end


def compacted(examples: Examples, catalogue: int) -> tuple[Examples, Tensor]:
    """(examples whose items are row numbers of a compact table, the rows [people, r] of that table in the catalogue,
    -1: none). The table has the rows that the person's examples name."""
    flat = examples.inputs.masked_fill(examples.mask == 0, catalogue).flatten(1)
    order = flat.sort(1).values
    first = torch.ones_like(order, dtype=torch.bool)
    first[:, 1:] = order[:, 1:] != order[:, :-1]
    place = first.cumsum(1) - 1
    rows = torch.full((len(flat), int(place[:, -1].max()) + 1), catalogue)
    rows.scatter_(1, place, order)
    if bool((rows[:, -1] == catalogue).all()) and rows.shape[1] > 1:
        rows = rows[:, :-1].contiguous()
    local = torch.searchsorted(rows, flat).clamp(max=rows.shape[1] - 1).reshape(examples.inputs.shape)
    return examples._replace(inputs=local), rows.masked_fill(rows == catalogue, -1)


def finite(private: Params, axes: int) -> Tensor:
    """Whether all private parameters are finite, by person where they are stacked (`axes` 1). Uploads of people whose
    private parameters are not finite are dropped, and their private parameters stay as they were."""
    tests = [torch.isfinite(v).reshape(*v.shape[:axes], -1).all(-1) for v in private.values()]
    return torch.stack(tests).all(0) if tests else torch.ones((), dtype=torch.bool)


def admitted(uploads: Upload, kept: Tensor) -> tuple[Tensor, Counter[str]]:
    """(whether each stacked upload is admitted, refusals by reason); `kept`: whose private parameters are finite."""
    good = torch.ones_like(uploads.weight, dtype=torch.bool)
    reasons: Counter[str] = Counter()
    for passed, reason in [*soundness(uploads), (kept.expand_as(good), "non-finite")]:
        reasons[reason] += int((good & ~passed).sum())
        good &= passed
    return good, +reasons  # without reasons that nobody was refused for


def add_people(total: Upload | None, uploads: Upload, good: Tensor, table: Compact) -> Upload:
    """`total` plus the uploads of the people who are `good`; compact tables are scattered into whole ones, in place.
    Whole numbers are added as 64 bits."""
    rows, follow, catalogue = table
    if not good.all():
        uploads = Upload({name: value[good] for name, value in uploads.total.items()}, uploads.weight[good])
        rows = None if rows is None else rows[good]
    sums: Params = {} if total is None else total.total
    for name, value in uploads.total.items():
        if name in follow and rows is not None:
            if total is None:
                dtype = value.dtype if value.is_floating_point() else torch.int64
                sums[name] = torch.zeros(catalogue, *value.shape[2:], dtype=dtype)
            real = rows.clamp(min=0).flatten()  # padding adds zeros to the first row
            sums[name].index_add_(0, real, value.flatten(0, 1).to(sums[name].dtype))
        else:
            sums[name] = value.sum(0) + (0 if total is None else sums[name])
    return Upload(sums, uploads.weight.sum() + (0 if total is None else total.weight))
