"""Several tables with fast rows on a device, in one step: the numbers of as many plain tables."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch

import hedgerow as hr
from hedgerow.core.errors import CacheTooSmallError, NotFiniteError
from hedgerow.tables.admission import Count
from hedgerow.tables.multi.host_tables import HostTables
from hedgerow.tables.store import TableKeys
from hedgerow.tiers.tier_tables import Tiers, TierTables, device_tier_tables, tier_table

from ..support import everything

NAMES = ("a", "b", "c")


def config(name: str, *, dim: int = 4, **more: Any) -> hr.TableConfig:
    return hr.TableConfig(name, (hr.Segment(dim, hr.Uniform(), hr.Adagrad(lr=0.1)),), **more)


class Pair:
    """A store of tiers and a plain one, which see the same batches."""

    def __init__(
        self, mode: str, device: torch.device, seed: int, configs: list[hr.TableConfig], **more: Any
    ) -> None:
        tiers = Tiers(mode=mode, **{"fast_rows": 24, "slots": 32, "allow_small": True, **more})
        tables, groups = device_tier_tables([(one, tiers) for one in configs], device)
        self.ours: Any = TierTables(tables, device=device, together=groups)
        self.model: Any = HostTables({one.name: one for one in configs})
        self.groups, self.device = groups, device
        self.random, self.turn = np.random.default_rng(seed), 0

    def keys(self, most: int = 12) -> TableKeys:
        sizes = self.random.integers(0, most, len(self.ours.names))
        ids = [self.random.zipf(1.3, n) % 60 + self.turn // 8 for n in sizes]
        ids = np.concatenate([np.empty(0, np.int64), *ids]).astype(np.int64)
        return TableKeys(torch.from_numpy(ids), (0, *accumulate(int(n) for n in sizes)))

    def step(self, keys: TableKeys, missing: str = "training", **more: Any) -> None:
        there = TableKeys(keys.ids.to(self.device), keys.splits)
        found = self.ours.lookup(there, missing=missing, step=self.turn)
        wanted = self.model.lookup(keys, missing=missing, step=self.turn)
        assert torch.equal(found.rows.cpu(), wanted.rows), self.turn
        grads = torch.from_numpy(self.random.normal(size=wanted.rows.shape).astype(np.float32))
        settings = {"ts": 100 + self.turn, "step": self.turn, **more}
        at: Any = found if self.random.random() < 0.8 else there
        ours = self.ours.apply_gradients(at, grads.to(self.device), **settings)
        assert repr(ours) == repr(self.model.apply_gradients(keys, grads, **settings))
        assert self.ours.max_ts() == self.model.max_ts()
        self.turn += 1

    def run(self, steps: int, **more: Any) -> None:
        for _ in range(steps):
            missing = self.random.choice(["training", "training", "zeros"])
            self.step(self.keys(), str(missing), **more)
        self.compare()

    def compare(self) -> None:
        for k in range(len(self.ours.names)):
            assert everything(self.ours.table(k)) == everything(self.model.table(k))
            assert self.ours.table(k).size() == self.model.table(k).size()

    def stat(self, name: str) -> int:
        return int(sum(table.stats()[name] for table in self.ours.tables))


@pytest.mark.parametrize("mode", ["CACHING", "HYBRID"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2, 3))])
def test_steps_give_the_numbers_of_plain_tables(
    mode: str, seed: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hedgerow.tiers.hybrid.MOVE_STEPS", 2)
    pair = Pair(mode, device, seed, [config(name) for name in NAMES])
    assert len(pair.groups) == 1
    assert pair.groups[0].can_step()
    pair.run(20)
    assert pair.groups[0].can_step()
    assert pair.stat("fast_hits") > 0
    assert pair.stat("fetches" if mode == "CACHING" else "promotions") > 0


@pytest.mark.parametrize("mode", ["CACHING", "HYBRID"])
def test_ids_are_admitted_by_their_rule(mode: str, device: torch.device) -> None:
    pair = Pair(mode, device, 5, [config(name, admit=Count(2)) for name in NAMES])
    pair.run(8)


def test_rows_that_leave_a_cache_are_written_back(device: torch.device) -> None:
    pair = Pair("CACHING", device, 7, [config(name) for name in NAMES], fast_rows=9, slots=16)
    pair.run(16)
    assert pair.stat("cache_evictions") > 0
    for table in pair.ours.tables:
        assert len(table.resident) <= 9
        table.flush()
        assert table.stats()["dirty_rows"] == 0
    for k, table in enumerate(pair.ours.tables):
        assert everything(table.slow) == everything(pair.model.table(k))


def test_other_verbs_between_steps(device: torch.device) -> None:
    pair = Pair("CACHING", device, 8, [config(name) for name in NAMES])
    pair.run(4)
    some = torch.arange(0, 12)
    for k in range(3):
        for store in (pair.ours, pair.model):
            table = store.table(k)
            there = some.to(table.device)
            table.erase(there[:4])
            table.assign(there[4:8], torch.full((4, 4), 0.25 + k, device=table.device), ts=300)
    pair.run(4)


def test_tables_that_are_watched_or_differ_go_one_by_one(device: torch.device) -> None:
    pair = Pair("HYBRID", device, 9, [config("a"), config("b", dim=3), config("c")])
    assert [group.names for group in pair.groups] == [("a", "c"), ("b",)]
    pair.run(3)
    touched = pair.ours.table(0).touched("me")
    assert [group.can_step() for group in pair.groups] == [False, True]
    pair.run(3)
    assert touched.take().ids.numel() > 0
    touched.close()
    assert pair.groups[0].can_step()
    pair.run(2, rates=[0.1, 0.2, 0.3])  # the rates of a group differ
    pair.run(2, per_occurrence=True)


def test_empty_calls_and_gradients_that_are_not_finite(device: torch.device) -> None:
    pair = Pair("CACHING", device, 10, [config(name, not_finite="drop") for name in NAMES])
    pair.step(TableKeys(torch.empty(0, dtype=torch.int64), (0, 0, 0, 0)))
    pair.step(TableKeys(torch.tensor([5, 5, 6]), (0, 0, 3, 3)))
    pair.step(TableKeys(torch.tensor([5, 5, 6]), (0, 0, 3, 3)))
    keys = TableKeys(torch.tensor([5, 6]), (0, 0, 2, 2))
    bad = torch.tensor([[1.0] * 4, [float("nan")] * 4])
    done = [
        store.apply_gradients(TableKeys(keys.ids.to(d), keys.splits), bad.view(-1).to(d), ts=200)
        for store, d in ((pair.ours, device), (pair.model, torch.device("cpu")))
    ]
    assert repr(done[0]) == repr(done[1])
    pair.compare()


def test_gradients_that_are_rejected_change_no_table(device: torch.device) -> None:
    pair = Pair("HYBRID", device, 12, [config(name) for name in NAMES])
    keys = TableKeys(torch.tensor([5, 6], device=device), (0, 1, 2, 2))
    bad = torch.tensor([1.0] * 4 + [float("inf")] * 4, device=device)
    with pytest.raises(NotFiniteError, match="grads\\[0, 0\\] is inf; table 'b'"):
        pair.ours.apply_gradients(keys, bad)
    assert pair.ours.size() == 0


def test_a_call_with_more_rows_than_a_cache_has_is_refused(device: torch.device) -> None:
    pair = Pair("CACHING", device, 11, [config("a")], fast_rows=8, slots=16, allow_small=False)
    ids = torch.arange(9, device=device)
    with pytest.raises(
        CacheTooSmallError, match=r"9 distinct keys, but the cache holds at most 8 rows"
    ):
        pair.ours.apply_gradients(ids, torch.ones(36, device=device))
    assert pair.ours.size() == 0


def test_a_group_takes_no_more_memory_than_its_tables(device: torch.device) -> None:
    tiers = Tiers(mode="CACHING", fast_rows=100, slots=128)
    tables, _ = device_tier_tables([(config(name), tiers) for name in NAMES], device)
    alone = tier_table(config("a"), tiers, device=device) if device.type != "cpu" else None
    for table in tables:
        assert getattr(table.fast, "capacity_rows", 0) == 128
        if alone is not None:
            assert table.memory().row_bytes == alone.memory().row_bytes


def test_prefetched_batches_give_the_same_numbers(device: torch.device) -> None:
    pair = Pair("CACHING", device, 11, [config(name) for name in NAMES], fast_rows=12, slots=24)
    coming = [pair.keys() for _ in range(17)]
    there = [TableKeys(keys.ids.to(device), keys.splits) for keys in coming]
    for turn in range(16):
        for later in range(turn + 1, min(turn + 3, 17)) if turn % 2 == 0 else ():
            pair.ours.prefetch(there[later])
        found = pair.ours.lookup(there[turn], missing="training")
        wanted = pair.model.lookup(coming[turn], missing="training")
        assert torch.equal(found.rows.cpu(), wanted.rows), turn
        grads = torch.from_numpy(pair.random.normal(size=wanted.rows.shape).astype(np.float32))
        pair.ours.apply_gradients(found, grads.to(device), ts=turn)
        pair.model.apply_gradients(coming[turn], grads, ts=turn)
        if turn == 9:  # behind the cache, while rows of it are on their way
            some = pair.keys()
            pair.ours.erase(TableKeys(some.ids.to(device), some.splits))
            pair.model.erase(some)
    assert pair.stat("prefetches") > 0
    pair.compare()


def test_a_batch_that_nobody_looks_up_is_forgotten(device: torch.device) -> None:
    pair = Pair("CACHING", device, 12, [config(name) for name in NAMES])
    pair.run(3)
    batches = [pair.keys() for _ in range(12)]
    for keys in batches:
        pair.ours.prefetch(TableKeys(keys.ids.to(device), keys.splits))
    fetches: Any = pair.groups[0].miss_handler
    ahead = fetches.prefetcher
    ahead.go_on()
    assert 0 < len(ahead) < len(batches)
    assert max(len(table.moves.log) for table in pair.ours.tables) <= len(ahead)
    pair.run(3)
