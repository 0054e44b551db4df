"""Bytes of a table: the published figures, and what each option changes."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from hedgerow.core.errors import ConfigError
from hedgerow.planner.problem.table_spec import Feature, TableSpec
from hedgerow.planner.sizes.layout import BASELINE, HEDGEROW, STRICT, Layout
from hedgerow.planner.sizes.storage import StepLoad, rows_per_rank, shard_rows

from .words import NO_CARDS, ONE_CARD, SMALL, TWO_CARDS, stored

FULL = 1024 * 64 * 4
BUSY = StepLoad(batch=512)
ADAM = TableSpec(name="user", rows=100_000, dim=16, optimizer="adam")
IN_BOTH = [(mode, factor) for mode in ("HYBRID", "CACHING") for factor in ("0.1", "0.5", "0.9")]


@pytest.mark.parametrize(
    ("factor", "hbm"),
    [("0", 17_440), ("0.25", 82_976), ("0.5", 148_512), ("0.75", 214_048), ("1.0", 279_584)],
)
class TestPublishedRatios:
    def test_hbm_is_that_of_the_factor_in_both_modes(self, factor: str, hbm: int) -> None:
        assert stored("HYBRID", factor).hbm == stored("CACHING", factor).hbm == hbm

    def test_hybrid_keeps_the_rest_on_the_host(self, factor: str, hbm: int) -> None:
        assert stored("HYBRID", factor).ddr == round((1 - Fraction(factor)) * FULL)

    def test_caching_keeps_everything_on_the_host(self, factor: str, hbm: int) -> None:
        assert stored("CACHING", factor).ddr == FULL


@pytest.mark.parametrize("layout", [BASELINE, STRICT, HEDGEROW], ids=lambda layout: layout.name)
@pytest.mark.parametrize("factor", ["0.1", "0.5", "0.9"])
def test_caching_needs_more_host_memory_than_hybrid(factor: str, layout: Layout) -> None:
    pair = [stored(mode, factor, spec=ADAM, layout=layout).ddr for mode in ("HYBRID", "CACHING")]
    assert pair[0] < pair[1]


def test_figures_of_the_published_sweep() -> None:
    spec = TableSpec(name="sweep", rows=4_000_000, dim=128, optimizer="adam")
    tenth = stored("CACHING", "0.1", spec=spec)
    assert (tenth.row_bytes, tenth.metadata) == (1536, 68_125_000)
    assert (tenth.hbm, tenth.ddr) == (682_525_000, 6_144_000_000)
    assert stored("HYBRID", "1.0", spec=spec).hbm == 6_212_125_000


@pytest.mark.parametrize(("mode", "factor"), IN_BOTH)
@pytest.mark.parametrize("layout", [BASELINE, STRICT, HEDGEROW], ids=lambda layout: layout.name)
def test_values_alone_are_smaller(mode: str, factor: str, layout: Layout) -> None:
    spec = replace(ADAM, counter_rows=1000)
    grant = stored(mode, factor, spec=spec, layout=layout, load=BUSY, only_values=True)
    everything = stored(mode, factor, spec=spec, layout=layout, load=BUSY)
    assert grant.hbm < everything.hbm
    assert grant.hbm == grant.hbm_values == everything.hbm_values
    assert grant.ddr == grant.ddr_values == everything.ddr_values
    assert grant.metadata == grant.counter == grant.io == 0


@pytest.mark.parametrize(
    ("optimizer", "dim", "row_bytes"),
    [
        *(("none", 10, 48), ("sgd", 10, 48), ("adam", 10, 128), ("adagrad", 10, 80)),
        *(("rowwise_adagrad", 10, 48), ("rowwise_adagrad", 12, 64), ("ftrl", 10, 80)),
    ],
)
def test_state_counts_as_published(optimizer: str, dim: int, row_bytes: int) -> None:
    spec = TableSpec(name="t", rows=10, dim=dim, optimizer=optimizer)
    assert stored("HBM_ONLY", "1.0", spec=spec, layout=STRICT).row_bytes == row_bytes


@pytest.mark.parametrize("layout", [BASELINE, STRICT, HEDGEROW], ids=lambda layout: layout.name)
def test_inference_has_neither_state_nor_step_buffers(layout: Layout) -> None:
    serving = StepLoad(batch=512, inference=True)
    found = stored("HBM_ONLY", "1.0", spec=ADAM, layout=layout, load=serving)
    assert (found.row_bytes, found.io) == (64, 0)
    assert stored("HBM_ONLY", "1.0", spec=ADAM, layout=layout, load=BUSY).io > 0


@pytest.mark.parametrize("layout", [BASELINE, STRICT, HEDGEROW], ids=lambda layout: layout.name)
def test_without_cards_everything_is_in_host_memory(layout: Layout) -> None:
    spec = replace(ADAM, counter_rows=1000)
    found = stored("HOST_ONLY", "0", spec=spec, layout=layout, topology=NO_CARDS, load=BUSY)
    assert (found.hbm, found.hbm_values) == (0, 0)
    assert found.io == BUSY.buffers(spec, 2) > 0
    assert found.ddr == found.ddr_values + found.metadata + found.counter + found.io
    quiet = StepLoad(batch=512, inference=True)
    served = stored("HOST_ONLY", "0", spec=spec, layout=layout, topology=NO_CARDS, load=quiet)
    assert served.ddr == served.ddr_values + served.metadata + served.counter


@pytest.mark.parametrize(("mode", "factor"), IN_BOTH)
@pytest.mark.parametrize("layout", [BASELINE, STRICT], ids=lambda layout: layout.name)
def test_a_counter_raises_hbm_alone(mode: str, factor: str, layout: Layout) -> None:
    without = stored(mode, factor, spec=ADAM, layout=layout)
    counted = stored(mode, factor, spec=replace(ADAM, counter_rows=5000), layout=layout)
    assert counted.hbm - without.hbm == counted.counter > 0
    assert counted.ddr == without.ddr


def test_our_counter_is_in_host_memory() -> None:
    without = stored("CACHING", "0.1", spec=ADAM, layout=HEDGEROW)
    counted = stored("CACHING", "0.1", spec=replace(ADAM, counter_rows=5000), layout=HEDGEROW)
    assert counted.ddr - without.ddr == counted.counter > 0
    assert counted.hbm == without.hbm


def test_buckets_are_the_layouts() -> None:
    spec = replace(ADAM, counter_rows=5000)
    for layout, counter in ((BASELINE, 2512 * (17 + Fraction(4, 512))), (STRICT, 2560 * 21 + 20)):
        small = layout.with_buckets(256, 512)
        found = stored("HBM_ONLY", "1.0", spec=spec, layout=small, topology=TWO_CARDS)
        assert found.counter == -(-counter // 1)
    assert found.rows_per_rank == 50_176
    assert found.metadata == 50_176 * 21 + 4 * 50_176 // 256
    with pytest.raises(ConfigError, match="bucket_capacity is 0"):
        STRICT.with_buckets(0, 512)


def test_a_device_tier_has_buckets_of_1024() -> None:
    spec = TableSpec(name="t", rows=10_000, dim=4, optimizer="sgd")
    found = stored("HYBRID", "0.3", spec=spec, layout=STRICT)
    assert found.rows_per_rank == 10_112
    assert (found.hbm_values, found.ddr_values) == (3072 * 16, 7168 * 16)
    assert found.metadata == 3072 * 21 + 3 * 4 + 7168 * 21 + 56 * 4


@pytest.mark.parametrize("layout", [STRICT, HEDGEROW], ids=lambda layout: layout.name)
@pytest.mark.parametrize("mode", ["HYBRID", "CACHING"])
def test_at_the_ends_of_the_factor_there_is_one_table(mode: str, layout: Layout) -> None:
    assert stored(mode, "1.0", layout=layout) == stored("HBM_ONLY", "1.0", layout=layout)
    assert stored(mode, "0.0", layout=layout) == stored("HOST_ONLY", "0", layout=layout)


def test_baseline_takes_explicit_modes() -> None:
    whole, host = stored("HBM_ONLY", "1.0"), stored("HOST_ONLY", "0")
    assert (whole.hbm, whole.ddr) == (FULL + 17_440, 0)
    assert (host.hbm, host.ddr) == (17_440, FULL)


@pytest.mark.parametrize(
    ("rows", "world", "shards"),
    [(10, 4, (3, 3, 3, 1)), (8, 4, (2, 2, 2, 2)), (9, 4, (3, 3, 3, 0)), (1, 3, (1, 0, 0))],
)
def test_shards_are_filled_in_order(rows: int, world: int, shards: tuple[int, ...]) -> None:
    assert shard_rows(rows, world) == shards


def test_head_room_is_for_ids_that_hashing_spreads() -> None:
    spec = TableSpec(name="t", rows=1_000_000, dim=4)
    wanted = 125_000 * (1 + 3.5 * (8 / 1_000_000) ** 0.5)
    assert wanted <= rows_per_rank(spec, 8, HEDGEROW) < wanted + 1
    assert rows_per_rank(replace(spec, dist_type="continuous"), 8, HEDGEROW) == 125_000
    assert rows_per_rank(spec, 1, HEDGEROW) == 1_000_000
    assert rows_per_rank(spec, 8, BASELINE) == 125_008
    assert rows_per_rank(spec, 8, STRICT) == 125_056


class TestStepBuffers:
    SPEC = TableSpec(
        name="t", rows=100, dim=8, features=(Feature(0.1), Feature(3, pooled=False), Feature(2))
    )

    def buffers(self, **settings: object) -> int:
        return StepLoad(batch=10, output_bytes=2, **settings).buffers(self.SPEC, 4)  # pyright: ignore[reportArgumentType]

    IDS, OUTPUT = (1 + 30 + 20) * 8, (10 + 10) * 4 * 8 * 2 + 30 * 8 * 2

    def test_one_step(self) -> None:
        assert self.buffers() == self.IDS + self.OUTPUT

    def test_ids_of_two_steps_are_under_way(self) -> None:
        assert self.buffers(pipeline="sparse_dist") == 2 * self.IDS + self.OUTPUT
        assert self.buffers(pipeline="sparse_dist", output_at_peak=False) == 2 * self.IDS

    def test_rows_fetched_ahead(self) -> None:
        ahead = {"pipeline": "prefetch", "prefetch_bytes": 1001, "passes": 4}
        assert self.buffers(**ahead) == 3 * self.IDS + 2502 + self.OUTPUT
        assert self.buffers(**ahead, output_at_peak=False) == 3 * self.IDS + 2502

    def test_inference(self) -> None:
        assert self.buffers(inference=True, pipeline="prefetch", prefetch_bytes=9) == 0

    @pytest.mark.parametrize(
        "wrong", [{"batch": -1}, {"pipeline": "deep"}, {"passes": 0}, {"output_bytes": 0}]
    )
    def test_nonsense_is_refused(self, wrong: dict[str, object]) -> None:
        with pytest.raises(ConfigError, match=f"StepLoad.{next(iter(wrong))}"):
            StepLoad(**wrong)  # pyright: ignore[reportArgumentType]


def test_buffers_are_added_on_the_card() -> None:
    quiet, busy = (stored("CACHING", "0.5", topology=ONE_CARD, load=x) for x in (None, BUSY))
    assert busy.hbm - quiet.hbm == busy.io == 512 * 8 + 512 * 64 * 4
    assert busy.ddr == quiet.ddr
    assert stored("CACHING", "0.5", spec=SMALL).io == 0
