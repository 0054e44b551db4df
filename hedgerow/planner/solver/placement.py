"""Where tables lie: on all ranks by rows, on all as copies, or whole on one; busiest rank least."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ...core.errors import ConfigError
from ..problem.solution import PlanError
from .choice_problem import NS_PER_MS
from .placement_bound import Aggregate, aggregate, as_one, everywhere
from .placement_closer import closer
from .placement_exact import ExactPlacement, Spot, placed, ways
from .placement_pack import pack
from .placement_problem import PlacementTable, Ranks, does_not_fit, make_ranks

_EXACT_WAYS, _EXACT_STEPS = 10**9, 200_000  # few enough to try, and when trying is given up
_SLACKS = (0.0, 0.02, 0.05, 0.15, 0.4, -0.1, -0.3)  # on what a rank has left for a whole table
_CLOSE = 0.002  # to the bound: not worth more trying
_ROOMS = (1.0, 0.995, 0.98, 0.95, 0.9, 0.8)  # of memory, in turn: what is not full packs easily


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One option and rank a table (None: on all ranks), with the proven distance to the best.

    `status` is "optimal", or "bounded": `gap` is (busiest - lower bound) / busiest.
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
    """The busiest rank least busy; ties go to the least sum, HBM, host memory, then order.

    Small problems are solved exactly. Others are chosen as if all ranks were one, which gives the
    bound, then packed, and the distance between the two is reported.

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


def _ranks(hbm: Sequence[int], pools: Sequence[int], local_world: int) -> Ranks:
    if local_world < 1 or -(-len(hbm) // local_world) != len(pools) or not hbm:
        raise ConfigError(
            f"{len(hbm)} ranks, {local_world} a machine, and {len(pools)} pools of host memory; "
            f"give one pool for each machine, and at least one rank."
        )
    return make_ranks(hbm, pools, local_world)


def _exact(tables: Sequence[PlacementTable], ranks: Ranks) -> tuple[list[Spot] | None, int | None]:
    """The best placement; None where there are too many."""
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
    tables: Sequence[PlacementTable], ranks: Ranks, deadline: float
) -> tuple[list[Spot], int]:
    """The best packing of several choices, and the bound."""
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
    ranks: Ranks,
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
    ranks: Ranks,
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
    tables: Sequence[PlacementTable], ranks: Ranks, spots: Sequence[Spot]
) -> list[float]:
    """Sums of the options' own times."""
    chosen = [(t.options[place].ms, rank) for t, (place, rank) in zip(tables, spots, strict=True)]
    shared = math.fsum(ms for ms, rank in chosen if rank is None)
    alone: list[list[float]] = [[shared] for _ in range(ranks.count)]
    for ms, rank in chosen:
        if rank is not None:
            alone[rank].append(ms)
    return [math.fsum(parts) for parts in alone]
