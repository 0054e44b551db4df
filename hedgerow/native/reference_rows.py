"""The rows of the plain twin's table: what they hold, and the verbs that read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..core.use_weights import MARK, MARK_BITS, weight_times, weights_added
from .reference_admission import Admission
from .reference_evict import RowEvictions
from .reference_rules import Floats
from .reference_values import Codec, at, first_row
from .reference_watch import Watch


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
class Rows:
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
        self._watch = Watch()
        self._evictions = RowEvictions(self._rows, self.marks, self._remove)

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
        return self._evictions.looked_at

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
        if self._watch.has_snapshot:
            return False
        self._rows.clear()
        self._watch.all_changed()
        return True

    def slot_key(self) -> int:
        """What places ids."""
        return self.key

    def place_by(self, slot_key: int) -> bool:
        """Another key; False: refused, there are rows."""
        if self._rows:
            return False
        self.key = slot_key
        self._watch.all_changed()
        return True

    def exchange(self, other: Rows) -> bool:
        """Swaps all rows; False: refused, a snapshot is open."""
        if self._watch.has_snapshot or other._watch.has_snapshot:
            return False
        mine, theirs = dict(self._rows), dict(other._rows)
        for table, rows in ((self, theirs), (other, mine)):
            table._rows.clear()
            table._rows.update(rows)
            table._watch.all_changed()
        self._newest, other._newest = other._newest, self._newest
        self.key, other.key = other.key, self.key
        return True

    def _remove(self, key: int) -> bool:
        if key in self._rows:
            self._watch.mark([key])
        return self._rows.pop(key, None) is not None

    # ---- evictions

    def evict_older(
        self, reference: int, ages_at: int, cursor: int, room: int, ids_at: int, times_at: int
    ) -> tuple[int, int, bool, int]:
        """Removes rows that have reached the age of their slot."""
        return self._evictions.evict_older(reference, ages_at, cursor, room, ids_at, times_at)

    def find_cut(self, order: str, budget: int, top: int = 0) -> tuple[int, int, int]:
        """How many rows must leave, and the rank of the last of them."""
        return self._evictions.find_cut(order, budget, top)

    def evict_ranked(
        self,
        order: str,
        excess: int,
        score: int,
        key: int,
        cursor: int,
        room: int,
        ids_at: int,
        times_at: int,
        top: int = 0,
    ) -> tuple[int, int, bool, int]:
        """Removes rows up to a rank, at most `excess` of them."""
        rank = (order, excess, score, key)
        return self._evictions.evict_ranked(*rank, cursor, room, ids_at, times_at, top)

    # ---- touched keys

    def open_touched(self, capacity: int, all_changes: bool, forget: bool) -> int:
        """A new consumer."""
        return self._watch.open_touched(capacity, all_changes, forget)

    def close_touched(self, consumer: int) -> None:
        """Ends a consumer."""
        self._watch.close_touched(consumer)

    def take_touched(
        self, consumer: int, shard: int, room: int, ids_at: int
    ) -> tuple[int, int, bool, int, bool, int]:
        """All keys at once: there are no shards here."""
        return self._watch.take_touched(consumer, shard, room, ids_at)

    def touch(self, consumer: int, ids_at: int, n: int) -> None:
        """Puts keys back."""
        self._watch.touch(consumer, ids_at, n)

    def touch_all(self, consumer: int) -> None:
        """Any key may have changed."""
        self._watch.touch_all(consumer)

    def touched_use(self, consumer: int) -> tuple[int, int]:
        """Keys, overflows."""
        return self._watch.touched_use(consumer)

    # ---- snapshots

    def open_snapshot(self, aside_bytes: int, pause: bool) -> tuple[int, int, int]:
        """Ticket (0: one is open), rows, newest time."""
        del aside_bytes, pause  # no writer waits for a copy
        return self._watch.open_snapshot(self._rows, self._newest)

    def resume_writers(self) -> None:
        """Does nothing: no writer waits."""

    def read_snapshot(
        self, ticket: int, room: int, ids_at: int, rows_at: int, states_at: int, times_at: int
    ) -> tuple[int, bool, int]:
        """The next rows of the copy: how many, and whether they were the last."""
        return self._watch.read_snapshot(ticket, room, ids_at, rows_at, states_at, times_at)

    def snapshot_use(self) -> tuple[int, float]:
        """Rows aside and seconds waited: neither happens to a copy."""
        return 0, 0.0

    def close_snapshot(self, ticket: int) -> None:
        """Drops the copy."""
        self._watch.close_snapshot(ticket)

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
        self,
        ids: int,
        n: int,
        missing: str,
        step: int,
        out: int,
        reused: bool,
        rows: int = 0,
    ) -> None:
        """Rows as training or serving sees them."""
        del reused, rows  # matters of speed
        values = at(out, (n, self.dim()), np.float32)
        for i, key in enumerate(at(ids, n, np.int64).tolist()):
            if key in self._rows:
                values[i] = self._shown(self._rows[key].values, step)
            elif missing == "initializer":
                values[i] = self._shown(self._first_row(key), step)
            else:
                values[i] = 0

    def changes(self) -> int:
        """Always the same: it tells no places that rows could leave."""
        return 0

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
