"""Packs whole tables onto ranks: the largest first, then moves and swaps off the busiest rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .choice_problem import Bools, Ints
from .placement_exact import Spot, placed
from .placement_problem import Loads, PlacementTable, Ranks, ns, shares

_ROUNDS = 2000


def pack(
    tables: Sequence[PlacementTable], ranks: Ranks, options: Sequence[int]
) -> list[Spot] | None:
    """A place for every table with these options, or None where one does not fit."""
    chosen = [table.options[place] for table, place in zip(tables, options, strict=True)]
    loads = Loads.none(ranks)
    for option in chosen:
        if option.everywhere:
            loads = loads.plus(ranks, option, None)
    if not loads.fits(ranks):
        return None
    single = [index for index, option in enumerate(chosen) if not option.everywhere]
    scale = int(loads.cost.max()) + sum(ns(chosen[i]) for i in single) // ranks.count
    size = shares(ranks, [chosen[i] for i in single], scale)
    spots: list[Spot] = [(place, None) for place in options]
    for index in (single[i] for i in np.argsort(-size, kind="stable")):
        option = chosen[index]
        fits = (loads.hbm + option.hbm <= ranks.hbm) & (
            (loads.ddr + option.ddr <= ranks.pool)[ranks.machine]
        )
        if not fits.any():
            return None
        rank = int(np.where(fits, loads.cost, np.iinfo(np.int64).max).argmin())
        loads = loads.plus(ranks, option, rank)
        spots[index] = (options[index], rank)
    return _Balance(tables, ranks, spots).spots()


class _Balance:
    """Moves single tables off the busiest rank while that lessens it; single-owner."""

    def __init__(self, tables: Sequence[PlacementTable], ranks: Ranks, spots: list[Spot]) -> None:
        self._ranks, self._spots = ranks, spots
        self._single = np.array([i for i, (_, rank) in enumerate(spots) if rank is not None])
        chosen = [tables[i].options[spots[i][0]] for i in self._single]
        self._cost = np.array([ns(o) for o in chosen], np.int64)
        self._hbm = np.array([o.hbm for o in chosen], np.int64)
        self._ddr = np.array([o.ddr for o in chosen], np.int64)
        self._rank = np.array([spots[i][1] for i in self._single], np.int64)
        self._loads = placed(tables, ranks, spots)

    def spots(self) -> list[Spot]:
        """After as many moves and swaps as help."""
        for _ in range(_ROUNDS if len(self._single) else 0):
            if not (self._move() or self._swap()):
                break
        for index, rank in zip(self._single, self._rank, strict=True):
            self._spots[index] = (self._spots[index][0], int(rank))
        return self._spots

    def _room(self, table: int, hbm: Ints, ddr: Ints) -> Bools:
        """Ranks that could hold the table, with so much lying there."""
        ranks = self._ranks
        home = ranks.machine[self._rank[table]]
        here = ranks.machine == home  # its own bytes are in that pool already
        pool = ddr[ranks.machine] + np.where(here, 0, self._ddr[table])
        return (hbm + self._hbm[table] <= ranks.hbm) & (pool <= ranks.pool[ranks.machine])

    def _move(self) -> bool:
        """One table of the busiest rank to where it makes a rank the least busy."""
        loads, busiest = self._loads, int(self._loads.cost.argmax())
        best: tuple[int, int, int] | None = None
        for table in np.flatnonzero(self._rank == busiest).tolist():
            after = loads.cost + self._cost[table]
            good = self._room(table, loads.hbm, loads.ddr) & (after < loads.cost[busiest])
            good[busiest] = False
            if good.any():
                rank = int(np.where(good, after, np.iinfo(np.int64).max).argmin())
                left = loads.cost[busiest] - self._cost[table]
                key = (max(int(after[rank]), int(left)), int(table), rank)
                best = key if best is None else min(best, key)
        if best is None:
            return False
        self._put(best[1], best[2])
        return True

    def _swap(self) -> bool:
        """One table of the busiest rank for a smaller one elsewhere."""
        loads, ranks, busiest = self._loads, self._ranks, int(self._loads.cost.argmax())
        best: tuple[int, int, int] | None = None
        others = np.flatnonzero(self._rank != busiest)
        there = self._rank[others]
        for table in np.flatnonzero(self._rank == busiest):
            less = self._cost[table] - self._cost[others]
            pair = np.maximum(loads.cost[busiest] - less, loads.cost[there] + less)
            more_hbm = self._hbm[table] - self._hbm[others]
            more_ddr = self._ddr[table] - self._ddr[others]
            mine, theirs = ranks.machine[busiest], ranks.machine[there]
            same = mine == theirs
            fits = (loads.hbm[there] + more_hbm <= ranks.hbm[there]) & (
                loads.hbm[busiest] - more_hbm <= ranks.hbm[busiest]
            )
            fits &= same | (
                (loads.ddr[theirs] + more_ddr <= ranks.pool[theirs])
                & (loads.ddr[mine] - more_ddr <= ranks.pool[mine])
            )
            good = fits & (less > 0) & (pair < loads.cost[busiest])
            if good.any():
                other = int(np.where(good, pair, np.iinfo(np.int64).max).argmin())
                key = (int(pair[other]), int(table), int(others[other]))
                best = key if best is None else min(best, key)
        if best is None:
            return False
        rank = int(self._rank[best[2]])
        self._put(best[2], busiest)
        self._put(best[1], rank)
        return True

    def _put(self, table: int, rank: int) -> None:
        loads, old = self._loads, int(self._rank[table])
        for place, sign in ((old, -1), (rank, 1)):
            loads.cost[place] += sign * self._cost[table]
            loads.hbm[place] += sign * self._hbm[table]
            loads.ddr[self._ranks.machine[place]] += sign * self._ddr[table]
        self._rank[table] = rank
