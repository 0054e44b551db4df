"""Which ids a fast tier on a device holds, and what is known of them: all on the device."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..core.shapes import Bool, Int32
from ..kernels import find, mark
from ..tables.device import DeviceTable
from .places import Ids

_LATEST = 2**31 - 1  # a use that none comes after


class DevicePlaces:
    """What `Places` is for rows in host memory; a place is the slot of the row in its table.

    The table's own index is the map, so an id has a place from the moment its row is there until
    the row is gone: `take` and `give` only begin and end what is known of it.
    """

    def __init__(self, table: DeviceTable, rows: int) -> None:
        self.rows = rows
        self._table = table
        slots = len(table._table.values)
        self.used: Int32[Tensor, "slots"] = torch.zeros(
            slots, dtype=torch.int32, device=table.device
        )
        self.changed: Bool[Tensor, "slots"] = torch.zeros(
            slots, dtype=torch.bool, device=table.device
        )
        self._pins: Int32[Tensor, "slots"] = self.used[:0]  # made with the first hold
        self._born: Int32[Tensor, "slots"] = self.used[:0]
        self._holds = self._stays = 0
        self._most, self._counted = 0, True  # ids at most, and whether there are so many

    def __len__(self) -> int:
        if not self._counted:
            self._most, self._counted = self._table.size(), True
        return self._most

    def have_room(self, ids: int) -> bool:
        """Whether so many more may come; waits for the device only if that is not clear."""
        return self._most + ids <= self.rows or len(self) + ids <= self.rows

    @property
    def free(self) -> int:
        """How many ids more may come."""
        return max(0, self.rows - len(self))

    # ---- who is here

    def find(self, ids: Ids) -> Ids:
        """The place of each id, -1 where it has none."""
        with self._table._here():
            slots = find.find(self._table._table, self._tensor(ids))
        return slots.cpu().numpy()

    def at(self) -> Ids:
        """All taken places, in order."""
        return self._table._table.taken().nonzero()[:, 0].cpu().numpy()

    def ids_at(self, at: Ids) -> Ids:
        """The ids at taken places."""
        return self._table._table.ids(self._tensor(at)).cpu().numpy()

    def are_taken(self, at: Ids) -> np.ndarray:
        """Which of these places somebody has."""
        return self._table._table.taken()[self._tensor(at)].cpu().numpy()

    def take(self, ids: Ids) -> Ids:
        """The places of ids whose rows have just come."""
        at = self.find(ids)
        slots = self._tensor(at)
        self.used[slots] = 0
        self.came(slots.to(torch.int32))
        return at

    def came(self, slots: Int32[Tensor, "n"]) -> None:
        """Rows have come to these slots; negative ones are left out."""
        self._most, self._counted = self._most + len(slots), False
        self._stays += 1
        if len(self._born):
            mark.mark(slots, self._born, None, self._stays)

    def give(self, at: Ids) -> None:
        """The ids at these places leave."""
        slots, self._counted = self._tensor(at), False
        self.changed[slots] = False
        if len(self._pins):
            self._pins[slots] = 0

    def clear(self) -> None:
        """All ids leave."""
        self._counted = False
        self.changed.zero_()
        self._pins.zero_()

    # ---- what is known of them

    def use(self, at: Ids, now: int) -> None:
        """These were used at a time, not before that of other uses."""
        self.used[self._tensor(at)] = now

    def set_dirty(self, at: Ids, dirty: bool) -> None:
        """Their rows are changed since they came, or are not."""
        self.changed[self._tensor(at)] = dirty

    def are_dirty(self, at: Ids) -> np.ndarray:
        """Which of these have changed rows."""
        return self.changed[self._tensor(at)].cpu().numpy()

    def dirty(self) -> Ids:
        """All places whose rows are changed, in order."""
        return self.changed.nonzero()[:, 0].cpu().numpy()

    def hold(self, at: Ids) -> Ids:
        """They stay until they are let go; the number of the stay of each."""
        if not len(self._pins):
            self._pins, self._born = torch.zeros_like(self.used), torch.zeros_like(self.used)
        slots = self._tensor(at)
        self._pins[slots] += 1
        self._holds += 1
        return self._born[slots].cpu().numpy()

    def let_go(self, at: Ids, born: Ids) -> None:
        """Ends one `hold` of these; not of ids that left in between."""
        slots = self._tensor(at)
        same = (self._born[slots] == self._tensor(born)) & self._table._table.taken()[slots]
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
        used = torch.where(self._table._table.taken(), self.used, _LATEST)
        used[self._tensor(stay)] = _LATEST
        if self._holds:
            used[self._pins > 0] = _LATEST
        found = used.topk(min(n, len(used)), largest=False)
        return found.indices[found.values < before].cpu().numpy()

    def nbytes(self) -> int:
        """Device memory of what is known of each place."""
        return sum(x.nbytes for x in (self.used, self.changed, self._pins, self._born))

    def _tensor(self, at: Ids) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(at)).to(self._table.device)
