from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from hedgerow.core.errors import ConfigError
from hedgerow.planner.problem.options import PlanError
from hedgerow.planner.solver import placement
from hedgerow.planner.solver.placement import Placement, place
from hedgerow.planner.solver.placement_problem import PlacementOption, PlacementTable, small_enough

Way = tuple[int, int | None]


def _random(dice: random.Random, tables: int) -> list[PlacementTable]:
    made = []
    for index in range(tables):
        size, ms = dice.randint(2, 9), dice.randint(1, 9)
        ways = [
            PlacementOption("rows", "row", -(-size // 2), dice.randint(0, 2), float(ms)),
            PlacementOption("whole", "table", size, dice.randint(0, 4), float(ms + 1)),
            PlacementOption("copy", "copy", size, 0, float(max(1, ms - 2))),
        ]
        made.append(PlacementTable(f"t{index}", tuple(ways[: dice.randint(1, 3)])))
    return made


def _tried(
    tables: list[PlacementTable], hbm: list[int], pools: list[int], local: int
) -> tuple[tuple[float, float, int, int], tuple[Way, ...]] | None:
    """Everything there is, by plain counting."""
    best = None
    spots = [
        [
            (place, rank)
            for place, option in enumerate(table.options)
            for rank in ([None] if option.everywhere else range(len(hbm)))
        ]
        for table in tables
    ]
    for choice in itertools.product(*spots):
        cost, used, ddr = [0.0] * len(hbm), [0] * len(hbm), [0] * len(pools)
        for table, (way, at) in zip(tables, choice, strict=True):
            option = table.options[way]
            for rank in range(len(hbm)) if at is None else [at]:
                cost[rank] += option.ms
                used[rank] += option.hbm
                ddr[rank // local] += option.ddr
        if all(map(int.__le__, used, hbm)) and all(map(int.__le__, ddr, pools)):
            key = (max(cost), sum(cost), sum(used), sum(ddr))
            best = (key, choice) if best is None or key < best[0] else best
    return best


@pytest.mark.parametrize("seed", range(40))
def test_small_problems_have_the_best_of_all_placements(seed: int) -> None:
    dice = random.Random(seed)
    tables = _random(dice, 4)
    hbm = [dice.randint(12, 30) for _ in range(3)]
    pools = [dice.randint(4, 12), dice.randint(2, 8)]
    best = _tried(tables, hbm, pools, 2)
    if best is None:
        with pytest.raises(PlanError):
            place(tables, hbm, pools, 2)
        return
    found = place(tables, hbm, pools, 2)
    assert found.status == "optimal"
    assert tuple(zip(found.options, found.ranks, strict=True)) == best[1]
    assert (found.busiest_ms, sum(found.ms_by_rank)) == best[0][:2]


@pytest.mark.parametrize("seed", range(20))
def test_packing_is_never_below_its_bound_nor_the_best_below_it(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(100 + seed)
    tables = _random(dice, 5)
    where = ([40, 40, 40], [20, 20], 2)
    exact = place(tables, *where)
    monkeypatch.setattr(placement, "_EXACT_WAYS", 0)
    packed = place(tables, *where)
    assert packed.lower_bound_ms <= exact.busiest_ms <= packed.busiest_ms
    _holds(tables, packed, *where)


def _holds(
    tables: list[PlacementTable], found: Placement, hbm: list[int], pools: list[int], local: int
) -> None:
    """Loads are those of the choice, and within memory."""
    used, ddr = np.zeros(len(hbm), np.int64), np.zeros(len(pools), np.int64)
    for table, way, at in zip(tables, found.options, found.ranks, strict=True):
        option = table.options[way]
        assert (at is None) == option.everywhere
        for rank in range(len(hbm)) if at is None else [at]:
            used[rank] += option.hbm
            ddr[rank // local] += option.ddr
    assert tuple(used) == found.hbm_by_rank
    assert tuple(ddr) == found.ddr_by_machine
    assert (used <= hbm).all()
    assert (ddr <= pools).all()


GIB = 2**30


def _fleet(seed: int, tables: int, world: int) -> list[PlacementTable]:
    """Tables of all sizes: rows pay an exchange on all ranks, whole tables lie on one."""
    dice = np.random.default_rng(seed)
    made = []
    for index in range(tables):
        size = int(10 ** dice.uniform(6.0, 10.5))
        work = float(10 ** dice.uniform(-1.0, 0.8))
        ways = (
            PlacementOption("rows", "row", size // world + 4096, 0, 0.01 + work / world),
            PlacementOption("host", "row", size // world // 10, size // world, 0.02 + work / 9),
            PlacementOption("whole", "table", size, 0, 0.02 + 0.7 * work),
            PlacementOption("copy", "copy", size, 0, 0.015 + 0.9 * work / world),
        )
        made.append(small_enough(PlacementTable(f"t{index}", ways), 80 * GIB))
    return made


@pytest.mark.parametrize(("world", "tables"), [(16, 200), (32, 400), (128, 600), (128, 1500)])
def test_fleets_are_packed_within_three_percent_of_the_best(world: int, tables: int) -> None:
    made = _fleet(world, tables, world)
    where = ([80 * GIB] * world, [512 * GIB] * (world // 8), 8)
    found = place(made, *where)
    assert found.gap <= 0.03
    kinds = {t.options[o].kind for t, o in zip(made, found.options, strict=True)}
    assert "table" in kinds
    _holds(made, found, *where)


def test_whole_tables_above_a_share_of_a_card_are_left_out_if_others_are_left() -> None:
    big = PlacementOption("whole", "table", 10, 0, 1.0)
    rows = PlacementOption("rows", "row", 5, 0, 1.0)
    assert small_enough(PlacementTable("a", (big, rows)), 100).options == (rows,)
    assert small_enough(PlacementTable("a", (big, rows)), 200).options == (big, rows)
    assert small_enough(PlacementTable("a", (big,)), 100).options == (big,)


def test_what_cannot_be_is_refused() -> None:
    whole = PlacementTable("a", (PlacementOption("whole", "table", 11, 0, 1.0),))
    with pytest.raises(PlanError, match="No placement fits"):
        place([whole], [10, 10], [0], 2)
    with pytest.raises(PlanError, match="'b' has no options"):
        place([PlacementTable("b", ())], [10], [0], 1)
    with pytest.raises(ConfigError, match="3 ranks, 2 a machine, and 1 pools"):
        place([whole], [10, 10, 10], [0], 2)
    with pytest.raises(ConfigError, match="kind"):
        PlacementOption("x", "column", 1, 1, 1.0)


def test_nothing_to_place_takes_nothing() -> None:
    found = place([], [10, 10], [5], 2)
    assert (found.status, found.options, found.busiest_ms, found.gap) == ("optimal", (), 0.0, 0.0)
