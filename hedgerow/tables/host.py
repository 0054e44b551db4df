"""`HostTable`: the table of one process in host memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Self

import torch
from torch import Tensor

from .. import native
from ..core import checks, process_state
from ..core.clock import Clock
from ..core.errors import InputError, StateError
from ..core.recycle import give_freed_memory_back
from ..core.shapes import Bool, Float32, Float64, Int8, Int64
from . import arguments
from .admission import SlidingFilter
from .changes import (
    DEFAULT_CAPACITY,
    Overflow,
    SyncClient,
    TouchedKeys,
    TouchedSettings,
    checked_client,
)
from .config import TableConfig
from .eviction import Evicted, EvictionOrder, join, uses_of
from .host_core import (
    ASIDE_BYTES,
    HostCore,
    HostEvictions,
    HostFeed,
    HostMoves,
    RowFile,
    Snapshot,
    memory_errors,
)
from .layout import entry_room, slice_rows
from .local_table import MemoryUse
from .optimizers import Rate
from .slot_key import check_slot_key
from .store import (
    PLAIN,
    Applied,
    Entries,
    Lookup,
    Missing,
    TableKeys,
    UpdatePolicy,
    all_found,
    summed,
)
from .transfer import MovingRows


class HostTable:
    """Rows for any 64-bit id in host memory, inserted on the first write; safe from many threads.

    Keys are an int64 tensor, or `TableKeys` of one table. Equal ids in one call act in order.
    Results do not depend on the number of threads.

    - `rates` gives one learning rate per segment and overrides the rates of the optimizers.
    - `shared_name` registers the table under a name that is unique in this process.
    - `filter` is the admission filter. Tables that count ids for admission may share one; by
      default each makes its own.
    - `sync_client` is attached to the table before the first write and learns which rows change.
    - `rows_in` keeps the rows in a file, and only the index in memory.

    >>> from hedgerow.tables.config import Segment
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.optimizers import Sgd
    >>> table = HostTable(TableConfig("user", (Segment(2, Zeros(), Sgd(lr=0.1)),)))
    >>> ids = torch.tensor([7, -1, 7])
    >>> table.apply_gradients(ids, torch.ones(3, 2))
    Applied(inserted=2, refused=0, dropped=0)
    >>> table.lookup(torch.tensor([7, -1, 5])).rows_of()
    tensor([[-0.2000, -0.2000],
            [-0.1000, -0.1000],
            [ 0.0000,  0.0000]])
    """

    def __init__(
        self,
        config: TableConfig,
        *,
        rates: Sequence[Rate] | None = None,
        shared_name: str | None = None,
        clock: Clock | None = None,
        filter: SlidingFilter | None = None,
        sync_client: SyncClient | None = None,
        rows_in: RowFile | None = None,
    ) -> None:
        self.config = config
        self.core = core = HostCore(
            config, rates=rates, clock=clock, filter=filter, rows_in=rows_in
        )
        self.layout = core.layout
        self.evictions = HostEvictions(config, core.native_table, core.stamps, core.events)
        self.feed = HostFeed(config.name, core.layout, core.native_table, core.stamps)
        self.moves = HostMoves(core.layout, core.native_table, core.stamps)
        # Tiers call these on both of their tables, one of which may be a `DeviceTable`.
        self.checked_rows, self.checked_step = core.checked_rows, core.checked_step
        self.update_arguments, self.apply_checked = core.update_arguments, core.apply_checked
        self.next_time, self.share_order = core.stamps.next_time, core.stamps.share_order
        self._shared_name = shared_name
        if shared_name is not None:
            process_state.register(shared_name, self)
        if sync_client is not None:
            checked_client(sync_client).attach(shared_name or config.name, self)

    def __repr__(self) -> str:
        parts = ", ".join(
            f"{s.dim} x {(s.compressor if self.config.serving else s.optimizer)!r}"
            for s in self.config.segments
        )
        return f"HostTable({self.config.name!r}, {self.size()} rows of {parts})"

    def __reduce__(self) -> str:
        raise TypeError(
            f"table {self.config.name!r} cannot be pickled or copied; use hr.save or "
            f"model.state_dict() for a model, and scan() and restore() for the rows of a table."
        )

    @property
    def device(self) -> torch.device:
        """The device of the rows: host memory."""
        return checks.CPU

    @property
    def clock(self) -> Clock:
        """The clock that the times of writes and the ages of rows are compared with."""
        return self.core.stamps.clock

    @property
    def filter(self) -> SlidingFilter | None:
        """The filter that counts absent ids for the admission rule; None if there is none."""
        return self.core.filter

    @property
    def slot_key(self) -> int:
        """The secret that determines the slots of ids in the index."""
        return self.core.native_table.slot_key()

    def use_slot_key(self, slot_key: int) -> None:
        """Places ids by this key from now on; raises if the table has rows."""
        check_slot_key("HostTable", slot_key)
        if slot_key != self.slot_key and not self.core.native_table.place_by(slot_key):
            raise StateError(
                f"table {self.config.name!r} has rows, and its slot key cannot change; set it "
                f"while the table is empty."
            )

    @property
    def order(self) -> EvictionOrder | None:
        """The eviction order of rows; None without an `Lru` or `Lfu` rule."""
        return self.core.stamps.order

    # ---- moves of rows, under the same names as in `DeviceTable`

    @property
    def read_out(self) -> Callable[[Int64[Tensor, "n"]], MovingRows]:
        """See `HostMoves.read_out`."""
        return self.moves.read_out

    @property
    def move_in(self) -> Callable[[MovingRows], Bool[Tensor, "n"]]:
        """See `HostMoves.move_in`."""
        return self.moves.move_in

    @property
    def move_out(self) -> Callable[[Int64[Tensor, "n"]], None]:
        """See `HostMoves.move_out`."""
        return self.moves.move_out

    @property
    def saw(self) -> Callable[[int], None]:
        """See `HostMoves.saw`."""
        return self.moves.saw

    # ---- reads

    def lookup(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        *,
        missing: Missing = "zeros",
        step: int | None = None,
        out: Float32[Tensor, "n dim"] | None = None,
    ) -> Lookup:
        """Returns the rows of `keys`, in `out` if given. Inserts nothing.

        An absent id gives zeros, or its initial value if `missing` is "initializer". `step` matters
        only to tables with a one_bit segment.
        """
        keys = self.core.checked_keys(keys)
        n = len(keys.ids)
        if out is None:
            memory, reused = self.core.outputs.take(n * self.layout.dim)
            out = memory.view(n, self.layout.dim)
        else:
            out, reused = arguments.output(out, n, self.layout.dim), True
        slots, mark, found_at = None, None, 0
        if missing == "training":  # an update may follow, which reuses the slots
            slots, mark = torch.empty(n, dtype=torch.int32, device="cpu"), self.core.mark()
            found_at = slots.data_ptr()
        where = keys.ids.data_ptr(), n
        to = out.data_ptr()
        self.core.lookup_at(*where, missing, step, to, reused=reused, found_at=found_at)
        return Lookup(keys, out.view(-1), (self.layout.dim,), slots, mark)

    def contains(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Returns whether each key has a row."""
        ids = self.core.checked_keys(keys).ids
        out = torch.empty(len(ids), dtype=torch.bool, device="cpu")
        self.core.native_table.contains(ids.data_ptr(), len(ids), out.data_ptr())
        return out

    def entries(self, keys: TableKeys | Int64[Tensor, "n"]) -> Entries:
        """Returns raw rows with their optimizer states and times."""
        ids = self.core.checked_keys(keys).ids
        n = len(ids)
        found = torch.empty(n, dtype=torch.bool, device="cpu")
        rows, raw, ts = entry_room(self.layout, n)
        self.core.native_table.entries(
            ids.data_ptr(), n, found.data_ptr(), rows.data_ptr(), raw.data_ptr(), ts.data_ptr()
        )
        return Entries(ids, found, rows, self.layout.split(raw), *self.core.stamps.times_of(ts))

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """Yields all rows in slices of at most `rows` (about 16 MiB if None), in arbitrary order.

        A row that exists during the whole scan is given exactly once, even if rows are written
        meanwhile. A row that is inserted or removed during the scan may or may not be given. Rows
        with the same index bucket stay together, so a very small slice may hold a few more rows.
        """
        return self._slices(slice_rows(self.layout, rows))

    def scan_slice(self, cursor: int = 0, rows: int | None = None) -> tuple[Entries, int, bool]:
        """Returns one slice of a scan: its rows, the next cursor, and whether it is the last slice.

        A cursor is a position in the order of hashed keys, not in memory, so it stays valid while
        rows come and go. It is valid for another table only if both have the same slot key.
        """
        if type(cursor) is not int or not 0 <= cursor < 2**64:
            raise InputError(
                f"cursor is {cursor!r}; use 0, or the cursor that the previous slice returned."
            )
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
            got, cursor, done, needed = self.core.native_table.scan(
                cursor, room, ids.data_ptr(), values.data_ptr(), raw.data_ptr(), ts.data_ptr()
            )
            if got or done or not needed:
                states = self.layout.split(raw[:got])
                shown = self.core.stamps.times_of(ts[:got])
                entries = Entries(ids[:got], all_found(got), values[:got], states, *shown)
                return entries, cursor, done, needed or room
            room = needed

    def size(self) -> int:
        """Returns the number of rows."""
        return self.core.native_table.size()

    def __len__(self) -> int:
        return self.size()

    def max_ts(self) -> int:
        """Returns the largest `ts` of all writes."""
        return self.core.stamps.second(self.core.native_table.newest_time())

    def uses(self, keys: TableKeys | Int64[Tensor, "n"]) -> Float64[Tensor, "n"]:
        """Returns how often each key was used, under an `Lfu` rule, decayed to the present."""
        return uses_of(self.order, self.entries(keys), self.config.name)

    def memory(self) -> MemoryUse:
        """Returns bytes by purpose.

        A shared admission filter counts in full in each of its tables.
        """
        index, row, slack, other = self.core.native_table.memory()
        filter_bytes = 0 if self.filter is None else self.filter.memory_bytes()
        return MemoryUse(index, row, slack, other + filter_bytes + self.core.output_bytes())

    def measured_bytes(self) -> int:
        """Returns the bytes of a row file that are in memory, as reported by the operating system.

        It checks every page of the file.
        """
        if self.core.row_file is None:
            raise StateError(f"table {self.config.name!r} keeps its rows in memory, not in a file.")
        return self.core.row_file.measured_bytes()

    def stats(self) -> dict[str, float]:
        """Returns rows, bytes, load of the index and all counters since the table was made.

        `uncompressed_bytes` is the size of the rows as fp32, without optimizer state. For rows in a
        file, `file_bytes` is the size of the file and `resident_bytes` the part that is in memory.
        """
        use, rows, counted = self.memory(), self.size(), self.core.native_table.counted()
        file, outputs = self.core.row_file, self.core.output_bytes()
        load_factor, longest_search = self.core.native_table.load()
        return {
            "rows": rows,
            "uncompressed_bytes": rows * 4 * self.layout.dim,
            "index_bytes": use.index_bytes,
            "row_bytes": use.row_bytes,
            "slack_bytes": use.slack_bytes,
            "other_bytes": use.other_bytes - outputs,
            "output_bytes": outputs,
            "load_factor": load_factor,
            "longest_search": longest_search,
            **dict(zip(("inserted", "refused", "dropped", "erased"), counted, strict=True)),
            **{name: self.core.events.read(name) for name in ("evicted", "clamped_ts")},
            **({} if file is None else _file_stats(file)),
        }

    def table(self, k: int = 0) -> Self:
        """Returns the store of table `k` alone, which is this table."""
        arguments.table_number(k, 1)
        return self

    # ---- writes

    def apply_gradients(
        self,
        at: TableKeys | Lookup | Int64[Tensor, "n"],
        grads: Float32[Tensor, "n dim"],
        *,
        rates: Sequence[Rate] | None = None,
        step: int | None = None,
        ts: int = 0,
        counts: Int64[Tensor, "n"] | None = None,
        per_occurrence: bool = False,
        policy: UpdatePolicy = PLAIN,
    ) -> Applied:
        """Applies one optimizer step per distinct id, using its summed gradient.

        Absent ids are inserted first. `step` is the number of updates before this one. Schedules,
        one_bit segments, stochastic rounding and dense Adam need it; the bias correction of the
        Adam family uses it if given. If the caller has removed duplicate ids, `counts` says how
        often each id occurred; admission rules and `Lfu` use it. With `per_occurrence`, every
        occurrence is a step of its own.
        """
        checks.flag("per_occurrence", per_occurrence)
        if policy.clip is not None:
            keys = self.core.checked_keys(at.keys if isinstance(at, Lookup) else at)
            where = at if isinstance(at, Lookup) else keys
            one = summed(where, grads, counts, (self.layout.dim,)).clipped(policy.clip)
            at, grads, counts = one.at, one.grads, one.counts
        ids, grads, now, at_step = self.core.update_arguments(
            at, grads, rates, step, counts, reject=policy.rejects
        )
        found = at if isinstance(at, Lookup) else None
        return self.core.apply_checked(ids, grads, now, at_step, ts, counts, per_occurrence, found)

    def assign(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        rows: Float32[Tensor, "n dim"],
        *,
        ts: int = 0,
    ) -> Applied:
        """Sets rows; keeps optimizer state (new for an absent id).

        Of equal ids, the last one wins.
        """
        ids, rows = self.core.checked_keys_and_rows(keys, rows)
        with memory_errors():
            stamp = self.core.stamps.stamp(ts, len(ids))
            done = self.core.native_table.assign(ids.data_ptr(), len(ids), rows.data_ptr(), stamp)
        return Applied.of(*done)

    def assign_add(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        rows: Float32[Tensor, "n dim"],
        *,
        ts: int = 0,
    ) -> Applied:
        """Adds to rows; an absent row starts from its initial value (serving tables: zeros)."""
        ids, rows = self.core.checked_keys_and_rows(keys, rows)
        with memory_errors():
            stamp = self.core.stamps.stamp(ts, len(ids))
            done = self.core.native_table.assign_add(
                ids.data_ptr(), len(ids), rows.data_ptr(), stamp
            )
        return Applied.of(*done)

    def restore(self, entries: Entries) -> Applied:
        """Writes back whole rows from `entries` or `scan`: embeddings, states and times."""
        ids, rows = self.core.checked_keys_and_rows(entries.ids, entries.rows)
        checks.tensor("found", entries.found, torch.bool, (len(ids),))
        checks.tensor("ts", entries.ts, torch.int64, (len(ids),))
        if not entries.found.numpy().all():
            raise InputError("entries holds ids that were not found; select those with found True.")
        earliest = int(entries.ts.numpy().min(initial=0))
        if earliest < 0:
            raise InputError(f"ts holds {earliest}; a time is at least 0.")
        states: Sequence[Mapping[str, Tensor]] = entries.states
        if self.config.serving:
            states = [{} for _ in self.config.segments]
        raw, ts = self.layout.join(states, len(ids)), self.core.stamps.stamps_of(entries)
        with memory_errors():
            done = self.core.native_table.restore(
                ids.data_ptr(), len(ids), rows.data_ptr(), raw.data_ptr(), ts.data_ptr()
            )
        return Applied.of(*done)

    def reinitialize(self, keys: TableKeys | Int64[Tensor, "n"]) -> Int8[Tensor, "n"]:
        """Resets rows and states, at the clock's time; returns 1 per key that had a row, else 0."""
        self.core.refuse_serving("reinitialize")
        ids = self.core.checked_keys(keys).ids
        status = torch.empty(len(ids), dtype=torch.int8, device="cpu")
        with memory_errors():
            stamp = self.core.stamps.stamp(self.clock.now_s(), 0)
            self.core.native_table.reinitialize(ids.data_ptr(), len(ids), stamp, status.data_ptr())
        return status

    def erase(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Removes rows; returns which keys had a row. New ids reuse their memory."""
        ids = self.core.checked_keys(keys).ids
        erased = torch.empty(len(ids), dtype=torch.bool, device="cpu")
        with memory_errors():
            self.core.native_table.erase(ids.data_ptr(), len(ids), erased.data_ptr())
        return erased

    def evict(
        self, *, now_s: int | None = None, capture: bool = False, rows: int | None = None
    ) -> Evicted:
        """Removes the rows that the table's eviction rule selects; new ids reuse their memory.

        Other calls continue meanwhile. A row is judged by its time when it is about to be removed,
        so a row that was updated in between stays. `now_s` replaces the rule's reference time. With
        `capture`, the result holds the ids and times of the removed rows. `rows` replaces the row
        limit of an `Lru` or `Lfu` rule: a shard or a tier keeps its share of the limit, which may
        be 0.
        """
        return self.evictions.evict(now_s=now_s, capture=capture, rows=rows)

    # ---- change feeds, snapshots and staged tables

    def touched(
        self,
        consumer: str,
        *,
        capacity: int = DEFAULT_CAPACITY,
        all_changes: bool = False,
        overflow: Overflow = "whole_table",
    ) -> TouchedKeys:
        """Returns the change feed of `consumer`: the keys changed since it last took them.

        The table collects keys from the first call on. `apply_gradients` and `reinitialize` count
        as changes. With `all_changes`, so do `assign`, `assign_add`, `restore`, `erase` and
        eviction; a taken key that has no row was deleted, and `clear` marks the whole table as
        changed. If more than `capacity` keys change, the feed reports `whole_table`; with
        `overflow="forget"` it drops and counts the keys, as Monolith does. If the feed is open
        already, it is returned again.
        """
        return self.feed.touched(consumer, TouchedSettings(capacity, all_changes, overflow))

    def consumer(self, name: str) -> TouchedKeys | None:
        """Returns the open change feed with this name, or None."""
        return self.feed.consumer(name)

    def snapshot(
        self,
        aside_bytes: int = ASIDE_BYTES,
        *,
        at_start: Callable[[], object] | None = None,
        paused: bool = False,
    ) -> Snapshot:
        """Returns all rows as they are at this call, to be read while writes continue.

        A table can have one open snapshot. `at_start` runs at the instant of the snapshot: earlier
        writes have ended, and writes of other threads wait until it returns. With `paused`, they
        wait until `resume`, so that several tables can be captured at the same instant. Close the
        snapshot, or use it in a `with` block.
        """
        return self.feed.snapshot(aside_bytes, at_start, paused)

    def beside(self, rows: int, *, slot_key: int | None = None) -> HostTable:
        """Returns an empty table with the same config, clock and filter.

        The caller fills it and then exchanges rows with it. It places ids by `slot_key`, or by this
        table's key if None; `exchange_rows` swaps the keys as well. It is large enough for `rows`
        rows from the start: a scan gives rows in the order of the index, and inserting them in that
        order into a smaller index would fill one region of it.
        """
        rows = min(checks.count("rows", rows), 2**32 - 1)
        room = max(self.config.initial_capacity, rows)
        key = self.slot_key if slot_key is None else slot_key
        roomy = dataclasses.replace(self.config, initial_capacity=room, slot_key=key)
        made = HostTable(
            roomy,
            rates=self.core.rates,
            clock=self.clock,
            filter=self.filter,
            rows_in=self.core.rows_in,
        )
        made.config = made.core.config = self.config
        return made

    def exchange_rows(self, other: HostTable) -> None:
        """Swaps all rows and slot keys with a table of the same config.

        Readers see either all rows of one table or all rows of the other. Filters and counters are
        not swapped. Consumers of all changes see the whole table as changed.
        """
        if other.config != self.config:
            raise InputError(
                f"table {self.config.name!r} and {other.config.name!r} differ in their configs; "
                f"only tables of one config exchange rows."
            )
        if other.core.rows_in != self.core.rows_in:
            raise InputError(
                f"tables {self.config.name!r} keep their rows in {self.core.rows_in} and in "
                f"{other.core.rows_in}; only tables with one rows_in exchange rows."
            )
        if not self.core.native_table.exchange(other.core.native_table):
            raise StateError(
                f"rows of table {self.config.name!r} cannot be exchanged while a snapshot is open; "
                f"nothing was changed. Close the snapshot first."
            )
        join(self.order, other.order)

    def clear(self) -> None:
        """Removes all rows and frees their memory.

        It also forgets the ids that its admission rule counted, so an id must be seen anew before
        it gets a row. Counts in a filter that was passed to the table, or is shared with another
        table, stay. Their memory stays as well: 5 to 16 bytes per id.
        """
        if not self.core.native_table.clear():
            raise StateError(
                f"clear of table {self.config.name!r} while a snapshot of it is open; nothing was "
                f"removed. Close the snapshot first."
            )
        self.core.outputs.clear()
        self.core.forget_counts()
        give_freed_memory_back()

    def close(self) -> None:
        """Removes all rows and releases the shared name."""
        self.clear()
        if self._shared_name is not None:
            process_state.release(self._shared_name, self)


def _file_stats(file: native.RowFile) -> dict[str, float]:
    return {"file_bytes": file.file_bytes(), "resident_bytes": file.resident_bytes()}


# ---- calls on several tables with the same row layout


def lookup_several(
    tables: Sequence[HostTable],
    ids: Int64[Tensor, "n"],
    splits: Sequence[int],
    missing: Missing,
    step: int | None,
    out: Float32[Tensor, "n dim"],
) -> Bool[Tensor, "n"]:
    """Looks up ids of several tables, given table after table; returns which have a row.

    The caller has checked that `out` fits.
    """
    found = torch.empty(len(ids), dtype=torch.bool, device="cpu")
    rules, steps = zip(*(table.core.reading(missing, step) for table in tables), strict=True)
    native.lookup_several(
        *([table.core.native_table for table in tables], splits, rules, max(steps)),
        *(ids.data_ptr(), out.data_ptr(), found.data_ptr()),
    )
    return found


def read_several(
    tables: Sequence[HostTable],
    splits: Sequence[int],
    *,
    ids_at: int,
    found_at: int,
    rows_at: int,
    states_at: int,
    times_at: int,
) -> list[int]:
    """Reads whole rows of several tables between addresses; returns how many each table has.

    The ids are given table after table.
    """
    cores = [table.core.native_table for table in tables]
    return native.read_several(cores, splits, ids_at, found_at, rows_at, states_at, times_at)


def move_in_several(
    tables: Sequence[HostTable], starts: Sequence[int], ends: Sequence[int], moving: MovingRows
) -> None:
    """Moves rows into several tables; each table takes the rows from its start to its end.

    If it fails, some tables may have taken their rows. The call may be repeated.
    """
    parts = (moving.ids, moving.rows, moving.states, moving.ts)
    cores = [table.core.native_table for table in tables]
    with memory_errors():
        native.move_in_several(cores, starts, ends, *(part.data_ptr() for part in parts))
