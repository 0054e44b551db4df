"""`DeviceTable`: the table of one process in the memory of one device, and its optimizer step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Self, get_args

import torch
from torch import Tensor

from ..core import checks
from ..core.clock import Clock, SystemClock
from ..core.counters import Counters
from ..core.errors import ConfigError, InputError, ServingTableError, StateError
from ..core.shapes import Bool, Float32, Float64, Int8, Int64
from ..kernels import apply, find, lookup
from ..kernels import step as steps
from ..kernels.layout import Arrays, Grouped, RowSegment, group
from ..kernels.sum_gradients import sum_gradients
from ..kernels.toolchain import interpreted
from . import arguments
from .changes import DEFAULT_CAPACITY, Overflow
from .config import TableConfig
from .device_policies import (
    DeviceEvictions,
    DeviceFilter,
    GroupedOccurrences,
    admission_of,
    filter_of,
)
from .device_slots import (
    FILL,
    MAX_IDS,
    DeviceFeed,
    DeviceSlots,
    DeviceSnapshot,
    DeviceTouched,
    Full,
    RowTimes,
    check_config,
)
from .device_writes import DeviceMoves, DeviceWrites, Write
from .eviction import Evicted, EvictionOrder, WriteStamps, join, uses_of
from .local_table import MemoryUse
from .optimizers import Rate, check_rates, rate_at
from .slot_key import check_slot_key
from .store import PLAIN, Applied, Entries, Lookup, Missing, TableKeys, UpdatePolicy, summed
from .transfer import MovingRows


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """The checked arguments of one call of `apply_gradients`."""

    keys: TableKeys
    found: Lookup | None  # the lookup that the caller passed in place of keys
    grads: Float32[Tensor, "n dim"]
    rates: list[float]
    number: int  # the step number; 0 if none was given and none is needed
    at_step: int  # the step number, or NO_STEP if none was given
    counts: Int64[Tensor, "n"] | None


class DeviceStep:
    """Applies gradients. Never waits for the device, except where `DeviceWrites.finish` does.

    A plain step does not sort the ids. The ids must be sorted if the table has an admission rule,
    if its changes are followed, or if rows are evicted for new ids.
    """

    def __init__(self, slots: DeviceSlots, times: RowTimes, writes: DeviceWrites) -> None:
        self._slots, self._times, self._writes = slots, times, writes
        self._sorts = not writes.admits_all or slots.full == "evict"

    def apply(self, update: Update, ts: int) -> Applied:
        """Applies one step per distinct id, using its summed gradient."""
        # A half-life in uses counts each id once: summing `counts` would wait for the device.
        write = self._writes.start(ts, len(update.keys.ids))
        found = update.found  # start() may have moved rows, which changes the epoch
        slots = found.slots if found is not None and found.epoch is self._slots.epoch else None
        with self._slots.on_device():
            if self._sorts or self._writes.is_watched(learned=True):
                self._sorted(update, slots, write)
            else:
                self._plain(update, slots, write)
        return self._writes.finish(write)

    def _plain(self, update: Update, slots: Tensor | None, write: Write) -> None:
        keys, table = update.keys, self._slots
        where: dict[str, Any] = {"slots": slots, "used": keys.used, "at_step": update.at_step}
        if keys.distinct:
            apply.apply(
                *(table.arrays, Grouped(keys.ids, None), update.grads, write.done, table.parts),
                *(update.rates, write.now),
                **where,
                stamp=self._times.is_timed,
            )
        else:
            steps.step(
                *(table.arrays, keys.ids, update.grads, write.done, table.parts),
                *(update.rates, write.now),
                **where,
            )

    def _sorted(self, update: Update, slots: Tensor | None, write: Write) -> None:
        table, used, counts = self._slots, update.keys.used, update.counts
        grouped = group(update.keys.ids)
        grouped = self._writes.admitted(grouped, used, write, update.number, counts)
        if table.full == "evict":
            slots = None  # evictions may have given these slots to other ids
            sums, number = sum_gradients(grouped, update.grads, used)
            wanted = (number > 0) & sums.isfinite().all(dim=1)  # evict no row for a dropped id
            self._writes.give_way(grouped, wanted, write)
        placed = self._writes.room_for_slots(grouped, learned=True)
        apply.apply(
            *(table.arrays, grouped, update.grads, write.done, table.parts),
            *(update.rates, write.now),
            slots=slots,
            used=used,
            placed=placed,
            stamp=self._times.is_timed,
            at_step=update.at_step,
        )
        self._writes.note(grouped, placed, learned=True, use=write.now, used=used, counts=counts)

    def apply_each(self, update: Update, ts: int) -> Applied:
        """Applies one step per occurrence of an id, in input order.

        An absent id is inserted if at least one of its occurrences is admitted and finite.
        """
        write = self._writes.start(ts, len(update.keys.ids))
        with self._slots.on_device():
            self._each(update, write)
        return self._writes.finish(write)

    def _each(self, update: Update, write: Write) -> None:
        table, writes, done, used = self._slots, self._writes, write.done, update.keys.used
        grouped = group(update.keys.ids)
        seen = GroupedOccurrences.of(grouped, used, update.counts)
        refused = writes.refused(grouped, seen, write, update.number, each=True)
        taken = seen.live if refused is None else seen.live & ~refused
        usable: Bool[Tensor, "n"] = update.grads.isfinite().all(dim=1)[grouped.order]
        done[2] += (taken & ~usable).sum()
        taken = taken & usable
        wanted = seen.total(taken.long()) > 0  # set at the first position of each group
        writes.give_way(grouped, wanted, write)
        slots, born = find.find_or_insert(table.arrays, grouped.ids, wanted=wanted)
        done[0] += born.sum()
        done[1] += (wanted & (slots < 0)).sum()
        apply.apply_each(
            *(table.arrays, grouped, taken, update.grads, slots, born, table.parts),
            *(update.rates, write.now, update.at_step),
        )
        writes.note(grouped, slots, learned=True, use=write.now, used=used, counts=update.counts)


class DeviceTable:
    """Rows for any 64-bit id in the memory of one device, in `capacity_rows` slots.

    Use it from one thread and on one stream. `lookup` and `apply_gradients` never wait for the
    device, so CUDA graphs can capture them; a captured step keeps its rate, `step` and `ts`. Their
    counters stay on the device until they are read.

    Once about 85 % of the slots are taken, some new ids find no slot. `full` decides what happens
    then:

    - "refuse": the ids are refused and counted.
    - "raise": the ids are refused and counted, and the write raises a `TableFullError`. Every write
      waits for the device to learn of such ids, so no write can be captured.
    - "evict": rows are evicted for the new ids. Of the rows in the candidate slots, the row with
      the oldest `ts` is evicted, or under `Lfu` the least used row.
    - "grow": the table moves to more slots. When the ids written since the last count could fill
      the table, it counts its rows, which waits for the device.

    It has all methods of `HostTable` and gives the same numbers, bit for bit, with two exceptions.
    Gradients of an id with more than 256 occurrences in one call are added in another fixed order,
    and so are sums of squares over a row (`RowAdagrad`). Because it does not wait for the device,
    it differs in three more ways. It always leaves out and counts gradients that are not finite,
    whatever `not_finite` says. It takes a number below 1 in `counts` as 1 instead of refusing it.
    The window of an admission filter advances between calls only.

    The constructor raises an error that names the reason if a device table cannot hold the config:
    rows stored in less than fp32 (compressors, rounding), an optimizer without a device kernel, or
    more than 1024 columns.

    With `TRITON_INTERPRET=1` set before the first import, `device="cpu"` runs the same kernels in
    Python, for tests.

    The parts are `slots` (arrays, capacity and growth), `times` and `stamps` of rows, `feed`
    (touched keys and snapshots) and `writes`. Stores of several tables use these parts.
    """

    def __init__(
        self,
        config: TableConfig,
        *,
        capacity_rows: int,
        device: torch.device | str = "cuda",
        rates: Sequence[Rate] | None = None,
        clock: Clock | None = None,
        filter: DeviceFilter | None = None,
        full: Full = "refuse",
    ) -> None:
        self.config = config
        check_config(config)
        own = [s.optimizer.rate() if s.optimizer else 0.0 for s in config.segments]
        self.rates = check_rates(own if rates is None else rates, len(own))
        self._follows_step = any(s.optimizer and s.optimizer.follows_step for s in config.segments)
        self.device = torch.empty(0, device=device).device  # adds the device number
        if self.device.type == "cpu" and not interpreted():
            raise ConfigError(
                "device is 'cpu', where kernels run only under TRITON_INTERPRET=1; use HostTable."
            )
        if full not in get_args(Full):
            raise InputError(f"full is {full!r}; it must be one of {', '.join(get_args(Full))}.")
        room = checks.count("capacity_rows", capacity_rows, least=1)
        self._events = Counters()
        self.stamps = WriteStamps(
            clock or SystemClock(), self._events, EvictionOrder.of(config.evict)
        )
        self.slots = DeviceSlots(config, self.device, self.stamps, capacity_rows=room, full=full)
        self.layout = self.slots.layout
        self.full: Full = full
        self.times = RowTimes()
        self.feed = DeviceFeed(config.name, self.slots)
        self._filter = filter_of(config, filter, self.slots.slot_key, self.device)
        self._made_filter = filter is None
        if self._filter is not None:
            self._filter.tables.add(config.name)
        self.writes = DeviceWrites(
            *(config, self.slots, self.times, self.stamps, self.feed),
            admission_of(config, self._filter, self.device),
        )
        self._step = DeviceStep(self.slots, self.times, self.writes)
        self._moves = DeviceMoves(self.slots, self.times, self.feed, self.writes)
        self._evictions = DeviceEvictions(
            config, self.slots, self.times, self.feed, self.stamps, self._events
        )

    def __repr__(self) -> str:
        return (
            f"DeviceTable({self.config.name!r}, room on {self.device} for {self.capacity_rows} "
            f"rows of {self.config.dim} x {[s.optimizer for s in self.config.segments]})"
        )

    def __len__(self) -> int:
        return self.size()

    # ---- the step: nothing here waits for the device

    def lookup(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        *,
        missing: Missing = "zeros",
        step: int | None = None,
        out: Float32[Tensor, "n dim"] | None = None,
    ) -> Lookup:
        """Returns the rows of `keys`, in `out` if given, and their slots. Inserts nothing.

        An absent id gives zeros, or its initial value if `missing` is "initializer". Padding gives
        zeros.
        """
        keys = self.checked_keys(keys)
        n, slots = len(keys.ids), self.slots
        dim = slots.layout.dim
        arguments.missing_rule(missing)
        if missing == "training":
            missing = "initializer" if self.config.admit is None else "zeros"
        if missing == "initializer" and self.config.serving:
            raise ServingTableError(
                f"table {self.config.name!r} is a serving table and has no initializer; "
                f"use missing='zeros'."
            )
        if out is None:
            out = torch.empty(n, dim, dtype=torch.float32, device=self.device)
        else:
            out = arguments.output(out, n, dim, self.device)
        parts = () if missing == "zeros" else slots.parts
        with slots.on_device():
            found = lookup.lookup(slots.arrays, keys.ids, out, parts, keys.used)
        return Lookup(keys, out.view(-1), (dim,), found, slots.epoch)

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
        """Applies one step per distinct id, using its gradients summed in input order.

        Absent ids are inserted first. If `at` is a lookup of this table, the rows that it found are
        not searched for again. If the caller has removed duplicate ids, `counts` says how often
        each id occurred; admission rules and `Lfu` use it. With `per_occurrence`, every occurrence
        is a step of its own, in order.
        """
        each = checks.flag("per_occurrence", per_occurrence)
        if policy.clip is not None:
            where = at if isinstance(at, Lookup) else self.checked_keys(at)
            one = summed(where, grads, counts, (self.config.dim,)).clipped(policy.clip)
            at, grads, counts = one.at, one.grads, one.counts
        update = self.update_arguments(at, grads, rates, step, counts)
        return self._step.apply_each(update, ts) if each else self._step.apply(update, ts)

    def update_arguments(
        self,
        at: TableKeys | Lookup | Int64[Tensor, "n"],
        grads: Float32[Tensor, "n dim"],
        rates: Sequence[Rate] | None,
        step: int | None,
        counts: Int64[Tensor, "n"] | None,
    ) -> Update:
        """Returns the checked arguments of `apply_gradients`; raises if one is invalid."""
        self.refuse_serving("apply_gradients")
        found = at if isinstance(at, Lookup) else None
        keys = self.checked_keys(at.keys if isinstance(at, Lookup) else at)
        grads = self.checked_rows("grads", grads, len(keys.ids))
        if counts is not None:
            checks.tensor("counts", counts, torch.int64, (len(keys.ids),), self.device)
            counts = counts.clamp(min=1)  # refusing smaller counts would wait for the device
        now, number = self.rates_at(rates, step)
        if self.config.admit is not None and self.config.admit.needs_step:
            arguments.needed_step(step, True, self.config.name, "admits ids")
        at_step = arguments.NO_STEP if step is None else number
        return Update(keys, found, grads, now, number, at_step, counts)

    def rates_at(self, rates: Sequence[Rate] | None, step: int | None) -> tuple[list[float], int]:
        """Returns the rates of an update (given, or the table's own) and its step number."""
        sources = self.rates if rates is None else check_rates(rates, len(self.slots.parts))
        scheduled = any(callable(source) for source in sources)
        needed = scheduled or self._follows_step
        number = arguments.needed_step(step, needed, self.config.name, "learns")
        return [rate_at(source, number) for source in sources], number

    # ---- other writes

    def assign(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        rows: Float32[Tensor, "n dim"],
        *,
        ts: int = 0,
    ) -> Applied:
        """Sets rows; of equal ids, the last one wins.

        Waits for the device if `not_finite` is "reject".
        """
        keys = self.checked_keys(keys)
        rows = self.checked_rows("rows", rows, len(keys.ids))
        return self.writes.assign(keys, rows, self.usable_rows(rows, keys.used), ts)

    def assign_add(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        rows: Float32[Tensor, "n dim"],
        *,
        ts: int = 0,
    ) -> Applied:
        """Adds to rows; an absent row starts from its initial value (serving tables: zeros)."""
        keys = self.checked_keys(keys)
        rows = self.checked_rows("rows", rows, len(keys.ids))
        return self.writes.assign_add(keys, rows, self.usable_rows(rows, keys.used), ts)

    def restore(self, entries: Entries) -> Applied:
        """Writes back whole rows from `entries` or `scan`: embeddings, states and times.

        The entries may be on any device. Several threads may call it at once, as a load does.
        """
        return self.writes.restore(entries)

    def reinitialize(self, keys: TableKeys | Int64[Tensor, "n"]) -> Int8[Tensor, "n"]:
        """Resets rows and states, at the clock's time; returns 1 per key that had a row, else 0.

        An id that finds no slot stays absent, which gives 0.
        """
        self.refuse_serving("reinitialize")
        return self.writes.reinitialize(self.checked_keys(keys))

    def erase(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Removes rows; returns which keys had a row. New ids reuse their slots."""
        return self.writes.erase(self.checked_keys(keys))

    def clear(self) -> None:
        """Removes all rows; the table keeps their memory.

        It also forgets the ids that its admission rule counted, unless the filter was passed to the
        table or is shared with another table.
        """
        self.writes.clear()
        own = self._filter if self._made_filter else None
        if own is not None and own.tables <= {self.config.name}:
            own.clear()

    def evict(
        self, *, now_s: int | None = None, capture: bool = False, rows: int | None = None
    ) -> Evicted:
        """Removes the rows that the table's eviction rule selects; new ids reuse their slots.

        Works as `HostTable.evict`, but waits for the device. The captured ids and times stay on the
        device.
        """
        return self._evictions.evict(now_s=now_s, capture=capture, rows=rows)

    def reserve(self, rows: int) -> None:
        """Makes the table large enough for `rows` rows.

        Existing rows move with their states and times. It needs memory for the old slots and the
        new ones at once. CUDA graphs that were captured with this table become invalid.
        """
        self.slots.reserve(checks.count("rows", rows))

    # ---- reads; all but `contains` wait for the device

    def contains(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Returns whether each key has a row."""
        return self.slots.find(self.checked_keys(keys)) >= 0

    def entries(self, keys: TableKeys | Int64[Tensor, "n"]) -> Entries:
        """Returns whole rows."""
        keys, slots = self.checked_keys(keys), self.slots
        return slots.entries(slots.arrays, keys.ids, slots.find(keys))

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """Yields all rows in slices of `rows` (about 16 MiB if None), in no particular order.

        Do not write to the table during the scan.
        """
        arrays = self.slots.arrays
        for slots in self.slots.slices(rows):
            yield self.slots.entries(arrays, arrays.ids(slots), slots)

    def uses(self, keys: TableKeys | Int64[Tensor, "n"]) -> Float64[Tensor, "n"]:
        """Returns how often each key was used, under an `Lfu` rule; as `HostTable.uses`."""
        return uses_of(self.stamps.order, self.entries(keys), self.config.name)

    def size(self) -> int:
        """Returns the number of rows."""
        return self.slots.size()

    def memory(self) -> MemoryUse:
        """Returns bytes by purpose; slots without a row count as slack."""
        arrays = self.slots.arrays
        held, live = arrays.nbytes, self.size() * 4 * arrays.stride
        others = self.feed.nbytes() + (0 if self._filter is None else self._filter.memory_bytes())
        return MemoryUse(held[0], live, held[1] - live, others)

    def stats(self) -> dict[str, float]:
        """Returns rows, bytes, load and all counters since the table was made."""
        use, rows = self.memory(), self.size()
        *counts, evicted = self.slots.totals.tolist()
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

    # ---- reads that do not wait for the device

    @property
    def capacity_rows(self) -> int:
        """The number of slots."""
        return self.slots.capacity_rows

    def size_at_most(self) -> int:
        """Returns an upper bound of the number of rows, without waiting for the device.

        It counts every id written since the last `size()` as a new row. It does not count replays
        of CUDA graphs.
        """
        return self.slots.size_at_most()

    def max_ts(self) -> int:
        """Returns the largest `ts` of all writes."""
        return self.stamps.second(self.times.newest)

    def table(self, k: int = 0) -> Self:
        """Returns the store of table `k` alone, which is this table."""
        arguments.table_number(k, 1)
        return self

    @property
    def clock(self) -> Clock:
        """The clock that the times of writes are compared with."""
        return self.stamps.clock

    @property
    def filter(self) -> DeviceFilter | None:
        """The filter that counts absent ids for the admission rule; None if there is none."""
        return self._filter

    # ---- change feed and snapshots

    def touched(
        self,
        consumer: str,
        *,
        capacity: int = DEFAULT_CAPACITY,
        all_changes: bool = False,
        overflow: Overflow = "whole_table",
    ) -> DeviceTouched:
        """Returns the change feed of `consumer`: the keys changed since it last took them.

        The table collects keys from the first call on. It works as `HostTable.touched`. Writes do
        not wait for the device; taking the keys does.
        """
        return self.feed.touched(
            consumer, capacity=capacity, all_changes=all_changes, overflow=overflow
        )

    def consumer(self, name: str) -> DeviceTouched | None:
        """Returns the open change feed with this name, or None."""
        return self.feed.consumer(name)

    def snapshot(
        self, *, at_start: Callable[[], object] | None = None, paused: bool = False
    ) -> DeviceSnapshot:
        """Returns all rows as they are at this call, to be read while writes continue.

        A device table has one thread, so no other write can happen during the call. `paused`
        therefore has no effect.
        """
        if at_start is not None:
            at_start()
        return self.feed.snapshot(self.max_ts())

    # ---- staged tables and the slot key

    def beside(self, rows: int, *, slot_key: int | None = None) -> DeviceTable:
        """Returns an empty table with the same config, clock and filter.

        The caller fills it and then exchanges rows with it. It has at least as many slots as this
        table, and more if `rows` rows need them. It places ids by `slot_key`, or by this table's
        key if None; `exchange_rows` swaps the keys as well.
        """
        needed = int(checks.count("rows", rows) / FILL) + 1
        key = self.slot_key if slot_key is None else slot_key
        made = DeviceTable(
            replace(self.config, slot_key=key),
            capacity_rows=max(self.capacity_rows, needed),
            device=self.device,
            rates=self.rates,
            clock=self.clock,
            filter=self._filter,
            full=self.full,
        )
        made.config = self.config
        return made

    def exchange_rows(self, other: DeviceTable) -> None:
        """Swaps all rows, slots and slot keys with a table of the same config and device.

        Filters and counters are not swapped. Consumers of all changes see the whole table as
        changed.
        """
        if other.config != self.config or other.device != self.device:
            raise InputError(
                f"table {self.config.name!r} on {self.device} and {other.config.name!r} on "
                f"{other.device} differ; only tables of one config and device exchange rows."
            )
        for table in (self, other):
            table.feed.before_change()
        self.slots.exchange(other.slots)
        self.times.exchange(other.times)
        join(self.stamps.order, other.stamps.order)
        for table in (self, other):
            table.feed.mark_all()

    @property
    def slot_key(self) -> int:
        """The secret that determines the slots of ids."""
        return self.slots.slot_key

    def use_slot_key(self, slot_key: int) -> None:
        """Places ids by this key from now on; raises if the table has rows."""
        check_slot_key("DeviceTable", slot_key)
        if slot_key == self.slot_key:
            return
        if self.size():
            raise StateError(
                f"table {self.config.name!r} has rows, and its slot key cannot change; set it "
                f"while the table is empty."
            )
        self.slots.place_by(slot_key)

    # ---- for tiers, which move rows between stores

    def read_out(self, ids: Int64[Tensor, "n"]) -> MovingRows:
        """Returns whole rows, on the device; absent ids give zeros. Waits for the device."""
        return self._moves.read_out(ids)

    def move_in(self, moving: MovingRows) -> Bool[Tensor, "n"]:
        """Takes rows from any device; returns which of them found a slot. Waits for the device.

        A move changes no counter and does not appear in change feeds.
        """
        return self._moves.move_in(moving)

    def move_out(self, ids: Int64[Tensor, "n"]) -> None:
        """Removes rows that another store holds now. The ids must be distinct."""
        self._moves.move_out(ids)

    def move_out_unset(self, ids: Int64[Tensor, "n"]) -> None:
        """Removes the ids that have a slot but whose row was never written."""
        self._moves.move_out_unset(ids)

    @property
    def order(self) -> EvictionOrder | None:
        """The eviction order of rows; None without an `Lru` or `Lfu` rule."""
        return self.stamps.order

    def share_order(self, order: EvictionOrder | None) -> None:
        """Takes the order marks of writes from another store of the same table from now on."""
        self.stamps.share_order(order)

    # ---- for stores that start kernels on the rows of this table

    @property
    def arrays(self) -> Arrays:
        """Keys, times, rows and states, as tensors."""
        return self.slots.arrays

    @property
    def parts(self) -> tuple[RowSegment, ...]:
        """The segments in the form that kernels take."""
        return self.slots.parts

    @property
    def epoch(self) -> object:
        """The epoch of slots. It is replaced when a row may have moved or left.

        Older slots are then stale.
        """
        return self.slots.epoch

    @epoch.setter
    def epoch(self, epoch: object) -> None:
        self.slots.epoch = epoch

    @property
    def is_timed(self) -> bool:
        """Whether any row may have a time other than 0."""
        return self.times.is_timed

    @is_timed.setter
    def is_timed(self, is_timed: bool) -> None:
        self.times.is_timed = is_timed

    def use_arrays(self, arrays: Arrays, slot_key: int) -> None:
        """Keeps its rows in these empty arrays from now on, placed by this slot key."""
        self.slots.use_arrays(arrays, slot_key)

    def on_device(self) -> AbstractContextManager[object]:
        """Returns a context that makes the table's device the current one, for kernel launches."""
        return self.slots.on_device()

    def is_capturing(self) -> bool:
        """Whether a CUDA graph is being captured; memory must not be allocated then."""
        return self.slots.is_capturing()

    def find_slots(self, keys: TableKeys) -> Int64[Tensor, "n"]:
        """Returns the slot of each key; -1 = absent."""
        return self.slots.find(keys)

    def next_time(self, ts: int) -> int:
        """Returns the time of a write: `ts`, or the clock's time if `ts` lies far in the future."""
        return self.stamps.next_time(ts)

    def begin_at(self, now: int, n: int) -> int:
        """Does what precedes every write of `n` ids with time `now`; returns `now`."""
        self.writes.begin(now, n)
        return now

    def before_change(self) -> None:
        """Lets open snapshots copy the rows they have not read yet, before rows change."""
        self.feed.before_change()

    def is_watched(self, *, learned: bool) -> bool:
        """Whether a write must report which rows it wrote."""
        return self.writes.is_watched(learned=learned)

    def mark_all(self) -> None:
        """Reports to consumers of all changes that any row may have changed."""
        self.feed.mark_all()

    # ---- checks

    def checked_keys(self, keys: TableKeys | Tensor) -> TableKeys:
        """Returns the checked keys; raises if they are invalid."""
        return arguments.keys_of_one_table(keys, MAX_IDS, self.device, room=True)

    def checked_rows(self, name: str, rows: Tensor, n: int) -> Tensor:
        """Returns the checked rows; raises if they are invalid."""
        return arguments.rows_of_batch(name, rows, n, self.layout.dim, self.device)

    def usable_rows(self, rows: Tensor, used: Tensor | None) -> Bool[Tensor, "n"]:
        """Returns which rows are finite.

        If `not_finite` is "reject", waits and raises for the others.
        """
        return self.writes.usable_rows(rows, used)

    def refuse_serving(self, verb: str) -> None:
        """Raises if the table is a serving table."""
        if self.config.serving:
            raise ServingTableError(
                f"{verb} on the serving table {self.config.name!r}; only training tables learn. "
                f"Use assign, or make the table with serving=False."
            )
