"""The core of a host table: its rows in C++, the checks of every call, and the times of writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from .. import native
from ..core.clock import Clock, SystemClock
from ..core.counters import Counters
from ..core.errors import DtypeError, NotFiniteError, ServingTableError
from ..core.recycle import Recycler
from ..core.shapes import Float32, Int64
from . import arguments
from .config import TableConfig
from .filters import SlidingFilter
from .layout import RowLayout, native_segment
from .leave_order import LeaveOrder
from .memory_errors import memory_errors
from .row_file import RowFile
from .schedules import Rate, check_rates, rate_at
from .slot_key import slot_key_of
from .stamps import Stamps
from .store import Applied, Lookup, Missing, TableKeys

_MAX_IDS = 2**32 - 2  # of one call: positions inside a batch are 32-bit


@dataclass(frozen=True, slots=True)
class RowsMark:
    """The `epoch` of rows of a table: they are where they were found until `changes` grows."""

    table: native.Table
    changes: int


class HostCore:
    """What the verbs and the parts of one `HostTable` share; safe from many threads.

    Other code of the package uses it as `table.core`. It checks the arguments of calls, knows the
    rate of each update, and keeps memory for large results. `native_table` is the table in C++,
    which checks nothing. `stamps` tells the time of each write.
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
        order = LeaveOrder.of(config.evict)
        self.stamps = Stamps(clock or SystemClock(), self.events, order)
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
        """Forgets the ids that the admission rule counted, in a filter of this table alone."""
        own = self.filter if self._made_filter else None
        if own is not None and own.tables <= {self.config.name}:
            own.clear()

    def _admission(self, slot_key: int) -> native.Admission | None:
        if self.filter is not None and not isinstance(self.filter, SlidingFilter):
            raise DtypeError(
                f"filter is {self.filter!r}; pass a SlidingFilter, as another table's filter."
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
        """Keeps large results where the other tables of a store of `tables` tables keep theirs."""
        self.outputs, self._output_sharers = outputs, tables

    def output_bytes(self) -> int:
        """This table's share of the bytes that are kept for large results."""
        return self.outputs.kept_bytes() // self._output_sharers

    # ---- lookups

    def checked_keys(self, keys: TableKeys | Tensor) -> TableKeys:
        """The keys of a call; raises what is wrong with them."""
        return arguments.keys_of_one_table(keys, _MAX_IDS)

    def checked_step(self, step: int | None, needed: bool, why: str) -> int:
        """The step of a call; raises if it is needed and was not given."""
        return arguments.needed_step(step, needed, self.config.name, why)

    def reading(self, missing: Missing, step: int | None) -> tuple[str, int]:
        """The rule for absent ids and the step, as the C++ table takes them."""
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
        """The C++ table, for lookups at a step; raises if the rows need one and it is None."""
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
        """Writes the rows of `n` ids at an address to another, where there must be room for them.

        `reused` says whether the memory of the rows was written before. Where the rows were found
        goes to `found_at`, if that is given.
        """
        rule, at_step = self.reading(missing, step)
        self.native_table.lookup(ids_at, n, rule, at_step, rows_at, reused, found_at)

    def mark(self) -> RowsMark:
        """The mark of rows that are found from now on."""
        return RowsMark(self.native_table, self.native_table.changes())

    # ---- updates

    def rates_at(self, step: int) -> list[float]:
        """The rate of each segment at update number `step`."""
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
        """Ids, gradients, rates and step for `apply_checked`; raises what is wrong with them.

        A call on several tables checks its arguments for all of them before the first one changes.
        With `reject=False`, gradients that are not finite are left out whatever the config says.
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
        """The update itself, with what `update_arguments` returned, where rows were `found`."""
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
        """The rows of a call; raises what is wrong with them."""
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
        """Ids and rows of a write; raises what is wrong with them."""
        ids = self.checked_keys(keys).ids
        return ids, self.checked_rows("rows", rows, len(ids))

    def refuse_serving(self, verb: str) -> None:
        """Raises if the table is a serving table."""
        if self.config.serving:
            raise ServingTableError(
                f"{verb} on the serving table {self.config.name!r}; only training tables learn. "
                f"Use assign, or make the table with serving=False."
            )
