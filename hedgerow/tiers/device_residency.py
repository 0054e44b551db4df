"""Tracks which rows are resident in a fast tier on a device, and their use, on the device."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..core.shapes import Bool, Int32, Int64
from ..kernels import find, leave
from ..kernels.layout import LANES
from ..kernels.leave import NEVER
from ..tables.device import DeviceTable
from .residency_map import Ids

if TYPE_CHECKING:
    from .caching import CachingTable
    from .hybrid import HybridTable
    from .residency_map import UseCounts

_MANY_SLOTS = 1 << 18
_SAMPLE = 1 << 16  # number of slots from which the age of the oldest rows is estimated


class DeviceResidencyMap:
    """A `ResidencyMap` for rows on a device. A slot is that of the row in its table.

    The index of the table is the map. An id is resident from the moment its row is in the table
    until the row leaves it; `add` and `remove` only report this. `DeviceCacheMap` adds what is
    known of the rows of a cache.
    """

    def __init__(self, table: DeviceTable, rows: int) -> None:
        self.rows = rows
        self._table = table
        self._ids, self._counted = 0, True  # number of ids; an upper bound if not counted

    def __len__(self) -> int:
        if not self._counted:
            self.recount()
        return self._ids

    @property
    def at_most(self) -> int:
        """An upper bound of the number of resident ids. Does not wait."""
        return self._ids

    def recount(self) -> None:
        """Reads the number of ids from the table."""
        self._ids, self._counted = self._table.size(), True

    @property
    def free(self) -> int:
        """The number of ids that can still be added."""
        return max(0, self.rows - len(self))

    def find(self, ids: Ids) -> Ids:
        """Returns the slot of each id, -1 if it is not resident."""
        with self._table.on_device():
            slots = find.find(self._table.arrays, self._tensor(ids))
        return slots.cpu().numpy()

    def at(self) -> Ids:
        """Returns all taken slots, in order."""
        return self._table.arrays.taken().nonzero()[:, 0].cpu().numpy()

    def ids_at(self, at: Ids) -> Ids:
        """Returns the ids in taken slots."""
        return self._table.arrays.ids(self._tensor(at)).cpu().numpy()

    def are_taken(self, at: Ids) -> np.ndarray:
        """Returns which of these slots are taken."""
        return self._table.arrays.taken()[self._tensor(at)].cpu().numpy()

    def add(self, ids: Ids) -> Ids:
        """Reports ids whose rows were added. Returns their slots."""
        at = self.find(ids)
        self.added(len(ids), self._tensor(at).to(torch.int32))
        return at

    def added(self, most: int, slots: Int32[Tensor, "n"] | None = None) -> None:
        """Reports that at most `most` rows were added, in `slots`; slots below 0 are ignored."""
        self._ids, self._counted = self._ids + most, False

    def remove(self, at: Ids | Tensor) -> None:
        """Reports that the ids in these slots leave."""
        self._counted = False

    def clear(self) -> None:
        """Reports that all ids leave."""
        self._counted = False

    def least_used(self, uses: UseCounts, n: int) -> Ids:
        """Returns the n slots whose ids have the smallest counts, in any order.

        Returns fewer if fewer are taken.
        """
        at = self._table.arrays.taken().nonzero()[:, 0]
        theirs = uses.of(self._table.arrays.ids(at))
        found = theirs.topk(min(n, len(at)), largest=False, sorted=False)
        return at[found.indices].cpu().numpy()

    def nbytes(self) -> int:
        """Returns the bytes in addition to those of the table."""
        return 0

    def _tensor(self, at: Ids | Tensor) -> Tensor:
        if isinstance(at, Tensor):
            return at
        return torch.from_numpy(np.ascontiguousarray(at)).to(self._table.device)


class DeviceCacheMap(DeviceResidencyMap):
    """For each slot: the time of its row's last use, whether the row is dirty, and its pins.

    Steps write `used` and `changed` on the device. `MissHandler` makes those of several tables
    parts of one tensor.
    """

    def __init__(self, table: DeviceTable, rows: int) -> None:
        super().__init__(table, rows)
        slots = len(table.arrays.values)
        self.used: Int32[Tensor, "slots"] = torch.full(
            (slots,), NEVER, dtype=torch.int32, device=table.device
        )
        self.changed: Bool[Tensor, "slots"] = torch.zeros(
            slots, dtype=torch.bool, device=table.device
        )
        # Rows that were added and that left in steps of several tables. The counts only grow.
        self.moved: Int64[Tensor, "2"] = torch.zeros(2, dtype=torch.int64, device=table.device)
        self.pins: Int32[Tensor, "slots"] = self.used[:0]  # made with the first pin
        self._stay: Int32[Tensor, "slots"] = self.used[:0]  # made with the first pin
        self._numbers = False  # whether `pins` and `_stay` were made
        self._held = self._stays = self._came_since = 0
        self._told, self._telling = (0, 0), Lock()

    # ---- how many rows there are

    def have_room(self, ids: int) -> bool:
        """Returns whether `ids` more rows fit. Waits for the device only if that is uncertain."""
        return self.lacks(ids) <= 0 or len(self) + ids <= self.rows

    def lacks(self, ids: int) -> int:
        """Returns an upper bound of the rows that must leave before `ids` more fit."""
        return self._ids + ids - self.rows

    def uncounted(self) -> None:
        """Reports that some rows may have left."""
        self._counted = False

    def begin_count(self) -> None:
        """Reports that the device counts the rows now. Rows added from now on are counted here."""
        self._came_since = 0

    def end_count(self, rows: int) -> None:
        """Takes the number of rows that the device has counted."""
        self._ids, self._counted = rows + self._came_since, False  # some may have left since

    def may_have_come(self, most: int) -> None:
        """Reports a move of at most `most` rows that failed; some of them may have arrived."""
        self._came_since += most
        self.recount()

    @property
    def has_pins(self) -> bool:
        """Whether any rows are pinned."""
        return self._held > 0

    @property
    def numbers_stays(self) -> bool:
        """Whether `added` needs the slots: rows were pinned since the cache was made."""
        return self._numbers

    # ---- rows are added and removed

    def added(self, most: int, slots: Int32[Tensor, "n"] | None = None) -> None:
        """Reports that at most `most` rows were added, in `slots`; slots below 0 are ignored."""
        super().added(most)
        self._came_since += most
        self._stays += 1
        if self.numbers_stays:
            assert slots is not None
            with self._table.on_device():
                leave.mark(slots, self._stay, None, self._stays)

    def remove(self, at: Ids | Tensor) -> None:
        """Reports that the ids in these slots leave."""
        super().remove(at)
        slots = self._tensor(at)
        self.changed[slots] = False
        self.used[slots] = NEVER
        if len(self.pins):
            self.pins[slots] = 0

    def mend(self, at: Ids | Tensor, now: int) -> None:
        """Gives rows in these slots that have no time of use the time `now`, after a failed move.

        A row without a time of use would never leave and would not be counted. The time must not be
        earlier: readers behind the cache rely on when a row was last used.
        """
        slots = self._tensor(at)
        slots = slots[slots >= 0]
        slots = slots[self._table.arrays.taken()[slots]]
        self.used[slots] = torch.where(self.used[slots] == NEVER, now, self.used[slots])

    def clear(self) -> None:
        """Reports that all ids leave."""
        super().clear()
        self.changed.zero_()
        self.used.fill_(NEVER)
        self.pins.zero_()

    # ---- what is known of resident rows

    def mark_used(self, at: Ids, now: int) -> None:
        """Sets the time of the last use of rows. No other use is later."""
        self.used[self._tensor(at)] = now

    def set_dirty(self, at: Ids, dirty: bool) -> None:
        """Marks rows as dirty or clean."""
        self.changed[self._tensor(at)] = dirty

    def ids_and_dirty(self, at: Ids | Tensor) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "m"]]:
        """Returns the ids in these slots, and those of dirty rows among them, on the device."""
        slots = self._tensor(at)
        ids = self._table.arrays.ids(slots)
        return ids, ids[self.changed[slots]]

    def take_moved(self) -> tuple[int, int]:
        """Returns how many rows were added and how many left since the last call."""
        with self._telling:
            came, left = self.moved.tolist()  # a step may add to them meanwhile
            before, self._told = self._told, (came, left)
        return came - before[0], left - before[1]

    def dirty(self) -> Ids:
        """Returns the slots of all dirty rows, in order."""
        return self.changed.nonzero()[:, 0].cpu().numpy()

    def pin(self, at: Ids) -> Ids:
        """Keeps rows resident until `unpin`. Returns the number of each row's stay."""
        if not len(self.pins):
            self.pins, self._stay = torch.zeros_like(self.used), torch.zeros_like(self.used)
            self._numbers = True
        slots = self._tensor(at)
        self.pins[slots] += 1
        self._held += 1
        return self._stay[slots].cpu().numpy()

    def unpin(self, at: Ids, stays: Ids) -> None:
        """Ends one `pin` of rows, except of rows that have left in between."""
        slots = self._tensor(at)
        same = (self._stay[slots] == self._tensor(stays)) & self._table.arrays.taken()[slots]
        self.pins[slots[same]] -= 1
        self._held -= 1

    def unpinned(self, stay: Ids) -> int:
        """Returns how many slots are neither pinned nor among `stay`, which differ."""
        if not self._held:
            return self.rows - len(stay)
        held = self.pins > 0
        held[self._tensor(stay)] = True
        return self.rows - int(held.sum())

    def coldest(self, n: int, stay: Ids, before: int) -> Ids:
        """Returns the n least recently used rows that are neither pinned nor among `stay`.

        Returns fewer if fewer were last used before the time `before`.
        """
        used = self._last_used()
        used[self._tensor(stay)] = NEVER
        return _smallest(used, n, before).cpu().numpy()

    def oldest(self, n: int, before: int) -> Int64[Tensor, "m"]:
        """Returns about n of the least recently used rows, on the device.

        None of them is pinned or used now. One row of each bucket that is almost full comes first.
        Otherwise a new row of that bucket would find no lane, again and again.
        """
        used = self._last_used()
        slots = self._table.arrays.buckets * LANES  # the slots of two special ids come after these
        lines = used[:slots].view(-1, LANES)
        full = (lines != NEVER).sum(dim=1) >= LANES - 1
        oldest, lane = lines.min(dim=1)
        first = torch.where(full & (oldest < before), -1, oldest)
        lines.scatter_(1, lane[:, None], first[:, None])
        if len(used) < _MANY_SLOTS:
            return _smallest(used, n, before)
        # Choosing exactly n takes ten times as long as choosing by the ages of a sample.
        sample = used[:: len(used) // _SAMPLE | 1]  # odd, so that all lanes of buckets are sampled
        rank = min(max(1, round(n / len(used) * len(sample))), len(sample))
        most = sample.kthvalue(rank).values
        return (used <= most.clamp(max=before - 1)).nonzero()[: 2 * n, 0]

    def _last_used(self) -> Int32[Tensor, "slots"]:
        """Returns the last use of each slot. Free and pinned slots have the latest time."""
        used = torch.where(self._table.arrays.taken(), self.used, NEVER)
        if self._held:
            used[self.pins > 0] = NEVER
        return used

    def nbytes(self) -> int:
        """Returns the device memory of what is known of each row."""
        return sum(x.nbytes for x in (self.used, self.changed, self.pins, self._stay))


def _smallest(used: Int32[Tensor, "slots"], n: int, before: int) -> Int64[Tensor, "m"]:
    """Returns the positions of the n smallest times that are earlier than `before`."""
    found = used.topk(min(n, len(used)), largest=False, sorted=False)
    return found.indices[found.values < before]


def device_map_of(table: CachingTable) -> DeviceCacheMap:
    """Returns the map of a cache on a device."""
    assert isinstance(table.resident, DeviceCacheMap)
    return table.resident


def device_store_of(table: CachingTable | HybridTable) -> DeviceTable:
    """Returns the fast store of a table, on a device."""
    assert isinstance(table.fast, DeviceTable)
    return table.fast
