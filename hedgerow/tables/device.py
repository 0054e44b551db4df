"""The table of one process in the memory of one device, over Triton kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, get_args

import torch
from torch import Tensor

from ..core import checks
from ..core.clock import Clock, SystemClock
from ..core.counters import Counters
from ..core.errors import ConfigError, DtypeError, InputError, ServingTableError, StateError
from ..core.shapes import Bool, Float32, Int64
from ..kernels import apply, apply_each, find, find_or_insert, lookup
from ..kernels import step as steps
from ..kernels.layout import LANES, Arrays, Grouped, group
from ..kernels.sum_gradients import sum_gradients
from ..kernels.toolchain import interpreted
from . import arguments
from .config import TableConfig
from .device_admission import DeviceAdmission, Sightings
from .device_config import check_config, parts_of
from .device_filter import DeviceFilter
from .device_growth import FILL
from .device_moves import DeviceMoves
from .device_room import Full
from .layout import RowLayout
from .leave_order import LeaveOrder, join
from .schedules import Rate, check_rates, rate_at
from .slot_key import check_slot_key, slot_key_of
from .stamps import Stamps
from .store import Applied, Lookup, Missing, TableKeys


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """One call of `apply_gradients`, checked."""

    keys: TableKeys
    grads: Float32[Tensor, "n dim"]
    rates: list[float]
    number: int
    counts: Int64[Tensor, "n"] | None
    at_step: int  # the number, or NO_STEP


class DeviceTable(DeviceMoves):
    """Rows for any 64-bit id in `capacity_rows` slots; one thread and one stream at a time.

    `lookup` and `apply_gradients` never wait for the device, so they take part in CUDA graphs (a
    captured step keeps its rate, `step` and `ts`). What they count stays there until asked for.

    From about 0.85 of the slots taken, some ids find no room. `full` says what then happens: they
    are refused and counted ("refuse"), or a `TableFullError` tells of them too ("raise": to know,
    every write waits for the device, so none can be captured); rows leave for them ("evict": of
    those in reach the one with the oldest `ts`, or under `Lfu` the least used); or the table moves
    to more slots ("grow"), for which it counts its rows, and waits, whenever as many ids were
    written as might fill it.

    It has all verbs of `HostTable`, with its numbers: to the bit, but for ids with more than 256
    occurrences in one call, whose gradients are added in another fixed order, and for sums of
    squares over a row (`RowAdagrad`). Not waiting forces three differences: gradients that are not
    finite are left out and counted whatever `not_finite` says, a number below 1 in `counts` is
    taken as 1 instead of refused, and the window of an admission filter moves on between calls.

    A table that cannot live on a device is refused by name: rows stored in less than fp32
    (compressors, rounding), update rules other than the twelve, more than 1024 columns.

    With `TRITON_INTERPRET=1` set before the first import, `device="cpu"` runs the same kernels in
    Python, for tests.
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
        self.layout = RowLayout(config)
        own = [s.optimizer.rate() if s.optimizer else 0.0 for s in config.segments]
        self.rates = check_rates(own if rates is None else rates, len(own))
        self._follows_step = any(s.optimizer and s.optimizer.follows_step for s in config.segments)
        self.clock: Clock = clock or SystemClock()
        self._events = Counters()
        self.stamps = Stamps(self.clock, self._events, LeaveOrder.of(config.evict))
        self._restoring = Lock()
        self.device = torch.empty(0, device=device).device  # with its number
        if self.device.type == "cpu" and not interpreted():
            raise ConfigError(
                "device is 'cpu', where kernels run only under TRITON_INTERPRET=1; use HostTable."
            )
        self.parts = tuple(parts_of(config, self.layout, self.device))
        self._starts = torch.tensor(self.layout.starts(), dtype=torch.float32, device=self.device)
        self._filter, self._made_filter = filter, filter is None
        self._slot_key = slot_key_of(config.slot_key)
        self._admission = self._make_admission()
        if full not in get_args(Full):
            raise InputError(f"full is {full!r}; it must be one of {', '.join(get_args(Full))}.")
        self.full, self._calls = full, 0
        self._known = self._since = 0
        slots = checks.count("capacity_rows", capacity_rows, least=1)
        self.arrays = self._new_arrays(-(-slots // LANES))
        self._totals = torch.zeros(5, dtype=torch.int64, device=self.device)
        self.epoch = object()  # replaced whenever rows move
        self._max_ts = 0
        self._oldest_s: int | None = None  # no row is older, as `DeviceEvictions` counts
        self._captured_s: list[int] = []  # the least time of a CUDA graph, which writes it again
        self._looked_at = 0  # rows, by evictions
        self.is_timed = False  # whether any row may have another time than 0
        self._start_watch()

    def __repr__(self) -> str:
        return (
            f"DeviceTable({self.config.name!r}, room on {self.device} for {self.capacity_rows} "
            f"rows of {self.config.dim} x {[s.optimizer for s in self.config.segments]})"
        )

    @property
    def filter(self) -> DeviceFilter | None:
        """What counts absent ids for the admission rule; None if nothing does."""
        return self._filter

    @property
    def slot_key(self) -> int:
        """The secret by which ids are placed."""
        return self._slot_key

    def use_slot_key(self, slot_key: int) -> None:
        """Places ids by this key from now on; only before rows are there."""
        check_slot_key("DeviceTable", slot_key)
        if slot_key == self._slot_key:
            return
        if self.size():
            raise StateError(
                f"table {self.config.name!r} has rows, and its slot key cannot change under them; "
                f"set it before rows are there."
            )
        self._slot_key, self.epoch = slot_key, object()
        self.arrays.clear()  # places of erased ids, too
        self.arrays.place_by(slot_key)

    def use_arrays(self, arrays: Arrays, slot_key: int) -> None:
        """Keeps its rows in these empty arrays from now on, placed by this slot key."""
        arrays.place_by(slot_key)
        self.arrays, self._slot_key = arrays, slot_key

    def _make_admission(self) -> DeviceAdmission | None:
        if self._filter is not None and not isinstance(self._filter, DeviceFilter):
            raise DtypeError(
                f"filter is {self._filter!r}; pass a DeviceFilter, as another table's filter."
            )
        admit, seed = self.config.admit, self.config.row_seed
        question = None if admit is None else admit.question()
        if admit is None or question is None:
            return None
        if question.form == "count" and self._filter is None:
            settings = admit.filter_settings()
            self._filter = DeviceFilter(
                seed=seed, device=self.device, slot_key=self._slot_key, **settings
            )
        if self._filter is not None:
            self._filter.tables.add(self.config.name)
        return DeviceAdmission(
            question, table=self.config.name, seed=seed, filter=self._filter, device=self.device
        )

    def clear(self) -> None:
        """Removes all rows; their memory stays the table's.

        It also forgets the ids that its admission rule counted, unless their filter was passed to
        the table or another table shares it.
        """
        super().clear()
        own = self._filter if self._made_filter else None
        if own is not None and own.tables <= {self.config.name}:
            own.clear()

    # ---- the step: nothing here waits for the device

    def lookup(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        *,
        missing: Missing = "zeros",
        step: int | None = None,
        out: Float32[Tensor, "n dim"] | None = None,
    ) -> Lookup:
        """Rows of `keys`, into `out` if given, and their slots. Nothing is inserted.

        An absent id gives zeros, or with `missing="initializer"` the first value it would be born
        with. Room behind the keys gives zeros.
        """
        keys = self.checked_keys(keys)
        n = len(keys.ids)
        arguments.missing_rule(missing)
        if missing == "training":
            missing = "initializer" if self.config.admit is None else "zeros"
        if missing == "initializer" and self.config.serving:
            raise ServingTableError(
                f"table {self.config.name!r} is a serving table and has no initializer; "
                f"use missing='zeros'."
            )
        if out is None:
            out = torch.empty(n, self.config.dim, dtype=torch.float32, device=self.device)
        else:
            out = arguments.output(out, n, self.config.dim, self.device)
        parts = () if missing == "zeros" else self.parts
        with self.on_device():
            slots = lookup.lookup(self.arrays, keys.ids, out, parts, keys.used)
        return Lookup(keys, out.view(-1), (self.config.dim,), slots, self.epoch)

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
    ) -> Applied:
        """One step per distinct id, its gradients summed in input order; absent ids are born first.

        At a lookup of this table, rows that it found are not looked for again. `counts` says how
        often each id occurred where the caller has removed duplicates; admission rules and `Lfu`
        read it.
        With `per_occurrence` every occurrence is a step of its own, in order.
        """
        each = checks.flag("per_occurrence", per_occurrence)
        call = self._call(at, grads, rates, step, counts)
        # A half-life in uses counts the ids, not their `counts`: to add those up would wait.
        now, done = self._write(ts, len(call.keys.ids))
        slots = at.slots if isinstance(at, Lookup) and at.epoch is self.epoch else None
        with self.on_device():
            if each:
                self._step_each(call, now, done)
            else:
                self._step(call, slots, now, done)
        return self._done(done)

    def _call(
        self,
        at: TableKeys | Lookup | Tensor,
        grads: Tensor,
        rates: Sequence[Rate] | None,
        step: int | None,
        counts: Tensor | None,
    ) -> _Step:
        self.refuse_serving("apply_gradients")
        keys = self.checked_keys(at.keys if isinstance(at, Lookup) else at)
        grads = self.checked_rows("grads", grads, len(keys.ids))
        if counts is not None:
            checks.tensor("counts", counts, torch.int64, (len(keys.ids),), self.device)
            counts = counts.clamp(min=1)  # to refuse other counts would wait for the device
        found, number = self.rates_at(rates, step)
        if self.config.admit is not None and self.config.admit.needs_step:
            arguments.needed_step(step, True, self.config.name, "admits ids")
        at_step = arguments.NO_STEP if step is None else number
        return _Step(keys, grads, found, number, counts, at_step)

    def rates_at(self, rates: Sequence[Rate] | None, step: int | None) -> tuple[list[float], int]:
        """The rates of an update, given or the table's own, and its step."""
        sources = self.rates if rates is None else check_rates(rates, len(self.parts))
        scheduled = any(callable(source) for source in sources)
        needed = scheduled or self._follows_step
        number = arguments.needed_step(step, needed, self.config.name, "learns")
        return [rate_at(source, number) for source in sources], number

    def _step(self, call: _Step, slots: Tensor | None, now: int, done: Int64[Tensor, "3"]) -> None:
        used = call.keys.used
        if self._admission is None and not self.is_watched(learned=True) and self.full != "evict":
            self._plain_step(call, slots, now, done)
            return
        grouped = self._admitted(group(call.keys.ids), used, done, call.number, call.counts)
        if self.full == "evict":
            slots = None  # they may be others' now
            sums, number = sum_gradients(grouped, call.grads, used)
            wanted = (number > 0) & sums.isfinite().all(dim=1)  # nobody leaves for what is dropped
            self._give_way(grouped, wanted, now, done)
        placed = self._placed(grouped, learned=True)
        apply.apply(
            *(self.arrays, grouped, call.grads, done, self.parts, call.rates, now),
            slots=slots,
            used=used,
            placed=placed,
            stamp=self.is_timed,
            at_step=call.at_step,
        )
        more: dict[str, Any] = {"used": used, "counts": call.counts}
        self._note(grouped, placed, learned=True, use=now, **more)

    def _plain_step(
        self, call: _Step, slots: Tensor | None, now: int, done: Int64[Tensor, "3"]
    ) -> None:
        """Keys that differ need no sort."""
        keys = call.keys
        where: dict[str, Any] = {"slots": slots, "used": keys.used, "at_step": call.at_step}
        if keys.distinct:
            apply.apply(
                *(self.arrays, Grouped(keys.ids, None), call.grads, done, self.parts),
                *(call.rates, now),
                **where,
                stamp=self.is_timed,
            )
        else:
            steps.step(
                *(self.arrays, keys.ids, call.grads, done, self.parts, call.rates, now), **where
            )

    def _step_each(self, call: _Step, now: int, done: Int64[Tensor, "3"]) -> None:
        """A row is needed where an occurrence is let in and usable; then each takes its step."""
        grouped = group(call.keys.ids)
        seen = Sightings.of(grouped, call.keys.used, call.counts)
        taken = seen.live
        if self._admission is not None:
            absent = find.find(self.arrays, grouped.ids) < 0
            refused = self._admission.refused(seen, absent, call.number, each=True)
            self._keep_out(refused, done)
            taken = taken & ~refused
        usable: Bool[Tensor, "n"] = call.grads.isfinite().all(dim=1)[grouped.order]
        done[2] += (taken & ~usable).sum()
        taken = taken & usable
        wanted = seen.total(taken.long()) > 0  # where a group begins
        self._give_way(grouped, wanted, now, done)
        slots, born = find_or_insert.find_or_insert(self.arrays, grouped.ids, wanted=wanted)
        done[0] += born.sum()
        done[1] += (wanted & (slots < 0)).sum()
        apply_each.apply_each(
            *(self.arrays, grouped, taken, call.grads, slots, born, self.parts),
            *(call.rates, now, call.at_step),
        )
        more: dict[str, Any] = {"used": call.keys.used, "counts": call.counts}
        self._note(grouped, slots, learned=True, use=now, **more)

    # ---- all rows at once

    def beside(self, rows: int, *, slot_key: int | None = None) -> DeviceTable:
        """An empty table to fill and then exchange rows with: same config, clock and filter.

        It has as many slots, or more if `rows` need them. It places ids as this one does, or by
        another `slot_key`, which then comes with the rows.
        """
        needed = int(checks.count("rows", rows) / FILL) + 1
        key = self._slot_key if slot_key is None else slot_key
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
        """Swaps all rows, their slots and slot key with a table of the same config and device.

        Filters and counts stay; consumers of all changes see the whole table as changed.
        """
        if other.config != self.config or other.device != self.device:
            raise InputError(
                f"table {self.config.name!r} on {self.device} and {other.config.name!r} on "
                f"{other.device} differ; only tables of one config and device exchange rows."
            )
        for table in (self, other):
            table.before_change()
        self.arrays, other.arrays = other.arrays, self.arrays
        self._slot_key, other._slot_key = other._slot_key, self._slot_key
        self._max_ts, other._max_ts = other._max_ts, self._max_ts
        self.is_timed, other.is_timed = other.is_timed, self.is_timed
        join(self._order, other._order)
        self._oldest_s = other._oldest_s = 0
        for table in (self, other):
            table.epoch = object()
            table._known = table.capacity_rows  # counted anew before the next growth
            table.mark_all()
