from __future__ import annotations

import itertools
import random

import pytest

from benchmarks.plan_grid import (
    BaselineMachines,
    DynamicProgrammingProposer,
    GridTable,
    ShardedOption,
    grid_choices,
)


def _option(hbm: int, ddr: int, perf: float, table: str = "a") -> ShardedOption:
    return ShardedOption(table, ((hbm, ddr),), perf)


def _machines(devices: int, hbm: int, ddr: int, local: int | None = None) -> BaselineMachines:
    return BaselineMachines(hbm=(hbm,) * devices, ddr=(ddr,) * devices, local_world=local)


def _proposals(
    options: list[ShardedOption],
    machines: BaselineMachines,
    proposer: DynamicProgrammingProposer | None = None,
) -> list[list[ShardedOption]]:
    """All but the first, which is made before the machines are known."""
    proposer = proposer or DynamicProgrammingProposer()
    proposer.load(options)
    assert proposer.propose() is not None
    proposer.feedback(machines=machines)
    found = []
    while (proposal := proposer.propose()) is not None:
        found.append(proposal)
        proposer.feedback()
    return found


def _perf(proposal: list[ShardedOption]) -> float:
    return sum(option.perf for option in proposal)


def test_the_cache_wins_where_the_host_is_generous() -> None:
    options = [_option(1000, 0, 50), _option(100, 900, 80), _option(100, 1000, 10)]
    found = _proposals(options, _machines(2, 2000, 2000), DynamicProgrammingProposer(20, 20))
    assert min(map(_perf, found)) == 10


def test_the_cache_is_refused_where_the_host_is_tight() -> None:
    found = _proposals([_option(100, 900, 80), _option(100, 1000, 10)], _machines(1, 2000, 950))
    assert found
    assert {_perf(proposal) for proposal in found} == {80}


def test_both_modes_meet_at_a_factor_of_one() -> None:
    found = _proposals([_option(1000, 0, 50), _option(1000, 1000, 50)], _machines(1, 1100, 2000))
    assert found
    assert {_perf(proposal) for proposal in found} == {50}


def test_two_tables_take_one_mode_each() -> None:
    options = [
        _option(*sizes, table=table) for table in "ab" for sizes in ((1500, 0, 50), (100, 1500, 40))
    ]
    best = min(_proposals(options, _machines(1, 2000, 2000)), key=_perf)
    assert _perf(best) == 90
    assert sorted(option.hbm for option in best) == [100, 1500]


@pytest.mark.parametrize(("ddr", "proposed"), [(1500, False), (900, True)])
def test_a_shard_larger_than_a_machines_pool_is_pruned(ddr: int, proposed: bool) -> None:
    found = _proposals([_option(10, ddr, 5)], _machines(4, 1000, 500, local=2))
    assert bool(found) == proposed


def test_a_shard_larger_than_the_largest_device_is_pruned() -> None:
    machines = BaselineMachines(hbm=(100, 300), ddr=(0, 0))
    found = _proposals([_option(301, 0, 1), _option(300, 0, 2)], machines)
    assert [_perf(proposal) for proposal in found] == [2]


def test_an_empty_space_gives_an_empty_proposal_then_none() -> None:
    proposer = DynamicProgrammingProposer()
    proposer.load([])
    assert proposer.propose() == []
    proposer.feedback(machines=_machines(1, 10, 10))
    assert proposer.propose() is None


def test_a_table_whose_options_are_all_pruned_ends_the_proposals() -> None:
    options = [_option(10, 0, 1, "a"), _option(9999, 0, 1, "b")]
    assert _proposals(options, _machines(2, 100, 100)) == []


def test_the_old_name_of_the_bins_wins() -> None:
    machines = _machines(2, 100, 100)
    assert DynamicProgrammingProposer(7, 5).bins(machines) == (14, 10)
    assert DynamicProgrammingProposer(7, 5, mem_bins_per_device=9).bins(machines) == (18, 10)
    assert DynamicProgrammingProposer(mem_bins_per_device=9).bins(machines) == (18, 100)


def test_bins_are_capped_on_sixteen_devices() -> None:
    assert DynamicProgrammingProposer().bins(_machines(16, 100, 100)) == (1024, 800)
    assert DynamicProgrammingProposer().bins(_machines(32, 100, 100)) == (1024, 1024)
    assert DynamicProgrammingProposer().bins(_machines(2, 100, 100)) == (200, 100)


def test_an_axis_without_memory_is_one_bin_and_counts_nothing() -> None:
    machines = _machines(2, 0, 100)
    assert DynamicProgrammingProposer().bins(machines) == (1, 100)
    assert [_perf(p) for p in _proposals([_option(0, 50, 3)], machines)] == [3]


def test_the_first_proposal_is_the_least_memory_and_others_fall_in_memory() -> None:
    options = [_option(*o) for o in ((1000, 0, 1), (300, 200, 2), (10, 900, 3), (10, 20, 4))]
    proposer = DynamicProgrammingProposer()
    proposer.load(options)
    first = proposer.propose()
    assert first is not None
    assert _perf(first) == 4
    found = _proposals(options, _machines(2, 2000, 2000))
    totals = [sum(o.hbm + o.ddr for o in proposal) for proposal in found]
    assert totals == sorted(totals, reverse=True)
    assert len(totals) == 4


def _random(seed: int, tables: int = 5, options: int = 4) -> list[list[ShardedOption]]:
    dice = random.Random(seed)
    return [
        [
            _option(dice.randint(1, 400), dice.randint(1, 400), dice.randint(1, 99), f"t{t}")
            for _ in range(options)
        ]
        for t in range(tables)
    ]


def _dense_by_hbm_bin(
    tables: list[list[ShardedOption]], total: int, bins: int
) -> set[tuple[float, ...]]:
    """The dense grid, read as the second form is: the cheapest of each bin of HBM."""
    proposer = DynamicProgrammingProposer(bins, bins)
    flat = [option for options in tables for option in options]
    best: dict[int, float] = {}
    for proposal in _proposals(flat, _machines(1, total, total), proposer):
        reached = int(sum(option.hbm for option in proposal) / (total / bins))
        best[reached] = min(best.get(reached, 1e9), _perf(proposal))
    return set(best.items())


@pytest.mark.parametrize("seed", [0, 1, 7, 42, 1337])
def test_the_vector_form_proposes_what_the_dense_grid_does(seed: int) -> None:
    tables, total = _random(seed), 1600
    ordered = sorted(
        (sorted(options, key=lambda o: o.hbm + o.ddr) for options in tables),
        key=lambda options: options[0].hbm + options[0].ddr,  # as the dense one takes tables
    )
    grid = [GridTable([o.hbm for o in t], [o.ddr for o in t], [o.perf for o in t]) for t in ordered]
    found = set()
    for choice in grid_choices(grid, (total, total), (8, 8)):
        chosen = [options[place] for options, place in zip(ordered, choice, strict=True)]
        found.add((int(sum(o.hbm for o in chosen) / (total / 8)), _perf(chosen)))
    assert found == _dense_by_hbm_bin(tables, total, 8)


def test_a_fine_grid_finds_what_trying_everything_finds() -> None:
    tables = _random(3, tables=3)
    best = min(
        _perf(list(choice))
        for choice in itertools.product(*tables)
        if sum(o.hbm for o in choice) < 700 and sum(o.ddr for o in choice) < 700
    )
    flat = [option for options in tables for option in options]
    found = _proposals(flat, _machines(1, 700, 700), DynamicProgrammingProposer(700, 700))
    assert min(map(_perf, found)) == best


def test_an_exact_fit_is_refused_as_the_published_one_does() -> None:
    assert _proposals([_option(100, 0, 1)], _machines(1, 100, 10)) == []
