"""Plain twins of the C++ core: every name of `hedgerow.native`, in Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from .native_batches import (
    LayoutBatch,
    LayoutPlan,
    add_rows,
    add_windows,
    bucketize,
    check_part,
    copy_rows,
    copy_windows,
    fill_windows,
    find_rows,
    fused_reorder,
    join_rows,
    mark_keys,
    number_fids,
    place_fids,
    plan_split,
    reorder,
    route,
    split_ragged,
    split_rows,
    sum_windows,
    unique_with_offsets,
)
from .native_rows import (
    Admission,
    ChanceAdmission,
    CountAdmission,
    Row,
    Rows,
    Segment,
    SlidingFilter,
    admission_probability,
)
from .native_values import (
    RULES,
    Codec,
    Floats,
    at,
    crc32c,
    first_not_finite,
    first_values,
    gather,
    half_neighbours,
    hash_strings,
    philox,
    plain_request,
    round_row,
    round_to_half,
)

_Cells = tuple[int, int, int, Sequence[int], int, int]
_Grads = Sequence[int]  # of each feature an address, 0 for none, and three strides
_Ids = npt.NDArray[np.int64]


@dataclass
class BagRows:
    """What a lookup read: of each feature its ids, bags, weights, and weighted rows."""

    cut: list[tuple[_Ids, list[slice], Floats | None]]
    values: list[Floats]

    def count(self, feature: int, /) -> int:
        """How many ids a feature has."""
        return len(self.cut[feature][0])

    def ids(self, feature: int, out_at: int, /) -> None:
        """The ids of a feature."""
        at(out_at, (self.count(feature),), np.int64)[:] = self.cut[feature][0]

    def rows(self, feature: int, out_at: int, /) -> int:
        """Where the rows of a feature were found: it remembers none, see `Table.changes`."""
        at(out_at, (self.count(feature),), np.int32)[:] = -1
        return 0


class Bags:
    """Features: table, its number, pooling, rows of a bag that stay, whether first values show."""

    def __init__(self, features: Sequence[tuple[Table, int, str, int, bool]]) -> None:
        self.features = features

    def lookup(
        self,
        cells: _Cells,
        training: bool,
        step: int,
        outs_at: Sequence[int],
        reused: bool,
        keeps: bool,
        /,
    ) -> BagRows | None:
        """Pools the rows of all features, one output each."""
        found, cut = [], []
        for f, (table, _, pooling, first, shows) in enumerate(self.features):
            ids, bags, weights = _cut(cells, f)
            cut.append((ids, bags, weights))
            dim = table.dim()
            rows = np.zeros((len(ids), dim), np.float32)
            rule = "initializer" if training and shows else "zeros"
            table.lookup(ids.ctypes.data, len(ids), rule, step, rows.ctypes.data, reused)
            found.append(rows)
            if pooling == "none":
                at(outs_at[f], rows.shape, np.float32)[:] = rows
                continue
            kept = (first, dim) if pooling == "first" else (dim,)
            out = at(outs_at[f], (len(bags), *kept), np.float32)
            rows = found[-1] = rows if weights is None else rows * weights[:, None]
            for b, bag in enumerate(bags):
                out[b] = _pooled(rows[bag], pooling, kept)
        return BagRows(cut, found) if keeps else None

    def not_finite(
        self, found: BagRows, grads: _Grads, rejects: Sequence[bool], /
    ) -> tuple[int, int, int]:
        """Feature, bag and column of the first gradient that is not finite; -1: there is none."""
        for f, (table, _, pooling, first, _) in enumerate(self.features):
            if not grads[4 * f] or not rejects[f]:
                continue
            ids, bags, weights = found.cut[f]
            units = [slice(i, i + 1) for i in range(len(ids))] if pooling == "none" else bags
            grad = _strided(grads[4 * f : 4 * f + 4], len(units), max(first, 1), table.dim())
            for b, bag in enumerate(units):
                many = bag.stop - bag.start
                for k in range(min(many, first) if pooling == "first" else min(many, 1)):
                    own = None if weights is None else weights[bag]
                    given = 1.0 if own is None else own[k] if first else np.abs(own).max()
                    bad = ~np.isfinite(grad[b, k] * np.float32(abs(given)))
                    if bad.any():
                        return f, b, k * table.dim() + int(bad.argmax())
        return -1, 0, 0

    def spread(self, found: BagRows, feature: int, grad: _Grads, out_at: int, /) -> None:
        """The gradient of each id of one feature."""
        each = self.each(found, feature, grad)
        at(out_at, each.shape, np.float32)[:] = each

    def each(self, found: BagRows, f: int, grad: _Grads) -> Floats:
        """The gradient of each id of feature `f`."""
        table, _, pooling, first, _ = self.features[f]
        ids, bags, weights = found.cut[f]
        dim = table.dim()
        if pooling == "none":
            return _strided(grad, len(ids), 1, dim)[:, 0]
        units = _strided(grad, len(bags), max(first, 1), dim)
        each = np.zeros((len(ids), dim), np.float32)
        for b, bag in enumerate(bags):
            many = bag.stop - bag.start
            if pooling == "first":
                each[bag][:first] = units[b][:many]
            elif pooling == "max" and many:
                best = found.values[f][bag].argmax(axis=0)  # the first of equal ones
                each[bag][best, np.arange(dim)] = units[b, 0]
            else:
                each[bag] = units[b, 0] / _divisor(pooling, many)
        return each if weights is None else each * weights[:, None]


def learn_bags(
    learned: Sequence[tuple[Bags, BagRows, _Grads]],
    step: int,
    rates: Sequence[Sequence[float]],
    times: Sequence[int],
    clip: float,
    /,
) -> tuple[int, int, int]:
    """One optimizer step per table and id that has a gradient in any of these."""
    done = np.zeros(3, np.int64)
    for number, (own_rates, time) in enumerate(zip(rates, times, strict=True)):
        parts, table = [], None
        for bags, found, grads in learned:
            for f, (of_feature, at_table, *_) in enumerate(bags.features):
                if at_table == number and grads[4 * f]:
                    table = of_feature
                    each = bags.each(found, f, grads[4 * f : 4 * f + 4])
                    parts.append((found.cut[f][0], each))
        parts = [part for part in parts if len(part[0])]
        if table is None or not parts:
            continue
        ids = np.concatenate([part[0] for part in parts])
        flat = np.concatenate([part[1] for part in parts])
        if clip > 0:
            ids, flat = _clipped(ids, flat, clip)
        flat = np.ascontiguousarray(flat)
        where = (ids.ctypes.data, len(ids), flat.ctypes.data)
        done += table.apply_gradients(*where, own_rates, step, time, False, 0, 0, 0)
    inserted, refused, dropped = done.tolist()
    return inserted, refused, dropped


def _clipped(ids: _Ids, grads: Floats, clip: float) -> tuple[_Ids, Floats]:
    """Each id once, with its summed gradient, none longer than `clip`."""
    sums: dict[int, Floats] = {}
    for key, grad in zip(ids.tolist(), grads, strict=True):
        sums[key] = sums[key] + grad if key in sums else grad.copy()
    for key, total in sums.items():
        squares = np.float32(0)
        for value in total:
            squares += value * value
        length = np.sqrt(squares)
        if np.isfinite(total).all() and length > clip:
            sums[key] = total * (np.float32(clip) / length)
    return np.array(list(sums), np.int64), np.stack(list(sums.values()))


def _cut(cells: _Cells, f: int) -> tuple[_Ids, list[slice], Floats | None]:
    """Copies of the ids of a feature, its bags among them, and the weights of the ids."""
    ids_at, n, offsets_at, places, samples, weights_at = cells
    borders = at(offsets_at, (places[f] + 1) * samples + 1, np.int64)[places[f] * samples :]
    start, stop = int(borders[0]), int(borders[samples])
    bags = [slice(int(a) - start, int(b) - start) for a, b in _pairs(borders[: samples + 1])]
    weights = at(weights_at, n, np.float32)[start:stop].copy() if weights_at else None
    return at(ids_at, n, np.int64)[start:stop].copy(), bags, weights


def _pairs(borders: _Ids) -> Iterator[tuple[np.int64, np.int64]]:
    return pairwise(borders)


def _strided(grad: _Grads, units: int, kept: int, dim: int) -> Floats:
    """Gradients [units, kept, dim] as they lie in memory."""
    address, *strides = grad
    if not units or not dim:
        return np.zeros((units, kept, dim), np.float32)
    steps = tuple(4 * stride for stride in strides)
    reach = sum((n - 1) * stride for n, stride in zip((units, kept, dim), strides, strict=True))
    memory = at(address, reach + 1, np.float32)
    return np.lib.stride_tricks.as_strided(memory, (units, kept, dim), steps)


def _divisor(pooling: str, many: int) -> np.float32:
    count = np.float32(max(many, 1))
    return {"mean": count, "sqrtn": np.sqrt(count)}.get(pooling, np.float32(1))


def _pooled(rows: Floats, pooling: str, shape: tuple[int, ...]) -> Floats:
    out = np.zeros(shape, np.float32)
    if pooling == "first":
        out[: len(rows)] = rows[: shape[0]]
    elif pooling == "max":
        return rows.max(axis=0) if len(rows) else out
    else:
        for row in rows:
            out += row
        out /= _divisor(pooling, len(rows))
    return out


def read_several(
    tables: Sequence[Rows],
    splits: Sequence[int],
    ids_at: int,
    found_at: int,
    rows_at: int,
    states_at: int,
    times_at: int,
) -> list[int]:
    """`entries` of tables whose rows are alike, table after table; how many of each were found."""
    counts = []
    for table, (start, stop) in zip(tables, pairwise(splits), strict=True):
        row, state = 4 * table.dim() * start, 4 * table.state_floats() * start
        where = (found_at + start, rows_at + row, states_at + state, times_at + 8 * start)
        table.entries(ids_at + 8 * start, stop - start, *where)
        counts.append(int(at(found_at + start, (stop - start,), np.bool_).sum()))
    return counts


def move_in_several(
    tables: Sequence[Table],
    starts: Sequence[int],
    ends: Sequence[int],
    ids_at: int,
    rows_at: int,
    states_at: int,
    times_at: int,
) -> None:
    """`move_in` of rows of tables whose rows are alike, from a start to an end for each."""
    for table, start, end in zip(tables, starts, ends, strict=True):
        row, state = 4 * table.dim() * start, 4 * table.state_floats() * start
        where = (rows_at + row, states_at + state, times_at + 8 * start)
        table.move_in(ids_at + 8 * start, end - start, *where)


def lookup_several(
    tables: Sequence[Rows],
    splits: Sequence[int],
    missing: Sequence[str],
    step: int,
    ids_at: int,
    rows_at: int,
    found_at: int,
) -> None:
    """`lookup` of tables whose rows are alike, table after table, and which ids have a row."""
    for table, rule, (start, stop) in zip(tables, missing, pairwise(splits), strict=True):
        ids, n, row = ids_at + 8 * start, stop - start, 4 * table.dim() * start
        table.lookup(ids, n, rule, step, rows_at + row, True)
        table.contains(ids, n, found_at + start)


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
