"""Which rows are resident in a fast tier on a device, and what is known of them there."""

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
_SAMPLE = 1 << 16  # of the slots, from which the age of the oldest rows is estimated


class DeviceResidencyMap:
    """The same as a `ResidencyMap`, for rows on a device. A slot is that of the row in its table.

    The index of the table is the map. An id is resident from the moment its row is in the table
    until the row leaves it; `add` and `remove` only report that. What is known of the rows of a
    cache is in `DeviceCacheMap`.
    """

    def __init__(self, table: DeviceTable, rows: int) -> None:
        self.rows = rows
        self._table = table
        self._ids, self._counted = 0, True  # the number of ids, an upper bound if not counted

    def __len__(self) -> int:
        if not self._counted:
            self.recount()
        return self._ids

    @property
    def at_most(self) -> int:
        """An upper bound of the number of resident ids; waits for nothing."""
        return self._ids

    def recount(self) -> None:
        """Asks the table for its number of ids."""
        self._ids, self._counted = self._table.size(), True

    @property
    def free(self) -> int:
        """How many more ids may come."""
        return max(0, self.rows - len(self))

    def find(self, ids: Ids) -> Ids:
        """The slot of each id, -1 if it is not resident."""
        with self._table.on_device():
            slots = find.find(self._table.arrays, self._tensor(ids))
        return slots.cpu().numpy()

    def at(self) -> Ids:
        """All taken slots, in order."""
        return self._table.arrays.taken().nonzero()[:, 0].cpu().numpy()

    def ids_at(self, at: Ids) -> Ids:
        """The ids in taken slots."""
        return self._table.arrays.ids(self._tensor(at)).cpu().numpy()

    def are_taken(self, at: Ids) -> np.ndarray:
        """Which of these slots are taken."""
        return self._table.arrays.taken()[self._tensor(at)].cpu().numpy()

    def add(self, ids: Ids) -> Ids:
        """The slots of ids whose rows have just come."""
        at = self.find(ids)
        self.added(len(ids), self._tensor(at).to(torch.int32))
        return at

    def added(self, most: int, slots: Int32[Tensor, "n"] | None = None) -> None:
        """At most so many rows have come, to these `slots`; a slot below 0 counts for none."""
        self._ids, self._counted = self._ids + most, False

    def remove(self, at: Ids | Tensor) -> None:
        """The ids in these slots leave."""
        self._counted = False

    def clear(self) -> None:
        """All ids leave."""
        self._counted = False

    def least_used(self, uses: UseCounts, n: int) -> Ids:
        """The n slots whose ids have the smallest counts, in any order; at most those taken."""
        at = self._table.arrays.taken().nonzero()[:, 0]
        theirs = uses.of(self._table.arrays.ids(at))
        found = theirs.topk(min(n, len(at)), largest=False, sorted=False)
        return at[found.indices].cpu().numpy()

    def nbytes(self) -> int:
        """Memory beside that of the table."""
        return 0

    def _tensor(self, at: Ids | Tensor) -> Tensor:
        if isinstance(at, Tensor):
            return at
        return torch.from_numpy(np.ascontiguousarray(at)).to(self._table.device)


class DeviceCacheMap(DeviceResidencyMap):
    """For each slot: when its row was last used, whether it is dirty, and how many pins it has.

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
        # Rows that came and rows that left in steps of several tables. The counts only grow.
        self.moved: Int64[Tensor, "2"] = torch.zeros(2, dtype=torch.int64, device=table.device)
        self.pins: Int32[Tensor, "slots"] = self.used[:0]  # made with the first pin
        self._stay: Int32[Tensor, "slots"] = self.used[:0]  # made with it
        self._numbers = False  # whether they were made
        self._held = self._stays = self._came_since = 0
        self._told, self._telling = (0, 0), Lock()

    # ---- how many rows there are

    def have_room(self, ids: int) -> bool:
        """Whether so many more may come. Waits for the device only if the bound does not tell."""
        return self.lacks(ids) <= 0 or len(self) + ids <= self.rows

    def lacks(self, ids: int) -> int:
        """How many rows must leave at most before so many come; waits for nothing."""
        return self._ids + ids - self.rows

    def uncounted(self) -> None:
        """Some rows may have left."""
        self._counted = False

    def begin_count(self) -> None:
        """The device counts the rows now. Rows that come from now on are counted here."""
        self._came_since = 0

    def end_count(self, rows: int) -> None:
        """The device has counted the ids that have rows."""
        self._ids, self._counted = rows + self._came_since, False  # some may have left since

    def may_have_come(self, most: int) -> None:
        """A move of at most `most` rows failed part way; some of them may have arrived."""
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

    # ---- rows come and leave

    def added(self, most: int, slots: Int32[Tensor, "n"] | None = None) -> None:
        """At most so many rows have come, to these `slots`; a slot below 0 counts for none."""
        super().added(most)
        self._came_since += most
        self._stays += 1
        if self.numbers_stays:
            assert slots is not None
            with self._table.on_device():
                leave.mark(slots, self._stay, None, self._stays)

    def remove(self, at: Ids | Tensor) -> None:
        """The ids in these slots leave."""
        super().remove(at)
        slots = self._tensor(at)
        self.changed[slots] = False
        self.used[slots] = NEVER
        if len(self.pins):
            self.pins[slots] = 0

    def mend(self, at: Ids | Tensor, now: int) -> None:
        """A move broke off: rows that are in these slots all the same count as used now.

        A row without a time of use would never leave, and would not be counted. The time must not
        be earlier: readers behind the cache rely on when a row was last used.
        """
        slots = self._tensor(at)
        slots = slots[slots >= 0]
        slots = slots[self._table.arrays.taken()[slots]]
        self.used[slots] = torch.where(self.used[slots] == NEVER, now, self.used[slots])

    def clear(self) -> None:
        """All ids leave."""
        super().clear()
        self.changed.zero_()
        self.used.fill_(NEVER)
        self.pins.zero_()

    # ---- what is known of resident rows

    def mark_used(self, at: Ids, now: int) -> None:
        """Rows were used at a time that is not before that of other uses."""
        self.used[self._tensor(at)] = now

    def set_dirty(self, at: Ids, dirty: bool) -> None:
        """Makes rows dirty or clean."""
        self.changed[self._tensor(at)] = dirty

    def ids_and_dirty(self, at: Ids | Tensor) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "m"]]:
        """The ids in these slots, and those of them whose rows are dirty; on the device."""
        slots = self._tensor(at)
        ids = self._table.arrays.ids(slots)
        return ids, ids[self.changed[slots]]

    def take_moved(self) -> tuple[int, int]:
        """Rows that came and rows that left since the last call."""
        with self._telling:
            came, left = self.moved.tolist()  # a step may add to them meanwhile
            before, self._told = self._told, (came, left)
        return came - before[0], left - before[1]

    def dirty(self) -> Ids:
        """The slots of all dirty rows, in order."""
        return self.changed.nonzero()[:, 0].cpu().numpy()

    def pin(self, at: Ids) -> Ids:
        """Rows stay until `unpin`. Returns the number of each row's stay."""
        if not len(self.pins):
            self.pins, self._stay = torch.zeros_like(self.used), torch.zeros_like(self.used)
            self._numbers = True
        slots = self._tensor(at)
        self.pins[slots] += 1
        self._held += 1
        return self._stay[slots].cpu().numpy()

    def unpin(self, at: Ids, stays: Ids) -> None:
        """Ends one `pin` of rows, except of those that have left in between."""
        slots = self._tensor(at)
        same = (self._stay[slots] == self._tensor(stays)) & self._table.arrays.taken()[slots]
        self.pins[slots[same]] -= 1
        self._held -= 1

    def unpinned(self, stay: Ids) -> int:
        """How many slots are neither pinned nor among those that `stay`, which differ."""
        if not self._held:
            return self.rows - len(stay)
        held = self.pins > 0
        held[self._tensor(stay)] = True
        return self.rows - int(held.sum())

    def coldest(self, n: int, stay: Ids, before: int) -> Ids:
        """The n least recently used rows that are neither pinned nor among those that `stay`.

        Fewer, if fewer were last used `before` this time.
        """
        used = self._last_used()
        used[self._tensor(stay)] = NEVER
        return _smallest(used, n, before).cpu().numpy()

    def oldest(self, n: int, before: int) -> Int64[Tensor, "m"]:
        """About n of the least recently used rows, on the device; none that is used now or pinned.

        First comes one row of each bucket that is almost full. Otherwise a new row that belongs
        there would find no lane, again and again.
        """
        used = self._last_used()
        slots = self._table.arrays.buckets * LANES  # the slots of two special ids stand behind
        lines = used[:slots].view(-1, LANES)
        full = (lines != NEVER).sum(dim=1) >= LANES - 1
        oldest, lane = lines.min(dim=1)
        first = torch.where(full & (oldest < before), -1, oldest)
        lines.scatter_(1, lane[:, None], first[:, None])
        if len(used) < _MANY_SLOTS:
            return _smallest(used, n, before)
        # To choose exactly n takes ten times as long as to choose by the ages of a sample.
        sample = used[:: len(used) // _SAMPLE | 1]  # odd: every lane of the buckets has its share
        rank = min(max(1, round(n / len(used) * len(sample))), len(sample))
        most = sample.kthvalue(rank).values
        return (used <= most.clamp(max=before - 1)).nonzero()[: 2 * n, 0]

    def _last_used(self) -> Int32[Tensor, "slots"]:
        """The time of the last use of each slot; free and pinned slots have the latest time."""
        used = torch.where(self._table.arrays.taken(), self.used, NEVER)
        if self._held:
            used[self.pins > 0] = NEVER
        return used

    def nbytes(self) -> int:
        """Device memory of what is known of each row."""
        return sum(x.nbytes for x in (self.used, self.changed, self.pins, self._stay))


def _smallest(used: Int32[Tensor, "slots"], n: int, before: int) -> Int64[Tensor, "m"]:
    """The positions of the n smallest times that are earlier than `before`."""
    found = used.topk(min(n, len(used)), largest=False, sorted=False)
    return found.indices[found.values < before]


def device_map_of(table: CachingTable) -> DeviceCacheMap:
    """The map of a cache on a device."""
    assert isinstance(table.resident, DeviceCacheMap)
    return table.resident


def device_store_of(table: CachingTable | HybridTable) -> DeviceTable:
    """The fast store of a table, on a device."""
    assert isinstance(table.fast, DeviceTable)
    return table.fast
