"""What a table on a device can tell: rows by key, all rows, sizes, statistics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Self

import torch
from torch import Tensor

from ..core.clock import Clock
from ..core.counters import Counters
from ..core.shapes import Bool, Float64, Int64
from ..kernels import find, lookup
from ..kernels.layout import LANES, MARK, SCORES, TIMES, Arrays
from . import arguments
from .config import TableConfig
from .device_filter import DeviceFilter
from .layout import RowLayout, slice_rows
from .leave_order import LeaveOrder, uses_of
from .stamps import Stamps
from .stats import MemoryUse
from .store import Entries, TableKeys

_STAY = nullcontext()
MAX_IDS = 2**31 - 1  # of one call, and slots of a table: kernels count in 32 bits


class DeviceReads:
    """The reading part of `DeviceTable`; size, scan and stats wait for the device."""

    config: TableConfig
    layout: RowLayout
    device: torch.device
    arrays: Arrays
    clock: Clock
    stamps: Stamps
    _totals: Int64[Tensor, "5"]  # inserted, refused, dropped, erased, evicted for others
    _events: Counters
    _max_ts: int
    _filter: DeviceFilter | None
    _known: int  # rows when they were last counted
    _since: int  # ids that were written since then

    # ---- times and marks of rows: see `Stamps`

    @property
    def order(self) -> LeaveOrder | None:
        """What tells the order in which rows leave; None without a rule of room."""
        return self.stamps.order

    def share_order(self, order: LeaveOrder | None) -> None:
        """From now on marks come from there: the order of another store of the same table."""
        self.stamps.share_order(order)

    def next_time(self, ts: int) -> int:
        """The time of a write."""
        return self.stamps.next_time(ts)

    @property
    def _order(self) -> LeaveOrder | None:
        return self.stamps.order

    # ---- rows

    @property
    def capacity_rows(self) -> int:
        """Slots."""
        return self.arrays.buckets * LANES

    def contains(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Whether each key has a row."""
        return self.find_slots(self.checked_keys(keys)) >= 0

    def entries(self, keys: TableKeys | Int64[Tensor, "n"]) -> Entries:
        """Whole rows."""
        keys = self.checked_keys(keys)
        return self._entries(self.arrays, keys.ids, self.find_slots(keys))

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """All rows, in slices of `rows` (about 16 MiB if None), in no particular order.

        Do not write meanwhile.
        """
        for slots in self._slot_slices(rows):
            yield self._entries(self.arrays, self.arrays.ids(slots), slots)

    def size(self) -> int:
        """Rows."""
        self._known, self._since = int(self.arrays.taken().sum()), 0
        return self._known

    def size_at_most(self) -> int:
        """As many rows as there may be, without waiting: every id since they were counted is new.

        Replays of CUDA graphs are not known here.
        """
        return self._known + self._since

    def __len__(self) -> int:
        return self.size()

    def max_ts(self) -> int:
        """The largest `ts` that a write gave."""
        return self._max_ts

    def uses(self, keys: TableKeys | Int64[Tensor, "n"]) -> Float64[Tensor, "n"]:
        """How often each key was used, under an `Lfu` rule; as `HostTable.uses`."""
        return uses_of(self._order, self.entries(keys), self.config.name)

    def memory(self) -> MemoryUse:
        """Bytes by purpose; slots without a row are slack."""
        held, live = self.arrays.nbytes, self.size() * 4 * self.arrays.stride
        others = self._feed_bytes() + (0 if self._filter is None else self._filter.memory_bytes())
        return MemoryUse(held[0], live, held[1] - live, others)

    def stats(self) -> dict[str, float]:
        """Rows, bytes, load and everything counted since the table was made."""
        use, rows = self.memory(), self.size()
        *counts, evicted = self._totals.tolist()
        counted = ("inserted", "refused", "dropped", "erased")
        return {
            "rows": rows,
            "uncompressed_bytes": rows * 4 * self.layout.dim,
            "index_bytes": use.index_bytes,
            "row_bytes": use.row_bytes,
            "slack_bytes": use.slack_bytes,
            "other_bytes": use.other_bytes,
            "output_bytes": 0,
            "load_factor": rows / self.capacity_rows,
            "longest_search": 2,
            **dict(zip(counted, counts, strict=True)),
            "evicted": self._events.read("evicted") + evicted,
            "clamped_ts": self._events.read("clamped_ts"),
        }

    def table(self, k: int = 0) -> Self:
        """The store of table `k` alone: there is only one."""
        arguments.table_number(k, 1)
        return self

    # ---- inside

    def _feed_bytes(self) -> int:
        """What the consumers of touched keys hold."""
        raise NotImplementedError

    def on_device(self) -> AbstractContextManager[object]:
        """Kernels start on the current device, which may be another one."""
        if self.device.type != "cuda" or self.device.index == torch.cuda.current_device():
            return _STAY
        return torch.cuda.device(self.device)

    def find_slots(self, keys: TableKeys) -> Int64[Tensor, "n"]:
        """The slot of each key; -1 = absent."""
        with self.on_device():
            return find.find(self.arrays, keys.ids, keys.used)

    def _slot_slices(self, rows: int | None) -> tuple[Tensor, ...]:
        """The slots that have rows, as many at once as a scan gives."""
        taken = self.arrays.taken().nonzero()[:, 0]
        return taken.split(slice_rows(self.layout, rows)) if len(taken) else ()

    def _entries(self, table: Arrays, ids: Tensor, slots: Tensor) -> Entries:
        with self.on_device():
            rows = lookup.gather(table, slots)
        found = slots >= 0
        at = slots.clamp(min=0)
        times = torch.where(found, self._stamps_at(table, at), 0)
        dim = self.config.dim
        states = table.values[at, dim : dim + self.layout.state_floats]
        states = torch.where(found[:, None], states, 0.0)
        return Entries(ids, found, rows, self.layout.named(states), *self.stamps.times_of(times))

    def _stamps_at(self, table: Arrays, slots: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """The stamps of rows; the weight of their uses stands beside their times."""
        stamps = table.read(TIMES, slots)
        if self._order is None or not self._order.by_use:
            return stamps
        return (stamps & ~MARK) | (table.read(SCORES, slots) & MARK)

    def checked_keys(self, keys: TableKeys | Tensor) -> TableKeys:
        """The keys, or raises what is wrong with them."""
        return arguments.keys_of_one_table(keys, MAX_IDS, self.device, room=True)

    def checked_rows(self, name: str, rows: Tensor, n: int) -> Tensor:
        """The rows, or raises what is wrong with them."""
        return arguments.rows_of_batch(name, rows, n, self.config.dim, self.device)
