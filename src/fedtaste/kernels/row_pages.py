"""Paged storage of each person's own item rows: only rows that the person touched take memory.

Rows are stored in pages of 64. A page has one owner and a person's pages are a linked list, so growing copies nothing
and leaves no holes, and memory grows with the rows that people touched, never with people x items. The pages are in
memory, or in one file on disk that the system pages in and out (`folder`); a full disk is reported before anything is
written to it.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from fedtaste.core import Params
from fedtaste.errors import RunError

PAGE = 64
WORKERS = 8
Ints = NDArray[np.int64]
Array = NDArray[Any]


class Pages:
    """Float rows of one width by (person, row number)."""

    def __init__(self, initial: NDArray[np.float32], people: int, folder: Path | None = None) -> None:
        self.initial = initial  # [catalogue, width]: what a row is before it is touched
        self._file: IO[bytes] | None = None  # `close` reads it even where `_reserve` fails
        self.folder, self._file = folder, None if folder is None else _reserve(folder)
        self.first = np.full(people, -1, np.int32)  # by person: the first page, the last page, rows in use
        self.last = np.full(people, -1, np.int32)
        self.used = np.zeros(people, np.int64)
        self.pages = 0
        self.follows = np.zeros(0, np.int32)  # by page: the next page of the same person
        self.ids = np.zeros((0, PAGE), np.int32)  # by page: the row numbers
        self.values = np.zeros((0, PAGE, initial.shape[1]), np.float32)

    @property
    def rows(self) -> NDArray[np.float32]:
        """All rows by slot, [slots, width]. Not to be kept: the next `place` may move it."""
        rows: NDArray[np.float32] = self.values.reshape(-1, self.initial.shape[1])
        return rows

    def find(self, people: Ints, starts: Ints, wanted: NDArray[np.int32]) -> Ints:
        """The slot of every (person, row number), -1 where it is not stored; `wanted` is ragged by person."""
        return self._find(people, starts, wanted)[0]

    def _find(self, people: Ints, starts: Ints, wanted: NDArray[np.int32]) -> tuple[Ints, Ints]:
        """(slots as `find` gives them, by person: how many are not stored)."""
        result: tuple[Ints, Ints] = _find(
            self.first, self.follows, self.used, self.ids, people, starts, wanted, len(self.initial)
        )
        return result

    def place(self, people: Ints, starts: Ints, wanted: NDArray[np.int32], *, fill: bool = True) -> Ints:
        """As `find`, but rows that were not stored are added with their initial values. No person, and no row of a
        person, may occur twice. Without `fill` the caller writes the added rows, whose slots are given as ~slot."""
        slots, new = self._find(people, starts, wanted)
        pages = -(-(self.used[people] + new) // PAGE) - -(-self.used[people] // PAGE)
        self._room(self.pages + int(pages.sum()))
        self.pages = _extend(self.first, self.last, self.follows, people, pages, self.pages)
        _append(
            self.first, self.follows, self.used, self.ids, self.rows, people, starts, wanted, slots, self.initial, fill
        )  # fmt: skip
        return slots

    def _room(self, pages: int) -> None:
        """Make room for so many pages in all, and for an eighth more than there were, so that growing is rare."""
        present = len(self.ids)
        if pages <= present:
            return
        capacity = max(pages, present + present // 8)
        shape = (capacity, PAGE, self.initial.shape[1])
        self.follows = np.resize(self.follows, capacity)
        self.ids.resize((capacity, PAGE), refcheck=False)
        if self._file is None:
            self.values.resize(shape, refcheck=False)
            return
        try:
            os.posix_fallocate(self._file.fileno(), 0, math.prod(shape) * 4)
        except OSError as error:
            raise RunError(
                f"The private store in {self.folder} cannot have the {math.prod(shape) * 4 / 1e6:,.0f} MB it needs "
                f"({error.strerror}). The run can be resumed: free some space, or use --store memory."
            ) from error
        self.values = np.memmap(self._file, np.float32, "r+", shape=shape)

    def close(self) -> None:
        """Close the file, which deletes its pages."""
        if self._file is not None:
            self._file.close()

    __del__ = close

    def pack(self) -> dict[str, Array]:
        """Plain arrays, without a copy of the rows."""
        parts: dict[str, Array] = {"first": self.first, "last": self.last, "used": self.used}
        return parts | {n: getattr(self, n)[: self.pages] for n in ("follows", "ids", "values")}

    def unpack(self, parts: dict[str, Array]) -> None:
        """Restore what `pack` gave; RunError where its arrays do not fit together."""
        pages = len(parts["ids"])
        sound = (
            all(len(parts[n]) == len(self.first) for n in ("first", "last", "used"))
            and all(len(parts[n]) == pages for n in ("follows", "values"))
            and _sound(parts["first"], parts["last"], parts["used"], parts["follows"], parts["ids"], len(self.initial))
        )
        if not sound:
            raise RunError("The private rows of this run do not fit together. Restore it from a copy, or run again.")
        self.first, self.last, self.used = (parts[n].copy() for n in ("first", "last", "used"))
        self.pages = pages
        if self._file is None and pages:  # rows may take gigabytes: they are copied only where they cannot be resized
            self.follows, self.ids = parts["follows"].copy(), parts["ids"].copy()
            self.values = np.require(parts["values"], requirements=["C", "W", "O"])
            return
        self.follows, self.ids = np.zeros(0, np.int32), np.zeros((0, PAGE), np.int32)
        self.values = np.zeros((0, PAGE, self.initial.shape[1]), np.float32)
        self._room(pages)
        self.follows[:pages], self.ids[:pages], self.values[:pages] = parts["follows"], parts["ids"], parts["values"]


class PagedStore(Protocol):
    """Private parameters with item rows in pages (engine/store.py has the type)."""

    @property
    def people(self) -> int: ...
    @property
    def stacked(self) -> Params: ...
    @property
    def touched(self) -> Mapping[str, Pages]: ...


def _reserve(folder: Path) -> IO[bytes]:
    """A file without a name: it goes when the process does, however that ends."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return tempfile.TemporaryFile(dir=folder, prefix="private-")
    except OSError as error:
        raise RunError(
            f"The private store cannot be kept in {folder} ({error.strerror}). Choose another --out, or --store memory."
        ) from error


@njit(cache=True, nogil=True, parallel=True)
def _find(first, follows, used, ids, people, starts, wanted, catalogue):
    out, missing = np.full(len(wanted), -1, np.int64), starts[1:] - starts[:-1]
    for worker in prange(WORKERS):
        place_of = np.full(catalogue, -1, np.int64)  # by row number: its place in `wanted`
        for place in range(worker, len(people), WORKERS):
            begin, end = starts[place], starts[place + 1]
            if used[people[place]] == 0 or end == begin:
                continue
            for at in range(begin, end):
                place_of[wanted[at]] = at
            page = first[people[place]]
            for row in range(used[people[place]]):
                if row and row % PAGE == 0:
                    page = follows[page]
                at = place_of[ids[page, row % PAGE]]
                if begin <= at < end:
                    out[at] = np.int64(page) * PAGE + row % PAGE
                    missing[place] -= 1
    return out, missing


@njit(cache=True, nogil=True)
def _extend(first, last, follows, people, pages, count):
    """Chain so many new pages to each person; returns how many there are then."""
    for place in range(len(people)):
        person = people[place]
        for _ in range(pages[place]):
            if first[person] < 0:
                first[person] = count
            else:
                follows[last[person]] = count
            last[person] = count
            follows[count] = -1
            count += 1
    return count


@njit(cache=True, nogil=True, parallel=True)
def _append(first, follows, used, ids, rows, people, starts, wanted, slots, initial, fill):
    for worker in prange(WORKERS):
        for place in range(worker, len(people), WORKERS):
            person = people[place]
            at_row, page = used[person], first[person]
            for _ in range(at_row // PAGE):
                if follows[page] >= 0:
                    page = follows[page]
            for at in range(starts[place], starts[place + 1]):
                if slots[at] < 0:
                    if at_row and at_row % PAGE == 0 and at_row != used[person]:
                        page = follows[page]
                    ids[page, at_row % PAGE] = wanted[at]
                    slot = np.int64(page) * PAGE + at_row % PAGE
                    slots[at] = slot if fill else ~slot
                    if fill:
                        rows[slot] = initial[wanted[at]]
                    at_row += 1
            used[person] = at_row


@njit(cache=True, nogil=True)
def _sound(first, last, used, follows, ids, catalogue):
    """Whether chains end, have one owner a page, are as long as they say, and hold row numbers of the catalogue, each
    once a person."""
    seen, holder = np.zeros(len(follows), np.bool_), np.full(catalogue, -1, np.int64)
    for person in range(len(first)):
        page, left, end = first[person], used[person], -1
        if left < 0:
            return False
        while page != -1:
            if page < 0 or page >= len(follows) or seen[page]:
                return False
            seen[page] = True
            for at in range(min(left, PAGE)):
                row = ids[page, at]
                if row < 0 or row >= catalogue or holder[row] == person:
                    return False
                holder[row] = person
            left -= min(left, PAGE)
            end, page = page, follows[page]
        if left or end != last[person]:
            return False
    return True
