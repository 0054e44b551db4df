"""A plain twin of the core: the same names and arguments, over a dict of rows. Slow on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .reference_admission import (
    Admission,
    ChanceAdmission,
    CountAdmission,
    SlidingFilter,
    admission_probability,
)
from .reference_bytes import crc32c
from .reference_evict import Evictions
from .reference_rules import RULES, Floats
from .reference_values import (
    Codec,
    at,
    first_not_finite,
    first_row,
    first_values,
    gather,
    half_neighbours,
    philox,
    round_row,
    round_to_half,
)
from .reference_watch import Watched

__all__ = [
    "Admission",
    "ChanceAdmission",
    "Codec",
    "CountAdmission",
    "Segment",
    "SlidingFilter",
    "Table",
    "admission_probability",
    "crc32c",
    "first_not_finite",
    "first_values",
    "gather",
    "half_neighbours",
    "philox",
    "round_to_half",
    "rule_names",
]


def rule_names() -> list[str]:
    """The update rules."""
    return list(RULES)


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
class _Row:
    values: Floats
    state: Floats
    time: int = 0
    uses: int = 0
    used_since: bool = False  # a search for a cut last saw it

    def touch(self, time: int) -> None:
        self.time, self.uses, self.used_since = time, min(self.uses + 1, 2**15 - 1), True


@dataclass
class Table(Watched, Evictions):
    """A table as a dict from id to row. Serving rows hold what decoding gives."""

    segments: Sequence[Segment]
    serving: bool
    skip_zero: bool
    seed: int
    initial_capacity: int
    counts_uses: bool = False
    admission: Admission | None = None
    _rows: dict[int, _Row] = field(default_factory=dict)
    _newest: int = 0
    _counted: list[int] = field(default_factory=lambda: [0, 0, 0, 0])

    def __post_init__(self) -> None:
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
        for number, consumer in self._consumers.items():
            if consumer.all_changes:
                self.touch_all(number)
        return True

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

    def _new_row(self, key: int) -> _Row:
        state = [] if self.serving else [x for s in self.segments for x in s.initial_state]
        return _Row(self._first_row(key), np.array(state, np.float32))

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

    # ---- writes: (inserted, refused, dropped)

    def _given(self, ids_at: int, n: int, rows_at: int) -> list[tuple[int, Floats]]:
        rows = at(rows_at, (n, self.dim()), np.float32)
        return list(zip(at(ids_at, n, np.int64).tolist(), rows, strict=True))

    def _admitted(
        self,
        given: list[tuple[int, Floats]],
        step: int,
        counts: Sequence[int] | None = None,
        per_occurrence: bool = False,
    ) -> list[tuple[int, Floats]]:
        """What is left of a batch when refused ids are gone."""
        if self.admission is None:
            return given
        counts = [1] * len(given) if counts is None else counts
        seen: dict[int, list[int]] = {}
        for (key, _), count in zip(given, counts, strict=True):
            if key not in self._rows:
                seen.setdefault(key, []).append(count)
        refused: dict[int, int] = {}  # leading occurrences
        for key, each in seen.items():
            if per_occurrence:
                admits = (self.admission.admits(key, n, step, i) for i, n in enumerate(each))
                refused[key] = next((i for i, admitted in enumerate(admits) if admitted), len(each))
            else:
                refused[key] = 0 if self.admission.admits(key, sum(each), step) else len(each)
        left = []
        for key, values in given:
            if refused.get(key, 0):
                refused[key] -= 1
            else:
                left.append((key, values))
        return left

    def _winners(
        self, given: list[tuple[int, Floats]]
    ) -> tuple[dict[int, tuple[int, Floats]], int]:
        """The last usable occurrence of each id with its position, and how many were not usable."""
        usable = [(i, k, v) for i, (k, v) in enumerate(given) if self._can_hold(v)]
        return {k: (i, v) for i, k, v in usable}, len(given) - len(usable)

    def assign(self, ids_at: int, n: int, rows_at: int, time: int) -> tuple[int, int, int]:
        """Sets rows and keeps their state."""
        given = self._admitted(self._given(ids_at, n, rows_at), time)
        winners, dropped = self._winners(given)
        inserted = erased = 0
        for key, (_, values) in winners.items():
            if self._skips(values):
                erased += self._remove(key)
                continue
            self._mark([key])
            inserted += key not in self._rows
            row = self._rows.setdefault(key, self._new_row(key))
            row.values = self._stored(values)
            row.touch(time)
        self._newest = max(self._newest, time)
        return self._count(inserted, dropped, erased, n - len(given))

    def assign_add(self, ids_at: int, n: int, rows_at: int, time: int) -> tuple[int, int, int]:
        """Adds to rows; a sum that the row cannot hold leaves it as it is."""
        given = self._admitted(self._given(ids_at, n, rows_at), time)
        finite: dict[int, list[Floats]] = {}
        for key, values in given:
            if np.isfinite(values).all():
                finite.setdefault(key, []).append(values)
        inserted, added = 0, 0
        for key, parts in finite.items():
            row = self._rows.get(key)
            total = self._first_row(key) if row is None else row.values.copy()
            with np.errstate(over="ignore"):
                for part in parts:
                    total = total + part
            if self._can_hold(total):
                self._mark([key])
                inserted += row is None
                row = row or self._rows.setdefault(key, self._new_row(key))
                row.values = self._stored(total)
                row.touch(time)
                added += len(parts)
        self._newest = max(self._newest, time)
        return self._count(inserted, len(given) - added, 0, n - len(given))

    def apply_gradients(
        self,
        ids_at: int,
        n: int,
        grads_at: int,
        rates: Sequence[float],
        step: int,
        time: int,
        per_occurrence: bool,
        counts_at: int,
    ) -> tuple[int, int, int]:
        """Optimizer steps, summed by id or one by one."""
        counts = at(counts_at, n, np.int64).tolist() if counts_at else None
        given = self._admitted(self._given(ids_at, n, grads_at), step, counts, per_occurrence)
        grouped: dict[int, list[Floats]] = {}
        for key, grad in given:
            grouped.setdefault(key, []).append(grad.copy())
        before, dropped = len(self._rows), 0
        for key, grads in grouped.items():
            usable = [g for g in grads if np.isfinite(g).all()]
            if not per_occurrence:
                with np.errstate(over="ignore", invalid="ignore"):
                    total = grads[0]
                    for grad in grads[1:]:
                        total = total + grad
                usable = [total] if np.isfinite(total).all() else []
                dropped += 0 if usable else len(grads)
            else:
                dropped += len(grads) - len(usable)
            if usable:
                self._mark([key], learned=True)
                row = self._rows.setdefault(key, self._new_row(key))
                row.touch(time)
                for number, grad in enumerate(usable):
                    self._step(key, row, grad, rates, step, number)
        self._newest = max(self._newest, time)
        return self._count(len(self._rows) - before, dropped, 0, n - len(given))

    def _step(
        self, key: int, row: _Row, grad: Floats, rates: Sequence[float], step: int, number: int
    ) -> None:
        start = 0
        for (s, columns), rate in zip(self._columns(), rates, strict=True):
            w, g = row.values[columns], grad[columns]
            state = row.state[start : start + len(s.initial_state)]
            start += len(s.initial_state)
            g = s.codec.view_gradient(step, w, g)
            with np.errstate(all="ignore"):
                RULES[s.rule](w, state, g, np.float32(rate), step, list(s.settings))
            if s.round_to_half:
                w[:] = round_row(w, self.seed, key, step, number, columns.start)

    def restore(
        self, ids_at: int, n: int, rows_at: int, states_at: int, times_at: int
    ) -> tuple[int, int, int]:
        """Puts rows, states and times back."""
        states = at(states_at, (n, self.state_floats()), np.float32)
        times = at(times_at, n, np.int64).tolist()
        winners, dropped = self._winners(self._given(ids_at, n, rows_at))
        inserted = erased = 0
        for key, (i, values) in winners.items():
            if self._skips(values):
                erased += self._remove(key)
                continue
            self._mark([key])
            inserted += key not in self._rows
            row = self._rows.setdefault(key, self._new_row(key))
            row.values, row.state, row.time = self._stored(values), states[i].copy(), times[i]
        self._newest = max([self._newest, *times])
        return self._count(inserted, dropped, erased)

    def reinitialize(self, ids_at: int, n: int, time: int, status_at: int) -> int:
        """Resets rows; status 0 = was absent. How many were born."""
        status: NDArray[np.int8] = at(status_at, n, np.int8)
        for i, key in enumerate(at(ids_at, n, np.int64).tolist()):
            self._mark([key], learned=True)
            status[i] = key in self._rows
            new = self._new_row(key)
            row = self._rows.setdefault(key, new)
            row.values, row.state, row.time = new.values, new.state, time
        return self._count(int((status == 0).sum()), 0)[0]

    def erase(self, ids_at: int, n: int, erased_at: int) -> int:
        """Removes rows. How many were there."""
        erased = at(erased_at, n, np.bool_)
        for i, key in enumerate(at(ids_at, n, np.int64).tolist()):
            erased[i] = self._remove(key)
        self._count(0, 0, int(erased.sum()))
        return int(erased.sum())
