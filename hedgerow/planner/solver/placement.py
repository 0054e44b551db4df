"""Places tables on ranks so that the load of the busiest rank is as small as possible.

If the busiest rank has load Z and the longest whole table takes c, then tables on all ranks take at
most Z - c. A Z for which no c leaves enough is a lower bound.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...core.errors import ConfigError
from ..problem.options import PlanError
from .branch import branch
from .choice_problem import NS_PER_MS, Bools, ChoiceProblem, Ints, prune, whole
from .placement_problem import (
    Loads,
    PlacementTable,
    RankLimits,
    does_not_fit,
    make_ranks,
    ns,
    shares,
)
from .relax import relax


@dataclass(frozen=True, slots=True)
class Aggregate:
    """The options whose times sum to the least, and the lower bound of the busiest rank from it."""

    options: tuple[int, ...]
    busiest: int


def aggregate(
    tables: Sequence[PlacementTable],
    ranks: RankLimits,
    longest: int | None,
    deadline: float,
    room: float = 1.0,
) -> Aggregate | None:
    """Returns the bound of placements whose whole tables take at most `longest` nanoseconds.

    The memory of all ranks counts as one, as does host memory; a share `room` of it may be used.
    Returns None if even that does not fit.
    """
    problem = as_one(tables, ranks, longest, room)
    if not problem.there.any(axis=1).all():
        return None
    left = prune(problem)
    if left is None:
        return None
    found = branch(whole(left), None, deadline)
    if found.answer is None:
        return None
    even = -(-int(min(found.answer.cost, np.ceil(found.least_cost))) // ranks.count)
    alone = max(min(ns(o) for o in table.options) for table in tables)
    return Aggregate(found.answer.options, max(even, alone))


def as_one(
    tables: Sequence[PlacementTable], ranks: RankLimits, longest: int | None, room: float = 1.0
) -> ChoiceProblem:
    """Returns the problem with all ranks as one. Options that fit on no rank are left out."""
    width = max(len(table.options) for table in tables)
    shape = (len(tables), width)
    cost, hbm, ddr = (np.zeros(shape, np.int64) for _ in range(3))
    there = np.zeros(shape, np.bool_)
    share = (ranks.pool // np.maximum(1, ranks.per_machine)).min()
    for row, table in enumerate(tables):
        for column, option in enumerate(table.options):
            times = ranks.count if option.everywhere else 1
            cost[row, column] = ns(option) * times
            hbm[row, column], ddr[row, column] = option.hbm * times, option.ddr * times
            if option.everywhere:
                fits = option.hbm <= ranks.hbm.min() and option.ddr <= share
            else:
                fits = option.hbm <= ranks.hbm.max() and option.ddr <= ranks.pool.max()
                fits = fits and (longest is None or ns(option) <= longest)
            there[row, column] = fits
    order = np.broadcast_to(np.arange(width), shape).copy()
    limits = int(ranks.hbm.sum()), int(ranks.pool.sum())
    if room < 1:
        limits = int(room * limits[0]), int(room * limits[1])
    return ChoiceProblem(cost, hbm, ddr, order, there, *limits)


def everywhere(tables: Sequence[PlacementTable], options: Sequence[int]) -> int:
    """Returns the time that every rank spends on tables that are on all ranks."""
    chosen = [table.options[place] for table, place in zip(tables, options, strict=True)]
    return sum(ns(option) for option in chosen if option.everywhere)


_STEPS, _FINE = 120, 0.002  # sections of table lengths; relative precision of Z
Options = tuple[int, ...]


def closer(
    problem: ChoiceProblem,
    tables: Sequence[PlacementTable],
    ranks: RankLimits,
    within: tuple[int, int],
    deadline: float,
) -> tuple[int, list[Options]]:
    """Returns a lower bound of the busiest rank between two known ones, and choices close to it.

    `problem` is the problem of all ranks as one.
    """
    low, high = within
    asked = _Asked(problem, tables, ranks)
    choices: list[Options] = []
    while high - low > _FINE * high and time.monotonic() < deadline:
        middle = (low + high) // 2
        found = asked.possible(middle)
        if found:
            high, choices = middle, [*found, *choices]
        else:
            low = middle + 1
    return low, choices


class _Asked:
    """The problem with host memory replaced by the time of tables on all ranks."""

    def __init__(
        self, problem: ChoiceProblem, tables: Sequence[PlacementTable], ranks: RankLimits
    ) -> None:
        self._problem, self._ranks = problem, ranks
        self._whole = np.zeros(problem.cost.shape, np.bool_)
        for row, table in enumerate(tables):
            flags = [not option.everywhere for option in table.options]
            self._whole[row, : len(flags)] = flags
        self._each = np.where(self._whole, 0, problem.cost // ranks.count)

    def possible(self, busiest: int) -> list[Options]:
        """Returns rounded choices whose busiest rank may be at most `busiest`.

        Empty if it is impossible.
        """
        found, edges = [], np.linspace(busiest, 0, _STEPS + 1).astype(np.int64)
        for longest, shortest in itertools.pairwise(edges):
            there = self._problem.there & (~self._whole | (self._problem.cost <= longest))
            if not there.any(axis=1).all():
                break
            asked = replace(
                self._problem, ddr=self._each, there=there, ddr_limit=busiest - int(shortest)
            )
            relaxed = relax(asked)
            if relaxed is not None and relaxed.least_cost <= busiest * self._ranks.count:
                found.append(tuple(relaxed.rounded.tolist()))
        return found


Spot = tuple[int, int | None]  # the index of the option, and its rank
Key = tuple[int, int, int, int]  # busiest rank, sum, HBM, host memory; less is better


class ExactPlacement:
    """Depth-first search by tables, options and ranks, so that the first of equals is kept."""

    def __init__(
        self, tables: Sequence[PlacementTable], ranks: RankLimits, most_steps: int
    ) -> None:
        self._tables, self._ranks, self._steps = tables, ranks, most_steps
        self._least = _least_after(tables, ranks)
        self.best: tuple[Key, tuple[Spot, ...]] | None = None
        self.complete = True

    def search(self) -> None:
        """Fills `best`. `complete` is False if there were too many placements."""
        self._down(0, Loads.none(self._ranks), ())

    def _down(self, place: int, loads: Loads, spots: tuple[Spot, ...]) -> None:
        self._steps -= 1
        if self._steps < 0:
            self.complete = False
            return
        if place == len(self._tables):
            key = _key(loads, 0, 0)
            if self.best is None or key < self.best[0]:
                self.best = (key, spots)
            return
        for option_place, option in enumerate(self._tables[place].options):
            spread = (None,) if option.everywhere else range(self._ranks.count)
            for rank in spread:
                after = loads.plus(self._ranks, option, rank)
                if after.fits(self._ranks) and self._may_win(after, place + 1):
                    self._down(place + 1, after, (*spots, (option_place, rank)))

    def _may_win(self, loads: Loads, place: int) -> bool:
        if self.best is None:
            return True
        total, single = self._least[place]
        return _key(loads, total, single) < self.best[0]


def _key(loads: Loads, total: int, single: int) -> Key:
    """Returns a lower bound of a placement's key, given what is still to be placed."""
    everything = int(loads.cost.sum()) + total
    even = -(-everything // len(loads.cost))
    busiest = max(int(loads.cost.max()), even, int(loads.cost.min()) + single)
    return busiest, everything, int(loads.hbm.sum()), int(loads.ddr.sum())


def _least_after(tables: Sequence[PlacementTable], ranks: RankLimits) -> list[tuple[int, int]]:
    """Returns, from each table on, the least time on all ranks and the largest least time."""
    total, single, found = 0, 0, [(0, 0)]
    for table in reversed(tables):
        options = table.options
        total += min(ns(o) * (ranks.count if o.everywhere else 1) for o in options)
        single = max(single, min(ns(o) for o in options))
        found.append((total, single))
    return found[::-1]


def placed(tables: Sequence[PlacementTable], ranks: RankLimits, spots: Sequence[Spot]) -> Loads:
    """Returns the load of every rank and machine."""
    loads = Loads.none(ranks)
    for table, (place, rank) in zip(tables, spots, strict=True):
        loads = loads.plus(ranks, table.options[place], rank)
    return loads


def ways(tables: Sequence[PlacementTable], ranks: RankLimits) -> int:
    """Returns the number of placements, whether they fit or not."""
    counts = [sum(1 if o.everywhere else ranks.count for o in t.options) for t in tables]
    return math.prod(counts)


_ROUNDS = 2000


def pack(
    tables: Sequence[PlacementTable], ranks: RankLimits, options: Sequence[int]
) -> list[Spot] | None:
    """Returns a spot for every table with the given options, or None if one does not fit."""
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
    """Moves tables off the busiest rank as long as that reduces its load. Not thread-safe."""

    def __init__(
        self, tables: Sequence[PlacementTable], ranks: RankLimits, spots: list[Spot]
    ) -> None:
        self._ranks, self._spots = ranks, spots
        self._single = np.array([i for i, (_, rank) in enumerate(spots) if rank is not None])
        chosen = [tables[i].options[spots[i][0]] for i in self._single]
        self._cost = np.array([ns(o) for o in chosen], np.int64)
        self._hbm = np.array([o.hbm for o in chosen], np.int64)
        self._ddr = np.array([o.ddr for o in chosen], np.int64)
        self._rank = np.array([spots[i][1] for i in self._single], np.int64)
        self._loads = placed(tables, ranks, spots)

    def spots(self) -> list[Spot]:
        """Returns the spots after all moves and swaps that help."""
        for _ in range(_ROUNDS if len(self._single) else 0):
            if not (self._move() or self._swap()):
                break
        for index, rank in zip(self._single, self._rank, strict=True):
            self._spots[index] = (self._spots[index][0], int(rank))
        return self._spots

    def _room(self, table: int, hbm: Ints, ddr: Ints) -> Bools:
        """Returns the ranks that could hold the table beside the given loads."""
        ranks = self._ranks
        home = ranks.machine[self._rank[table]]
        here = ranks.machine == home  # its bytes are already counted on that machine
        pool = ddr[ranks.machine] + np.where(here, 0, self._ddr[table])
        return (hbm + self._hbm[table] <= ranks.hbm) & (pool <= ranks.pool[ranks.machine])

    def _move(self) -> bool:
        """Moves one table of the busiest rank to the rank where it hurts least."""
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
        """Swaps one table of the busiest rank for a shorter one of another rank."""
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


_EXACT_WAYS, _EXACT_STEPS = 10**9, 200_000  # few enough to enumerate; when to give up
_SLACKS = (0.0, 0.02, 0.05, 0.15, 0.4, -0.1, -0.3)  # on the time left for a whole table
_CLOSE = 0.002  # close enough to the bound to stop
_ROOMS = (1.0, 0.995, 0.98, 0.95, 0.9, 0.8)  # shares of memory to use; less packs easily


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One option and rank per table (None: all ranks), with the proven distance to the optimum.

    `status` is "optimal" or "bounded". `gap` is (busiest - lower bound) / busiest.
    """

    status: str
    options: tuple[int, ...]
    ranks: tuple[int | None, ...]
    busiest_ms: float
    lower_bound_ms: float
    gap: float
    ms_by_rank: tuple[float, ...]
    hbm_by_rank: tuple[int, ...]
    ddr_by_machine: tuple[int, ...]
    seconds: float


def place(
    tables: Sequence[PlacementTable],
    hbm_by_rank: Sequence[int],
    ddr_by_machine: Sequence[int],
    local_world: int,
    *,
    time_limit: float = 10.0,
) -> Placement:
    """Returns the placement whose busiest rank has the least load.

    Ties go to the smaller sum, then less HBM, less host memory, and the order of options. Small
    problems are solved exactly. For large ones all ranks count as one, which gives a bound; then
    the tables are packed, and the distance to the bound is reported.

    >>> from .placement_problem import PlacementOption
    >>> whole = [
    ...     PlacementTable(name, (PlacementOption("whole", "table", 10, 0, ms),))
    ...     for name, ms in (("a", 8.0), ("b", 5.0), ("c", 4.0))
    ... ]
    >>> found = place(whole, [30, 30], [0], local_world=2)
    >>> found.ranks, found.busiest_ms, found.status
    ((0, 1, 1), 9.0, 'optimal')
    """
    begun = time.monotonic()
    ranks = _ranks(hbm_by_rank, ddr_by_machine, local_world)
    for table in tables:
        if not table.options:
            raise PlanError(
                f"Table {table.name!r} has no options; allow at least one way to place it.",
                kind="no_options",
                never_fit=[table.name],
            )
    spots, bound = _exact(tables, ranks)
    if spots is None:
        spots, bound = _packed(tables, ranks, begun + time_limit)
    return _placement(tables, ranks, spots, bound, begun)


def _ranks(hbm: Sequence[int], pools: Sequence[int], local_world: int) -> RankLimits:
    if local_world < 1 or -(-len(hbm) // local_world) != len(pools) or not hbm:
        raise ConfigError(
            f"{len(hbm)} ranks, {local_world} a machine, and {len(pools)} pools of host memory; "
            f"give one pool for each machine, and at least one rank."
        )
    return make_ranks(hbm, pools, local_world)


def _exact(
    tables: Sequence[PlacementTable], ranks: RankLimits
) -> tuple[list[Spot] | None, int | None]:
    """Returns the best placement and its load, or None if there are too many placements."""
    if ways(tables, ranks) > _EXACT_WAYS:
        return None, None
    search = ExactPlacement(tables, ranks, _EXACT_STEPS)
    search.search()
    if not search.complete:
        return None, None
    if search.best is None:
        raise does_not_fit("every way was tried")
    return list(search.best[1]), search.best[0][0]


def _packed(
    tables: Sequence[PlacementTable], ranks: RankLimits, deadline: float
) -> tuple[list[Spot], int]:
    """Returns the best packing of several choices, and the lower bound."""
    first = aggregate(tables, ranks, None, deadline)
    if first is None:
        raise does_not_fit("even with the memory of all ranks taken together")
    best = _try(tables, ranks, first, None)
    for room, slack in itertools.product(_ROOMS, _SLACKS):
        close = best is not None and best[0] <= first.busiest * (1 + _CLOSE)
        if close or (time.monotonic() > deadline and best is not None):
            break
        left = first.busiest - everywhere(tables, first.options)
        other = aggregate(tables, ranks, int(left * (1 + slack)), deadline, room)
        if other is not None:
            best = _try(tables, ranks, other, best)
    if best is None:
        raise PlanError(
            "No placement was found: whole tables do not pack onto the ranks. Give more memory, or "
            "let more tables be split by rows."
        )
    if best[0] <= first.busiest * (1 + _CLOSE):
        return best[1], first.busiest
    one = as_one(tables, ranks, None)
    bound, choices = closer(one, tables, ranks, (first.busiest, best[0]), deadline)
    for options in choices:
        best = _try(tables, ranks, Aggregate(options, bound), best) or best
    return best[1], min(bound, best[0])


def _try(
    tables: Sequence[PlacementTable],
    ranks: RankLimits,
    chosen: Aggregate,
    best: tuple[int, list[Spot]] | None,
) -> tuple[int, list[Spot]] | None:
    spots = pack(tables, ranks, chosen.options)
    if spots is None:
        return best
    found = int(placed(tables, ranks, spots).cost.max()), spots
    return found if best is None or found[0] < best[0] else best


def _placement(
    tables: Sequence[PlacementTable],
    ranks: RankLimits,
    spots: Sequence[Spot],
    bound: int | None,
    begun: float,
) -> Placement:
    loads = placed(tables, ranks, spots)
    busiest = int(loads.cost.max())
    least = busiest if bound is None else bound
    ms = _ms_by_rank(tables, ranks, spots)
    return Placement(
        status="optimal" if least >= busiest else "bounded",
        options=tuple(place for place, _ in spots),
        ranks=tuple(rank for _, rank in spots),
        busiest_ms=max(ms),
        lower_bound_ms=max(ms) if least >= busiest else least / NS_PER_MS,
        gap=(busiest - least) / busiest if busiest else 0.0,
        ms_by_rank=tuple(ms),
        hbm_by_rank=tuple(loads.hbm.tolist()),
        ddr_by_machine=tuple(loads.ddr.tolist()),
        seconds=time.monotonic() - begun,
    )


def _ms_by_rank(
    tables: Sequence[PlacementTable], ranks: RankLimits, spots: Sequence[Spot]
) -> list[float]:
    """Returns the sum of the options' times on each rank."""
    chosen = [(t.options[place].ms, rank) for t, (place, rank) in zip(tables, spots, strict=True)]
    shared = math.fsum(ms for ms, rank in chosen if rank is None)
    alone: list[list[float]] = [[shared] for _ in range(ranks.count)]
    for ms, rank in chosen:
        if rank is not None:
            alone[rank].append(ms)
    return [math.fsum(parts) for parts in alone]
