"""The table of one process in host memory, over the C++ core."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import native
from ..core import checks, registry
from ..core.clock import Clock, SystemClock
from ..core.errors import InputError, NotFiniteError, OutOfMemoryError, ServingTableError
from ..core.recycle import Recycler
from ..core.shapes import Bool, Float32, Int8, Int64
from . import arguments
from .config import TableConfig
from .layout import RowLayout, native_segment
from .schedules import Rate, check_rates, rate_at
from .store import Applied, Entries, Lookup, Missing, TableKeys

_MAX_IDS = 2**32 - 2  # of one call: positions inside a batch are 32-bit
_SLICE_BYTES = 2**24


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes a table takes."""

    index_bytes: int
    row_bytes: int  # live rows and their time stamps
    slack_bytes: int  # rows kept for new ids, and padding

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.index_bytes + self.row_bytes + self.slack_bytes


class HostTable:
    """Rows for any 64-bit id, born on the first write; safe from many threads.

    Keys are an int64 tensor (or `TableKeys` of one table); equal ids in one call act in order.
    Results do not depend on the number of threads. `rates` gives a rate source a segment and
    overrides the optimizers' own. `shared_name` claims a name in this process.

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
    ) -> None:
        self.config = config
        self.layout = RowLayout(config)
        own = [s.optimizer.rate() if s.optimizer else 0.0 for s in config.segments]
        self._rates = check_rates(own if rates is None else rates, len(config.segments))
        self._updates_need_step = any(
            s.stochastic_rounding_float16 or (s.compressor and s.compressor.depends_on_step)
            for s in config.segments
        )
        self._clock: Clock = clock or SystemClock()
        self._shared_name = shared_name
        self._outputs = Recycler()
        with _memory_errors():
            self._table = native.Table(
                [native_segment(s) for s in config.segments],
                config.serving,
                config.skip_zero_embedding,
                config.row_seed,
                config.initial_capacity,
            )
        if shared_name is not None:
            registry.register(shared_name, self)

    def __repr__(self) -> str:
        parts = ", ".join(
            f"{s.dim} x {(s.compressor if self.config.serving else s.optimizer)!r}"
            for s in self.config.segments
        )
        return f"HostTable({self.config.name!r}, {self.size()} rows of {parts})"

    def __reduce__(self) -> str:
        raise TypeError(
            f"table {self.config.name!r} cannot be pickled or copied; "
            f"move its rows with scan() and restore()."
        )

    # ---- reads

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
        keys = self._keys(keys)
        n = len(keys.ids)
        arguments.missing_rule(missing)
        if missing == "initializer" and self.config.serving:
            raise ServingTableError(
                f"table {self.config.name!r} is a serving table and has no initializer; "
                f"use missing='zeros'."
            )
        if out is None:
            memory, reused = self._outputs.take(n * self.layout.dim)
            out = memory.view(n, self.layout.dim)
        else:
            out, reused = arguments.output(out, n, self.layout.dim), True
        at_step = self._step(step, self._table.needs_step(), "shows one_bit segments")
        self._table.lookup(keys.ids.data_ptr(), n, missing, at_step, out.data_ptr(), reused)
        return Lookup(keys, out.view(-1), (self.layout.dim,))

    def contains(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Whether each key has a row."""
        ids = self._keys(keys).ids
        out = torch.empty(len(ids), dtype=torch.bool)
        self._table.contains(ids.data_ptr(), len(ids), out.data_ptr())
        return out

    def entries(self, keys: TableKeys | Int64[Tensor, "n"]) -> Entries:
        """Raw rows with their optimizer states and times."""
        ids = self._keys(keys).ids
        n = len(ids)
        found = torch.empty(n, dtype=torch.bool)
        rows, raw, ts = self._entry_room(n)
        self._table.entries(
            ids.data_ptr(), n, found.data_ptr(), rows.data_ptr(), raw.data_ptr(), ts.data_ptr()
        )
        return Entries(ids, found, rows, self.layout.split(raw), ts)

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """All rows, in slices of at most `rows` (about 16 MiB if None), in no particular order.

        A row that is there from the first slice to the last is given exactly once, whatever is
        written meanwhile; rows that come or go during the scan may be given or not. Rows that share
        a home in the index stay together, so a slice of very few rows may hold a few more.
        """
        if rows is None:
            row_bytes = 4 * (self.layout.dim + self.layout.state_floats)
            rows = max(1, min(65536, _SLICE_BYTES // row_bytes))
        return self._slices(checks.count("rows", rows, least=1))

    def _slices(self, room: int) -> Iterator[Entries]:
        cursor, done = 0, False
        while not done:
            ids = torch.empty(room, dtype=torch.int64)
            values, raw, ts = self._entry_room(room)
            got, cursor, done, needed = self._table.scan(
                cursor, room, ids.data_ptr(), values.data_ptr(), raw.data_ptr(), ts.data_ptr()
            )
            if needed:
                room = needed
            if got:
                states = self.layout.split(raw[:got])
                found = torch.ones(got, dtype=torch.bool)
                yield Entries(ids[:got], found, values[:got], states, ts[:got])

    def size(self) -> int:
        """Rows."""
        return self._table.size()

    def __len__(self) -> int:
        return self.size()

    def max_ts(self) -> int:
        """The largest `ts` that a write gave."""
        return self._table.newest_time()

    def memory(self) -> MemoryUse:
        """Bytes by purpose."""
        return MemoryUse(*self._table.memory())

    def stats(self) -> dict[str, float]:
        """Rows, bytes, load of the index and everything counted since the table was made.

        `uncompressed_bytes` is what the rows would take as fp32, without optimizer state.
        """
        use, rows, counted = self.memory(), self.size(), self._table.counted()
        load_factor, longest_search = self._table.load()
        return {
            "rows": rows,
            "uncompressed_bytes": rows * 4 * self.layout.dim,
            "index_bytes": use.index_bytes,
            "row_bytes": use.row_bytes,
            "slack_bytes": use.slack_bytes,
            "output_bytes": self._outputs.kept_bytes(),
            "load_factor": load_factor,
            "longest_search": longest_search,
            **dict(zip(("inserted", "refused", "dropped", "erased"), counted, strict=True)),
        }

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

        `step` drives schedules, one_bit segments and rounding; tables with one of them need it.
        `counts` says how often each id occurred where the caller has removed duplicates; admission
        rules read it. With `per_occurrence` every occurrence is a step of its own, in order.
        """
        self._refuse_serving("apply_gradients")
        ids = self._keys(at.keys if isinstance(at, Lookup) else at).ids
        grads = self._rows("grads", grads, len(ids))
        if counts is not None:
            checks.tensor("counts", counts, torch.int64, (len(ids),))
            if len(counts) and int(counts.min()) < 1:
                raise InputError(f"counts has {int(counts.min())}; an id occurs at least once.")
        checks.flag("per_occurrence", per_occurrence)
        sources = self._rates if rates is None else check_rates(rates, len(self._rates))
        needed = self._updates_need_step or any(callable(source) for source in sources)
        at_step = self._step(step, needed, "learns")
        now = [rate_at(source, at_step) for source in sources]
        with _memory_errors():
            done = self._table.apply_gradients(
                ids.data_ptr(),
                len(ids),
                grads.data_ptr(),
                now,
                at_step,
                checks.count("ts", ts),
                per_occurrence,
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
        ids, rows = self._keys_and_rows(keys, rows)
        with _memory_errors():
            done = self._table.assign(
                ids.data_ptr(), len(ids), rows.data_ptr(), checks.count("ts", ts)
            )
        return Applied.of(*done)

    def assign_add(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        rows: Float32[Tensor, "n dim"],
        *,
        ts: int = 0,
    ) -> Applied:
        """Adds to rows; an absent one starts from its first value (serving tables: zeros)."""
        ids, rows = self._keys_and_rows(keys, rows)
        with _memory_errors():
            done = self._table.assign_add(
                ids.data_ptr(), len(ids), rows.data_ptr(), checks.count("ts", ts)
            )
        return Applied.of(*done)

    def restore(self, entries: Entries) -> Applied:
        """Puts whole rows back: embedding, states and times as `entries` or `scan` gave them."""
        ids, rows = self._keys_and_rows(entries.ids, entries.rows)
        checks.tensor("found", entries.found, torch.bool, (len(ids),))
        checks.tensor("ts", entries.ts, torch.int64, (len(ids),))
        if not bool(entries.found.all()):
            raise InputError("entries holds ids that were not found; select those with found True.")
        if len(ids) and int(entries.ts.min()) < 0:
            raise InputError(f"ts holds {int(entries.ts.min())}; a time is at least 0.")
        states: Sequence[Mapping[str, Tensor]] = entries.states
        if self.config.serving:
            states = [{} for _ in self.config.segments]
        raw = self.layout.join(states, len(ids))
        with _memory_errors():
            done = self._table.restore(
                ids.data_ptr(), len(ids), rows.data_ptr(), raw.data_ptr(), entries.ts.data_ptr()
            )
        return Applied.of(*done)

    def reinitialize(self, keys: TableKeys | Int64[Tensor, "n"]) -> Int8[Tensor, "n"]:
        """Makes rows as new, at the clock's time; 0 = was absent, 1 = was there."""
        self._refuse_serving("reinitialize")
        ids = self._keys(keys).ids
        status = torch.empty(len(ids), dtype=torch.int8)
        with _memory_errors():
            self._table.reinitialize(
                ids.data_ptr(), len(ids), self._clock.now_s(), status.data_ptr()
            )
        return status

    def erase(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Removes rows and says which were there. Their memory serves the next new ids."""
        ids = self._keys(keys).ids
        erased = torch.empty(len(ids), dtype=torch.bool)
        with _memory_errors():
            self._table.erase(ids.data_ptr(), len(ids), erased.data_ptr())
        return erased

    def clear(self) -> None:
        """Removes all rows and gives their memory back."""
        self._table.clear()

    def close(self) -> None:
        """Removes all rows and gives the shared name back."""
        self.clear()
        if self._shared_name is not None:
            registry.release(self._shared_name, self)

    # ---- checks

    def _keys(self, keys: TableKeys | Tensor) -> TableKeys:
        return arguments.keys_of_one_table(keys, _MAX_IDS)

    def _rows(self, name: str, rows: Tensor, n: int) -> Tensor:
        rows = arguments.rows_of_batch(name, rows, n, self.layout.dim)
        if self.config.not_finite == "reject":
            at = native.first_not_finite(rows.data_ptr(), rows.numel())
            if at >= 0:
                row, column = divmod(at, self.layout.dim)
                raise NotFiniteError(
                    f"{name}[{row}, {column}] is {float(rows[row, column])}; table "
                    f"{self.config.name!r} rejects what is not finite, and nothing was changed. "
                    f"Find its source, or make the table with not_finite='drop'."
                )
        return rows

    def _keys_and_rows(self, keys: TableKeys | Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        ids = self._keys(keys).ids
        return ids, self._rows("rows", rows, len(ids))

    def _step(self, step: int | None, needed: bool, why: str) -> int:
        return arguments.needed_step(step, needed, self.config.name, why)

    def _refuse_serving(self, verb: str) -> None:
        if self.config.serving:
            raise ServingTableError(
                f"{verb} on the serving table {self.config.name!r}; only training tables learn. "
                f"Use assign, or make the table with serving=False."
            )

    def _entry_room(self, n: int) -> tuple[Tensor, Tensor, Tensor]:
        return (
            torch.empty(n, self.layout.dim),
            torch.empty(n, self.layout.state_floats),
            torch.empty(n, dtype=torch.int64),
        )


@contextmanager
def _memory_errors() -> Iterator[None]:
    try:
        yield
    except MemoryError as error:
        raise OutOfMemoryError(
            f"{error or 'the operating system gave no more memory'}. The table stays usable: erase "
            f"rows, raise the limit, or spread the table over more processes."
        ) from error
