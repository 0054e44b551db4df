"""The published time model: its ratios, its statistics, and that it changes nothing."""

from __future__ import annotations

import copy
from dataclasses import FrozenInstanceError, dataclass, field, replace
from fractions import Fraction
from itertools import pairwise

import pytest

from hedgerow.core.errors import ConfigError, InputError
from hedgerow.planner.problem.key_stats import KeyStats
from hedgerow.planner.problem.options import HBM_ONLY, HOST_ONLY, Mode, Variant, variants
from hedgerow.planner.problem.table_spec import Feature, TableSpec
from hedgerow.planner.problem.topology import GIB, Topology
from hedgerow.planner.sizes.layout import BASELINE
from hedgerow.planner.sizes.storage import StepLoad, storage_of
from tests.planner.published_planner import (
    TENTHS,
    MissHistogram,
    baseline_grid,
    baseline_ms,
    effective_ratio,
)

from .words import NO_CARDS, ONE_CARD

SPEC = TableSpec(name="t", rows=4_000_000, dim=128, optimizer="adam")
LOAD = StepLoad(batch=65536)
BELOW_ONE = TENTHS[:-1]


@dataclass
class Known:
    """Statistics that can change, to see whether anybody changes them."""

    miss_rate: float | None
    asked: list[Fraction] = field(default_factory=list)

    def expected_miss_rate(self, share: Fraction) -> float:
        self.asked.append(share)
        if self.miss_rate is None:
            raise RuntimeError("no such size")
        return self.miss_rate


class TestVariants:
    def test_twenty_or_two(self) -> None:
        grid = baseline_grid()
        assert [v.mode for v in grid] == [Mode.HYBRID] * 10 + [Mode.CACHING] * 10
        assert [v.load_factor for v in grid] == [*TENTHS, *TENTHS]
        assert [v.label for v in baseline_grid("0.3")] == ["HYBRID@0.3", "CACHING@0.3"]
        assert baseline_grid(device="cpu") == (HOST_ONLY,)

    @pytest.mark.parametrize("wrong", ["1.5", "-0.1", "half", "nan"])
    def test_a_factor_outside_is_refused(self, wrong: str) -> None:
        with pytest.raises(ConfigError, match="load_factor"):
            baseline_grid(wrong)

    @pytest.mark.parametrize("grid", [baseline_grid(), baseline_grid("0.3"), variants()])
    def test_they_share_nothing_that_can_change(self, grid: tuple[Variant, ...]) -> None:
        assert len(set(grid)) == len(grid)
        for variant in grid:
            assert {type(value) for value in (variant.mode, variant.load_factor)} == {Mode, str}
            with pytest.raises(FrozenInstanceError):
                variant.load_factor = "0.7"  # pyright: ignore[reportAttributeAccessIssue]
            assert not hasattr(variant, "__dict__")


class TestRatio:
    @pytest.mark.parametrize("mode", [Mode.HYBRID, Mode.CACHING])
    def test_one_when_all_rows_are_in_hbm(self, mode: Mode) -> None:
        assert effective_ratio(Variant(mode, "1.0")) == 1
        assert effective_ratio(HBM_ONLY) == 1
        assert effective_ratio(HOST_ONLY) == 0

    @pytest.mark.parametrize("factor", BELOW_ONE)
    def test_caching_is_above_hybrid(self, factor: str) -> None:
        cached, split = (
            effective_ratio(Variant(mode, factor)) for mode in (Mode.CACHING, Mode.HYBRID)
        )
        assert cached > split

    @pytest.mark.parametrize("mode", [Mode.HYBRID, Mode.CACHING])
    def test_it_rises_with_the_factor(self, mode: Mode) -> None:
        ratios = [effective_ratio(Variant(mode, factor)) for factor in TENTHS]
        assert all(a < b for a, b in pairwise(ratios))

    @pytest.mark.parametrize(
        ("miss_rate", "ratio"), [(0.25, Fraction(3, 4)), (-0.5, 1), (1.5, 0), (0, 1), (1, 0)]
    )
    def test_statistics_replace_it_in_every_variant(
        self, miss_rate: float, ratio: Fraction
    ) -> None:
        stats = Known(miss_rate)
        below = [v for v in baseline_grid() if v.share < 1]
        assert [effective_ratio(v, stats) for v in below] == [ratio] * 18
        assert stats.asked == [v.share for v in below]

    def test_statistics_that_are_no_number_are_refused(self) -> None:
        with pytest.raises(InputError, match="expected_miss_rate gave NaN"):
            effective_ratio(Variant(Mode.CACHING, "0.5"), Known(float("nan")))


class TestHistogram:
    STATS = MissHistogram((60, 20, 10, 10))

    @pytest.mark.parametrize(
        ("share", "miss_rate"), [("0", 1), ("0.25", 0.4), ("0.375", 0.3), ("0.5", 0.2), ("1", 0)]
    )
    def test_accesses_above_a_size_miss(self, share: str, miss_rate: float) -> None:
        assert self.STATS.expected_miss_rate(Fraction(share)) == pytest.approx(miss_rate)

    @pytest.mark.parametrize("counts", [(), (0, 0, 0)])
    def test_without_data_nothing_misses(self, counts: tuple[int, ...]) -> None:
        assert MissHistogram(counts).expected_miss_rate(Fraction(1, 10)) == 0

    def test_counts_below_zero_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="counts is -1"):
            MissHistogram((3, -1))

    def test_it_serves_both_modes_alike(self) -> None:
        times = {
            mode: baseline_ms(SPEC, Variant(mode, "0.25"), ONE_CARD, LOAD, self.STATS)
            for mode in (Mode.HYBRID, Mode.CACHING)
        }
        assert len(set(times.values())) == 1


@pytest.mark.parametrize("factor", BELOW_ONE)
def test_caching_is_faster_than_hybrid_and_takes_more_host_memory(factor: str) -> None:
    split, cached = Variant(Mode.HYBRID, factor), Variant(Mode.CACHING, factor)
    times = [baseline_ms(SPEC, v, ONE_CARD, LOAD) for v in (split, cached)]
    host = [storage_of(SPEC, v, ONE_CARD, BASELINE, LOAD).ddr for v in (split, cached)]
    assert times[0] > times[1] > 0
    assert host[0] < host[1]


@pytest.mark.parametrize("miss_rate", [0.3, None], ids=["answers", "raises"])
def test_estimating_changes_nothing(miss_rate: float | None) -> None:
    spec = replace(SPEC, stats=KeyStats(sampled=3, head=(2, 1), tail=()), load_factor="0.3")
    stats, grid = Known(miss_rate), baseline_grid("0.3")
    before = copy.deepcopy((spec, grid, ONE_CARD, LOAD))
    for variant in grid:
        if miss_rate is None:
            with pytest.raises(RuntimeError, match="no such size"):
                baseline_ms(spec, variant, ONE_CARD, LOAD, stats)
        else:
            assert baseline_ms(spec, variant, ONE_CARD, LOAD, stats) > 0
        assert storage_of(spec, variant, ONE_CARD, BASELINE, LOAD).hbm > 0
    assert (spec, grid, ONE_CARD, LOAD) == before
    assert stats == Known(miss_rate, asked=[Fraction(3, 10)] * 2)


def test_time_without_cards_is_that_of_host_memory() -> None:
    spec = TableSpec(name="t", rows=100, dim=16, features=(Feature(2.5),))
    load = StepLoad(batch=512)
    ids, out = 1280, 512 * 2 * 16 * 4
    host, link = 51 * GIB / 1000, 600 * GIB / 1000
    forward = (ids * 8 + ids * 64 + out) / host
    expected = 3 * forward + 2 * out / link + 2.455 * out / host
    assert baseline_ms(spec, HOST_ONLY, NO_CARDS, load) == pytest.approx(expected, rel=1e-12)


def test_weights_are_read_too() -> None:
    plain, weighted = (
        baseline_ms(SPEC, HBM_ONLY, ONE_CARD, LOAD, weighted=flag) for flag in (False, True)
    )
    assert weighted - plain == pytest.approx(3 * 65536 * 8 / (897 * GIB / 10_000), rel=1e-9)


def test_machines_talk_over_the_slower_link() -> None:
    inside, across = (
        Topology(world=4, local_world=local, hbm_per_device=GIB, ddr_per_machine=GIB)
        for local in (4, 2)
    )
    out = 2 * 65536 * 4 * 128 * 4 / (GIB / 1000)
    slower = out / 12.5 - out / 600
    times = [baseline_ms(SPEC, HBM_ONLY, topology, LOAD) for topology in (inside, across)]
    assert times[1] - times[0] == pytest.approx(slower, rel=1e-9)
