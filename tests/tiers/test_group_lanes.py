"""Keys of several caches that are listed for the host, and rows that come and find no lane."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from hedgerow.kernels.leave import CROWDED
from hedgerow.tables.store import TableKeys
from hedgerow.tiers import misses
from hedgerow.tiers.eviction import BucketOverflows
from hedgerow.tiers.misses import Misses, MissRead
from tests.twins import kernels_table

from .test_group import NAMES, Pair, config

N = 128  # keys, and slots: eight buckets
FULL = {"fast_rows": N, "slots": N}
HALF = torch.full((1, 4), 0.5)


def test_keys_beyond_the_room_of_a_list_come_too(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(misses, "_LEAST", 1)
    pair = Pair("CACHING", device, 11, [config(name) for name in NAMES])
    group = pair.groups[0].miss_handler
    assert group is not None
    for _ in range(12):
        pair.step(pair.keys())
    assert pair.stat("fetches") > 0
    assert group.list_room.rows > 1
    keys = pair.keys()
    for _ in range(8):  # where all keys are there, a long list would be copied for nothing
        pair.step(keys)
    assert group.list_room.rows == 1
    pair.compare()


def _full(device: torch.device) -> tuple[Pair, TableKeys, torch.Tensor]:
    """Caches as large as their slots; keys of one table, some without a lane."""
    pair = Pair("CACHING", device, 13, [config(name) for name in NAMES], **FULL)
    keys = TableKeys(torch.arange(N) * 977, (0, N, N, N))
    for _ in range(3):  # born, brought, and brought again where there was no lane
        pair.step(keys)
    found = pair.ours.lookup(TableKeys(keys.ids.to(device), keys.splits), missing="training")
    without = next(iter(found.epoch.found.values())).slots < 0
    assert 0 < int(without.sum()) < N
    return pair, keys, without.cpu()


def test_rows_without_a_lane_learn_behind_the_cache(device: torch.device) -> None:
    pair, keys, without = _full(device)
    for _ in range(2):
        pair.step(keys)
    pair.compare()
    table = pair.ours.table(0)
    assert table.stats()["fast_rows"] == N - int(without.sum())


def test_what_is_not_finite_is_left_out_wherever_a_brought_row_lies(device: torch.device) -> None:
    pair, keys, without = _full(device)
    there = TableKeys(keys.ids.to(device), keys.splits)
    before = pair.model.lookup(keys).rows.view(N, 4)
    grads = torch.ones(N, 4)
    bad = torch.zeros(N, dtype=torch.bool)
    bad[without.nonzero()[0]] = bad[(~without).nonzero()[0]] = True
    grads[bad] = float("nan")
    found = pair.ours.lookup(there, missing="training")
    done = pair.ours.apply_gradients(found, grads.to(device))
    assert (done.inserted, done.refused, done.dropped) == (0, 0, 2)
    after = pair.ours.lookup(there).rows.cpu().view(N, 4)
    assert torch.equal(after[bad], before[bad])
    assert bool((after != before)[~bad].all())


class Shared:
    """Caches with room for all rows, of which some share two full buckets; `table` has them."""

    def __init__(self, device: torch.device, table: int = 0) -> None:
        configs = [replace(config(name), slot_key=0) for name in NAMES]  # known places
        self.pair = Pair("CACHING", device, 5, configs, **FULL)
        self.table, self.device = table, device
        fetches = self.pair.groups[0].miss_handler
        assert fetches is not None
        self.fetches, self.evictions = fetches, fetches.evictions
        ids = torch.arange(60_000)
        self._ids, self._places = ids, torch.stack(kernels_table.place(ids, N // 16))

    def ids(self, first: int, second: int, count: int) -> list[int]:
        """Ids of these two buckets."""
        mine = (self._places[0] == first) & (self._places[1] == second)
        return self._ids[mine][:count].tolist()

    def keys(self, ids: Sequence[int]) -> TableKeys:
        splits = [0] * (self.table + 1) + [len(ids)] * (3 - self.table)
        return TableKeys(torch.tensor(ids), tuple(splits))

    def fill(self, new: Sequence[int], old: Sequence[int]) -> None:
        """The new are born, and not there; the old come, and nobody uses them any more."""
        self.step(new)
        self.step(old)
        self.step(old)

    def step(self, ids: Sequence[int]) -> None:
        self.pair.step(self.keys(ids))

    def have_lanes(self, ids: Sequence[int]) -> bool:
        places = self.pair.ours.table(self.table).resident
        return bool((places.find(np.array(ids)) >= 0).all())

    def steps_until_there(self, ids: Sequence[int], others: Sequence[int] = ()) -> int:
        """Steps until all have lanes, each followed by one of others."""
        for steps in range(80):
            self.step(ids)
            if self.have_lanes(ids):
                return steps
            if others:
                self.step(others)
        raise AssertionError("they find no lane")


@pytest.mark.parametrize("table", [0, 2])
def test_an_old_row_leaves_for_one_that_finds_no_lane(device: torch.device, table: int) -> None:
    """Of 33 ids that share two buckets 32 are there, and nobody uses them any more.

    Nor the 15 in each of two others, which stay: there is room for all but one.
    """
    crowd = Shared(device, table)
    *old, new = crowd.ids(3, 5, 33)
    crowd.fill([new], old + crowd.ids(2, 7, 30))
    assert not crowd.have_lanes([new])
    assert crowd.steps_until_there([new]) < 40
    assert crowd.pair.stat("cache_evictions") == 1
    assert crowd.pair.ours.table(table).stats()["cache_evictions"] == 1
    crowd.pair.compare()


def test_for_ids_that_share_full_buckets_as_many_rows_leave_at_once(device: torch.device) -> None:
    crowd = Shared(device)
    ids = crowd.ids(3, 5, 40)
    crowd.fill(ids[32:], ids[:32])
    assert crowd.steps_until_there(ids[32:] * 50) <= 20  # two turns
    assert crowd.pair.stat("cache_evictions") == 8
    crowd.pair.compare()


def test_an_id_that_finds_no_lane_is_not_forgotten_for_others(device: torch.device) -> None:
    """All 33 of a batch are used each time: for one of them there is never room."""
    crowd = Shared(device)
    hopeless, ids = crowd.ids(3, 5, 33), crowd.ids(2, 7, 33)
    crowd.fill(ids[32:], ids[:32])
    crowd.step(hopeless)
    crowd.step(hopeless)
    assert crowd.steps_until_there(ids[32:], hopeless) < 40
    crowd.pair.compare()


def test_where_nobody_can_leave_it_is_tried_every_16th_step(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd, turns = Shared(device), []
    group = crowd.evictions.device_group
    chosen = group.old_rows

    def old_rows(*given: Any, **more: Any) -> Any:
        turns.append(crowd.fetches.clock.now)
        return chosen(*given, **more)

    monkeypatch.setattr(group, "old_rows", old_rows)
    hopeless = crowd.ids(3, 5, 33)
    for _ in range(50):
        crowd.step(hopeless)
    assert 3 <= len(turns) <= 4
    assert min(after - before for before, after in pairwise(turns)) >= 32  # uses, two of a step
    crowd.step(hopeless[:20])  # all are there: nobody waits for a lane any more
    for _ in range(40):
        crowd.step(hopeless[:20])
    assert len(turns) <= 4
    crowd.pair.compare()


@pytest.mark.parametrize("breaks", [False, True])
def test_a_row_that_came_while_somebody_reads_it_behind_the_cache_is_not_read_old(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, breaks: bool
) -> None:
    """It came after he listed it, was changed, and is the oldest where another finds no lane."""
    crowd, told = Shared(device), []
    *old, row, new = crowd.ids(3, 5, 33)
    for ids in ([new], [row], old, old):
        crowd.step(ids)
    asked, read, group = crowd.fetches.missing_ids, MissRead.read, crowd.evictions.device_group
    chosen = group.old_rows

    def broken(*given: Any, **more: Any) -> Any:
        chosen(*given, **more)
        raise KeyboardInterrupt

    def listed(*given: Any) -> Any:
        answer = asked(*given)
        if not told:
            told.append("listed")
            crowd.step([row])
            crowd.step(old)
            for _ in range(20):
                crowd.step([new])
            if breaks:
                monkeypatch.setattr(group, "old_rows", broken)
                for _ in range(20):
                    with suppress(KeyboardInterrupt):
                        crowd.pair.ours.lookup(there([new]), missing="training")
                monkeypatch.setattr(group, "old_rows", chosen)
            for table in (crowd.pair.ours.table(0), crowd.pair.model.table(0)):
                where = table.device
                table.assign(torch.tensor([row], device=where), HALF.to(where), ts=900)
        return answer

    def read_slowly(self: MissRead) -> None:
        read(self)
        if told == ["listed"]:
            told.append("read")
            for _ in range(40):
                crowd.step([new])

    def there(ids: list[int]) -> TableKeys:
        keys = crowd.keys(ids)
        return TableKeys(keys.ids.to(device), keys.splits)

    monkeypatch.setattr(crowd.fetches, "missing_ids", listed)
    monkeypatch.setattr(MissRead, "read", read_slowly)
    found = crowd.pair.ours.lookup(there([row]), missing="training")
    assert told == ["listed", "read"]
    assert torch.equal(found.rows.cpu(), HALF.view(-1))
    crowd.pair.compare()


def test_crowded_keys_are_kept_once_and_not_too_many() -> None:
    crowded, cpu = BucketOverflows(3), torch.device("cpu")
    assert not crowded
    assert crowded.take(cpu) is None
    ids = torch.tensor([5, -7, 5, 5, 9])
    rest = Misses(ids, (0, 4, 4, 5), ids, torch.arange(5))
    crowded.add(rest)
    crowded.add(Misses(ids[4:], (0, 1, 1, 1), ids[4:], torch.tensor([0])))
    crowded.add(rest)
    assert crowded.counts == [3, 0, 1]
    keys = crowded.take(cpu)
    assert keys is not None
    assert (sorted(keys.ids[:3].tolist()), keys.ids[3:].tolist()) == ([-7, 5, 9], [9])
    assert tuple(keys.splits) == (0, 3, 3, 4)
    assert not crowded


def test_of_too_many_crowded_keys_each_has_its_turn() -> None:
    crowded, many, seen = BucketOverflows(3), torch.arange(5 * CROWDED // 2), set()
    for _ in range(3):
        crowded.add(Misses(many, (0, 0, len(many), len(many)), many, many))
        assert crowded.counts == [0, CROWDED, 0]
        keys = crowded.take(torch.device("cpu"))
        assert keys is not None
        seen |= set(keys.ids.tolist())
    assert seen == set(many.tolist())


def test_a_key_among_many_hopeless_ones_finds_a_lane(device: torch.device) -> None:
    crowd = Shared(device)
    hopeless, ids = crowd.ids(3, 5, 96), crowd.ids(2, 7, 33)
    new = max(ids)
    crowd.fill([new], [one for one in ids if one != new])
    steps = 0
    while not crowd.have_lanes([new]):
        crowd.step([*hopeless, new])
        steps += 1
        assert steps < 80
    crowd.pair.compare()
