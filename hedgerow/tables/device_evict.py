"""How rows leave a table on a device: by its rule of eviction, or for new ids when it is full."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import checks
from ..core.counters import Counters
from ..core.errors import ConfigError, TableFullError
from ..core.fids import slot_of
from ..core.shapes import Bool, Int64
from ..kernels.assign import assign
from ..kernels.evict import insert_and_evict
from ..kernels.layout import EVICTED, INSERTED, MARK, RECLAIMED, TIMES, Grouped, group
from .config import TableConfig
from .device_feed import DeviceFeed
from .device_slots import DeviceSlots, RowTimes
from .expiry import Evicted, Lfu, Lru, Ttl, expired
from .stamps import Stamps

_CALLS = 2**15 - 1  # numbers of calls that scores tell apart


class DeviceRoom:
    """What a full table does beside refusing new ids: other rows leave, or an error is raised."""

    def __init__(self, name: str, slots: DeviceSlots, feed: DeviceFeed, stamps: Stamps) -> None:
        self._name, self._slots, self._feed, self._stamps = name, slots, feed, stamps
        self._calls = 0

    def raise_if_full(self, without: Int64[Tensor, ""]) -> None:
        """Raises an error if ids were left `without` room; waits for the device."""
        if count := int(without):
            raise TableFullError(
                f"{count} ids of a call found no room in table {self._name!r}: "
                f"{self._slots.size()} of its {self._slots.capacity_rows} slots are taken, and "
                f"from about 0.85 some ids meet full buckets. All other rows were written. Give "
                f"the table more capacity_rows, or make it with full='grow' or 'evict'."
            )

    def give_way(
        self, grouped: Grouped, wanted: Bool[Tensor, "n"], now: int, done: Int64[Tensor, "3"]
    ) -> None:
        """Inserts rows for the `wanted` ids, one of each group; never waits for the device.

        Where an id finds no room, the row with the smallest score in its buckets leaves. The score
        is the time of the row, or under `Lfu` how often it was used. Rows of wanted ids that exist
        get a new score, so that they stay. New rows get their first values.
        """
        if not len(grouped.ids):
            return
        slots = self._slots
        slots.moved()
        self._calls = self._calls % _CALLS + 1
        wanted_first = wanted.logical_not().argsort(stable=True)
        ids, asked = grouped.ids[wanted_first], wanted.sum().view(1)
        order = self._stamps.order
        by_use = order is not None and order.by_use
        # A use is counted when the row is written.
        scores = torch.full_like(ids, 0 if by_use else now if order is None else now & MARK)
        out = insert_and_evict(
            *(slots.arrays, ids, scores),
            call=self._calls,
            now=now,
            mode="use" if by_use else "assign",
            top=0 if order is None else order.top,
            used=asked,
        )
        left = out.codes == EVICTED
        new = left | (out.codes == INSERTED) | (out.codes == RECLAIMED)
        rows, states = slots.first_rows(ids)
        uncounted = torch.zeros_like(done)  # ids that are not new would count as dropped
        assign(
            *(slots.arrays, group(ids), rows, new, slots.starts, uncounted, now),
            states=states,
        )
        done[0] += new.sum()
        slots.totals[4] += left.sum()
        self._feed.mark(out.victims, left)


class DeviceEvictions:
    """Removes rows by the table's rule of eviction; every call waits for the device."""

    def __init__(
        self,
        config: TableConfig,
        slots: DeviceSlots,
        times: RowTimes,
        feed: DeviceFeed,
        stamps: Stamps,
        events: Counters,
    ) -> None:
        self._config, self._slots, self._times, self._feed = config, slots, times, feed
        self._stamps, self._events = stamps, events

    def evict(
        self, *, now_s: int | None = None, capture: bool = False, rows: int | None = None
    ) -> Evicted:
        """Removes the rows that the rule says must go; see `DeviceTable.evict`."""
        rule = self._config.evict
        checks.flag("capture", capture)
        given = None if now_s is None else checks.count("now_s", now_s)
        if isinstance(rule, Ttl):
            ids, ts = self._older(rule, given)
        elif isinstance(rule, Lru | Lfu):
            ids, ts = self._beyond(rule.rows if rows is None else checks.count("rows", rows))
        else:
            raise ConfigError(
                f"table {self._config.name!r} has no eviction rule; make its TableConfig with "
                f"evict=Ttl(...), Lru(...) or Lfu(...)."
            )
        if len(ids):
            with self._slots.on_device():
                self._feed.before_change()
                self._feed.mark(ids, self._slots.erase(Grouped(ids, None)))
        self._events.add("evicted", len(ids))
        return Evicted(len(ids), ids, ts) if capture else Evicted(len(ids))

    def _older(self, rule: Ttl, now_s: int | None) -> tuple[Tensor, Tensor]:
        """Ids and times of the rows that have expired; under a rule of age stamps are times."""
        times = self._times
        if now_s is None:
            now_s = times.newest if rule.reference == "newest" else self._stamps.clock.now_s()
        if times.oldest is None or now_s - times.oldest < rule.shortest_s():
            return self._no_rows()
        slots, ids = self._all_rows()
        ts = self._slots.arrays.read(TIMES, slots)
        leaving = expired(ids, ts, now_s, rule)
        # Where ids of some slots may stay longer than others, their rows count as younger.
        later = rule.ages_s().to(ids.device)[slot_of(ids)] - rule.shortest_s()
        staying = (ts + later)[~leaving]
        oldest = [int(staying.min())] if len(staying) else []
        captured = [] if times.captured is None else [times.captured]
        times.oldest = min([*oldest, *captured], default=None)
        return ids[leaving], ts[leaving]

    def _beyond(self, most: int) -> tuple[Tensor, Tensor]:
        """Ids and times of the rows that leave so that at most `most` rows stay."""
        if self._slots.size() <= most:
            return self._no_rows()
        order = self._stamps.order
        assert order is not None  # tables with Lru or Lfu have one
        slots, ids = self._all_rows()
        stamps, by_id = self._slots.stamps_at(self._slots.arrays, slots), ids.argsort()
        first_to_leave = by_id[order.ranks(stamps[by_id]).argsort(stable=True)]
        leaving = first_to_leave[: max(0, len(ids) - most)]
        return ids[leaving], order.seconds(stamps[leaving])

    def _all_rows(self) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "n"]]:
        """Slots and ids of all rows."""
        slots = self._slots.taken()
        return slots, self._slots.arrays.ids(slots)

    def _no_rows(self) -> tuple[Tensor, Tensor]:
        nothing = torch.empty(0, dtype=torch.int64, device=self._slots.device)
        return nothing, nothing
