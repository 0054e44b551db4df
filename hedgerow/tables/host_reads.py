"""What a table in host memory can tell: rows by key, all rows, sizes, statistics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from .. import native
from ..core import checks
from ..core.clock import Clock
from ..core.counters import Counters
from ..core.errors import ConfigError, InputError, ServingTableError, StateError
from ..core.recycle import Recycler
from ..core.shapes import Bool, Float32, Float64, Int64
from . import arguments
from .config import TableConfig
from .filters import SlidingFilter
from .layout import RowLayout
from .leave_order import LeaveOrder, shown
from .store import Entries, Lookup, Missing, TableKeys

_MAX_IDS = 2**32 - 2  # of one call: positions inside a batch are 32-bit
_SLICE_BYTES = 2**24
_FUTURE_S = 3600  # how far clocks of other machines may run ahead


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes a table takes."""

    index_bytes: int
    row_bytes: int  # live rows and their stamps
    slack_bytes: int  # rows kept for new ids, and padding
    other_bytes: int = 0  # parts of pages, changed keys, snapshots, filters, kept outputs

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.index_bytes + self.row_bytes + self.slack_bytes + self.other_bytes


class HostStamps:
    """The part of `HostTable` that looks at times. One bogus time would expire all other rows.

    A stamp is the time, or what `LeaveOrder` makes of it where the table has one.
    """

    clock: Clock
    _events: Counters
    _order: LeaveOrder | None

    def next_time(self, ts: int) -> int:
        """The time of a write."""
        ts = checks.count("ts", ts)
        now_s = self.clock.now_s() if ts else 0
        if ts <= now_s + _FUTURE_S:
            return ts
        self._events.add("clamped_ts")
        return now_s

    def stamp(self, ts: int, uses: int) -> int:
        """Return the stamp of a write at time `ts` that uses `uses` ids."""
        ts = self.next_time(ts)
        return ts if self._order is None else self._order.stamp(ts, uses)

    @property
    def order(self) -> LeaveOrder | None:
        """What tells the order in which rows leave; None without a rule of room."""
        return self._order

    def share_order(self, order: LeaveOrder | None) -> None:
        """From now on marks come from there: the order of another store of the same table."""
        self._order = order

    def _second(self, stamp: int) -> int:
        return stamp if self._order is None else self._order.second(stamp)

    def _stamps(self, entries: Entries) -> Int64[Tensor, "n"]:
        """The stamps of restored rows."""
        now_s, times = self.clock.now_s(), entries.ts.numpy()
        beyond, ts = times > now_s + _FUTURE_S, entries.ts
        if beyond.any():
            self._events.add("clamped_ts", int(beyond.sum()))
            ts = torch.from_numpy(np.where(beyond, now_s, times))
        if self._order is None:
            return ts
        stamps = self._order.stamps(ts, entries.order)
        self._order.saw(stamps)
        return stamps

    def _shown(
        self, stamps: Int64[Tensor, "n"]
    ) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "n"] | None]:
        """Times and marks of stamps, as `Entries` has them."""
        return shown(self._order, stamps)


class HostReads(HostStamps):
    """The reading half of `HostTable`."""

    config: TableConfig
    layout: RowLayout
    native_table: native.Table
    _outputs: Recycler
    _output_sharers: int  # tables that keep results there
    _events: Counters
    _file: native.RowFile | None  # of the rows; None: in memory
    _filter: SlidingFilter | None

    def lookup(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        *,
        missing: Missing = "zeros",
        step: int | None = None,
        out: Float32[Tensor, "n dim"] | None = None,
    ) -> Lookup:
        """Rows of `keys`, into `out` if given. Nothing is inserted.

        An absent id gives zeros, or with `missing="initializer"` the first value it would be born
        with. `step` matters only to tables with a one_bit segment.
        """
        keys = self.checked_keys(keys)
        n = len(keys.ids)
        if out is None:
            memory, reused = self._outputs.take(n * self.layout.dim)
            out = memory.view(n, self.layout.dim)
        else:
            out, reused = arguments.output(out, n, self.layout.dim), True
        self.lookup_at(keys.ids.data_ptr(), n, missing, step, out.data_ptr(), reused=reused)
        return Lookup(keys, out.view(-1), (self.layout.dim,))

    def lookup_at(
        self, ids_at: int, n: int, missing: Missing, step: int | None, rows_at: int, *, reused: bool
    ) -> None:
        """As `lookup`, of ids at an address into room for rows that the caller has measured.

        `reused` says whether that memory was written before.
        """
        rule, at_step = self.reading(missing, step)
        self.native_table.lookup(ids_at, n, rule, at_step, rows_at, reused)

    def reading(self, missing: Missing, step: int | None) -> tuple[str, int]:
        """What the core is told of a lookup."""
        arguments.missing_rule(missing)
        if missing == "training":
            missing = "initializer" if self.config.admit is None else "zeros"
        if missing == "initializer" and self.config.serving:
            raise ServingTableError(
                f"table {self.config.name!r} is a serving table and has no initializer; "
                f"use missing='zeros'."
            )
        return missing, self.checked_step(
            step, self.native_table.needs_step(), "shows one_bit segments"
        )

    def reader(self, step: int | None = None) -> native.Table:
        """The core's table, for lookups at a step: where rows are shown by it, one is needed."""
        self.checked_step(step, self.native_table.needs_step(), "shows one_bit segments")
        return self.native_table

    def contains(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Whether each key has a row."""
        ids = self.checked_keys(keys).ids
        out = torch.empty(len(ids), dtype=torch.bool, device="cpu")
        self.native_table.contains(ids.data_ptr(), len(ids), out.data_ptr())
        return out

    def entries(self, keys: TableKeys | Int64[Tensor, "n"]) -> Entries:
        """Raw rows with their optimizer states and times."""
        ids = self.checked_keys(keys).ids
        n = len(ids)
        found = torch.empty(n, dtype=torch.bool, device="cpu")
        rows, raw, ts = entry_room(self.layout, n)
        self.native_table.entries(
            ids.data_ptr(), n, found.data_ptr(), rows.data_ptr(), raw.data_ptr(), ts.data_ptr()
        )
        return Entries(ids, found, rows, self.layout.split(raw), *self._shown(ts))

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """All rows, in slices of at most `rows` (about 16 MiB if None), in no particular order.

        A row that is there from the first slice to the last is given exactly once, whatever is
        written meanwhile; rows that come or go during the scan may be given or not. Rows that share
        a home in the index stay together, so a slice of very few rows may hold a few more.
        """
        return self._slices(slice_rows(self.layout, rows))

    def scan_slice(self, cursor: int = 0, rows: int | None = None) -> tuple[Entries, int, bool]:
        """One slice of a scan that goes on at `cursor`: rows, the next cursor, and if it was last.

        A cursor is a place among all keys, not in memory: it serves any table with the same keys.
        """
        if type(cursor) is not int or not 0 <= cursor < 2**64:
            raise InputError(f"cursor is {cursor!r}; use 0, or what the slice before gave.")
        entries, cursor, done, _ = self._slice(cursor, slice_rows(self.layout, rows))
        return entries, cursor, done

    def _slices(self, room: int) -> Iterator[Entries]:
        cursor, done = 0, False
        while not done:
            entries, cursor, done, room = self._slice(cursor, room)
            if len(entries):
                yield entries

    def _slice(self, cursor: int, room: int) -> tuple[Entries, int, bool, int]:
        while True:
            ids = torch.empty(room, dtype=torch.int64, device="cpu")
            values, raw, ts = entry_room(self.layout, room)
            got, cursor, done, needed = self.native_table.scan(
                cursor, room, ids.data_ptr(), values.data_ptr(), raw.data_ptr(), ts.data_ptr()
            )
            if got or done or not needed:
                states = self.layout.split(raw[:got])
                shown = self._shown(ts[:got])
                entries = Entries(ids[:got], all_found(got), values[:got], states, *shown)
                return entries, cursor, done, needed or room
            room = needed

    def size(self) -> int:
        """Rows."""
        return self.native_table.size()

    def __len__(self) -> int:
        return self.size()

    def max_ts(self) -> int:
        """The largest `ts` that a write gave."""
        return self._second(self.native_table.newest_time())

    def uses(self, keys: TableKeys | Int64[Tensor, "n"]) -> Float64[Tensor, "n"]:
        """How often each key was used, under an `Lfu` rule, in uses of now."""
        return uses_of(self._order, self.entries(keys), self.config.name)

    def memory(self) -> MemoryUse:
        """Bytes by purpose. An admission filter counts in each of the tables that share it."""
        index, row, slack, other = self.native_table.memory()
        filter_bytes = 0 if self._filter is None else self._filter.memory_bytes()
        return MemoryUse(index, row, slack, other + filter_bytes + self._output_bytes())

    def _output_bytes(self) -> int:
        return self._outputs.kept_bytes() // self._output_sharers

    def measured_bytes(self) -> int:
        """Bytes of rows that are in memory as the system says; of rows in a file. Looks at all."""
        if self._file is None:
            raise StateError(f"table {self.config.name!r} keeps its rows in memory, not in a file.")
        return self._file.measured_bytes()

    def stats(self) -> dict[str, float]:
        """Rows, bytes, load of the index and everything counted since the table was made.

        `uncompressed_bytes` is what the rows would take as fp32, without optimizer state. Of rows
        in a file, `file_bytes` is its size and `resident_bytes` what of it is in memory.
        """
        use, rows, counted = self.memory(), self.size(), self.native_table.counted()
        file = self._file
        load_factor, longest_search = self.native_table.load()
        return {
            "rows": rows,
            "uncompressed_bytes": rows * 4 * self.layout.dim,
            "index_bytes": use.index_bytes,
            "row_bytes": use.row_bytes,
            "slack_bytes": use.slack_bytes,
            "other_bytes": use.other_bytes - (outputs := self._output_bytes()),
            "output_bytes": outputs,
            "load_factor": load_factor,
            "longest_search": longest_search,
            **dict(zip(("inserted", "refused", "dropped", "erased"), counted, strict=True)),
            **{name: self._events.read(name) for name in ("evicted", "clamped_ts")},
            **({} if file is None else _file_stats(file)),
        }

    def table(self, k: int = 0) -> Self:
        """The store of table `k` alone: there is only one."""
        arguments.table_number(k, 1)
        return self

    # ---- checks

    def checked_keys(self, keys: TableKeys | Tensor) -> TableKeys:
        """The keys, or raises what is wrong with them."""
        return arguments.keys_of_one_table(keys, _MAX_IDS)

    def checked_step(self, step: int | None, needed: bool, why: str) -> int:
        """The step of a call; raises if it is needed and was not given."""
        return arguments.needed_step(step, needed, self.config.name, why)


def uses_of(order: LeaveOrder | None, entries: Entries, name: str) -> Float64[Tensor, "n"]:
    """How often rows were used, in uses of now."""
    if order is None or not order.by_use or entries.order is None:
        raise ConfigError(
            f"table {name!r} does not count uses; make its TableConfig with evict=Lfu(...)."
        )
    return order.uses(entries.order)


def _file_stats(file: native.RowFile) -> dict[str, float]:
    return {"file_bytes": file.file_bytes(), "resident_bytes": file.resident_bytes()}


def slice_rows(layout: RowLayout, rows: int | None) -> int:
    """Rows of a slice of a scan: as asked for, or about 16 MiB."""
    if rows is None:
        row_bytes = 4 * (layout.dim + layout.state_floats)
        rows = max(1, min(65536, _SLICE_BYTES // row_bytes))
    return checks.count("rows", rows, least=1)


def all_found(n: int) -> Bool[Tensor, "n"]:
    """True, n times; by numpy, since torch would wake its threads for so little."""
    return torch.from_numpy(np.ones(n, np.bool_))


def entry_room(layout: RowLayout, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Room for raw rows, states and times."""
    return (
        torch.empty(n, layout.dim, dtype=torch.float32, device="cpu"),
        torch.empty(n, layout.state_floats, dtype=torch.float32, device="cpu"),
        torch.empty(n, dtype=torch.int64, device="cpu"),
    )


def lookup_several(
    tables: Sequence[HostReads],
    ids: Int64[Tensor, "n"],
    splits: Sequence[int],
    missing: Missing,
    step: int | None,
    out: Float32[Tensor, "n dim"],
) -> Bool[Tensor, "n"]:
    """`lookup` of several tables of alike rows, table after table; which ids have a row.

    The caller has measured `out`.
    """
    found = torch.empty(len(ids), dtype=torch.bool, device="cpu")
    rules, steps = zip(*(table.reading(missing, step) for table in tables), strict=True)
    native.lookup_several(
        *([table.native_table for table in tables], splits, rules, max(steps)),
        *(ids.data_ptr(), out.data_ptr(), found.data_ptr()),
    )
    return found
