"""The published planner's grid as arrays of reachable cells: its second, faster form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class GridTable:
    """A table's options as the grid sees them: sizes of all shards in bytes, and costs."""

    hbm: Sequence[int]
    ddr: Sequence[int]
    perf: Sequence[float]


def grid_choices(
    tables: Sequence[GridTable], totals: tuple[int, int], bins: tuple[int, int]
) -> list[tuple[int, ...]]:
    """A choice for each bin of HBM that is reached, the cheapest over host memory; falling HBM.

    Sums are 32-bit floats, in bins; a cell keeps its cheapest arrival.

    >>> grid_choices([GridTable((8, 1), (0, 7), (1.0, 3.0))], (10, 10), (5, 5))
    [(0,), (1,)]
    """
    hbm, ddr, perf = (np.zeros(1, np.float32) for _ in range(3))
    steps: list[tuple[Array, Array]] = []
    for table in tables:
        sizes = [
            _in_bins(part, total, count)
            for part, total, count in zip((table.hbm, table.ddr), totals, bins, strict=True)
        ]
        costs = np.asarray(table.perf, np.float32)
        hbm, ddr, perf, kept = _step((hbm, ddr, perf), (sizes[0], sizes[1], costs), bins)
        steps.append(np.divmod(kept, len(costs)))
    return _walk_back(steps, _cheapest_of_each(hbm.astype(np.int64), perf))


def _in_bins(part: Sequence[int], total: int, bins: int) -> Array:
    if total == 0:
        return np.zeros(len(part), np.float32)
    return (np.asarray(part, np.float64) / (total / bins)).astype(np.float32)


def _step(
    state: tuple[Array, Array, Array], options: tuple[Array, Array, Array], bins: tuple[int, int]
) -> tuple[Array, Array, Array, Array]:
    """States after one more table, and which state and option each came from."""
    hbm, ddr, perf = (
        (before[:, None] + added).ravel() for before, added in zip(state, options, strict=True)
    )
    fits = np.flatnonzero((hbm < bins[0]) & (ddr < bins[1]))
    cells = hbm[fits].astype(np.int64) * bins[1] + ddr[fits].astype(np.int64)
    order = np.lexsort((perf[fits], cells))
    cells = cells[order]
    first = np.ones(len(order), np.bool_)
    first[1:] = cells[1:] != cells[:-1]
    kept = fits[order[first]]
    return hbm[kept], ddr[kept], perf[kept], kept


def _cheapest_of_each(bins: Array, perf: Array) -> Array:
    """The cheapest state of each bin, by falling bin."""
    order = np.lexsort((perf, -bins))
    ordered = bins[order]
    first = np.ones(len(order), np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    return order[first]


def _walk_back(steps: list[tuple[Array, Array]], states: Array) -> list[tuple[int, ...]]:
    columns: list[Array] = []
    for came_from, option in reversed(steps):
        columns.append(option[states])
        states = came_from[states]
    if not columns:
        return [()]
    return [tuple(row) for row in np.stack(columns[::-1], axis=1).tolist()]
