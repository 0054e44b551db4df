"""Tracks which rows are resident in a fast tier in host memory, and how often ids are used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core import checks
from ..core.hashing import signed64
from ..core.shapes import Float32, Int64
from ..tables.config import Segment, TableConfig
from ..tables.host import HostTable
from ..tables.initializers import Zeros
from ..tables.optimizers import Sgd
from ..tables.slot_key import slot_key_of
from ..tables.store import TableKeys

Ids = np.ndarray[Any, np.dtype[np.int64]]
_HIGH = 1 << 20  # a float32 holds whole numbers up to 2**24: a slot is written as two numbers


class RowState(Enum):
    """The state of a row of a `CachingTable`: where its newest values are.

    Every row is in the slow store. The state describes its copy in the cache, if there is one:

    | from    | event                                    | to      |
    |---------|------------------------------------------|---------|
    | ABSENT  | fetched (lookup for training, update,    | CLEAN   |
    |         | prefetch)                                |         |
    | CLEAN   | updated, assigned, restored              | DIRTY   |
    | CLEAN   | evicted                                  | ABSENT  |
    | DIRTY   | flushed                                  | CLEAN   |
    | DIRTY   | evicted: put into the write-back queue   | LEAVING |
    | LEAVING | written to the slow store                | ABSENT  |
    | LEAVING | fetched: taken back from the queue       | DIRTY   |
    | any     | erased, or removed by the table's rule   | no row  |

    Caches that step together on a device evict in two stages. Chosen rows that are dirty become
    CLEAN, and are copied to the slow store while they stay resident. Those that were not used or
    changed since become ABSENT in the next eviction. A reader of the slow store waits for the
    copies.

    >>> RowState.of(resident=True, is_dirty=False, in_flight=False)
    <RowState.CLEAN: 'clean'>
    """

    ABSENT = "absent"  # not cached; the slow store has the newest values
    CLEAN = "clean"  # cached; the slow store has, or is about to have, the same values
    DIRTY = "dirty"  # cached; the slow store has old values
    LEAVING = "leaving"  # not cached; the write-back queue has the newest values

    @staticmethod
    def of(*, resident: bool, is_dirty: bool, in_flight: bool) -> RowState:
        """Returns the state of a row with these properties."""
        if resident:
            return RowState.DIRTY if is_dirty else RowState.CLEAN
        return RowState.LEAVING if in_flight else RowState.ABSENT


class ResidencyMap:
    """A map of fixed size from ids to slots, in host memory.

    Single-owner, but several threads may call `find` at the same time. For each resident row it
    knows whether the row is dirty, how many pins it has, when it was last used, and the number of
    its stay. A stay lasts from `add` to `remove`, and its number is unique within the slot.
    `DeviceResidencyMap` and `DeviceCacheMap` do the same on a device.

    >>> resident = ResidencyMap(2)
    >>> resident.add(np.array([7, -1])).tolist(), len(resident)
    ([0, 1], 2)
    >>> resident.find(np.array([-1, 5])).tolist()
    [1, -1]
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        segment = Segment(2, Zeros(), Sgd())
        # A small table serves as the map: it takes any id, without collisions, and runs in C++.
        self._map = HostTable(TableConfig("places", (segment,), initial_capacity=rows))
        self._ids: Ids = np.zeros(rows, np.int64)
        self._taken = np.zeros(rows, np.bool_)
        self._dirty = np.zeros(rows, np.bool_)
        self.pins = np.zeros(rows, np.int32)
        self._used = np.zeros(rows, np.int64)
        self._stay = np.zeros(rows, np.int64)
        self._free = np.arange(rows)[::-1].copy()  # a stack: the last is taken next
        self._frees = rows
        self._stays = 0

    def __len__(self) -> int:
        return self.rows - self._frees

    @property
    def free(self) -> int:
        """The number of free slots."""
        return self._frees

    # ---- which ids are resident

    def find(self, ids: Ids) -> Ids:
        """Returns the slot of each id, -1 if it is not resident."""
        rows = self._map.lookup(torch.from_numpy(np.ascontiguousarray(ids))).rows_of().numpy()
        words = rows.astype(np.int64)
        return words[:, 0] * _HIGH + words[:, 1] - 1

    def at(self) -> Ids:
        """Returns all taken slots, in order."""
        return self._taken.nonzero()[0]

    def ids_at(self, at: Ids) -> Ids:
        """Returns the ids in taken slots."""
        return self._ids[at]

    def are_taken(self, at: Ids) -> np.ndarray:
        """Returns which of these slots are taken."""
        return self._taken[at]

    def add(self, ids: Ids) -> Ids:
        """Returns slots for ids that differ and are not resident. Enough slots must be free."""
        assert len(ids) <= self._frees
        n = len(ids)
        before, taken = self._frees, torch.from_numpy(ids.copy())
        at = self._free[before - n : before][::-1].copy()
        words = np.stack(divmod(at + 1, _HIGH), axis=1).astype(np.float32)
        self._stays += 1
        self._ids[at], self._stay[at] = ids, self._stays
        self._dirty[at], self.pins[at], self._used[at] = False, 0, 0
        try:
            self._map.assign(taken, torch.from_numpy(words))
            self._taken[at], self._frees = True, before - n
        except BaseException:  # no memory, or the user interrupts the program: no id is added
            self._map.erase(taken)
            self._taken[at], self._frees = False, before
            raise
        return at

    def remove(self, at: Ids) -> None:
        """Frees these slots."""
        if not len(at):
            return
        try:
            self._map.erase(torch.from_numpy(self._ids[at]))
        except BaseException:  # it failed part way: ids that are no longer found were removed
            self._set_free(at[self.find(self._ids[at]) < 0])
            raise
        self._set_free(at)

    def _set_free(self, at: Ids) -> None:
        self._taken[at], self._dirty[at], self.pins[at] = False, False, 0
        self._free[self._frees : self._frees + len(at)] = at
        self._frees += len(at)

    def clear(self) -> None:
        """Frees all slots."""
        self.remove(self.at())

    # ---- what is known of resident rows

    def mark_used(self, at: Ids, now: int) -> None:
        """Sets the time of the last use of rows. No other use is later."""
        self._used[at] = now

    def set_dirty(self, at: Ids, dirty: bool) -> None:
        """Marks rows as dirty or clean."""
        self._dirty[at] = dirty

    def ids_and_dirty(self, at: Ids) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "m"]]:
        """Returns the ids in these slots, and the ids of the dirty rows among them."""
        ids = self.ids_at(at)
        return torch.from_numpy(ids), torch.from_numpy(ids[self._dirty[at]])

    def may_have_come(self, most: int) -> None:
        """Does nothing after a failed move: all rows with a slot have arrived."""

    def mend(self, at: Ids, now: int) -> None:
        """Does nothing after a failed move: no call reads a row without a slot."""

    def take_moved(self) -> tuple[int, int]:
        """Returns zeros: only maps on a device count rows that were added and removed."""
        return 0, 0

    def dirty(self) -> Ids:
        """Returns the slots of all dirty rows, in order."""
        return (self._dirty & self._taken).nonzero()[0]

    def pin(self, at: Ids) -> Ids:
        """Keeps rows resident until `unpin`. Returns the number of each row's stay."""
        self.pins[at] += 1
        return self._stay[at]

    def unpin(self, at: Ids, stays: Ids) -> None:
        """Ends one `pin` of rows, except of rows that have left in between."""
        same = (self._stay[at] == stays) & self._taken[at]
        self.pins[at[same]] -= 1

    def unpinned(self, stay: Ids) -> int:
        """Returns how many slots are neither pinned nor among `stay`."""
        held = self.pins > 0
        held[stay] = True
        return self.rows - int(held.sum())

    def coldest(self, n: int, stay: Ids, before: int) -> Ids:
        """Returns the n least recently used rows that are neither pinned nor among `stay`.

        Returns fewer if fewer were last used before the time `before`.
        """
        may_leave = self._taken & (self.pins == 0) & (self._used < before)
        may_leave[stay] = False
        at = may_leave.nonzero()[0]
        return at[np.argpartition(self._used[at], n - 1)[:n]] if n < len(at) else at

    def least_used(self, uses: UseCounts, n: int) -> Ids:
        """Returns the n slots whose ids have the smallest counts, in any order.

        Returns fewer if fewer are taken.
        """
        at = self.at()
        found = uses.of(self._ids[at]).topk(min(n, len(at)), largest=False, sorted=False)
        return at[found.indices.numpy()]

    def nbytes(self) -> int:
        """Returns the host memory of the map and of what is known of each row."""
        known = (self._ids, self._taken, self._dirty, self.pins, self._used, self._stay)
        return self._map.memory().total_bytes + sum(x.nbytes for x in (*known, self._free))


_RENEW_WEIGHT = 2.0**40  # all counts are scaled down when a use has this weight


class UseCounts:
    """Counts how often ids were used of late, in a fixed amount of memory. Single-owner.

    A use `half_life_steps` ago counts half. There are two rows of cells. Each id has one cell in
    each row, and the smaller of the two is its count. An id that shares both cells with other ids
    has a count that is too high. This can move a row needlessly, but changes no result. A random
    secret determines which ids share cells, so that nobody can choose ids that all seem hot. The
    cells are on `device`, with the fast rows.

    >>> uses = UseCounts(1000, half_life_steps=1)
    >>> hot, cold = np.array([7]), np.array([8])
    >>> uses.step(cold)
    >>> uses.step(hot)
    >>> bool(uses.of(hot)[0] == 2 * uses.of(cold)[0])
    True
    """

    def __init__(
        self, ids: int, *, half_life_steps: int, device: torch.device = checks.CPU
    ) -> None:
        # A step may use many ids that are never seen again, and a half-life is many steps.
        self.columns = max(1 << 10, 4 * ids)
        self.cells: Float32[Tensor, "2 cells"] = torch.zeros(
            2, self.columns, dtype=torch.float32, device=device
        )
        # With a random odd factor, ids share the upper bits of their products only by chance.
        self.factors = tuple(signed64(slot_key_of(None) | 1) for _ in range(2))
        self._growth = 2.0 ** (1 / half_life_steps)
        self.weight = 1.0  # of a use now: earlier uses keep the smaller weight they had

    def step(self, ids: Ids) -> None:
        """Counts one use of each of these ids, which differ."""
        self.fade()
        places = self._cells_of(ids)
        counted = self._least(places) + self.weight
        for cells, at in zip(self.cells, places, strict=True):  # larger counts of other ids stay
            cells.scatter_reduce_(0, at, counted, "amax")

    def fade(self) -> None:
        """Begins a step: earlier uses count less than those of this step."""
        self.weight *= self._growth
        if self.weight > _RENEW_WEIGHT:
            self.cells /= self.weight
            self.weight = 1.0

    def of(self, ids: Ids | Int64[Tensor, "n"]) -> Float32[Tensor, "n"]:
        """Returns the weighted uses of each id, on the device of the cells."""
        return self._least(self._cells_of(ids))

    def nbytes(self) -> int:
        """Returns the memory of the cells."""
        return self.cells.nbytes

    def _least(self, places: list[Int64[Tensor, "n"]]) -> Float32[Tensor, "n"]:
        first, second = (  # on a CPU index_select is many times faster than cells[at]
            cells.index_select(0, at) for cells, at in zip(self.cells, places, strict=True)
        )
        return torch.minimum(first, second)

    def _cells_of(self, ids: Ids | Int64[Tensor, "n"]) -> list[Int64[Tensor, "n"]]:
        words = torch.from_numpy(np.ascontiguousarray(ids)) if isinstance(ids, np.ndarray) else ids
        return [(half * self.columns) >> 32 for half in self.halves(words.to(self.cells.device))]

    def halves(self, words: Int64[Tensor, "n"]) -> Iterator[Int64[Tensor, "n"]]:
        """Yields two 32-bit numbers per id."""
        words = words ^ ((words >> 32) & 0xFFFFFFFF)
        return (((words * factor) >> 32) & 0xFFFFFFFF for factor in self.factors)


class GroupUseCounts:
    """The `UseCounts` of several tables, counted together. Single-owner.

    Their cells become parts of one tensor. They must be empty, because all take the secret of the
    first.
    """

    def __init__(self, each: Sequence[UseCounts]) -> None:
        self._each = each
        device = each[0].cells.device
        self._cells = torch.cat([one.cells.view(-1) for one in each])
        sizes = [one.cells.numel() for one in each]
        for one, cells in zip(each, self._cells.split(sizes), strict=True):
            one.cells, one.factors = cells.view(2, -1), each[0].factors
        self._columns = torch.tensor([one.columns for one in each], device=device)
        self._firsts = torch.tensor([0, *accumulate(sizes[:-1])], device=device)
        self._last: tuple[tuple[int, ...], Tensor | None] = ((), None)

    def step(self, keys: TableKeys) -> None:
        """Counts one use of each of these keys. A key that occurs twice counts once."""
        for one in self._each:
            one.fade()
        table = self._tables_of(keys)
        weights = torch.tensor([one.weight for one in self._each], dtype=torch.float32)
        columns, first = self._columns[table], self._firsts[table]
        halves = self._each[0].halves(keys.ids)
        places = [
            first + row * columns + ((half * columns) >> 32) for row, half in enumerate(halves)
        ]
        least = torch.minimum(*(self._cells[at] for at in places))
        # Floats above 0 are ordered like their bits, and an integer maximum is one operation.
        counted = (least + weights.to(least.device)[table]).view(torch.int32)
        for at in places:  # larger counts of other ids stay
            self._cells.view(torch.int32).scatter_reduce_(0, at, counted, "amax")

    def _tables_of(self, keys: TableKeys) -> Int64[Tensor, "n"]:
        """Returns the number of each key's table. Cached: most calls have the same splits."""
        splits, table = self._last
        if table is None or splits != keys.splits:
            sizes = [stop - start for start, stop in pairwise(keys.splits)]
            numbers = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
            table = numbers.to(self._cells.device)
            self._last = (keys.splits, table)
        return table
