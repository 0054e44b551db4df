"""The table of one process in host memory, over the C++ core."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .. import native
from ..core import checks, registry
from ..core.clock import Clock, SystemClock
from ..core.counters import Counters
from ..core.errors import (
    DtypeError,
    InputError,
    NotFiniteError,
    ServingTableError,
    StateError,
)
from ..core.forklock import ForkLock
from ..core.recycle import Recycler, give_freed_memory_back
from ..core.shapes import Bool, Float32, Int8, Int64
from . import arguments
from .config import TableConfig
from .filters import SlidingFilter
from .followed import SyncClient, checked_client
from .host_evict import HostEvictions
from .host_moves import HostMoves
from .host_reads import HostReads
from .host_watch import HostWatch
from .layout import RowLayout, native_segment
from .leave_order import LeaveOrder, join
from .memory_errors import memory_errors
from .row_file import RowFile
from .schedules import Rate, check_rates, rate_at
from .slot_key import check_slot_key, slot_key_of
from .store import Applied, Entries, Lookup, TableKeys


class HostTable(HostEvictions, HostMoves, HostReads, HostWatch):
    """Rows for any 64-bit id, born on the first write; safe from many threads.

    Keys are an int64 tensor (or `TableKeys` of one table); equal ids in one call act in order.
    Results do not depend on the number of threads. `rates` gives a rate source a segment and
    overrides the optimizers' own. `shared_name` claims a name in this process. Tables that count
    ids for admission may share one `filter`; by default each makes its own. A `sync_client` is told
    which rows change, from the start. `rows_in` keeps rows in a file and the index alone in memory.

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
        self.layout = RowLayout(config)
        own = [s.optimizer.rate() if s.optimizer else 0.0 for s in config.segments]
        self._rates = check_rates(own if rates is None else rates, len(config.segments))
        varies = any(callable(source) for source in self._rates)
        self._fixed_rates = None if varies else [rate_at(source, 0) for source in self._rates]
        self._updates_need_step = any(
            s.stochastic_rounding_float16
            or (s.compressor and s.compressor.depends_on_step)
            or (s.optimizer and s.optimizer.follows_step)
            for s in config.segments
        )
        self.clock: Clock = clock or SystemClock()
        self._shared_name = shared_name
        self._outputs, self._output_sharers = Recycler(), 1
        self._events = Counters()
        self._evicting = ForkLock()
        self._order = LeaveOrder.of(config.evict)
        self._start_watch()
        self._filter, self._made_filter = filter, filter is None
        slot_key = slot_key_of(config.slot_key)
        admission = self._admission(slot_key)
        if rows_in is not None and not isinstance(rows_in, RowFile):
            raise DtypeError(f"rows_in is {rows_in!r}; pass RowFile(folder, resident_bytes).")
        self._rows_in = rows_in
        self._file = None if rows_in is None else rows_in.open()
        with memory_errors():
            self.native_table = native.Table(
                [native_segment(s) for s in config.segments],
                config.serving,
                config.skip_zero_embedding,
                config.row_seed,
                config.initial_capacity,
                "none" if self._order is None else self._order.kind,
                admission,
                self._file,
                slot_key,
            )
        if shared_name is not None:
            registry.register(shared_name, self)
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
            f"table {self.config.name!r} cannot be pickled or copied; "
            f"hr.save keeps a model, model.state_dict() its rows, too; scan() and restore() move "
            f"the rows of a table."
        )

    @property
    def device(self) -> torch.device:
        """Where its rows lie."""
        return checks.CPU

    @property
    def filter(self) -> SlidingFilter | None:
        """What counts absent ids for the admission rule; None if nothing does."""
        return self._filter

    @property
    def slot_key(self) -> int:
        """The secret by which ids are placed."""
        return self.native_table.slot_key()

    def use_slot_key(self, slot_key: int) -> None:
        """Places ids by this key from now on; only before rows are there."""
        check_slot_key("HostTable", slot_key)
        if slot_key != self.slot_key and not self.native_table.place_by(slot_key):
            raise StateError(
                f"table {self.config.name!r} has rows, and its slot key cannot change under them; "
                f"set it before rows are there."
            )

    def _admission(self, slot_key: int) -> native.Admission | None:
        if self._filter is not None and not isinstance(self._filter, SlidingFilter):
            raise DtypeError(
                f"filter is {self._filter!r}; pass a SlidingFilter, as another table's filter."
            )
        admit, seed = self.config.admit, self.config.row_seed
        if admit is None:
            return None
        self._filter = self._filter or admit.own_filter(seed, slot_key)
        if self._filter is not None:
            self._filter.tables.add(self.config.name)
        return admit.rule(table=self.config.name, seed=seed, filter=self._filter)

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
    ) -> Applied:
        """One optimizer step per distinct id, with its summed gradient; absent ids are born first.

        `step` counts the updates before this one. It drives schedules, one_bit segments, rounding
        and dense Adam; tables with one of them need it. Bias corrections of the Adam family follow
        it where it is given.
        `counts` says how often each id occurred where the caller has removed duplicates; admission
        rules and `Lfu` read it. With `per_occurrence` every occurrence is a step of its own.
        """
        checks.flag("per_occurrence", per_occurrence)
        ids, grads, now, at_step = self.update_arguments(at, grads, rates, step, counts)
        return self.apply_checked(ids, grads, now, at_step, ts, counts, per_occurrence)

    def apply_checked(
        self,
        ids: Int64[Tensor, "n"],
        grads: Float32[Tensor, "n dim"],
        now: list[float],
        at_step: int,
        ts: int,
        counts: Int64[Tensor, "n"] | None,
        per_occurrence: bool,
    ) -> Applied:
        """The update itself, of what `_update_arguments` gave."""
        with memory_errors():
            done = self.native_table.apply_gradients(
                ids.data_ptr(),
                len(ids),
                grads.data_ptr(),
                now,
                at_step,
                self.stamp(ts, len(ids) if counts is None else int(counts.sum())),
                per_occurrence,
                0 if counts is None else counts.data_ptr(),
            )
        return Applied.of(*done)

    def assign(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        rows: Float32[Tensor, "n dim"],
        *,
        ts: int = 0,
    ) -> Applied:
        """Sets rows and keeps optimizer state (fresh for an absent id). The last of equals wins."""
        ids, rows = self.checked_keys_and_rows(keys, rows)
        with memory_errors():
            stamp = self.stamp(ts, len(ids))
            done = self.native_table.assign(ids.data_ptr(), len(ids), rows.data_ptr(), stamp)
        return Applied.of(*done)

    def assign_add(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        rows: Float32[Tensor, "n dim"],
        *,
        ts: int = 0,
    ) -> Applied:
        """Adds to rows; an absent one starts from its first value (serving tables: zeros)."""
        ids, rows = self.checked_keys_and_rows(keys, rows)
        with memory_errors():
            stamp = self.stamp(ts, len(ids))
            done = self.native_table.assign_add(ids.data_ptr(), len(ids), rows.data_ptr(), stamp)
        return Applied.of(*done)

    def restore(self, entries: Entries) -> Applied:
        """Puts whole rows back: embedding, states and times as `entries` or `scan` gave them."""
        ids, rows = self.checked_keys_and_rows(entries.ids, entries.rows)
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
        raw, ts = self.layout.join(states, len(ids)), self._stamps(entries)
        with memory_errors():
            done = self.native_table.restore(
                ids.data_ptr(), len(ids), rows.data_ptr(), raw.data_ptr(), ts.data_ptr()
            )
        return Applied.of(*done)

    def reinitialize(self, keys: TableKeys | Int64[Tensor, "n"]) -> Int8[Tensor, "n"]:
        """Makes rows as new, at the clock's time; 0 = was absent, 1 = was there."""
        self.refuse_serving("reinitialize")
        ids = self.checked_keys(keys).ids
        status = torch.empty(len(ids), dtype=torch.int8, device="cpu")
        with memory_errors():
            stamp = self.stamp(self.clock.now_s(), 0)
            self.native_table.reinitialize(ids.data_ptr(), len(ids), stamp, status.data_ptr())
        return status

    def erase(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Removes rows and says which were there. Their memory serves the next new ids."""
        ids = self.checked_keys(keys).ids
        erased = torch.empty(len(ids), dtype=torch.bool, device="cpu")
        with memory_errors():
            self.native_table.erase(ids.data_ptr(), len(ids), erased.data_ptr())
        return erased

    def beside(self, rows: int, *, slot_key: int | None = None) -> HostTable:
        """An empty table to fill and then exchange rows with: same config, clock and filter.

        It places ids as this one does, or by another `slot_key`, which then comes with the rows.

        It has room for `rows` from the start. Rows in the order of a scan come in the order of the
        index; into an index that is smaller than theirs they would pile up at one place.
        """
        rows = min(checks.count("rows", rows), 2**32 - 1)
        room = max(self.config.initial_capacity, rows)
        key = self.slot_key if slot_key is None else slot_key
        roomy = dataclasses.replace(self.config, initial_capacity=room, slot_key=key)
        made = HostTable(
            roomy,
            rates=self._rates,
            clock=self.clock,
            filter=self._filter,
            rows_in=self._rows_in,
        )
        made.config = self.config
        return made

    def exchange_rows(self, other: HostTable) -> None:
        """Swaps all rows with a table of the same config: readers see one or the other, whole.

        The slot keys go with the rows.

        Filters and counts stay; consumers of all changes see the whole table as changed.
        """
        if other.config != self.config:
            raise InputError(
                f"table {self.config.name!r} and {other.config.name!r} differ in their configs; "
                f"only tables of one config exchange rows."
            )
        if other._rows_in != self._rows_in:
            raise InputError(
                f"tables {self.config.name!r} keep their rows in {self._rows_in} and in "
                f"{other._rows_in}; only tables with one rows_in exchange rows."
            )
        if not self.native_table.exchange(other.native_table):
            raise StateError(
                f"rows of table {self.config.name!r} cannot be exchanged while a snapshot is open; "
                f"nothing was changed. Close the snapshot first."
            )
        join(self._order, other._order)

    def clear(self) -> None:
        """Removes all rows and gives their memory back.

        It also forgets the ids that its admission rule counted: an id must be seen anew before it
        gets a row. Counts in a filter that was passed to the table, or that another table shares,
        stay, and so does their memory: 5 to 16 bytes per id.
        """
        if not self.native_table.clear():
            raise StateError(
                f"clear of table {self.config.name!r} while a snapshot of it is open; nothing was "
                f"removed. Close the snapshot first."
            )
        self._outputs.clear()
        own = self._filter if self._made_filter else None
        if own is not None and own.tables <= {self.config.name}:
            own.clear()
        give_freed_memory_back()

    def share_outputs(self, outputs: Recycler, tables: int) -> None:
        """Share the memory of large results with the other tables of a store of `tables` tables.

        Each counts its part of what is kept there.
        """
        self._outputs, self._output_sharers = outputs, tables

    def close(self) -> None:
        """Removes all rows and gives the shared name back."""
        self.clear()
        if self._shared_name is not None:
            registry.release(self._shared_name, self)

    @property
    def fixed_rates(self) -> list[float] | None:
        """The rate of each segment, where none of them follows the step."""
        return self._fixed_rates

    def rates_at(self, step: int) -> list[float]:
        """Return the rate of each segment at update number `step`."""
        return self._fixed_rates or [rate_at(source, step) for source in self._rates]

    # ---- checks

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
        """Ids, gradients, rates and step as `apply_gradients` uses them; refuses what it refuses.

        A call on several tables asks each of them before it changes the first. Unless it may
        `reject` gradients that are not finite, they are left out as a config says with "drop".
        """
        self.refuse_serving("apply_gradients")
        ids = self.checked_keys(at.keys if isinstance(at, Lookup) else at).ids
        grads = self.checked_rows("grads", grads, len(ids), reject=reject)
        arguments.occurrences(counts, len(ids))
        sources = self._rates if rates is None else check_rates(rates, len(self._rates))
        needed = self._updates_need_step or any(callable(source) for source in sources)
        at_step = self.checked_step(step, needed, "learns")
        if self.config.admit is not None and self.config.admit.needs_step:
            self.checked_step(step, True, "admits ids")
        now = [rate_at(source, at_step) for source in sources]
        return ids, grads, now, arguments.NO_STEP if step is None else at_step

    def checked_rows(self, name: str, rows: Tensor, n: int, *, reject: bool = True) -> Tensor:
        """The rows, or raises what is wrong with them."""
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
        """Keys and rows of a write, or raises what is wrong with them."""
        ids = self.checked_keys(keys).ids
        return ids, self.checked_rows("rows", rows, len(ids))

    def refuse_serving(self, verb: str) -> None:
        """Raises if the table only serves."""
        if self.config.serving:
            raise ServingTableError(
                f"{verb} on the serving table {self.config.name!r}; only training tables learn. "
                f"Use assign, or make the table with serving=False."
            )
