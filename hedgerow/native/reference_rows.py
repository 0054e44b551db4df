"""The rows of the plain twin's table: what they hold, and the verbs that read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..core.use_weights import MARK, MARK_BITS, weight_times, weights_added
from .reference_admission import Admission
from .reference_evict import Evictions
from .reference_rules import Floats
from .reference_values import Codec, at, first_row
from .reference_watch import Watched


@dataclass
class Segment:
    """One segment, as the core takes it."""

    dim: int
    init: str
    init_a: float
    init_b: float
    rule: str
    settings: Sequence[float]
    initial_state: Sequence[float]
    codec: Codec
    round_to_half: bool


@dataclass
class Row:
    """One row."""

    values: Floats
    state: Floats
    time: int = 0  # or the stamp, in a table with marks
    used_since: bool = False  # a search for a cut last saw it


@dataclass
class Rows(Watched, Evictions):
    """The rows of a `Table`, and its reading verbs. Serving rows hold what decoding gives."""

    segments: Sequence[Segment]
    serving: bool
    skip_zero: bool
    seed: int
    initial_capacity: int
    marks: str = "none"
    admission: Admission | None = None
    rows_in: object | None = None  # where rows lie changes nothing
    key: int = 0  # nor how they are found
    _rows: dict[int, Row] = field(default_factory=dict)
    _newest: int = 0
    _counted: list[int] = field(default_factory=lambda: [0, 0, 0, 0])

    def __post_init__(self) -> None:
        self._looked_at = 0
        self._start_watch()

    def dim(self) -> int:
        """Columns of a row."""
        return sum(s.dim for s in self.segments)

    def state_floats(self) -> int:
        """Floats of state of a row."""
        return 0 if self.serving else sum(len(s.initial_state) for s in self.segments)

    def row_bytes(self) -> int:
        """Bytes of a row."""
        if self.serving:
            return sum(s.dim * s.codec.bytes_per_value() for s in self.segments)
        return 4 * (self.dim() + self.state_floats())

    def needs_step(self) -> bool:
        """Whether a lookup depends on the step."""
        return not self.serving and any(s.codec.kind == "one_bit" for s in self.segments)

    def size(self) -> int:
        """Rows."""
        return len(self._rows)

    def newest_time(self) -> int:
        """The largest time a write gave."""
        return self._newest

    def looked_at(self) -> int:
        """How often evictions looked at a row."""
        return self._looked_at

    def counted(self) -> tuple[int, int, int, int]:
        """Inserted, refused, dropped, erased, over the life of the table."""
        inserted, refused, dropped, erased = self._counted
        return inserted, refused, dropped, erased

    def _count(
        self, inserted: int, dropped: int, erased: int = 0, refused: int = 0
    ) -> tuple[int, int, int]:
        for i, amount in enumerate((inserted, refused, dropped, erased)):
            self._counted[i] += amount
        return inserted, refused, dropped

    def clear(self) -> bool:
        """Removes all rows; False: refused, a snapshot is open."""
        if self._snapshot is not None:
            return False
        self._rows.clear()
        self._all_changed()
        return True

    def slot_key(self) -> int:
        """What places ids."""
        return self.key

    def place_by(self, slot_key: int) -> bool:
        """Another key; False: refused, there are rows."""
        if self._rows:
            return False
        self.key = slot_key
        self._all_changed()
        return True

    def exchange(self, other: Rows) -> bool:
        """Swaps all rows; False: refused, a snapshot is open."""
        if self._snapshot is not None or other._snapshot is not None:
            return False
        self._rows, other._rows = other._rows, self._rows
        self._newest, other._newest = other._newest, self._newest
        self.key, other.key = other.key, self.key
        for table in (self, other):
            table._all_changed()
        return True

    def _all_changed(self) -> None:
        for number, consumer in self._consumers.items():
            if consumer.all_changes:
                self.touch_all(number)

    def _remove(self, key: int) -> bool:
        if key in self._rows:
            self._mark([key])
        return self._rows.pop(key, None) is not None

    # ---- rows

    def _columns(self) -> list[tuple[Segment, slice]]:
        stops = np.cumsum([s.dim for s in self.segments]).tolist()
        return [
            (s, slice(stop - s.dim, stop)) for s, stop in zip(self.segments, stops, strict=True)
        ]

    def _first_row(self, key: int) -> Floats:
        if self.serving:
            return np.zeros(self.dim(), np.float32)
        return np.concatenate(
            [
                first_row(s.init, s.init_a, s.init_b, self.seed, key, columns.start, s.dim)
                for s, columns in self._columns()
            ]
        )

    def _time_of(self, time: int) -> int:
        return time if self.marks == "none" else time >> MARK_BITS

    def _touch(self, row: Row, time: int, uses: int) -> None:
        if self.marks == "uses":
            row.used_since |= uses > 0
            before, more = row.time & MARK, weight_times(time & MARK, uses)
            time = time & ~MARK | (weights_added(before, more) if uses else before)
        row.time = time

    def _new_row(self, key: int) -> Row:
        state = [] if self.serving else [x for s in self.segments for x in s.initial_state]
        return Row(self._first_row(key), np.array(state, np.float32))

    def _stored(self, values: Floats) -> Floats:
        if not self.serving:
            return values.copy()
        parts = [s.codec.values(s.codec.codes(values[columns])) for s, columns in self._columns()]
        return np.concatenate(parts)

    def _shown(self, values: Floats, step: int) -> Floats:
        if self.serving:
            return values
        parts = [s.codec.view(step, values[columns]) for s, columns in self._columns()]
        return np.concatenate(parts)

    def _can_hold(self, values: Floats) -> bool:
        with np.errstate(over="ignore"):
            return bool(np.isfinite(values).all() and np.isfinite(self._stored(values)).all())

    def _skips(self, values: Floats) -> bool:
        squares = np.float32(0)
        for x in values:
            squares += x * x
        return self.skip_zero and bool(squares < np.finfo(np.float32).smallest_normal)

    # ---- reads

    def lookup(
        self, ids_at: int, n: int, missing: str, step: int, out_at: int, reused: bool
    ) -> None:
        """Rows as training or serving sees them."""
        del reused  # a matter of speed
        out = at(out_at, (n, self.dim()), np.float32)
        for i, key in enumerate(at(ids_at, n, np.int64).tolist()):
            if key in self._rows:
                out[i] = self._shown(self._rows[key].values, step)
            elif missing == "initializer":
                out[i] = self._shown(self._first_row(key), step)
            else:
                out[i] = 0

    def contains(self, ids_at: int, n: int, out_at: int) -> None:
        """Which ids have a row."""
        at(out_at, n, np.bool_)[:] = [k in self._rows for k in at(ids_at, n, np.int64).tolist()]

    def entries(
        self, ids_at: int, n: int, found_at: int, rows_at: int, states_at: int, times_at: int
    ) -> None:
        """Raw rows, states and times."""
        self.contains(ids_at, n, found_at)
        rows = at(rows_at, (n, self.dim()), np.float32)
        states = at(states_at, (n, self.state_floats()), np.float32)
        times = at(times_at, n, np.int64)
        for i, key in enumerate(at(ids_at, n, np.int64).tolist()):
            row = self._rows.get(key)
            rows[i] = 0 if row is None else row.values
            states[i] = 0 if row is None else row.state
            times[i] = 0 if row is None else row.time

    def scan(
        self, cursor: int, room: int, ids_at: int, rows_at: int, states_at: int, times_at: int
    ) -> tuple[int, int, bool, int]:
        """Rows from the cursor on, in order of insertion."""
        keys = list(self._rows)[cursor : cursor + room]
        at(ids_at, room, np.int64)[: len(keys)] = keys
        found = np.empty(room, np.bool_)
        self.entries(ids_at, len(keys), found.ctypes.data, rows_at, states_at, times_at)
        return len(keys), cursor + len(keys), cursor + len(keys) >= len(self._rows), 0
