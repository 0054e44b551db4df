"""Properties of the bytes of a table, for any table, variant and layout."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from hedgerow.planner.problem.options import Mode, Variant, variants
from hedgerow.planner.problem.table_spec import Feature, TableSpec
from hedgerow.planner.problem.topology import Topology
from hedgerow.planner.sizes.layout import LAYOUTS, Layout
from hedgerow.planner.sizes.storage import StepLoad, Storage, rows_per_rank, shard_rows, storage_of

SPECS = st.builds(
    TableSpec,
    name=st.just("t"),
    rows=st.integers(1, 10**8),
    dim=st.integers(1, 512),
    dtype=st.sampled_from(["fp32", "fp16", "bf16"]),
    optimizer=st.sampled_from(["none", "sgd", "adam", "adagrad", "rowwise_adagrad"]),
    counter_rows=st.integers(0, 10**7),
    features=st.lists(st.builds(Feature, st.floats(0, 100), st.booleans()), max_size=3),
    dist_type=st.sampled_from(["hash_roundrobin", "roundrobin", "continuous"]),
)
LOADS = st.builds(StepLoad, batch=st.integers(0, 65536), inference=st.booleans())
LAYOUT = st.sampled_from(sorted(LAYOUTS)).map(LAYOUTS.__getitem__)
VARIANTS = st.sampled_from(variants())
WORLDS = st.integers(1, 300)
SHARES = st.integers(1, 999).map(lambda thousandth: f"0.{thousandth:03}")
BOTH = st.sampled_from([Mode.HYBRID, Mode.CACHING])


def _world(world: int, device: str = "cuda") -> Topology:
    hbm = 2**36 if device == "cuda" else 0
    return Topology(world=world, hbm_per_device=hbm, ddr_per_machine=2**40, device=device)


def _stored(
    spec: TableSpec,
    variant: Variant,
    layout: Layout,
    world: int = 1,
    load: StepLoad | None = None,
) -> Storage:
    return storage_of(spec, variant, _world(world), layout, load or StepLoad())


@given(SPECS, VARIANTS, LAYOUT, WORLDS, LOADS)
def test_parts_are_whole_and_add_up(
    spec: TableSpec, variant: Variant, layout: Layout, world: int, load: StepLoad
) -> None:
    found = _stored(spec, variant, layout, world, load)
    parts = (found.hbm_values, found.ddr_values, found.metadata, found.counter, found.io)
    assert all(type(part) is int and part >= 0 for part in (*parts, found.hbm, found.ddr))
    # Each part alone is rounded up; the sum of two is rounded once.
    assert 0 <= sum(parts) - (found.hbm + found.ddr) <= 2
    assert storage_of(spec, variant, _world(world), layout, load) == found


@given(SPECS, VARIANTS, LAYOUT, WORLDS, LOADS)
def test_without_cards_nothing_is_in_hbm_and_nothing_is_lost(
    spec: TableSpec, variant: Variant, layout: Layout, world: int, load: StepLoad
) -> None:
    card = storage_of(spec, variant, _world(world), layout, load)
    host = storage_of(spec, variant, _world(world, "cpu"), layout, load)
    assert (host.hbm, host.hbm_values) == (0, 0)
    assert host.ddr == card.hbm + card.ddr


@given(SPECS, BOTH, LAYOUT, SHARES, SHARES)
def test_more_in_hbm_never_takes_less_of_it(
    spec: TableSpec, mode: Mode, layout: Layout, one: str, other: str
) -> None:
    less, more = sorted((one, other))
    low, high = (_stored(spec, Variant(mode, share), layout) for share in (less, more))
    assert low.hbm_values <= high.hbm_values
    assert low.ddr_values >= high.ddr_values
    if mode is Mode.CACHING:
        assert low.ddr == high.ddr
        assert low.hbm <= high.hbm


@given(SPECS, VARIANTS, LAYOUT, WORLDS, st.integers(0, 10**6))
def test_more_rows_on_every_rank_never_take_less(
    spec: TableSpec, variant: Variant, layout: Layout, world: int, more: int
) -> None:
    spec = replace(spec, rows=spec.rows * world)
    larger = replace(spec, rows=spec.rows + more * world)
    assert rows_per_rank(spec, world, layout) <= rows_per_rank(larger, world, layout)
    small, large = (_stored(table, variant, layout, world) for table in (spec, larger))
    assert small.hbm <= large.hbm
    assert small.ddr <= large.ddr


@given(SPECS, VARIANTS, LAYOUT, st.integers(1, 64), st.integers(2, 64))
def test_several_times_the_ranks_never_take_more_of_each(
    spec: TableSpec, variant: Variant, layout: Layout, world: int, times: int
) -> None:
    spec = replace(spec, counter_rows=0, rows=max(spec.rows, 16 * world * times))  # not a few each
    few, many = (_stored(spec, variant, layout, size) for size in (world, world * times))
    assert many.hbm <= few.hbm
    assert many.ddr <= few.ddr


@given(SPECS, LAYOUT, SHARES)
def test_where_modes_may_not_keep_anything(spec: TableSpec, layout: Layout, share: str) -> None:
    whole = _stored(replace(spec, counter_rows=0), Variant(Mode.HBM_ONLY, "1.0"), layout)
    host = _stored(spec, Variant(Mode.HOST_ONLY, "0"), layout)
    assert (whole.ddr, whole.ddr_values) == (0, 0)
    assert host.hbm_values == 0
    split, cached = (
        _stored(spec, Variant(mode, share), layout) for mode in (Mode.HYBRID, Mode.CACHING)
    )
    assert split.ddr_values <= cached.ddr_values == host.ddr_values


@given(SPECS, WORLDS)
def test_shards_hold_every_row_once_and_fit_the_plan(spec: TableSpec, world: int) -> None:
    shards = shard_rows(spec.rows, world)
    assert len(shards) == world
    assert sum(shards) == spec.rows
    assert list(shards) == sorted(shards, reverse=True)
    for layout in LAYOUTS.values():
        assert rows_per_rank(spec, world, layout) >= shards[0]


@given(SPECS, WORLDS)
def test_head_room_is_three_and_a_half_deviations_to_the_row(spec: TableSpec, world: int) -> None:
    table = replace(spec, dist_type="hash_roundrobin")
    share = shard_rows(spec.rows, world)[0]
    room = rows_per_rank(table, world, LAYOUTS["hedgerow"]) - share
    square = Fraction(49, 4) * share**2 * Fraction(world, spec.rows)
    assert square <= room**2 or share + room == spec.rows
    assert room == 0 or (room - 1) ** 2 < square
