"""Which rows are resident in a fast tier on a device."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..core.shapes import Bool, Int32, Int64
from ..kernels import find, mark
from ..kernels.layout import LANES
from ..kernels.leave import NEVER
from ..tables.device import DeviceTable
from .hybrid import UseCounts
from .residency_map import Ids

if TYPE_CHECKING:
    from .cache_moves import CacheMoves
    from .tier_pair import TwoTiers


class DeviceResidencyMap:
    """What `ResidencyMap` is for rows in host memory; a place is the slot of the row in its table.

    The table's own index is the map, so an id has a place from the moment its row is there until
    the row is gone: `take` and `give` only tell of it. What is known of the rows of a cache is in
    `DeviceCacheMap`.
    """

    def __init__(self, table: DeviceTable, rows: int) -> None:
        self.rows = rows
        self._table = table
        self._ids, self._counted = 0, True  # how many, at most that if they are not counted

    def __len__(self) -> int:
        if not self._counted:
            self.recount()
        return self._ids

    def recount(self) -> None:
        """Asks the table how many ids it has."""
        self._ids, self._counted = self._table.size(), True

    @property
    def free(self) -> int:
        """How many ids more may come."""
        return max(0, self.rows - len(self))

    def find(self, ids: Ids) -> Ids:
        """The place of each id, -1 where it has none."""
        with self._table.on_device():
            slots = find.find(self._table.arrays, self._tensor(ids))
        return slots.cpu().numpy()

    def at(self) -> Ids:
        """All taken places, in order."""
        return self._table.arrays.taken().nonzero()[:, 0].cpu().numpy()

    def ids_at(self, at: Ids) -> Ids:
        """The ids at taken places."""
        return self._table.arrays.ids(self._tensor(at)).cpu().numpy()

    def are_taken(self, at: Ids) -> np.ndarray:
        """Which of these places somebody has."""
        return self._table.arrays.taken()[self._tensor(at)].cpu().numpy()

    def take(self, ids: Ids) -> Ids:
        """The places of ids whose rows have just come."""
        at = self.find(ids)
        self.came(len(ids), self._tensor(at).to(torch.int32))
        return at

    def came(self, most: int, slots: Int32[Tensor, "n"] | None = None) -> None:
        """So many rows at most have come; `slots` say where to, those below 0 nowhere."""
        self._ids, self._counted = self._ids + most, False

    def give(self, at: Ids | Tensor) -> None:
        """The ids at these places leave."""
        self._counted = False

    def clear(self) -> None:
        """All ids leave."""
        self._counted = False

    def least_used(self, uses: UseCounts, n: int) -> Ids:
        """The n places whose ids are used least, in any order; fewer if fewer are taken."""
        at = self._table.arrays.taken().nonzero()[:, 0]
        theirs = uses.of(self._table.arrays.ids(at))
        found = theirs.topk(min(n, len(at)), largest=False, sorted=False)
        return at[found.indices].cpu().numpy()

    def nbytes(self) -> int:
        """Memory beside the table's own."""
        return 0

    def _tensor(self, at: Ids | Tensor) -> Tensor:
        if isinstance(at, Tensor):
            return at
        return torch.from_numpy(np.ascontiguousarray(at)).to(self._table.device)


def fast_of(table: TwoTiers) -> DeviceTable:
    """The fast store of a table, on a device."""
    assert isinstance(table.fast, DeviceTable)
    return table.fast


_MANY_SLOTS = 1 << 18
_SAMPLE = 1 << 16  # of so many slots


class DeviceCacheMap(DeviceResidencyMap):
    """Of each row: when it was last used, whether it was changed since it came, who holds it.

    `used` and `changed` are written by steps on the device; `TierGroup` puts those of several
    tables into one piece.
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
        # Rows that came, and that left, in steps of several tables; they only grow.
        self.moved: Int64[Tensor, "2"] = torch.zeros(2, dtype=torch.int64, device=table.device)
        self._pins: Int32[Tensor, "slots"] = self.used[:0]  # made with the first hold
        self._born: Int32[Tensor, "slots"] = self.used[:0]
        self._numbers = False  # whether they were made
        self._holds = self._stays = self._came_since = 0
        self._told, self._telling = (0, 0), Lock()

    def have_room(self, ids: int) -> bool:
        """Whether so many more may come; waits for the device only if that is not clear."""
        return self.lacks(ids) <= 0 or len(self) + ids <= self.rows

    def lacks(self, ids: int) -> int:
        """How many must leave at most before so many come; waits for nothing."""
        return self._ids + ids - self.rows

    def uncounted(self) -> None:
        """Some may have left."""
        self._counted = False

    def begin_count(self) -> None:
        """From now on it is known how many come beside those that the device counts now."""
        self._came_since = 0

    def end_count(self, rows: int) -> None:
        """What the device has counted."""
        self._ids, self._counted = rows + self._came_since, False  # some may have left since

    def may_have_come(self, most: int) -> None:
        """Some of so many rows have come, nobody knows which."""
        self._came_since += most
        self.recount()

    @property
    def holds(self) -> bool:
        """Whether any rows are held."""
        return self._holds > 0

    @property
    def numbers_stays(self) -> bool:
        """Whether `came` must be told the slots: rows were held since the cache was made."""
        return self._numbers

    def came(self, most: int, slots: Int32[Tensor, "n"] | None = None) -> None:
        """So many rows at most have come; `slots` say where to, those below 0 nowhere."""
        super().came(most)
        self._came_since += most
        self._stays += 1
        if self.numbers_stays:
            assert slots is not None
            with self._table.on_device():
                mark.mark(slots, self._born, None, self._stays)

    def give(self, at: Ids | Tensor) -> None:
        """The ids at these places leave."""
        super().give(at)
        slots = self._tensor(at)
        self.changed[slots] = False
        self.used[slots] = NEVER
        if len(self._pins):
            self._pins[slots] = 0

    def stayed(self, at: Ids | Tensor, now: int) -> None:
        """Something broke off: rows that are at these places all the same are used now.

        A row that was never used would not leave, and count for none. Not at an earlier time: that
        a row was not used since is what those rely on who read behind the cache.
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
        self._pins.zero_()

    def use(self, at: Ids, now: int) -> None:
        """These were used at a time, not before that of other uses."""
        self.used[self._tensor(at)] = now

    def set_dirty(self, at: Ids, dirty: bool) -> None:
        """Their rows are changed since they came, or are not."""
        self.changed[self._tensor(at)] = dirty

    def whose(self, at: Ids | Tensor) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "m"]]:
        """The ids at places, and those of them with changed rows; on the device."""
        slots = self._tensor(at)
        ids = self._table.arrays.ids(slots)
        return ids, ids[self.changed[slots]]

    def take_moved(self) -> tuple[int, int]:
        """Rows that came, and those that left, that nobody has counted yet."""
        with self._telling:
            came, left = self.moved.tolist()  # a step may add to them meanwhile
            before, self._told = self._told, (came, left)
        return came - before[0], left - before[1]

    def dirty(self) -> Ids:
        """All places whose rows are changed, in order."""
        return self.changed.nonzero()[:, 0].cpu().numpy()

    def hold(self, at: Ids) -> Ids:
        """They stay until they are let go; the number of the stay of each."""
        if not len(self._pins):
            self._pins, self._born = torch.zeros_like(self.used), torch.zeros_like(self.used)
            self._numbers = True
        slots = self._tensor(at)
        self._pins[slots] += 1
        self._holds += 1
        return self._born[slots].cpu().numpy()

    def let_go(self, at: Ids, born: Ids) -> None:
        """Ends one `hold` of these; not of ids that left in between."""
        slots = self._tensor(at)
        same = (self._born[slots] == self._tensor(born)) & self._table.arrays.taken()[slots]
        self._pins[slots[same]] -= 1
        self._holds -= 1

    def not_held(self, stay: Ids) -> int:
        """How many of the places are neither held nor among those that `stay`, which differ."""
        if not self._holds:
            return self.rows - len(stay)
        held = self._pins > 0
        held[self._tensor(stay)] = True
        return self.rows - int(held.sum())

    def coldest(self, n: int, stay: Ids, before: int) -> Ids:
        """The n longest unused that are neither held nor among those that `stay`.

        Fewer, if fewer were last used `before` this time.
        """
        used = self._last_used()
        used[self._tensor(stay)] = NEVER
        return _smallest(used, n, before).cpu().numpy()

    def leaving(self, n: int, before: int) -> Int64[Tensor, "m"]:
        """About n of the longest unused, on the device; not those used at this time or held.

        First comes one of each bucket with hardly any room: else a new row that belongs there would
        find none, again and again.
        """
        used = self._last_used()
        slots = self._table.arrays.buckets * LANES  # behind them are those of two special ids
        lines = used[:slots].view(-1, LANES)
        full = (lines != NEVER).sum(dim=1) >= LANES - 1
        oldest, lane = lines.min(dim=1)
        first = torch.where(full & (oldest < before), -1, oldest)
        lines.scatter_(1, lane[:, None], first[:, None])
        if len(used) < _MANY_SLOTS:
            return _smallest(used, n, before)
        # To choose exactly n takes ten times as long as to choose by what a sample says.
        sample = used[:: len(used) // _SAMPLE | 1]  # odd: every lane of buckets has its share
        rank = min(max(1, round(n / len(used) * len(sample))), len(sample))
        most = sample.kthvalue(rank).values
        return (used <= most.clamp(max=before - 1)).nonzero()[: 2 * n, 0]

    def _last_used(self) -> Int32[Tensor, "slots"]:
        """Of each slot; those that are free or held seem to be used last."""
        used = torch.where(self._table.arrays.taken(), self.used, NEVER)
        if self._holds:
            used[self._pins > 0] = NEVER
        return used

    def nbytes(self) -> int:
        """Device memory of what is known of each place."""
        return sum(x.nbytes for x in (self.used, self.changed, self._pins, self._born))


def _smallest(used: Int32[Tensor, "slots"], n: int, before: int) -> Int64[Tensor, "m"]:
    """Where the n smallest are, of those that are before."""
    found = used.topk(min(n, len(used)), largest=False, sorted=False)
    return found.indices[found.values < before]


def places_of(table: CacheMoves) -> DeviceCacheMap:
    """The places of a cache whose rows lie on a device."""
    assert isinstance(table.places, DeviceCacheMap)
    return table.places
