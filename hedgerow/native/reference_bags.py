"""Bags of several features over plain tables, bag by bag."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .reference_rules import Floats
from .reference_values import at

if TYPE_CHECKING:
    from .reference import Table

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
