"""A plain twin of the core: the same names and arguments, over a dict of rows. Slow on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .reference_admission import (
    Admission,
    ChanceAdmission,
    CountAdmission,
    SlidingFilter,
    admission_probability,
)
from .reference_bags import BagRows, Bags, learn_bags
from .reference_bytes import crc32c, hash_strings, plain_request
from .reference_gather import (
    add_rows,
    add_windows,
    copy_rows,
    copy_windows,
    find_rows,
    fused_reorder,
    reorder,
)
from .reference_layout import LayoutBatch, LayoutPlan, number_fids, place_fids
from .reference_route import bucketize, route
from .reference_rows import Row, Rows, Segment
from .reference_rules import RULES, Floats
from .reference_several import lookup_several, move_in_several, read_several
from .reference_split import (
    check_part,
    fill_windows,
    join_rows,
    mark_keys,
    plan_split,
    split_ragged,
    split_rows,
    sum_windows,
    unique_with_offsets,
)
from .reference_values import (
    Codec,
    at,
    first_not_finite,
    first_values,
    gather,
    half_neighbours,
    philox,
    round_row,
    round_to_half,
)

__all__ = [
    "Admission",
    "BagRows",
    "Bags",
    "ChanceAdmission",
    "Codec",
    "CountAdmission",
    "LayoutBatch",
    "LayoutPlan",
    "Segment",
    "SlidingFilter",
    "Table",
    "add_rows",
    "add_windows",
    "admission_probability",
    "assign_in",
    "bucketize",
    "check_part",
    "copy_rows",
    "copy_windows",
    "crc32c",
    "fill_windows",
    "find_rows",
    "first_not_finite",
    "first_values",
    "fused_reorder",
    "gather",
    "half_neighbours",
    "hash_strings",
    "join_rows",
    "learn_bags",
    "lookup_between",
    "lookup_several",
    "mark_keys",
    "move_in_several",
    "number_fids",
    "philox",
    "place_fids",
    "plain_request",
    "plan_split",
    "read_several",
    "reorder",
    "round_to_half",
    "route",
    "rows_after",
    "rule_names",
    "split_ragged",
    "split_rows",
    "sum_windows",
    "unique_with_offsets",
]


def rule_names() -> list[str]:
    """The update rules."""
    return list(RULES)


T = TypeVar("T")


class Table(Rows):
    """A table as a dict from id to row."""

    # ---- writes: (inserted, refused, dropped)

    def _given(self, ids_at: int, n: int, rows_at: int) -> list[tuple[int, Floats]]:
        rows = at(rows_at, (n, self.dim()), np.float32)
        return list(zip(at(ids_at, n, np.int64).tolist(), rows, strict=True))

    def _admitted(
        self,
        given: list[tuple[int, T]],
        step: int,
        counts: Sequence[int] | None = None,
        per_occurrence: bool = False,
    ) -> list[tuple[int, T]]:
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
        given = self._admitted(self._given(ids_at, n, rows_at), self._time_of(time))
        winners, dropped = self._winners(given)
        inserted = erased = 0
        for key, (_, values) in winners.items():
            if self._skips(values):
                erased += self._remove(key)
                continue
            self._watch.mark([key])
            inserted += key not in self._rows
            row = self._rows.setdefault(key, self._new_row(key))
            row.values = self._stored(values)
            self._touch(row, time, sum(one == key for one, _ in given))
        self._newest = max(self._newest, time)
        return self._count(inserted, dropped, erased, n - len(given))

    def assign_add(self, ids_at: int, n: int, rows_at: int, time: int) -> tuple[int, int, int]:
        """Adds to rows; a sum that the row cannot hold leaves it as it is."""
        given = self._admitted(self._given(ids_at, n, rows_at), self._time_of(time))
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
                self._watch.mark([key])
                inserted += row is None
                row = row or self._rows.setdefault(key, self._new_row(key))
                row.values = self._stored(total)
                self._touch(row, time, sum(one == key for one, _ in given))
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
        rows_at: int,
        changes: int,
    ) -> tuple[int, int, int]:
        """Optimizer steps, summed by id or one by one."""
        del rows_at, changes  # it finds every row
        counts = at(counts_at, n, np.int64).tolist() if counts_at else [1] * n
        pairs = zip(self._given(ids_at, n, grads_at), counts, strict=True)
        each = [(key, (grad, count)) for (key, grad), count in pairs]
        given = self._admitted(each, step, counts, per_occurrence)
        grouped: dict[int, list[Floats]] = {}
        uses: dict[int, int] = {}
        for key, (grad, count) in given:
            grouped.setdefault(key, []).append(grad.copy())
            uses[key] = uses.get(key, 0) + count
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
                self._watch.mark([key], learned=True)
                row = self._rows.setdefault(key, self._new_row(key))
                self._touch(row, time, uses[key])
                for number, grad in enumerate(usable):
                    self._step(key, row, grad, rates, step, number)
        self._newest = max(self._newest, time)
        return self._count(len(self._rows) - before, dropped, 0, n - len(given))

    def _step(
        self, key: int, row: Row, grad: Floats, rates: Sequence[float], step: int, number: int
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
            self._watch.mark([key])
            inserted += key not in self._rows
            row = self._rows.setdefault(key, self._new_row(key))
            row.values, row.state, row.time = self._stored(values), states[i].copy(), times[i]
        self._newest = max([self._newest, *times])
        return self._count(inserted, dropped, erased)

    def reinitialize(self, ids_at: int, n: int, time: int, status_at: int) -> int:
        """Resets rows; status 0 = was absent. How many were born."""
        status: NDArray[np.int8] = at(status_at, n, np.int8)
        for i, key in enumerate(at(ids_at, n, np.int64).tolist()):
            self._watch.mark([key], learned=True)
            status[i] = key in self._rows
            new = self._new_row(key)
            row = self._rows.setdefault(key, new)
            row.values, row.state = new.values, new.state
            self._touch(row, time, 0)
        return self._count(int((status == 0).sum()), 0)[0]

    def erase(self, ids_at: int, n: int, erased_at: int) -> int:
        """Removes rows. How many were there."""
        erased = at(erased_at, n, np.bool_)
        for i, key in enumerate(at(ids_at, n, np.int64).tolist()):
            erased[i] = self._remove(key)
        self._count(0, 0, int(erased.sum()))
        return int(erased.sum())

    def move_in(self, ids_at: int, n: int, rows_at: int, states_at: int, times_at: int) -> int:
        """Rows from another store of the table: nobody is told, nothing is counted."""
        states = at(states_at, (n, self.state_floats()), np.float32)
        times = at(times_at, n, np.int64).tolist()
        before = len(self._rows)
        for i, (key, values) in enumerate(self._given(ids_at, n, rows_at)):
            row = self._rows.setdefault(key, self._new_row(key))
            row.values, row.state, row.time = self._stored(values), states[i].copy(), times[i]
        return len(self._rows) - before

    def move_out(self, ids_at: int, n: int, gone_at: int) -> int:
        """Rows go to another store of the table: nobody is told, nothing is counted."""
        gone = at(gone_at, n, np.bool_)
        for i, key in enumerate(at(ids_at, n, np.int64).tolist()):
            gone[i] = self._rows.pop(key, None) is not None
        return int(gone.sum())


def lookup_between(
    tables: Sequence[Table],
    message: bytes,
    start: int,
    counts: Sequence[int],
    head: bytes,
    tail: bytes,
) -> bytes:
    """Rows of ids that stand in a message, table after table, as bytes between two others."""
    parts = [head]
    for table, n in zip(tables, counts, strict=True):
        ids = np.frombuffer(message, np.int64, n, start).copy()
        rows = np.empty((n, table.dim()), np.float32)
        table.lookup(ids.ctypes.data, n, "zeros", 0, rows.ctypes.data, True)
        parts.append(rows.tobytes())
        start += ids.nbytes
    return b"".join([*parts, tail])


def rows_after(
    tables: Sequence[Table],
    ids_at: Sequence[int],
    counts: Sequence[int],
    step: int,
    before_ids: Sequence[bytes],
    before_rows: Sequence[bytes],
) -> bytes | None:
    """Ids and their rows, each behind bytes given for them; None where an id has no row."""
    parts: list[bytes] = []
    shares = zip(tables, ids_at, counts, before_ids, before_rows, strict=True)
    for table, start, n, first, second in shares:
        rows, found = np.empty((n, table.dim()), np.float32), np.empty(n, np.bool_)
        table.lookup(start, n, "zeros", step, rows.ctypes.data, True)
        table.contains(start, n, found.ctypes.data)
        if not found.all():
            return None
        parts += [first, at(start, n, np.int64).tobytes(), second, rows.tobytes()]
    return b"".join(parts)


def assign_in(
    tables: Sequence[Table],
    message: bytes,
    places: Sequence[tuple[int, int, int]],
    times: Sequence[int],
    rejects: Sequence[bool],
) -> bool:
    """Assigns ids and rows that stand in a message; see the core for what is left undone."""
    given = []
    for table, (first, n, row), time, strict in zip(tables, places, times, rejects, strict=True):
        ids = np.frombuffer(message, np.int64, n, first)
        rows = np.frombuffer(message, np.float32, n * table.dim(), row)
        if ids.ctypes.data % 8 or rows.ctypes.data % 4:
            return False
        if strict and not np.isfinite(rows).all():
            return False
        given.append((table, ids, rows, time))
    for table, ids, rows, time in given:
        table.assign(ids.ctypes.data, len(ids), rows.ctypes.data, time)
    return True
