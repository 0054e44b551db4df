"""The parts of a host table: core calls, eviction, change feed, snapshots, the row file."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType

import torch
from torch import Tensor

from .. import native
from ..core import checks
from ..core.clock import Clock, SystemClock
from ..core.counters import Counters
from ..core.errors import (
    ConfigError,
    DtypeError,
    FileMissingError,
    InputError,
    NameTakenError,
    NotFiniteError,
    OutOfMemoryError,
    ServingTableError,
    StateError,
)
from ..core.files import local_path
from ..core.process_state import ForkLock
from ..core.recycle import Recycler
from ..core.shapes import Bool, Float32, Int64
from ..core.use_weights import MARK_BITS
from . import arguments
from .admission import SlidingFilter
from .changes import TouchedKeys, TouchedSettings
from .config import TableConfig
from .eviction import Evicted, EvictionOrder, Lfu, Lru, Ttl, WriteStamps, shown
from .layout import RowLayout, entry_room, native_segment, slice_rows
from .optimizers import Rate, check_rates, rate_at
from .slot_key import slot_key_of
from .store import Applied, Entries, Lookup, Missing, TableKeys, all_found
from .transfer import MovingRows


@dataclass(frozen=True, slots=True)
class RowFile:
    """Keeps rows in a file in `folder`, with about `resident_bytes` of them in memory.

    The file has no name and disappears with its table, however the process ends. The folder must be
    on a disk: a file system in memory (tmpfs) saves no memory.

    >>> import hedgerow as hr, tempfile, torch
    >>> config = hr.TableConfig("user", (hr.Segment(16, hr.Zeros(), hr.Sgd()),))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = hr.HostTable(config, rows_in=hr.RowFile(folder, 2**20))
    ...     _ = table.assign(torch.arange(50_000), torch.ones(50_000, 16))
    >>> seen = hr.stats(table)[config.name]
    >>> seen["resident_bytes"] <= 2**20 < seen["file_bytes"]
    True
    """

    folder: str | os.PathLike[str]
    resident_bytes: int

    def __post_init__(self) -> None:
        if not isinstance(self.folder, str | os.PathLike):
            raise DtypeError(f"folder is {self.folder!r}; pass the path of a folder on a disk.")
        checks.count("resident_bytes", self.resident_bytes)

    def open(self) -> native.RowFile:
        """Returns a new file, for one table."""
        folder = local_path(self.folder)
        if not folder.is_dir():
            raise FileMissingError(
                f"rows_in names {folder}, which is not a folder; make it, or name another."
            )
        try:
            with tempfile.TemporaryFile(dir=folder) as made:
                fd = os.dup(made.fileno())
        except OSError as error:
            raise ConfigError(
                f"cannot make a file for rows in {folder}: {error}. Name a folder that this "
                f"process may write to."
            ) from error
        return native.RowFile(fd, str(folder), self.resident_bytes)


class memory_errors:  # noqa: N801 - used like a function; contextlib's form takes 1.5 us
    """Turns the core's out-of-memory errors into `OutOfMemoryError`."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, MemoryError):
            raise OutOfMemoryError(
                f"{error or 'the operating system gave no more memory'}. The table stays usable: "
                f"erase rows, raise the limit, or spread the table over more processes."
            ) from error


_MAX_IDS = 2**32 - 2  # per call: positions inside a batch are 32-bit


@dataclass(frozen=True, slots=True)
class RowsMark:
    """The `epoch` of found rows: their slots are valid until `changes` of the table grows."""

    table: native.Table
    changes: int


class HostCore:
    """What the methods and the parts of one `HostTable` share; safe from many threads.

    Other code in the package uses it as `table.core`. It checks the arguments of calls, computes
    the rate of each update, and reuses the memory of large results. `native_table` is the table in
    C++, which checks nothing. `stamps` gives the time of each write.
    """

    def __init__(
        self,
        config: TableConfig,
        *,
        rates: Sequence[Rate] | None,
        clock: Clock | None,
        filter: SlidingFilter | None,
        rows_in: RowFile | None,
    ) -> None:
        self.config = config
        self.layout = RowLayout(config)
        own = [s.optimizer.rate() if s.optimizer else 0.0 for s in config.segments]
        self.rates = check_rates(own if rates is None else rates, len(config.segments))
        varies = any(callable(source) for source in self.rates)
        self.fixed_rates = None if varies else [rate_at(source, 0) for source in self.rates]
        self._updates_need_step = any(
            s.stochastic_rounding_float16
            or (s.compressor and s.compressor.depends_on_step)
            or (s.optimizer and s.optimizer.follows_step)
            for s in config.segments
        )
        self.events = Counters()
        order = EvictionOrder.of(config.evict)
        self.stamps = WriteStamps(clock or SystemClock(), self.events, order)
        self.outputs, self._output_sharers = Recycler(), 1
        slot_key = slot_key_of(config.slot_key)
        self.filter, self._made_filter = filter, filter is None
        admission = self._admission(slot_key)
        if rows_in is not None and not isinstance(rows_in, RowFile):
            raise DtypeError(f"rows_in is {rows_in!r}; pass RowFile(folder, resident_bytes).")
        self.rows_in = rows_in
        self.row_file = None if rows_in is None else rows_in.open()
        with memory_errors():
            self.native_table = native.Table(
                [native_segment(s) for s in config.segments],
                config.serving,
                config.skip_zero_embedding,
                config.row_seed,
                config.initial_capacity,
                "none" if order is None else order.kind,
                admission,
                self.row_file,
                slot_key,
            )

    def forget_counts(self) -> None:
        """Forgets the ids that the admission rule counted, if only this table uses the filter."""
        own = self.filter if self._made_filter else None
        if own is not None and own.tables <= {self.config.name}:
            own.clear()

    def _admission(self, slot_key: int) -> native.Admission | None:
        if self.filter is not None and not isinstance(self.filter, SlidingFilter):
            raise DtypeError(
                f"filter is {self.filter!r}; pass a SlidingFilter, for example another table's "
                f"filter."
            )
        admit, seed = self.config.admit, self.config.row_seed
        if admit is None:
            return None
        self.filter = self.filter or admit.own_filter(seed, slot_key)
        if self.filter is not None:
            self.filter.tables.add(self.config.name)
        return admit.rule(table=self.config.name, seed=seed, filter=self.filter)

    # ---- memory of large results

    def share_outputs(self, outputs: Recycler, tables: int) -> None:
        """Uses `outputs`, which `tables` tables share, for the memory of large results."""
        self.outputs, self._output_sharers = outputs, tables

    def output_bytes(self) -> int:
        """Returns this table's share of the bytes kept for large results."""
        return self.outputs.kept_bytes() // self._output_sharers

    # ---- lookups

    def checked_keys(self, keys: TableKeys | Tensor) -> TableKeys:
        """Returns the checked keys of a call; raises if they are invalid."""
        return arguments.keys_of_one_table(keys, _MAX_IDS)

    def checked_step(self, step: int | None, needed: bool, why: str) -> int:
        """Returns the step of a call; raises if it is needed and None."""
        return arguments.needed_step(step, needed, self.config.name, why)

    def reading(self, missing: Missing, step: int | None) -> tuple[str, int]:
        """Returns the rule for absent ids and the step, in the form that the C++ table takes."""
        arguments.missing_rule(missing)
        if missing == "training":
            missing = "initializer" if self.config.admit is None else "zeros"
        if missing == "initializer" and self.config.serving:
            raise ServingTableError(
                f"table {self.config.name!r} is a serving table and has no initializer; "
                f"use missing='zeros'."
            )
        needed = self.native_table.needs_step()
        return missing, self.checked_step(step, needed, "shows one_bit segments")

    def reader(self, step: int | None = None) -> native.Table:
        """Returns the C++ table for lookups at a step.

        Raises if its rows need a step and it is None.
        """
        self.checked_step(step, self.native_table.needs_step(), "shows one_bit segments")
        return self.native_table

    def lookup_at(
        self,
        ids_at: int,
        n: int,
        missing: Missing,
        step: int | None,
        rows_at: int,
        *,
        reused: bool,
        found_at: int = 0,
    ) -> None:
        """Writes the rows of the `n` ids at one address to another address.

        The memory there must be large enough. `reused` says whether the memory at `rows_at` was
        written before. If `found_at` is given, the slots of the rows are written there.
        """
        rule, at_step = self.reading(missing, step)
        self.native_table.lookup(ids_at, n, rule, at_step, rows_at, reused, found_at)

    def mark(self) -> RowsMark:
        """Returns the mark for rows that are found from now on."""
        return RowsMark(self.native_table, self.native_table.changes())

    # ---- updates

    def rates_at(self, step: int) -> list[float]:
        """Returns the rate of each segment at update number `step`."""
        return self.fixed_rates or [rate_at(source, step) for source in self.rates]

    def update_arguments(
        self,
        at: TableKeys | Lookup | Int64[Tensor, "n"],
        grads: Float32[Tensor, "n dim"],
        rates: Sequence[Rate] | None,
        step: int | None,
        counts: Int64[Tensor, "n"] | None,
        *,
        reject: bool = True,
    ) -> tuple[Int64[Tensor, "n"], Float32[Tensor, "n dim"], list[float], int]:
        """Returns checked ids, gradients, rates and step for `apply_checked`.

        Raises if one is invalid. A call on several tables checks the arguments of all tables before
        it changes the first one. With `reject=False`, gradients that are not finite are left out,
        whatever the config says.
        """
        self.refuse_serving("apply_gradients")
        ids = self.checked_keys(at.keys if isinstance(at, Lookup) else at).ids
        grads = self.checked_rows("grads", grads, len(ids), reject=reject)
        arguments.occurrences(counts, len(ids))
        sources = self.rates if rates is None else check_rates(rates, len(self.rates))
        needed = self._updates_need_step or any(callable(source) for source in sources)
        at_step = self.checked_step(step, needed, "learns")
        if self.config.admit is not None and self.config.admit.needs_step:
            self.checked_step(step, True, "admits ids")
        now = [rate_at(source, at_step) for source in sources]
        return ids, grads, now, arguments.NO_STEP if step is None else at_step

    def apply_checked(
        self,
        ids: Int64[Tensor, "n"],
        grads: Float32[Tensor, "n dim"],
        now: list[float],
        at_step: int,
        ts: int,
        counts: Int64[Tensor, "n"] | None,
        per_occurrence: bool,
        found: Lookup | None = None,
    ) -> Applied:
        """Applies the update that `update_arguments` checked; `found` says where the rows are."""
        rows_at = changes = 0
        mark = None if found is None else found.epoch
        slots = None if found is None else found.slots
        if slots is not None and isinstance(mark, RowsMark) and mark.table is self.native_table:
            rows_at, changes = slots.data_ptr(), mark.changes
        with memory_errors():
            done = self.native_table.apply_gradients(
                ids.data_ptr(),
                len(ids),
                grads.data_ptr(),
                now,
                at_step,
                self.stamps.stamp(ts, len(ids) if counts is None else int(counts.sum())),
                per_occurrence,
                0 if counts is None else counts.data_ptr(),
                rows_at,
                changes,
            )
        return Applied.of(*done)

    # ---- other writes

    def checked_rows(self, name: str, rows: Tensor, n: int, *, reject: bool = True) -> Tensor:
        """Returns the checked rows of a call; raises if they are invalid."""
        rows = arguments.rows_of_batch(name, rows, n, self.layout.dim)
        if reject and self.config.not_finite == "reject":
            at = native.first_not_finite(rows.data_ptr(), rows.numel())
            if at >= 0:
                row, column = divmod(at, self.layout.dim)
                raise NotFiniteError(
                    f"{name}[{row}, {column}] is {float(rows[row, column])}; table "
                    f"{self.config.name!r} rejects what is not finite, and nothing was changed. "
                    f"Find its source, or make the table with not_finite='drop'."
                )
        return rows

    def checked_keys_and_rows(
        self, keys: TableKeys | Tensor, rows: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns the checked ids and rows of a write; raises if they are invalid."""
        ids = self.checked_keys(keys).ids
        return ids, self.checked_rows("rows", rows, len(ids))

    def refuse_serving(self, verb: str) -> None:
        """Raises if the table is a serving table."""
        if self.config.serving:
            raise ServingTableError(
                f"{verb} on the serving table {self.config.name!r}; only training tables learn. "
                f"Use assign, or make the table with serving=False."
            )


ASIDE_BYTES = 256 << 20


class Snapshot:
    """All rows of a table as they were at one instant between two writes (`HostTable.snapshot`).

    Reading a snapshot does not stop writers: the first writer that changes a row not yet read
    copies the old row aside. When the copies exceed `aside_bytes`, writers wait at the start of
    their next call until the snapshot is read further or closed. The reading thread never waits.
    `size` and `max_ts` are those of the instant. A snapshot is closed when it is garbage collected.

    >>> from hedgerow import HostTable, Segment, Sgd, TableConfig, Zeros
    >>> table = HostTable(TableConfig("user", (Segment(1, Zeros(), Sgd()),)))
    >>> _ = table.assign(torch.tensor([7]), torch.tensor([[1.0]]))
    >>> with table.snapshot() as rows:
    ...     _ = table.assign(torch.tensor([7, 8]), torch.tensor([[2.0], [2.0]]))
    ...     [(part.ids.tolist(), part.rows.tolist()) for part in rows.scan()]
    [([7], [[1.0]])]
    """

    def __init__(
        self,
        table: native.Table,
        name: str,
        layout: RowLayout,
        aside_bytes: int,
        at_start: Callable[[], object] | None,
        paused: bool,
        order: EvictionOrder | None = None,
    ) -> None:
        self._table, self._name, self._layout, self._order = table, name, layout, order
        self._process = os.getpid()
        self._closed_with: tuple[int, float] | None = None
        self._ticket, self.size, self.max_ts = table.open_snapshot(
            aside_bytes, paused or at_start is not None
        )
        if self._ticket == 0:
            raise StateError(
                f"a second snapshot of table {name!r} while one is open; close the first, or wait "
                f"for its end."
            )
        self._release = weakref.finalize(self, table.close_snapshot, self._ticket)
        if order is not None:
            self.max_ts = order.second(self.max_ts)
        if at_start is None:
            return
        try:
            at_start()
        except BaseException:
            self.close()
            raise
        if not paused:
            self.resume()

    def __repr__(self) -> str:
        state = "open" if self._closed_with is None else "closed"
        return f"Snapshot({self._name!r}, {self.size} rows, {state})"

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def resume(self) -> None:
        """Lets writers continue that have waited since the snapshot was opened with `paused`."""
        if self._closed_with is None:  # otherwise another snapshot may have paused the writers
            self._table.resume_writers()

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """Yields the rows in slices of at most `rows` (about 16 MiB if None), in arbitrary order.

        Each row is given once in all: several scans, also on several threads, share the rows. Rows
        in the same index bucket stay together, so a very small slice may hold a few more rows.
        """
        return self._slices(slice_rows(self._layout, rows))

    def _slices(self, room: int) -> Iterator[Entries]:
        done = False
        while not done:
            self._check_usable()
            ids = torch.empty(room, dtype=torch.int64, device="cpu")
            values, raw, ts = entry_room(self._layout, room)
            got, done, needed = self._table.read_snapshot(
                self._ticket,
                room,
                ids.data_ptr(),
                values.data_ptr(),
                raw.data_ptr(),
                ts.data_ptr(),
            )
            if needed:
                room = needed
            if got:
                states = self._layout.split(raw[:got])
                yield Entries(
                    ids[:got], all_found(got), values[:got], states, *shown(self._order, ts[:got])
                )

    def _check_usable(self) -> None:
        if self._closed_with is not None:
            raise StateError(
                f"the snapshot of table {self._name!r} is closed; open another with snapshot()."
            )
        if os.getpid() != self._process:
            raise StateError(
                f"the snapshot of table {self._name!r} was opened by process {self._process}, from "
                f"which this one was forked; open one here with snapshot()."
            )

    @property
    def aside_rows(self) -> int:
        """The number of rows that writers have copied aside so far."""
        return self._use()[0]

    @property
    def waited_s(self) -> float:
        """The seconds that all writers have waited so far."""
        return self._use()[1]

    def _use(self) -> tuple[int, float]:
        return self._closed_with or self._table.snapshot_use()

    def close(self) -> None:
        """Frees the copied rows and lets waiting writers continue; a second call does nothing."""
        if self._closed_with is None:
            self._closed_with = self._table.snapshot_use()
            self._release()


_SLICE_ROWS = 65536  # examined per native call

# (cursor, capacity, address of ids, address of times) -> (rows removed, cursor, done, capacity
# needed)
_Step = Callable[[int, int, int, int], tuple[int, int, bool, int]]


class HostEvictions:
    """Removes rows by the eviction rule of a host table. A lock lets one eviction run at a time."""

    def __init__(
        self, config: TableConfig, native_table: native.Table, stamps: WriteStamps, events: Counters
    ) -> None:
        self._config = config
        self._native_table = native_table
        self._stamps = stamps
        self._events = events
        self._running = ForkLock()

    def evict(self, *, now_s: int | None, capture: bool, rows: int | None) -> Evicted:
        """Removes the rows that the rule selects; see `HostTable.evict`."""
        rule = self._config.evict
        checks.flag("capture", capture)
        given = None if now_s is None else checks.count("now_s", now_s)
        with self._running:
            if isinstance(rule, Ttl):
                evicted = self._evict_older(rule, given, capture)
            elif isinstance(rule, Lru | Lfu):
                budget = rule.rows if rows is None else checks.count("rows", rows)
                evicted = self._evict_to(rule, budget, capture)
            else:
                raise ConfigError(
                    f"table {self._config.name!r} has no eviction rule; make its TableConfig with "
                    f"evict=Ttl(...), Lru(...) or Lfu(...)."
                )
        self._events.add("evicted", evicted.rows)
        order = self._stamps.order
        if order is None or evicted.ts is None:
            return evicted
        return Evicted(evicted.rows, evicted.ids, order.seconds(evicted.ts))

    def _evict_older(self, rule: Ttl, now_s: int | None, capture: bool) -> Evicted:
        if now_s is None:
            newest = rule.reference == "newest"
            now_s = self._native_table.newest_time() if newest else self._stamps.clock.now_s()
        reference, ages = now_s, rule.ages_s()

        def take(cursor: int, room: int, ids_at: int, times_at: int) -> tuple[int, int, bool, int]:
            return self._native_table.evict_older(
                reference, ages.data_ptr(), cursor, room, ids_at, times_at
            )

        return _in_slices(take, capture)

    def _evict_to(self, rule: Lru | Lfu, rows: int, capture: bool) -> Evicted:
        assert self._stamps.order is not None
        order, top = ("use" if isinstance(rule, Lfu) else "time"), self._stamps.order.top
        left, score, key = self._native_table.find_cut(order, rows, top)
        if left == 0:
            return _in_slices(lambda *_: (0, 0, True, 0), capture)

        def take(cursor: int, room: int, ids_at: int, times_at: int) -> tuple[int, int, bool, int]:
            nonlocal left
            step = self._native_table.evict_ranked(
                order, left, score, key, cursor, room, ids_at, times_at, top
            )
            left -= step[0]
            return step

        return _in_slices(take, capture)


def _in_slices(take: _Step, capture: bool) -> Evicted:
    ids, ts = (torch.empty(_SLICE_ROWS, dtype=torch.int64, device="cpu") for _ in range(2))
    rows, cursor, done = 0, 0, False
    parts = [(ids[:0], ts[:0])]
    while not done:
        gone, cursor, done, needed = take(cursor, len(ids), ids.data_ptr(), ts.data_ptr())
        rows += gone
        if needed:
            ids, ts = (torch.empty(needed, dtype=torch.int64, device="cpu") for _ in range(2))
        elif capture and gone:
            parts.append((ids[:gone].clone(), ts[:gone].clone()))
    if not capture:
        return Evicted(rows)
    ids, order = torch.cat([part[0] for part in parts]).sort()
    return Evicted(rows, ids, torch.cat([part[1] for part in parts])[order])


class HostFeed:
    """The change feeds and snapshots of a host table."""

    def __init__(
        self, name: str, layout: RowLayout, native_table: native.Table, stamps: WriteStamps
    ) -> None:
        self._name = name
        self._layout = layout
        self._native_table = native_table
        self._stamps = stamps
        self._consumers: dict[str, TouchedKeys] = {}
        self._opening = ForkLock()

    def touched(self, consumer: str, settings: TouchedSettings) -> TouchedKeys:
        """Returns the change feed of `consumer`.

        An open one with the same settings is returned again.
        """
        if not isinstance(consumer, str) or not consumer:
            raise InputError(f"consumer is {consumer!r}; it must be a non-empty str.")
        with self._opening:
            known = self._consumers.get(consumer)
            if known is None:
                known = TouchedKeys(self._native_table, consumer, settings, self._forget)
                self._consumers[consumer] = known
        if known.settings != settings:
            raise NameTakenError(
                f"consumer {consumer!r} of table {self._name!r} is open with "
                f"{known.settings}, not {settings}; close it first, or choose another name."
            )
        return known

    def consumer(self, name: str) -> TouchedKeys | None:
        """Returns the open change feed with this name, or None."""
        with self._opening:
            return self._consumers.get(name)

    @property
    def consumers(self) -> tuple[str, ...]:
        """The names of the open change feeds."""
        with self._opening:
            return tuple(self._consumers)

    def _forget(self, consumer: str) -> None:
        with self._opening:
            self._consumers.pop(consumer, None)

    def snapshot(
        self, aside_bytes: int, at_start: Callable[[], object] | None, paused: bool
    ) -> Snapshot:
        """Returns all rows as they are at this call; see `HostTable.snapshot`."""
        checks.count("aside_bytes", aside_bytes)
        if at_start is not None and not callable(at_start):
            raise InputError(f"at_start is {at_start!r}; it must be a function without arguments.")
        checks.flag("paused", paused)
        return Snapshot(
            *(self._native_table, self._name, self._layout, aside_bytes, at_start, paused),
            order=self._stamps.order,
        )


class HostMoves:
    """Moves rows between a host table and another store of the same table, for tiers.

    A move changes no counter and does not appear in change feeds.
    """

    def __init__(self, layout: RowLayout, native_table: native.Table, stamps: WriteStamps) -> None:
        self._layout = layout
        self._native_table = native_table
        self._stamps = stamps

    def read_out(self, ids: Int64[Tensor, "n"]) -> MovingRows:
        """Returns whole rows; absent ids give zeros."""
        found = torch.empty(len(ids), dtype=torch.bool, device="cpu")
        room = MovingRows(ids.contiguous(), found, *entry_room(self._layout, len(ids)))
        others = (room.found, room.rows, room.states, room.ts)
        self._native_table.entries(
            room.ids.data_ptr(), len(ids), *(part.data_ptr() for part in others)
        )
        return room

    def move_in(self, moving: MovingRows) -> Bool[Tensor, "n"]:
        """Takes rows; returns which of them found a slot, which here are all."""
        here = moving.to("cpu")
        parts = [x.contiguous() for x in (here.ids, here.rows, here.states, here.ts)]
        ids_at, *others = (part.data_ptr() for part in parts)
        with memory_errors():
            self._native_table.move_in(ids_at, len(here), *others)
        return all_found(len(here))

    def move_out(self, ids: Int64[Tensor, "n"]) -> None:
        """Removes rows that another store has taken."""
        ids = ids.contiguous()
        gone = torch.empty(len(ids), dtype=torch.bool, device="cpu")
        self._native_table.move_out(ids.data_ptr(), len(ids), gone.data_ptr())

    def saw(self, ts: int) -> None:
        """Records that another store wrote a row at time `ts`, so that `max_ts` includes it."""
        self._native_table.assign(0, 0, 0, ts if self._stamps.order is None else ts << MARK_BITS)
