"""Hot rows come to the fast tier, cold ones go back, and a hot set that moves is followed."""

from __future__ import annotations

import threading

import numpy as np
import torch

from hedgerow.tables.host import HostTable
from hedgerow.tables.local_table import table_stats
from hedgerow.tiers.caching import CachingTable
from hedgerow.tiers.hybrid import HybridTable
from hedgerow.tiers.residency_map import UseCounts

from ..support import table_config

CONFIG = table_config(dim=2)
TRAINING = {"missing": "training"}


def _train(table: HybridTable, hot: range, steps: int, seed: int) -> float:
    """Steps that use hot ids, and as many others; the share of fast hits in the last ten."""
    random = np.random.default_rng(seed)
    hits = total = 0
    for step in range(steps):
        some = random.choice(np.array(hot), 30, replace=False)
        ids = torch.from_numpy(np.concatenate([some, random.integers(10**6, 10**7, 30)]))
        before = table.counters.read("fast_hits")
        table.lookup(ids[:30])
        if step >= steps - 10:
            hits += table.counters.read("fast_hits") - before
            total += 30
        table.apply_gradients(ids, torch.ones(60, 2), step=step)
    return hits / total


def test_the_hot_set_is_followed_within_two_hundred_steps() -> None:
    """In the mean of four tables: which ids share cells is another matter in each."""
    tables = [
        HybridTable(HostTable(CONFIG), HostTable(CONFIG), fast_rows=60, promotions=8)
        for _ in range(4)
    ]
    for table in tables:
        assert _train(table, range(50), 60, 1) > 0.95
    assert np.mean([_train(table, range(500, 550), 200, 2) for table in tables]) > 0.95
    settled = [table.stats()["promotions"] for table in tables]
    assert np.mean([_train(table, range(500, 550), 50, 3) for table in tables]) > 0.93
    for table, before in zip(tables, settled, strict=True):
        stats = table.stats()
        assert stats["demotions"] >= 50  # the old hot rows went back
        assert stats["fast_rows"] == 60
        assert stats["promotions"] - before < 50  # what was seen once moves no row


def test_a_step_promotes_no_more_than_it_may() -> None:
    table = HybridTable(HostTable(CONFIG), HostTable(CONFIG), fast_rows=100, promotions=3)
    for step in range(1, 5):
        table.apply_gradients(torch.arange(50), torch.ones(50, 2))
        assert table.fast.size() == 3 * step
    still = HybridTable(HostTable(CONFIG), HostTable(CONFIG), fast_rows=100, promotions=0)
    still.apply_gradients(torch.arange(50), torch.ones(50, 2))
    assert still.fast.size() == 0


def test_no_read_moves_a_row() -> None:
    table = HybridTable(HostTable(CONFIG), HostTable(CONFIG), fast_rows=4)
    table.assign(torch.arange(10), torch.ones(10, 2))
    for _ in range(5):
        table.lookup(torch.arange(10), missing="training")
        table.entries(torch.arange(10))
    assert table.fast.size() == 0
    assert sum(len(part) for part in table.scan()) == 10


def test_clean_rows_leave_a_cache_without_a_write() -> None:
    table = CachingTable(HostTable(CONFIG), HostTable(CONFIG), cache_rows=4)
    table.assign(torch.arange(20), torch.ones(20, 2))
    for start in range(0, 20, 4):
        table.lookup(torch.arange(start, start + 4), missing="training")
    table.flush()
    stats = table_stats(table)
    assert (stats["fetches"], stats["cache_evictions"], stats["write_backs"]) == (20, 16, 0)
    table.apply_gradients(torch.tensor([16, 17]), torch.ones(2, 2))
    assert table_stats(table)["dirty_rows"] == 2
    table.flush()
    assert (table_stats(table)["write_backs"], table_stats(table)["dirty_rows"]) == (2, 0)


def test_what_comes_late_is_counted() -> None:
    table = CachingTable(HostTable(CONFIG), HostTable(CONFIG), cache_rows=8)
    table.assign(torch.arange(20), torch.ones(20, 2))
    with table.prefetch(torch.arange(6)) as ahead:
        ahead.wait()
        table.lookup(torch.arange(4, 8), missing="training")
    assert table.stats()["late_prefetches"] == 0
    with table.snapshot(paused=True) as held:  # the prefetch may read, and not move
        ahead = table.prefetch(torch.arange(10, 16))
        late = threading.Thread(target=table.lookup, args=[torch.arange(14, 18)], kwargs=TRAINING)
        late.start()
        while table.counters.read("late_prefetches") < 2:  # 14 and 15
            assert late.is_alive()
        held.resume()
        late.join()
        assert ahead.is_done()
    ahead.release()
    assert table.stats()["late_prefetches"] == 2


def test_uses_fade_and_are_renewed() -> None:
    uses, ids = UseCounts(100, half_life_steps=1), np.arange(3)
    for _ in range(100):  # far beyond what a weight may grow to
        uses.step(ids[:2])
        uses.step(ids[1:])
    first, second, third = uses.of(ids) / uses.weight
    assert abs(first - (0.5 + 0.5**3 + 0.5**5 + 0.5**7)) < 0.01
    assert abs(third - (1 + 0.25 + 0.25**2 + 0.25**3)) < 0.01
    assert abs(second - 2) < 0.01


def test_ids_that_share_the_cells_that_everybody_knew_do_not_push_hot_rows_out() -> None:
    """They met in both rows of cells of release 0.1, and seemed as hot together as all of them."""
    cold = _that_shared_cells(200, cells=4 * 300)
    hot = torch.arange(10**6, 10**6 + 300)
    table = HybridTable(HostTable(CONFIG), HostTable(CONFIG), fast_rows=300, promotions=300)
    for _ in range(20):
        table.apply_gradients(hot, torch.ones(300, 2))
    for step in range(40):
        ids = torch.cat([cold[step % 10 :: 10], hot[:30]])
        table.apply_gradients(ids, torch.ones(len(ids), 2))
    assert (table.resident.find(hot.numpy()) >= 0).sum() > 250


def _that_shared_cells(n: int, cells: int) -> torch.Tensor:
    random, found = np.random.default_rng(1), []
    while sum(map(len, found)) < n:
        ids = random.integers(-(2**63), 2**63, 1 << 20)
        words = ids.view(np.uint64) ^ (ids >> 32 & 0xFFFFFFFF).view(np.uint64)
        factors = np.array([0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93], np.uint64)
        at = (words * factors[:, None] >> np.uint64(32)) * np.uint64(max(1 << 10, cells))
        found.append(ids[(at >> np.uint64(32) == 7).all(0)])
    return torch.from_numpy(np.concatenate(found)[:n])
