"""The rows of the plain twin of a table: verbs, admission, eviction, and touched keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from hedgerow.core.use_weights import MARK, MARK_BITS, weight_times, weights_added

from .native_values import Codec, Floats, at, first_row, philox

_CHANCE = 2  # the stream
_SLOT_BITS, _SIGNATURE_BITS = 15, 48
Shape = tuple[int, int, int]
_CELL = np.dtype([("table", "<u8"), ("id", "<i8"), ("count", "<i8")])  # of a dump


@dataclass
class SlidingFilter:
    """A ring of dicts from (table, id) to count. It has no collisions and no lack of cells."""

    capacity: int
    parts: int
    seed: int
    max_count: int
    key: int = 0  # of no importance: nothing is hashed here
    _arrays: list[dict[tuple[int, int], int]] = field(default_factory=list)
    _head_increment: int = 0

    def __post_init__(self) -> None:
        self._arrays = [{} for _ in range(self.parts)]

    def _behind(self, arrays: int) -> dict[tuple[int, int], int]:
        return self._arrays[(self._head_increment - arrays) % self.parts]

    def _count(self, key: tuple[int, int]) -> int:
        alive = min(self._head_increment, self.parts - 2) + 1
        return next((self._behind(b)[key] for b in range(alive) if key in self._behind(b)), 0)

    def add(self, table: int, key: int, n: int) -> int:
        """Counts an id and gives its count before."""
        before, head = self._count((table, key)), self._behind(0)
        head[table, key] = min(self.max_count, before + n)
        if len(head) + 1 >= self.capacity // (self.parts - 1):
            self._head_increment += 1
            self._behind(-1).clear()
        return before

    def add_many(self, table: int, ids_at: int, counts_at: int, n: int, before_at: int) -> None:
        """Counts ids in order."""
        counts = at(counts_at, n, np.int64) if counts_at else np.ones(n, np.int64)
        before = at(before_at, n, np.uint8)
        for i, (key, count) in enumerate(
            zip(at(ids_at, n, np.int64).tolist(), counts.tolist(), strict=True)
        ):
            before[i] = self.add(table, key, count)

    def count_many(self, table: int, ids_at: int, n: int, out_at: int) -> None:
        """The counts of ids."""
        at(out_at, n, np.uint8)[:] = [
            self._count((table, key)) for key in at(ids_at, n, np.int64).tolist()
        ]

    def dump(self, room: int, out_at: int) -> tuple[int, int, int, int, list[Shape]]:
        """Key, head, advances, failures and the shape of each array; cells if they fit."""
        parts = [
            np.array([(t, k, count) for (t, k), count in array.items()], _CELL)
            for array in self._arrays
        ]
        cells = np.concatenate(parts)
        if cells.nbytes <= room:
            at(out_at, len(cells), _CELL)[:] = cells
        shapes = [(_CELL.itemsize, len(part), len(part)) for part in parts]
        return self.key, self._head_increment % self.parts, self._head_increment, 0, shapes

    def restore(
        self,
        key: int,
        head: int,
        head_increment: int,
        failures: int,
        arrays: Sequence[Shape],
        from_at: int,
        bytes: int,
    ) -> None:
        """Puts back what `dump` gave."""
        del head, failures
        if len(arrays) != self.parts:
            raise ValueError(f"{len(arrays)} arrays do not fit a filter of {self.parts}")
        cells = iter(at(from_at, bytes // _CELL.itemsize, _CELL).tolist())
        self._arrays = [
            {(t, k): count for t, k, count in (next(cells) for _ in range(size))}
            for _, _, size in arrays
        ]
        self.key, self._head_increment = key, head_increment


class Admission:
    """Which absent ids may have a row."""

    def admits(self, key: int, occurrences: int, step: int, number: int = 0) -> bool:
        """Whether a sighting, the call's `number`-th of the id, lets it in."""
        raise NotImplementedError

    def ask(self, ids_at: int, counts_at: int, n: int, step: int, admitted_at: int) -> None:
        """Every id on its own, in order."""
        counts = at(counts_at, n, np.int64) if counts_at else np.ones(n, np.int64)
        admitted = at(admitted_at, n, np.bool_)
        for i, key in enumerate(at(ids_at, n, np.int64).tolist()):
            admitted[i] = self.admits(key, int(counts[i]), step)


def _of_slot(key: int, standard: float, slots: Sequence[tuple[int, float]]) -> float:
    return dict(slots).get((key >> _SIGNATURE_BITS) & ((1 << _SLOT_BITS) - 1), standard)


@dataclass
class CountAdmission(Admission):
    """Lets an id in that was counted `threshold` times before."""

    filter: SlidingFilter
    table: int
    threshold: float
    slots: Sequence[tuple[int, float]]

    def admits(self, key: int, occurrences: int, step: int, number: int = 0) -> bool:
        """By the count before."""
        threshold = _of_slot(key, self.threshold, self.slots)
        return threshold <= 0 or self.filter.add(self.table, key, occurrences) >= threshold


def admission_probability(form: str, parameter: float, occurrences: int) -> float:
    """How likely so many occurrences let an absent id in."""
    if form == "each":
        return 1 - math.pow(1 - parameter, occurrences)
    if form not in ("unequal", "equal"):
        raise ValueError(f"form is {form!r}; it must be 'each', 'unequal' or 'equal'")
    if parameter <= 0:
        return 1.0
    if form == "unequal":
        return min(1.0, occurrences / parameter)
    return 1 - math.pow(0.05, occurrences / parameter)


@dataclass
class ChanceAdmission(Admission):
    """Lets an id in by a draw from (seed, id, step, number)."""

    form: str
    seed: int
    parameter: float
    slots: Sequence[tuple[int, float]]

    def admits(self, key: int, occurrences: int, step: int, number: int = 0) -> bool:
        """By the draw."""
        low, high = key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF
        tag = (_CHANCE | step << 8) & 0xFFFFFFFF
        word = philox((low, high, number, tag), (self.seed & 0xFFFFFFFF, self.seed >> 32))[0]
        parameter = _of_slot(key, self.parameter, self.slots)
        return (word >> 8) * 2.0**-24 < admission_probability(self.form, parameter, occurrences)


SLOTS = 2**15


class EvictableRow(Protocol):
    """What an eviction reads of a row."""

    time: int
    used_since: bool


R = TypeVar("R", bound=EvictableRow)


def is_older(ages_at: int, reference: int, key: int, row: EvictableRow) -> bool:
    """Whether a row's age has reached that of its slot."""
    ages = at(ages_at, SLOTS, np.int64)
    return reference - row.time >= int(ages[(key >> 48) & (SLOTS - 1)])


def rank(marks: str, top: int, key: int, row: EvictableRow) -> tuple[int, int]:
    """Rows leave in this order: by time, then turn; or by uses, then time; equals by key."""
    if marks == "none":
        return row.time, key
    mark, seconds = row.time & MARK, row.time >> MARK_BITS
    place = 0 if mark == 0 else (mark - top - 1) & MARK
    return (place << 32 | seconds if marks == "uses" else seconds << MARK_BITS | place), key


class RowEvictions:
    """Removes rows by age or by rank; a part of `Rows`, whose dict of rows it shares.

    Answers are (rows gone, cursor, done, room needed).
    """

    def __init__(self, rows: dict[int, Any], marks: str, remove: Callable[[int], object]) -> None:
        self.looked_at = 0  # how often a row was looked at
        self._rows, self._marks, self._remove = rows, marks, remove

    def evict_older(
        self, reference: int, ages_at: int, cursor: int, room: int, ids_at: int, times_at: int
    ) -> tuple[int, int, bool, int]:
        """Removes rows that have reached the age of their slot."""
        doomed = partial(is_older, ages_at, reference)
        return self._evict(doomed, cursor, room, ids_at, times_at)

    def find_cut(self, order: str, budget: int, top: int = 0) -> tuple[int, int, int]:
        """How many rows must leave, and the rank of the last of them."""
        self._check_order(order)
        excess = len(self._rows) - budget
        if excess <= 0:
            return 0, 0, 0
        for row in self._rows.values():
            row.used_since = False
        ranks = sorted(rank(self._marks, top, key, row) for key, row in self._rows.items())
        return excess, *ranks[excess - 1]

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
        self._check_order(order)
        left = excess

        def leaves(shown: int, row: Any) -> bool:
            nonlocal left
            if not left or row.used_since or rank(self._marks, top, shown, row) > (score, key):
                return False
            left -= 1
            return True

        return self._evict(leaves, cursor, room, ids_at, times_at)

    def _check_order(self, order: str) -> None:
        if order == "use" and self._marks != "uses":
            raise ValueError("this table does not count uses: make it with marks of uses")

    def _evict(
        self,
        doomed: Callable[[int, EvictableRow], bool],
        cursor: int,
        room: int,
        ids_at: int,
        times_at: int,
    ) -> tuple[int, int, bool, int]:
        """Removes the doomed among `room` rows from the cursor on."""
        seen = list(self._rows)[cursor : cursor + room]
        self.looked_at += len(seen)
        gone = [(key, self._rows[key].time) for key in seen if doomed(key, self._rows[key])]
        for i, (key, time) in enumerate(gone):
            at(ids_at, room, np.int64)[i] = key
            at(times_at, room, np.int64)[i] = time
            self._remove(key)
        cursor += len(seen) - len(gone)
        return len(gone), cursor, cursor >= len(self._rows), 0


@dataclass
class _Consumer:
    capacity: int
    all_changes: bool
    forget: bool
    keys: set[int] = field(default_factory=set)
    whole: bool = False
    forgotten: int = 0
    overflows: int = 0

    def mark(self, key: int) -> None:
        if self.whole:
            return
        if self.forget and len(self.keys) > self.capacity:  # before the key is looked at
            self.overflows += 1
            self.forgotten += len(self.keys)
            self.keys.clear()
        self.keys.add(key)
        if len(self.keys) > self.capacity and not self.forget:
            self.overflows += 1
            self.whole = True
            self.keys.clear()


class Watch:
    """The consumers of touched keys of one table, and its snapshot; a part of `Rows`."""

    def __init__(self) -> None:
        self._consumers: dict[int, _Consumer] = {}
        self._opened = 0
        self._snapshot: list[tuple[int, Any]] | None = None
        self._ticket = 0

    @property
    def has_snapshot(self) -> bool:
        """Whether a snapshot is open."""
        return self._snapshot is not None

    def mark(self, keys: Iterable[int], *, learned: bool = False) -> None:
        """Keys have changed: by learning, or otherwise."""
        wanting = [c for c in self._consumers.values() if learned or c.all_changes]
        for key in keys:
            for consumer in wanting:
                consumer.mark(key)

    def all_changed(self) -> None:
        """Any key may have changed: consumers of all changes see the whole table."""
        for number, consumer in self._consumers.items():
            if consumer.all_changes:
                self.touch_all(number)

    # ---- touched keys

    def open_touched(self, capacity: int, all_changes: bool, forget: bool) -> int:
        """A new consumer."""
        self._opened += 1
        self._consumers[self._opened] = _Consumer(capacity, all_changes, forget)
        return self._opened

    def close_touched(self, consumer: int) -> None:
        """Ends a consumer."""
        self._consumers.pop(consumer, None)

    def take_touched(
        self, consumer: int, shard: int, room: int, ids_at: int
    ) -> tuple[int, int, bool, int, bool, int]:
        """All keys at once: there are no shards here."""
        del shard
        taken = self._consumers[consumer]
        if len(taken.keys) > room:
            return 0, 0, False, len(taken.keys), False, 0
        keys, whole, forgotten = sorted(taken.keys), taken.whole, taken.forgotten
        taken.keys, taken.whole, taken.forgotten = set(), False, 0
        at(ids_at, room, np.int64)[: len(keys)] = keys
        return len(keys), 64, True, 0, whole, forgotten

    def touch(self, consumer: int, ids_at: int, n: int) -> None:
        """Puts keys back."""
        for key in at(ids_at, n, np.int64).tolist():
            self._consumers[consumer].mark(key)

    def touch_all(self, consumer: int) -> None:
        """Any key may have changed."""
        self._consumers[consumer].whole = True
        self._consumers[consumer].keys.clear()

    def touched_use(self, consumer: int) -> tuple[int, int]:
        """Keys, overflows."""
        use = self._consumers[consumer]
        return len(use.keys), use.overflows

    # ---- snapshots

    def open_snapshot(self, rows: dict[int, Any], newest: int) -> tuple[int, int, int]:
        """Ticket (0: one is open), rows, newest time."""
        if self._snapshot is not None:
            return 0, 0, 0
        self._ticket += 1
        self._snapshot = list(deepcopy(rows).items())
        return self._ticket, len(self._snapshot), newest

    def read_snapshot(
        self, ticket: int, room: int, ids_at: int, rows_at: int, states_at: int, times_at: int
    ) -> tuple[int, bool, int]:
        """The next rows of the copy: how many, and whether they were the last."""
        if self._snapshot is None or ticket != self._ticket:
            raise RuntimeError(f"snapshot {ticket} is not open")
        part, self._snapshot = self._snapshot[:room], self._snapshot[room:]
        for i, (key, row) in enumerate(part):
            at(ids_at, room, np.int64)[i] = key
            at(rows_at, (room, len(row.values)), np.float32)[i] = row.values
            at(states_at, (room, len(row.state)), np.float32)[i] = row.state
            at(times_at, room, np.int64)[i] = row.time
        return len(part), not self._snapshot, 0

    def close_snapshot(self, ticket: int) -> None:
        """Drops the copy."""
        if ticket == self._ticket:
            self._snapshot = None


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
