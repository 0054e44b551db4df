"""The time of a table: rises with what must be read from the host, and never costs long to tell."""

from __future__ import annotations

import time

import pytest

from hedgerow.core.errors import ConfigError, DtypeError
from hedgerow.planner.make_plan import plan
from hedgerow.planner.problem.key_stats import KeyStats
from hedgerow.planner.problem.options import HBM_ONLY, HOST_ONLY, Mode, Variant, variants
from hedgerow.planner.problem.table_spec import Feature, TableSpec
from hedgerow.planner.problem.topology import Topology
from hedgerow.planner.times.calibration import Calibration
from hedgerow.planner.times.step_time import (
    HostCost,
    LinkCost,
    ModeCost,
    TimeParameters,
    overlapped,
)
from hedgerow.planner.times.time_model import expected, row_bytes, thrashes, without_thrashing

H200 = Calibration.default("NVIDIA H200")
CARD = Topology(world=1, hbm_per_device=2**37, ddr_per_machine=2**40)
ITEM = TableSpec(name="item", rows=10**8, dim=128)
BATCH = 262_144


def _simple(overlap: float = 1.0, **links: LinkCost) -> Calibration:
    modes = {mode: ModeCost(0.5, 1e-6) for mode in Mode}
    memories = {"hbm": 1e9, "host_read": 1e8, "host_write": 5e7}
    costs = TimeParameters(modes=modes, memories=memories, links=links, overlap=overlap)
    return Calibration(device="test", parameters=costs)


@pytest.mark.parametrize("mode", [Mode.HYBRID, Mode.CACHING])
def test_time_falls_and_hits_rise_with_the_share_in_hbm(mode: Mode) -> None:
    found = [
        expected(ITEM, Variant(mode, x), CARD, _simple(), BATCH) for x in ("0.1", "0.3", "0.6")
    ]
    assert found[0].ms > found[1].ms > found[2].ms
    assert 0 < found[0].hit_rate < found[1].hit_rate < found[2].hit_rate < 1


def test_ends_are_faster_and_slower_than_all_between() -> None:
    times = {v.label: expected(ITEM, v, CARD, _simple(), BATCH).ms for v in variants()}
    assert min(times, key=times.__getitem__) == HBM_ONLY.label
    assert max(times, key=times.__getitem__) == HOST_ONLY.label


def test_a_cache_is_faster_than_a_split_of_the_same_share() -> None:
    for x in ("0.05", "0.5", "0.9"):
        cache, split = (
            expected(ITEM, Variant(mode, x), CARD, H200, BATCH)
            for mode in (Mode.CACHING, Mode.HYBRID)
        )
        assert cache.hit_rate > split.hit_rate
        assert cache.ms <= split.ms


def test_the_formula_by_hand() -> None:
    found = expected(ITEM, Variant(Mode.HYBRID, "0.25"), CARD, _simple(), BATCH)
    row, read = 1024, 512 + 1024  # Adagrad: as much state as values
    near = found.distinct * (1e-6 + 0.25 * (read + row) / 1e9)
    far = found.distinct * 0.75 * (read / 1e8 + row / 5e7)
    assert found.ms == pytest.approx(0.5 + near + far)


def test_alike_tables_share_a_launch_where_that_was_measured() -> None:
    cost = ModeCost(0.5, 1e-6, table_ms=0.1, id_ms=1e-6, id_byte_ms=1e-9)
    costs = TimeParameters(modes={"HBM_ONLY": cost}, memories={"hbm": 1e9}, overlap=1.0)
    known = Calibration(device="test", parameters=costs)
    alone, ten = (expected(ITEM, HBM_ONLY, CARD, known, BATCH, alike=n) for n in (1, 10))
    read, row = 512 + 1024, 1024
    work = alone.distinct * (1e-6 + (read + row) / 1e9) + BATCH * (1e-6 + 512 * 1e-9)
    assert alone.ms == pytest.approx(0.6 + work)
    assert ten.ms == pytest.approx(0.05 + 0.1 + work)
    before = [expected(ITEM, HBM_ONLY, CARD, _simple(), BATCH, alike=n).ms for n in (1, 10)]
    assert before[0] == before[1]
    idle = TableSpec(name="idle", rows=10, dim=4, features=[])
    assert expected(idle, HBM_ONLY, CARD, known, 64, alike=10).ms == pytest.approx(0.15)


def test_plans_count_a_launch_of_alike_tables_once() -> None:
    cost = ModeCost(0.5, 0.0, table_ms=0.01)
    costs = TimeParameters(modes=dict.fromkeys(Mode, cost), memories={"hbm": 1e12})
    known = Calibration(device="test", parameters=costs)
    tables = [TableSpec(name=f"t{k}", rows=100, dim=8) for k in range(4)]
    tables.append(TableSpec(name="other", rows=100, dim=16))
    pin = dict.fromkeys((table.name for table in tables), "HBM_ONLY")
    found = plan(tables, CARD, known, batch=1, pin=pin)
    assert found.solver.total_ms == pytest.approx(2 * 0.5 + 5 * 0.01, rel=1e-3)


def test_promoted_rows_serve_more_than_a_split() -> None:
    def hit(promotion: float | None, drift: float = 0.0) -> float:
        costs = TimeParameters(modes={"HYBRID": ModeCost(0.5, 1e-6)}, promotion=promotion)
        stats = KeyStats(sampled=300, head=(100, 50), tail=((1, 150),), drift=drift)
        spec = TableSpec(name="item", rows=10_000, dim=8, stats=stats)
        known = Calibration(device="test", parameters=costs)
        return expected(spec, Variant(Mode.HYBRID, "0.1"), CARD, known, 64).hit_rate

    assert hit(None) == hit(0.0) == 0.1 < hit(0.5) < hit(1.0)
    assert hit(0.5) == pytest.approx((0.1 + hit(1.0)) / 2)
    assert hit(1.0, drift=0.5) == pytest.approx((0.1 + hit(1.0)) / 2)


def test_full_overlap_is_the_slower_tier_and_none_the_sum() -> None:
    assert overlapped(2.0, 5.0, 1.0) == 7.0
    assert overlapped(2.0, 5.0, 1e4) == pytest.approx(5.0)
    assert overlapped(0.0, 0.0, 3.0) == 0.0
    times = [
        expected(ITEM, Variant(Mode.HYBRID, "0.5"), CARD, _simple(p), BATCH).ms for p in (1, 2, 64)
    ]
    assert times[0] > times[1] > times[2]


def test_published_times_of_an_h200() -> None:
    # 262,144 distinct keys of 128 floats, gathered and written back; no state, no forward read.
    costs = H200.parameters
    for host, ms in ((0.0, 0.37), (0.05, 0.37), (0.10, 0.58), (0.25, 1.37), (1.0, 5.35)):
        near = BATCH * (costs.modes["HYBRID"].key_ms + (1 - host) * 1024 / costs.memories["hbm"])
        far = BATCH * host * 1024 / costs.memories["host_read"]
        total = costs.modes["HYBRID"].launch_ms + overlapped(near, far, costs.overlap)
        assert total == pytest.approx(ms, rel=0.15)


def test_distinct_keys_of_an_owner_and_the_exchange() -> None:
    links = {"intra": LinkCost(1.0, 1e6), "inter": LinkCost(2.0, 1e5)}
    calibration = _simple(**links)
    alone = expected(ITEM, HBM_ONLY, CARD, calibration, BATCH)
    four = Topology(world=4, hbm_per_device=2**37, ddr_per_machine=2**40)
    near = expected(ITEM, HBM_ONLY, four, calibration, BATCH)
    assert near.distinct < alone.distinct  # equal keys of four ranks are one to their owner
    sent = alone.distinct * 3 / 4 * (8 + 2 * 512)
    own = 0.5 + near.distinct * (1e-6 + (512 + 3 * 1024 - 1024) / 1e9)
    assert near.ms == pytest.approx(own + 1.0 + sent / 1e6)
    two = Topology(world=4, local_world=2, hbm_per_device=2**37, ddr_per_machine=2**40)
    across = alone.distinct * 2 / 4 * (8 + 2 * 512)
    far = expected(ITEM, HBM_ONLY, two, calibration, BATCH)
    assert far.ms == pytest.approx(own + 2.0 + across / 1e5)


def test_a_world_without_cards() -> None:
    world = Topology(world=2, ddr_per_machine=2**38, device="cpu")
    found = expected(ITEM, HOST_ONLY, world, Calibration.default("cpu"), 4096)
    assert (found.hit_rate, found.ms > 0) == (0.0, True)
    with pytest.raises(ConfigError, match="has no mode CPU"):
        expected(ITEM, HOST_ONLY, world, H200, 4096)


def test_a_table_that_is_not_read_costs_a_launch() -> None:
    idle = TableSpec(name="idle", rows=10, dim=4, features=[])
    found = expected(idle, HBM_ONLY, CARD, _simple(), 64)
    assert (found.ms, found.distinct) == (0.5, 0.0)


def test_caches_below_a_step_are_refused_unless_asked_for() -> None:
    small = TableSpec(name="small", rows=100_000, dim=8)
    kept = without_thrashing(small, variants(), CARD, 65_536)
    assert Variant(Mode.HYBRID, "0.02") in kept
    assert Variant(Mode.CACHING, "0.02") not in kept
    assert Variant(Mode.CACHING, "0.9") in kept
    assert without_thrashing(small, variants(), CARD, 65_536, allow_thrash=True) == variants()
    assert not thrashes(small, HOST_ONLY, CARD, 65_536)


def test_drift_lowers_hits_of_caches_only() -> None:
    def hit(drift: float, mode: Mode) -> float:
        stats = KeyStats(sampled=300, head=(100, 50), tail=((1, 150),), drift=drift)
        spec = TableSpec(name="item", rows=10_000, dim=8, stats=stats)
        return expected(spec, Variant(mode, "0.5"), CARD, H200, 64).hit_rate

    assert hit(0.25, Mode.CACHING) == pytest.approx(0.75 * hit(0.0, Mode.CACHING))
    assert hit(0.25, Mode.HYBRID) == 0.5


def test_bytes_of_rows() -> None:
    sizes = {"sgd": 64, "none": 64, "adam": 192, "adagrad": 128, "rowwise_adagrad": 68}
    for optimizer, size in sizes.items():
        spec = TableSpec(name="item", rows=9, dim=16, optimizer=optimizer)
        assert row_bytes(spec) == size


def test_a_batch_that_is_none_is_refused() -> None:
    with pytest.raises(DtypeError, match="batch"):
        expected(ITEM, HBM_ONLY, CARD, H200, 1.5)  # pyright: ignore[reportArgumentType]


def test_a_thousand_tables_share_their_sums_between_variants() -> None:
    specs = [
        TableSpec(name=f"t{i}", rows=10**6 + 99_991 * i, dim=64, features=[Feature(1 + i % 20)])
        for i in range(100)
    ]
    every = variants()

    def spent(choices: tuple[Variant, ...]) -> float:
        start = time.thread_time()
        for spec in specs:
            for variant in choices:
                expected(spec, variant, CARD, H200, 2048)
        return time.thread_time() - start

    first = spent(tuple(v for v in every if v.label == "CACHING@0.1"))  # makes the sums
    assert spent(every) < 5 * first  # 24 times as many calls, none of which makes them again


def test_rows_that_move_now_and_then_cost_each_time() -> None:
    item = TableSpec(name="item", rows=10**6, dim=16, features=[Feature(10_000.0)])
    card = Topology(world=1, hbm_per_device=2**36, ddr_per_machine=2**38)

    def ms(mode: Mode, share: str, move_ms: float) -> float:
        cost = ModeCost(0.5, 1e-6, table_ms=0.1, host=HostCost(move_ms=move_ms))
        costs = TimeParameters(modes={mode: cost}, memories={"hbm": 1e9})
        calibration = Calibration(device="test", parameters=costs)
        return expected(item, Variant(mode, share), card, calibration, 1).ms

    def times(mode: Mode, share: str) -> float:
        return (ms(mode, share, 3.2) - ms(mode, share, 0.0)) / 3.2

    # A hash keeps half or a tenth of the keys in HBM: many are not, and hot rows are looked for.
    assert times(Mode.HYBRID, "0.1") == pytest.approx(1 / 2)
    assert times(Mode.HYBRID, "0.95") == pytest.approx(1 / 16)
    # A larger cache misses less, and makes way for more at once.
    small, large = times(Mode.CACHING, "0.1"), times(Mode.CACHING, "0.8")
    assert 0 < 8 * large < small < 1
    assert times(Mode.HBM_ONLY, "1") == times(Mode.HOST_ONLY, "0") == 0


def test_a_cache_that_misses_many_at_once_pays_more_for_those_beyond() -> None:
    card = Topology(world=1, hbm_per_device=2**36, ddr_per_machine=2**38)

    def more(ids: float) -> tuple[float, float]:
        """Milliseconds, and missed keys."""
        item = TableSpec(name="item", rows=10**6, dim=16, features=[Feature(ids)])
        found = []
        for crowded_ms in (0.0, 1e-3):
            cost = ModeCost(0.5, 1e-6, table_ms=0.1, host=HostCost(crowded_key_ms=crowded_ms))
            costs = TimeParameters(modes={"CACHING": cost}, memories={"hbm": 1e9})
            known = Calibration(device="test", parameters=costs)
            found.append(expected(item, Variant(Mode.CACHING, "0.1"), card, known, 1))
        return found[1].ms - found[0].ms, found[0].distinct * (1 - found[0].hit_rate)

    few, missed = more(2_000.0)
    assert few == 0
    assert missed < 10**5 / 64
    many, missed = more(20_000.0)
    assert missed > 10**5 / 64
    assert many == pytest.approx(1e-3 * (missed - 10**5 / 64))


def test_each_table_with_rows_on_the_host_costs() -> None:
    item = TableSpec(name="item", rows=10**6, dim=16, features=[Feature(10_000.0)])
    card = Topology(world=1, hbm_per_device=2**36, ddr_per_machine=2**38)

    def ms(host_table_ms: float, alike: int) -> float:
        host = HostCost(host_table_ms=host_table_ms)
        cost = ModeCost(0.5, 1e-6, table_ms=0.1, host=host)
        costs = TimeParameters(modes={"HYBRID": cost}, memories={"hbm": 1e9})
        known = Calibration(device="test", parameters=costs)
        return expected(item, Variant(Mode.HYBRID, "0.1"), card, known, 1, alike=alike).ms

    for alike in (1, 10):  # of ten this is one's part
        assert ms(0.3, alike) - ms(0.0, alike) == pytest.approx(0.3)


def test_one_thread_works_until_others_have_woken_up() -> None:
    card = Topology(world=1, hbm_per_device=2**36, ddr_per_machine=2**38)

    def more(ids: float) -> float:
        item = TableSpec(name="item", rows=10**8, dim=16, features=[Feature(ids)])
        found = []
        for host in (HostCost(), HostCost(alone_id_ms=1e-4, pool_ms=2.0)):
            cost = ModeCost(0.5, 0.0, table_ms=0.1, host=host)
            costs = TimeParameters(modes={"HOST_ONLY": cost}, memories={"hbm": 1e9})
            known = Calibration(device="test", parameters=costs)
            found.append(expected(item, HOST_ONLY, card, known, 1).ms)
        return found[1] - found[0]

    assert more(8_000.0) == pytest.approx(0.8)
    assert more(16_000.0) == pytest.approx(1.6)  # done before they woke up
    assert more(100_000.0) == pytest.approx(2.0)
