"""How rows leave a table on a device: eviction by its rule."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import checks
from ..core.errors import ConfigError
from ..core.fids import slot_of
from ..core.shapes import Int64
from ..kernels.layout import TIMES, Grouped
from .device_writes import DeviceWrites
from .expiry import Evicted, Lfu, Lru, Ttl, expired


class DeviceEvictions(DeviceWrites):
    """The part of `DeviceTable` that lets rows go; it waits for the device."""

    def evict(
        self, *, now_s: int | None = None, capture: bool = False, rows: int | None = None
    ) -> Evicted:
        """Removes the rows that the table's rule says must go; their places serve new ids.

        As `HostTable.evict`. What is captured lies on the device.
        """
        rule = self.config.evict
        checks.flag("capture", capture)
        given = None if now_s is None else checks.count("now_s", now_s)
        if isinstance(rule, Ttl):
            ids, ts = self._older(rule, given)
        elif isinstance(rule, Lru | Lfu):
            ids, ts = self._beyond(rule.rows if rows is None else checks.count("rows", rows))
        else:
            raise ConfigError(
                f"table {self.config.name!r} has no eviction rule; make its TableConfig with "
                f"evict=Ttl(...), Lru(...) or Lfu(...)."
            )
        if len(ids):
            with self.on_device():
                self._erase(ids, Grouped(ids, None), None)
        self._events.add("evicted", len(ids))
        return Evicted(len(ids), ids, ts) if capture else Evicted(len(ids))

    def _older(self, rule: Ttl, now_s: int | None) -> tuple[Tensor, Tensor]:
        """Ids and times of the rows that have expired."""
        if now_s is None:
            now_s = self._max_ts if rule.reference == "newest" else self.clock.now_s()
        if self._oldest_s is None or now_s - self._oldest_s < rule.shortest_s():
            return self._no_rows()
        slots, ids = self._all_rows()
        ts = self.arrays.read(TIMES, slots)
        leaving = expired(ids, ts, now_s, rule)
        # Where ids of some slots may stay longer than others, their rows count as younger.
        later = rule.ages_s().to(self.device)[slot_of(ids)] - rule.shortest_s()
        staying = (ts + later)[~leaving]
        left = [int(staying.min())] if len(staying) else []
        self._oldest_s = min([*left, *self._captured_s], default=None)
        return ids[leaving], ts[leaving]

    def _beyond(self, budget: int) -> tuple[Tensor, Tensor]:
        """Ids and times of the rows that are too many."""
        if self.size() <= budget:
            return self._no_rows()
        assert self._order is not None
        slots, ids = self._all_rows()
        stamps, order = self._stamps_at(self.arrays, slots), ids.argsort()
        order = order[self._order.ranks(stamps[order]).argsort(stable=True)]
        leaving = order[: max(0, len(ids) - budget)]
        return ids[leaving], self._order.seconds(stamps[leaving])

    def _all_rows(self) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "n"]]:
        """Slots and ids of all rows."""
        slots = self.arrays.taken().nonzero()[:, 0]
        self._looked_at += len(slots)
        return slots, self.arrays.ids(slots)

    def _no_rows(self) -> tuple[Tensor, Tensor]:
        nothing = torch.empty(0, dtype=torch.int64, device=self.device)
        return nothing, nothing
