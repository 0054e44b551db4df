"""Evictions of a table in host memory: who leaves, what is told, what it costs."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import hedgerow as hr
from hedgerow.core.clock import ManualClock
from hedgerow.core.errors import ConfigError, DtypeError, InputError
from hedgerow.tables.eviction import Evicted
from hedgerow.tables.host import HostTable
from hedgerow.tables.local_table import table_stats
from tests.support import everything, make_table, table_config, threads, twin_of

DAY_S = 86400
NOW_S = 2_000_000_000


def _table(rule: Any, dim: int = 4, **settings: Any) -> HostTable:
    config = table_config(dim=dim, init=hr.Zeros(), evict=rule, **settings)
    return HostTable(config, clock=ManualClock(NOW_S))


def _ids(n: int, seed: int) -> torch.Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (n,), generator=torch.Generator().manual_seed(seed))


def _fill(table: HostTable, ids: torch.Tensor, ts: int) -> None:
    table.assign(ids, torch.ones(len(ids), table.config.dim), ts=ts)


def _told(evicted: Evicted) -> list[int]:
    assert evicted.ids is not None
    assert len(evicted.ids) == evicted.rows
    return sorted(evicted.ids.tolist())


# ---- by age


def test_the_newest_update_or_the_clock_is_the_reference() -> None:
    for reference, left in (("newest", [1, 2]), ("wall", [])):
        table = _table(hr.Ttl("1d", reference=reference))
        _fill(table, torch.tensor([1]), NOW_S - 2 * DAY_S)
        _fill(table, torch.tensor([2]), NOW_S - 2 * DAY_S + 10)
        table.evict()
        assert sorted(everything(table)) == left


def test_a_given_time_replaces_the_reference() -> None:
    table = _table(hr.Ttl("1d", reference="wall"))
    _fill(table, torch.tensor([1]), 1000)
    assert table.evict(now_s=1000 + DAY_S - 1).rows == 0
    assert table.evict(now_s=1000 + DAY_S).rows == 1


def test_captured_ids_and_times_are_those_that_vanished() -> None:
    table, ids = _table(hr.Ttl("1d")), _ids(80_000, 1)  # more than one slice
    for part in range(4):
        _fill(table, ids[part::4].contiguous(), part * DAY_S // 2)
    before = everything(table)
    evicted = table.evict(capture=True)
    after = everything(table)
    assert _told(evicted) == sorted(before.keys() - after.keys())
    assert evicted.rows == 40_000
    assert evicted.ids is not None
    assert evicted.ts is not None
    times = dict(zip(evicted.ids.tolist(), evicted.ts.tolist(), strict=True))
    assert all(before[key][2] == time for key, time in times.items())
    assert all(after[key] == before[key] for key in after)


def test_nothing_is_told_unless_asked_for() -> None:
    table = _table(hr.Ttl(0))
    _fill(table, torch.tensor([1]), 5)
    evicted = table.evict()
    assert (evicted.rows, evicted.ids, evicted.ts) == (1, None, None)
    assert _told(table.evict(capture=True)) == []


def test_a_serving_table_evicts_too() -> None:
    segment = hr.Segment(2, compressor=hr.Fp16())
    table = HostTable(hr.TableConfig("serving", (segment,), serving=True, evict=hr.Lru(1)))
    table.assign(torch.tensor([1, 2]), torch.ones(2, 2), ts=3)
    assert _told(table.evict(capture=True)) == [1]


# ---- to a budget


@pytest.mark.parametrize("rule", [hr.Lru, hr.Lfu])
@pytest.mark.parametrize("budget", [1, 999, 70_000, 99_999, 100_000, 200_000])
def test_a_budget_is_met_exactly(rule: Any, budget: int) -> None:
    table, ids = _table(rule(budget), dim=1), _ids(100_000, 2)
    for at in range(0, 100_000, 10_000):
        _fill(table, ids[at:], at)
    evicted = table.evict(capture=True)
    assert table.size() == min(budget, 100_000) == 100_000 - evicted.rows
    # Rows written first were written least often and longest ago; among equals small ids leave.
    order = [key for at in range(0, 100_000, 10_000) for key in ids[at : at + 10_000].sort()[0]]
    assert _told(evicted) == sorted(int(key) for key in order[: evicted.rows])
    assert table.evict().rows == 0


def test_one_time_for_all_and_ids_side_by_side_meet_the_budget_as_well() -> None:
    table, ids = _table(hr.Lru(123), dim=1), torch.arange(-5000, 5000)
    _fill(table, ids, 7)
    assert _told(table.evict(capture=True)) == list(range(-5000, 5000 - 123))


@pytest.mark.parametrize("rule", [hr.Lru, hr.Lfu])
def test_the_outcome_does_not_depend_on_threads(rule: Any) -> None:
    seen = []
    for count in (1, 4):
        with threads(count):
            table, ids = _table(rule(3000), dim=1), _ids(20_000, 3)
            for at in (0, 5000, 12_000):
                _fill(table, ids[at:], at // 5000)
            seen.append((_told(table.evict(capture=True)), everything(table)))
    assert seen[0] == seen[1]


def test_uses_are_occurrences_and_evictions_do_not_change_them() -> None:
    table = _table(hr.Lfu(2, half_life=10**9), dim=1)
    one = torch.ones(1, 1)
    table.assign(torch.tensor([1]), torch.ones(1, 1))
    table.assign_add(torch.tensor([2, 2]), torch.ones(2, 1))
    for _ in range(5):
        table.apply_gradients(torch.tensor([3]), one)
    assert table.uses(torch.tensor([1, 2, 3, 4])).tolist() == [1, 2, 5, 0]
    assert _told(table.evict(capture=True)) == [1]
    for _ in range(2):
        table.assign(torch.tensor([4]), one)
    assert _told(table.evict(capture=True)) == [2]  # as often as 4, and longer ago
    for _ in range(6):
        table.assign(torch.tensor([5]), one)
    assert _told(table.evict(capture=True)) == [4]
    assert table.uses(torch.tensor([3, 5])).tolist() == [5, 6]


def test_a_row_in_the_place_of_an_evicted_one_starts_without_uses() -> None:
    table = _table(hr.Lfu(1), dim=1)
    for _ in range(9):
        _fill(table, torch.tensor([7]), 0)
    table.erase(torch.tensor([7]))
    _fill(table, torch.tensor([7]), 0)  # takes the erased row: one use, not ten
    for _ in range(2):
        _fill(table, torch.tensor([-8]), 0)
    assert _told(table.evict(capture=True)) == [7]


def test_neither_reading_nor_restoring_nor_reinitializing_is_a_use() -> None:
    table = _table(hr.Lfu(1), dim=1)
    _fill(table, torch.tensor([1]), 0)
    _fill(table, torch.tensor([9]), 0)
    _fill(table, torch.tensor([9]), 0)
    for _ in range(3):
        table.lookup(torch.tensor([1]))
        table.restore(table.entries(torch.tensor([1])))
        table.reinitialize(torch.tensor([1]))
    assert _told(table.evict(capture=True)) == [1]


def test_counts_of_uses_stop_at_their_largest() -> None:
    table, one = _table(hr.Lfu(1, half_life="1d"), dim=1), torch.ones(1, 1)
    ids, row, core = torch.tensor([1]), one.clone(), table.core.native_table
    assert table.order is not None
    for _ in range(2**15 + 10):  # past the argument checks: they are most of the time
        core.assign(ids.data_ptr(), 1, row.data_ptr(), table.order.stamp(0))
    for _ in range(20):
        table.assign(torch.tensor([2]), one)
    most, few = table.uses(torch.tensor([1, 2])).tolist()
    assert 2**14 <= most <= 2**16
    assert few == 20
    assert _told(table.evict(capture=True)) == [2]


@pytest.mark.parametrize(("order", "rule"), [("time", hr.Lru(2)), ("use", hr.Lfu(2))])
def test_a_row_updated_after_the_cut_was_found_stays(order: str, rule: Any) -> None:
    for table in (_table(rule, dim=1), twin_of(table_config(dim=1, evict=rule))):
        _fill(table, torch.arange(6), 1)
        for _ in range(5):
            _fill(table, torch.tensor([3, 4, 5]), 2)
        core, ids = table.core.native_table, torch.empty(10, dtype=torch.int64)
        excess, score, key = core.find_cut(order, 2)
        assert (excess, key) == (4, 3)
        _fill(table, torch.tensor([0, 7]), 3)  # fewer uses than the cut, all the same
        at = ids.data_ptr()
        gone, _, done, _ = core.evict_ranked(order, excess, score, key, 0, 10, at, at)
        assert (gone, done) == (3, True)
        assert sorted(everything(table)) == [0, 4, 5, 7]


# ---- memory


def test_the_order_of_leaving_takes_no_memory_beside_the_times() -> None:
    rows = {}
    for rule in (None, hr.Ttl(1), hr.Lru(9), hr.Lfu(9)):
        table = _table(rule)
        _fill(table, _ids(5000, 4), 0)
        rows[rule] = table.memory().row_bytes
        assert table.memory().slack_bytes == 0
    assert list(rows.values()) == [5000 * (16 + 8)] * 4


@pytest.mark.parametrize("rule", [hr.Ttl("1d"), hr.Lru(10_000), hr.Lfu(10_000)], ids=repr)
def test_memory_of_evicted_rows_serves_new_ids(rule: Any) -> None:
    table, ids = _table(rule, dim=16), _ids(190_000, 5)
    _fill(table, ids[:90_000], 0)
    _fill(table, ids[90_000:100_000], DAY_S)
    before = table.memory().total_bytes
    assert table.evict().rows == 90_000
    _fill(table, ids[100_000:], DAY_S)
    assert table.size() == 100_000
    assert table.memory().total_bytes < 1.05 * before


def _resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


@pytest.mark.long
@pytest.mark.parametrize("rule", [hr.Ttl("1d"), hr.Lru(500_000), hr.Lfu(500_000)], ids=repr)
def test_resident_memory_after_nine_tenths_of_five_million_rows_were_replaced(rule: Any) -> None:
    n, step = 5_000_000, 500_000
    table, ids = _table(rule, dim=16), _ids(n + n // 10 * 9, 6)
    rows = torch.ones(step, 16)

    def fill(first: int, last: int, ts: int) -> None:
        for at in range(first, last, step):
            table.assign(ids[at : at + step], rows, ts=ts)

    start = _resident_bytes()
    fill(0, n - step, 0)
    fill(n - step, n, DAY_S)
    before = _resident_bytes() - start
    assert table.evict().rows == n // 10 * 9
    fill(n, len(ids), DAY_S)
    assert table.size() == n
    assert _resident_bytes() - start < 1.3 * before


# ---- beside other calls


@pytest.mark.parametrize("rule", [hr.Ttl("1d"), hr.Lru(20_000), hr.Lfu(20_000)], ids=repr)
def test_rows_that_are_updated_stay_and_every_other_is_told_once(rule: Any) -> None:
    table = _table(rule, dim=2)
    live, stale = _ids(20_000, 7), _ids(80_000, 8)
    stop = threading.Event()
    told: list[int] = []
    _fill(table, stale, 1)
    for ts in (DAY_S, DAY_S + 1):
        _fill(table, live, ts + 1)

    def writes() -> None:
        for round_number in range(15):
            table.assign_add(live, torch.ones(len(live), 2), ts=DAY_S + round_number)
        stop.set()

    def evicts() -> None:
        while not stop.is_set():
            told.extend(_told(table.evict(capture=True)))

    def reads() -> None:
        while not stop.is_set():
            assert bool((table.lookup(live).rows >= 1).all())

    with ThreadPoolExecutor(4) as pool:
        for job in [pool.submit(job) for job in (writes, evicts, evicts, reads)]:
            job.result(timeout=300)
    assert sorted(told) == sorted(stale.tolist())
    assert bool((table.lookup(live).rows == 16).all())
    assert table.size() == len(live)


def test_a_stale_row_that_comes_back_is_either_new_or_was_never_gone() -> None:
    """Evictions race with updates of the very rows they want; no update is lost."""
    table = _table(hr.Ttl("1d"), dim=1)
    ids = _ids(50_000, 9)
    for round_number in range(3):
        table.clear()
        table.assign(ids, torch.full((len(ids), 1), 100.0), ts=0)
        together = threading.Barrier(2)

        def adds(together: threading.Barrier = together) -> None:
            together.wait()
            table.assign_add(ids, torch.ones(len(ids), 1), ts=2 * DAY_S)

        def evicts(together: threading.Barrier = together) -> list[int]:
            together.wait()
            return _told(table.evict(now_s=2 * DAY_S, capture=True))

        with ThreadPoolExecutor(2) as pool:
            added, evicted = pool.submit(adds), pool.submit(evicts)
            added.result(timeout=300)
            gone = torch.tensor(evicted.result(timeout=300), dtype=torch.int64)
        assert table.size() == len(ids), round_number
        reborn = torch.isin(ids, gone)
        expected = torch.where(reborn, 1.0, 101.0)
        assert torch.equal(table.lookup(ids).rows, expected)


# ---- times of the future


def test_a_stamp_of_the_future_is_taken_as_now_and_counted() -> None:
    table, one = _table(hr.Ttl("1d")), torch.ones(1, 4)
    _fill(table, torch.tensor([1]), NOW_S - 100)
    table.assign(torch.tensor([2]), one, ts=NOW_S + 3600)  # a clock may run ahead
    assert table.stats()["clamped_ts"] == 0
    table.assign(torch.tensor([3]), one, ts=NOW_S + 3601)
    table.assign_add(torch.tensor([4]), one, ts=NOW_S + 10 * DAY_S)
    table.apply_gradients(torch.tensor([5]), one, ts=2**63 - 1)
    assert table.stats()["clamped_ts"] == 3
    times = table.entries(torch.tensor([2, 3, 4, 5])).ts.tolist()
    assert times == [NOW_S + 3600, NOW_S, NOW_S, NOW_S]
    assert table.max_ts() == NOW_S + 3600
    assert table.evict().rows == 0


def test_restored_times_of_the_future_are_taken_as_now() -> None:
    table = _table(hr.Ttl("1d"))
    _fill(table, torch.tensor([1, 2]), NOW_S)
    (part,) = table.scan()
    part.ts[0] = 2**40
    table.restore(part)
    assert table.max_ts() == NOW_S
    assert table.stats()["clamped_ts"] == 1
    assert table.evict().rows == 0


def test_evicted_rows_are_counted_apart_from_erased_ones() -> None:
    table = _table(hr.Lru(2))
    _fill(table, torch.arange(10), 0)
    table.erase(torch.tensor([9]))
    table.evict()
    seen = table_stats(table)
    assert (seen["inserted"], seen["erased"], seen["evicted"], seen["rows"]) == (10, 1, 7, 2)


# ---- what is refused


def test_a_table_without_a_rule_cannot_evict() -> None:
    with pytest.raises(ConfigError, match=r"table 'test' has no eviction rule; .*evict=Ttl"):
        make_table().evict()


def test_bad_arguments_are_named() -> None:
    table = _table(hr.Ttl(1))
    with pytest.raises(InputError, match="now_s is -1"):
        table.evict(now_s=-1)
    with pytest.raises(DtypeError, match=r"now_s is 1\.5; it must be an int"):
        table.evict(now_s=1.5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(DtypeError, match="capture is 1; it must be True or False"):
        table.evict(capture=1)  # pyright: ignore[reportArgumentType]


def test_the_core_refuses_an_order_it_cannot_give() -> None:
    core = make_table().core.native_table
    with pytest.raises(ValueError, match="does not count uses"):
        core.find_cut("use", 1)
    with pytest.raises(ValueError, match="order is 'luck'; it must be 'time' or 'use'"):
        core.find_cut("luck", 1)
