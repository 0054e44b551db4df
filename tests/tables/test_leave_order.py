"""The order in which rows leave a full table: exact at any step rate, by uses that fade, saved."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hedgerow as hr
from hedgerow.core.clock import ManualClock
from hedgerow.core.errors import ConfigError
from hedgerow.tables.checkpoint.manifest import TableSchema
from hedgerow.tables.host import HostTable
from hedgerow.tables.local_table import table_stats
from hedgerow.tables.multi.host_tables import HostTables
from hedgerow.tables.store import TableKeys
from hedgerow.tiers.caching import CachingTable
from hedgerow.tiers.hybrid import HybridTable

from .device_pair import Pair

NOW_S = 2_000_000_000


def _config(rule: Any, **more: Any) -> hr.TableConfig:
    return hr.TableConfig("t", (hr.Segment(1, hr.Zeros(), hr.Sgd(lr=1.0)),), evict=rule, **more)


def _host(rule: Any) -> Any:
    return HostTable(_config(rule), clock=ManualClock(NOW_S))


def _hybrid(rule: Any) -> Any:
    return HybridTable(_host(rule), _host(rule), fast_rows=5, promotions=3)


def _caching(rule: Any) -> Any:
    return CachingTable(_host(rule), _host(rule), cache_rows=160)


PLACEMENTS = pytest.mark.parametrize("made", [_host, _hybrid, _caching])


def _write(table: Any, *ids: int, ts: int = 0) -> None:
    table.apply_gradients(torch.tensor(ids), torch.ones(len(ids), 1), ts=ts)


def _ids(table: Any) -> list[int]:
    return sorted(int(key) for part in table.scan() for key in part.ids)


# ---- Lru


@PLACEMENTS
@pytest.mark.parametrize("ts", [0, NOW_S])
def test_calls_within_a_second_leave_in_their_order(made: Callable[[Any], Any], ts: int) -> None:
    table = made(hr.Lru(8))
    _write(table, *range(100, 108), ts=ts)
    for key in range(16):
        _write(table, key, ts=ts)
    _write(table, 3, 105, ts=ts)
    assert table.evict().rows == 16
    assert _ids(table) == [3, 10, 11, 12, 13, 14, 15, 105]
    assert table.max_ts() == ts
    assert {int(t) for part in table.scan() for t in part.ts} == {ts}


def test_an_older_time_leaves_first_whenever_it_was_written() -> None:
    table = _host(hr.Lru(2))
    for key, ts in ((1, 50), (2, 60), (3, 40)):
        _write(table, key, ts=ts)
    table.evict()
    assert _ids(table) == [1, 2]


# ---- Lfu


class _ExactLfu:
    """Counts that fade by their half-life, every use at its own place in the stream."""

    def __init__(self, rows: int, half_life: int) -> None:
        self.rows, self.half_life = rows, half_life
        self.weights: dict[int, float] = {}
        self.uses = 0

    def use(self, ids: list[int]) -> None:
        self.uses += len(ids)
        weight = 2.0 ** (self.uses / self.half_life % 512)
        for key in ids:
            self.weights[key] = self.weights.get(key, 0.0) + weight

    def evict(self) -> None:
        ordered = sorted(self.weights, key=self.weights.__getitem__, reverse=True)
        self.weights = {key: self.weights[key] for key in ordered[: self.rows]}


def _drifting_stream(batches: int, size: int) -> list[list[int]]:
    """Zipf over 20,000 ids, of which the popular ones change slowly."""
    dice = np.random.default_rng(7)
    ranks = np.minimum(dice.zipf(1.15, (batches, size)), 20_000)
    return [((row + 4 * i) % 20_000).tolist() for i, row in enumerate(ranks)]


@PLACEMENTS
@pytest.mark.parametrize("half_life", [2_000, 40_000])
def test_hits_are_those_of_exact_counts_with_that_half_life(
    made: Callable[[Any], Any], half_life: int
) -> None:
    rows, stream = 300, _drifting_stream(400, 64)
    table, exact = made(hr.Lfu(rows, half_life=half_life)), _ExactLfu(rows, half_life)
    hits = [0, 0]
    for ids in stream:
        found = table.contains(torch.tensor(ids))
        hits[0] += int(found.sum())
        hits[1] += sum(key in exact.weights for key in ids)
        _write(table, *ids)
        exact.use(ids)
        if table.size() > rows + rows // 8:
            table.evict()
        if len(exact.weights) > rows + rows // 8:
            exact.evict()
    ours, theirs = (n / (400 * 64) for n in hits)
    assert abs(ours - theirs) < 0.02


def test_counts_stay_through_evictions_and_can_be_read() -> None:
    """They were halved whenever rows left, and a stream of new ids made them all alike."""
    table = _host(hr.Lfu(10, half_life=10**6))
    hot = torch.arange(5)
    for round_number in range(200):
        for _ in range(2 if round_number < 10 else 0):
            _write(table, *hot.tolist())
        _write(table, *range(1000 + 10 * round_number, 1010 + 10 * round_number))
        table.evict()
    assert table.contains(hot).all()
    assert torch.allclose(table.uses(hot), torch.full((5,), 20.0).double(), rtol=0.01)


@PLACEMENTS
def test_every_occurrence_in_a_call_is_a_use(made: Callable[[Any], Any]) -> None:
    """Otherwise counts would depend on how a batch is cut, and on how many ranks share it."""
    table = made(hr.Lfu(9, half_life=10**6))
    asked = torch.tensor([1, 2, 3])
    _write(table, 1, 1, 2, 1)
    table.apply_gradients(torch.tensor([2, 3]), torch.ones(2, 1), counts=torch.tensor([4, 100]))
    assert table.uses(asked).tolist() == pytest.approx([3, 5, 100], rel=1e-3)
    table.assign(torch.tensor([3, 3, 1]), torch.ones(3, 1))
    table.assign_add(torch.tensor([1, 1]), torch.ones(2, 1))
    assert table.uses(asked).tolist() == pytest.approx([6, 5, 102], rel=1e-3)
    table.reinitialize(asked)
    assert table.uses(asked).tolist() == pytest.approx([6, 5, 102], rel=1e-3)


def test_uses_of_a_device_are_those_of_host_memory(device: torch.device) -> None:
    pair = Pair(_config(hr.Lfu(4, half_life=10**9)), 64, device)
    dice, pool = np.random.default_rng(5), torch.arange(8)
    for each in (False, True, False):
        ids, ones = torch.from_numpy(dice.integers(0, 8, 6)), torch.ones(6, 1)
        pair.apply(ids, ones, 0, per_occurrence=each)
        pair.apply(ids, ones, 0, counts=torch.from_numpy(dice.integers(1, 9, 6)))
        pair.assign(ids, ones, 0)
        pair.assign(ids[:2], ones[:2], 0, add=True)
        pair.reinitialize(pool[:3])
    assert torch.equal(pair.device.uses(pool.to(device)).cpu(), pair.host.uses(pool))
    assert pair.host.uses(pool).sum() > 100


def test_a_half_life_is_a_time_or_a_number_of_uses() -> None:
    table = _host(hr.Lfu(9, half_life="1h"))
    for _ in range(4):
        _write(table, 1, ts=NOW_S - 7200)
    _write(table, 2, ts=NOW_S)
    assert table.uses(torch.tensor([1, 2, 3])).tolist() == [1, 1, 0]
    table = _host(hr.Lfu(9, half_life=10))
    _write(table, 1)
    _write(table, *range(2, 12))
    assert table.uses(torch.tensor([1, 2])).tolist() == pytest.approx([0.5, 1])
    for wrong in (0, -1, 1.5, "0s", "soon", True):
        with pytest.raises(ConfigError, match="half_life"):
            hr.Lfu(9, half_life=wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="does not count uses"):
        _host(hr.Lru(9)).uses(torch.tensor([1]))


# ---- saved and loaded


@PLACEMENTS
@pytest.mark.parametrize(
    "rule", [hr.Lru(8), hr.Lfu(8, half_life=50), hr.Lfu(8, half_life="1h")], ids=repr
)
def test_a_loaded_table_goes_on_as_the_saved_one(
    made: Callable[[Any], Any], rule: Any, tmp_path: Path
) -> None:
    ours, dice = made(rule), np.random.default_rng(3)
    stream = [np.minimum(dice.zipf(1.3, 4), 60).tolist() for _ in range(120)]
    for i, ids in enumerate(stream[:60]):
        _write(ours, *ids, ts=NOW_S - 6000 + 50 * i)
    hr.save([ours], tmp_path / "saved")
    copy = made(rule)
    hr.load([copy], tmp_path / "saved")
    assert _ids(copy) == _ids(ours)
    for table in (ours, copy):
        for i, ids in enumerate(stream[60:]):
            _write(table, *ids, ts=NOW_S - 3000 + 50 * i)
        table.evict()
    assert _ids(copy) == _ids(ours)
    whole = _host(rule)
    for i, ids in enumerate(stream):
        _write(whole, *ids, ts=NOW_S - 6000 + 50 * i)
    whole.evict()
    assert _ids(whole) == _ids(ours)


@pytest.mark.parametrize("rule", [hr.Lru(2), hr.Lfu(2)], ids=repr)
def test_files_without_an_order_load_by_their_times(rule: Any, tmp_path: Path) -> None:
    """As version 0.1 wrote them, and as a table without a rule does."""
    plain = _host(None)
    for key, ts in ((1, 30), (2, 10), (3, 20), (4, 40)):
        _write(plain, key, ts=ts)
    hr.save([plain], tmp_path / "old")
    manifest = json.loads((tmp_path / "old" / "manifest.json").read_text())
    assert "order" not in manifest["tables"]["t"]["schema"]
    table = _host(rule)
    hr.load([table], tmp_path / "old")
    table.evict()
    assert _ids(table) == [1, 4]
    _write(table, 5, ts=40)
    table.evict()
    assert _ids(table) == [4, 5]


def test_the_times_in_files_are_seconds(tmp_path: Path) -> None:
    table = _host(hr.Lru(9))
    _write(table, 7, ts=1234)
    hr.save([table], tmp_path / "saved")
    columns = [column.name for column in TableSchema.of(table.config).columns()]
    assert columns == ["id", "ts", "row", "order"]
    plain = _host(None)
    hr.load([plain], tmp_path / "saved")
    assert plain.entries(torch.tensor([7])).ts.tolist() == [1234]


# ---- what an eviction looks at, and what a table holds


@pytest.mark.parametrize("rule", [hr.Ttl("1d"), hr.Ttl("7d", slots={1: "1d"}), hr.Lru(9000)])
@pytest.mark.parametrize("capture", [False, True])
def test_an_eviction_with_nothing_to_do_looks_at_no_row(rule: Any, capture: bool) -> None:
    table = _host(rule)
    core = table.core.native_table
    table.assign(torch.arange(9000), torch.ones(9000, 1), ts=NOW_S - 3600)
    assert table.evict(capture=capture).rows == 0
    for minute in range(20):
        table.assign(torch.arange(100), torch.ones(100, 1), ts=NOW_S - 60 * minute)
        assert table.evict(capture=capture).rows == 0
    assert core.looked_at() == 0
    if isinstance(rule, hr.Ttl):
        table.assign(torch.tensor([2**48]), torch.ones(1, 1), ts=NOW_S + 23 * 3600 - 3601)
        assert table.evict(now_s=NOW_S - 3600 + 86400 - 1, capture=capture).rows == 0


MEMORY = """
import sys, torch, hedgerow as hr
torch.set_num_threads(1)
def resident():
    with open("/proc/self/smaps_rollup") as file:
        return next(1024 * int(l.split()[1]) for l in file if l.startswith("Rss:"))
config = hr.TableConfig("t", (hr.Segment(16, hr.Zeros(), hr.Adagrad(lr=1.0)),))
step, rows = 100_000, 2_000_000
values, ids = torch.ones(step, 16), torch.randint(-2**62, 2**62, (rows,))
warm = hr.HostTable(config)
warm.assign(ids[:step], values)
warm.close()
before = resident()
table = hr.HostTable(config)
feed = table.touched("feed", all_changes=True) if sys.argv[1] == "feed" else None
for at in range(0, rows, step):
    table.assign(ids[at : at + step], values)
table.lookup(ids[:step])
held, told = resident() - before, table.memory().total_bytes
table.clear()
print(held, told, resident() - before)
"""


@pytest.mark.parametrize("kind", ["plain", "feed"])
def test_memory_is_what_the_process_holds_and_little_stays_after_clear(kind: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", MEMORY, kind], capture_output=True, text=True, check=True
    )
    held, told, left = map(int, ran.stdout.split())
    assert abs(told - held) < 0.05 * held
    if kind == "plain":  # a feed keeps its keys until they are taken
        assert left <= 16 << 20


LARGE_CALLS = """
import gc, sys, torch, hedgerow as hr
torch.set_num_threads(1)
def resident():
    with open("/proc/self/smaps_rollup") as file:
        return next(1024 * int(l.split()[1]) for l in file if l.startswith("Rss:"))
step = 400_000
ids = torch.arange(4 * step) * 7919
grads = torch.ones(step, 16)
def train(steps):
    settings = {"optimizer": hr.Adagrad(lr=1.0), "init": hr.Zeros()}
    if sys.argv[1] == "module":
        bags = hr.EmbeddingBags([hr.Table("a", 16), hr.Table("b", 16)], **settings)
        for at in range(0, steps * step // 2, step // 2):
            part = ids[at : at + step // 2]
            batch = hr.IdBatch.from_dict({"a": part, "b": part})
            sum(vectors.sum() for vectors in bags(batch).values()).backward()
        return bags.store
    table = hr.HostTable(hr.TableConfig("t", (hr.Segment(16, **settings),)))
    for at in range(0, steps * step, step):
        table.lookup(ids[at : at + step])
        table.apply_gradients(ids[at : at + step], grads)
    return table
warm = train(1)
warm.clear()
del warm
gc.collect()
before = resident()
store = train(4)
gc.collect()
held = resident() - before
store.clear()
print(held, resident() - before)
"""


@pytest.mark.parametrize("kind", ["table", "module"])
def test_little_stays_after_the_clear_of_what_large_calls_filled(kind: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LARGE_CALLS, kind], capture_output=True, text=True, check=True
    )
    held, left = map(int, ran.stdout.split())
    assert held > 200 << 20
    assert left <= 16 << 20


def test_tables_of_one_store_count_the_results_that_it_keeps() -> None:
    store = HostTables({name: _config(None) for name in ("a", "b")})

    def kept() -> list[Any]:
        return [table_stats(store.table(k))["output_bytes"] for k in range(2)]

    ids = torch.arange(2**19)
    found = store.lookup(TableKeys(torch.cat([ids, ids]), (0, 2**19, 2**20)))
    assert kept() == [0, 0]
    del found
    assert kept() == [2**21] * 2
    store.clear()
    assert kept() == [0, 0]


# ---- Count


def test_sightings_of_one_call_count_from_the_next_call_on() -> None:
    table = HostTable(_config(None, admit=hr.Count(3)))
    assert table.apply_gradients(torch.tensor([7] * 5), torch.ones(5, 1)).refused == 5
    assert table.apply_gradients(torch.tensor([7]), torch.ones(1, 1)).inserted == 1
    one_by_one = HostTable(_config(None, admit=hr.Count(3)))
    sights = torch.tensor([7] * 5), torch.ones(5, 1)
    done = one_by_one.apply_gradients(*sights, per_occurrence=True)
    assert (done.inserted, done.refused) == (1, 2)
