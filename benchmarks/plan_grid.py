"""The published planner's choice of options: a dynamic programme over a grid of two memories.

It is a baseline, not a planner to use: a cell of the grid keeps its cheapest arrival, not its
smallest, so plans that exist can be missed; docs/guides/planner.md tells more.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class ShardedOption:
    """One way to keep a table: bytes of HBM and host memory of each shard, and its cost.

    >>> ShardedOption("item", ((10, 2), (10, 2)), 5.0).hbm
    20
    """

    table: str
    shards: tuple[tuple[int, int], ...]
    perf: float

    @property
    def hbm(self) -> int:
        """Of all shards."""
        return sum(hbm for hbm, _ in self.shards)

    @property
    def ddr(self) -> int:
        """Of all shards."""
        return sum(ddr for _, ddr in self.shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineMachines:
    """HBM and a slice of host memory of every device; `local_world` of them share a machine."""

    hbm: tuple[int, ...]
    ddr: tuple[int, ...]
    local_world: int | None = None

    def pruned(self, options: Sequence[ShardedOption]) -> list[ShardedOption]:
        """Options whose largest shard fits the largest device and the largest machine's pool."""
        local = self.local_world or len(self.hbm)
        starts = range(0, len(self.ddr), local)
        pool = max((sum(self.ddr[start : start + local]) for start in starts), default=0)
        card = max(self.hbm, default=0)
        return [
            option
            for option in options
            if all(hbm <= card and ddr <= pool for hbm, ddr in option.shards)
        ]


MOST_BINS = 1024
Cell = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _State:
    """The cheapest way into a cell: exact sizes in bins, and where it came from."""

    perf: float
    hbm: float
    ddr: float
    option: int
    came_from: Cell | None


class DynamicProgrammingProposer:
    """Proposes choices of one option a table, from the most memory to the least; single-owner.

    `mem_bins_per_device` is the old name of `hbm_bins_per_device`, and wins where both are given.

    >>> proposer = DynamicProgrammingProposer()
    >>> large, small = ShardedOption("item", ((100, 0),), 5.0), ShardedOption("item", ((9, 0),), 8)
    >>> proposer.load([large, small])
    >>> [option.perf for option in proposer.propose()]
    [8]
    >>> proposer.feedback(machines=BaselineMachines(hbm=(200,), ddr=(0,)))
    >>> [option.perf for option in proposer.propose()]
    [5.0]
    """

    def __init__(
        self,
        hbm_bins_per_device: int = 100,
        ddr_bins_per_device: int = 50,
        mem_bins_per_device: int | None = None,
    ) -> None:
        self._hbm_bins_per_device = (
            hbm_bins_per_device if mem_bins_per_device is None else mem_bins_per_device
        )
        self._ddr_bins_per_device = ddr_bins_per_device
        self._tables: list[list[ShardedOption]] = []
        self._proposals: list[list[ShardedOption]] | None = None
        self._next, self._over = 0, False

    def load(self, options: Sequence[ShardedOption]) -> None:
        """Takes all options: each table's by rising total memory."""
        tables: dict[str, list[ShardedOption]] = {}
        for option in sorted(options, key=lambda each: each.hbm + each.ddr):
            tables.setdefault(option.table, []).append(option)
        self._tables = list(tables.values())
        self._proposals, self._next, self._over = None, 0, False

    def propose(self) -> list[ShardedOption] | None:
        """The next choice; None after the last. The first is the least memory of every table."""
        if self._over:
            return None
        if self._proposals is None:
            return [options[0] for options in self._tables]
        if self._next >= len(self._proposals):
            return None
        return self._proposals[self._next]

    def feedback(self, *, machines: BaselineMachines | None = None) -> None:
        """Goes on to the next; the first time it brings the machines, and the grid is filled."""
        if not self._tables:
            self._over = True
        elif self._proposals is not None:
            self._next += 1
        elif machines is not None:
            self._proposals = self._filled(machines)

    def bins(self, machines: BaselineMachines) -> tuple[int, int]:
        """Bins of each axis: so many a device up to a limit; one where there is no memory."""
        count = len(machines.hbm)
        asked = self._hbm_bins_per_device * count, self._ddr_bins_per_device * count
        totals = sum(machines.hbm), sum(machines.ddr)
        hbm, ddr = (min(MOST_BINS, b) if t else 1 for b, t in zip(asked, totals, strict=True))
        return hbm, ddr

    def _filled(self, machines: BaselineMachines) -> list[list[ShardedOption]]:
        tables = [machines.pruned(options) for options in self._tables]
        if not all(tables):
            return []
        bins = self.bins(machines)
        layers: list[dict[Cell, _State]] = [{(0, 0): _State(0.0, 0.0, 0.0, -1, None)}]
        for options in tables:
            layers.append(_layer(layers[-1], options, bins, machines))
        last = layers.pop()
        choices = [_back(layers, tables, state) for _, state in sorted(last.items())]
        return sorted(choices, key=lambda c: sum(o.hbm + o.ddr for o in c), reverse=True)


def _layer(
    before: dict[Cell, _State],
    options: Sequence[ShardedOption],
    bins: tuple[int, int],
    machines: BaselineMachines,
) -> dict[Cell, _State]:
    """Every reachable cell after one more table; on a tie the first arrival stays."""
    hbm_bin, ddr_bin = (
        total / count
        for total, count in zip((sum(machines.hbm), sum(machines.ddr)), bins, strict=True)
    )
    after: dict[Cell, _State] = {}
    for (cell, state), (place, option) in itertools.product(
        sorted(before.items()), enumerate(options)
    ):
        hbm = state.hbm + (option.hbm / hbm_bin if hbm_bin else 0.0)
        ddr = state.ddr + (option.ddr / ddr_bin if ddr_bin else 0.0)
        if not (hbm < bins[0] and ddr < bins[1]):
            continue
        reached = int(hbm), int(ddr)
        perf = state.perf + option.perf
        if reached not in after or perf < after[reached].perf:
            after[reached] = _State(perf, hbm, ddr, place, cell)
    return after


def _back(
    layers: list[dict[Cell, _State]], tables: Sequence[Sequence[ShardedOption]], state: _State
) -> list[ShardedOption]:
    found: list[ShardedOption] = []
    for layer, options in zip(reversed(layers), reversed(tables), strict=True):
        found.append(options[state.option])
        if state.came_from is not None:
            state = layer[state.came_from]
    return found[::-1]


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
