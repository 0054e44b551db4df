"""How rows leave a table on a device: eviction by its rule."""

from __future__ import annotations

from torch import Tensor

from ..core import checks
from ..core.errors import ConfigError
from ..core.shapes import Int64
from ..kernels.layout import EPOCH, LANES, SCORE, SCORES, TIMES, Grouped
from .device_writes import DeviceWrites
from .expiry import Lfu, Lru, Ttl, expired
from .host_evict import Evicted


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
        slots = self._table.taken().nonzero()[:, 0]
        ids, ts = self._table.ids(slots), self._table.read(TIMES, slots)
        if isinstance(rule, Ttl):
            leaving = self._older(rule, given, ids, ts)
        elif isinstance(rule, Lru | Lfu):
            budget = rule.rows if rows is None else checks.count("rows", rows)
            order = _oldest(ids, ts)
            if isinstance(rule, Lfu):
                order = order[self._used(slots)[order].argsort(stable=True)]
            leaving = order[: max(0, len(ids) - budget)]
            self._faded += len(leaving) > 0
        else:
            raise ConfigError(
                f"table {self.config.name!r} has no eviction rule; make its TableConfig with "
                f"evict=Ttl(...), Lru(...) or Lfu(...)."
            )
        ids, ts = ids[leaving], ts[leaving]
        if len(ids):
            with self._here():
                self._erase(ids, Grouped(ids, None), None)
        self._events.add("evicted", len(ids))
        return Evicted(len(ids), ids, ts) if capture else Evicted(len(ids))

    def _older(
        self, rule: Ttl, now_s: int | None, ids: Int64[Tensor, "n"], ts: Int64[Tensor, "n"]
    ) -> Tensor:
        if now_s is None:
            now_s = self._max_ts if rule.reference == "newest" else self._clock.now_s()
        return expired(ids, ts, now_s, rule)

    def _used(self, slots: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """How often each row was used: half as much with every eviction since its last use."""
        words = self._table.index[slots // LANES, SCORES, slots % LANES].clamp(min=0) & SCORE
        return (words & (2**32 - 1)) >> ((self._faded - (words >> 32)) & EPOCH).clamp(max=32)


def _oldest(ids: Int64[Tensor, "n"], ts: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
    """Where the rows stand in the order in which they leave: by time, of equal ones by id."""
    order = ids.argsort()
    return order[ts[order].argsort(stable=True)]
