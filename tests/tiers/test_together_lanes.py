"""Keys of several caches that are listed for the host, and rows that come and find no lane."""

from __future__ import annotations

import pytest
import torch

from hedgerow.kernels import reference
from hedgerow.tables.store import TableKeys
from hedgerow.tiers import list_room

from .test_together import NAMES, Pair, config

N = 128  # keys, and slots: eight buckets


def test_keys_beyond_the_room_of_a_list_come_too(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_room, "_LEAST", 1)
    pair = Pair("CACHING", device, 11, [config(name) for name in NAMES])
    group = pair.groups[0]._fetches
    assert group is not None
    for _ in range(12):
        pair.step(pair.keys())
    assert pair.stat("fetches") > 0
    assert group._room._rows > 1
    keys = pair.keys()
    for _ in range(8):  # where all keys are there, a long list would be copied for nothing
        pair.step(keys)
    assert group._room._rows == 1
    pair.compare()


def _full(device: torch.device) -> tuple[Pair, TableKeys, torch.Tensor]:
    """Caches as large as their slots; keys of one table, some without a lane."""
    pair = Pair("CACHING", device, 13, [config(name) for name in NAMES], fast_rows=N, slots=N)
    keys = TableKeys(torch.arange(N) * 977, (0, N, N, N))
    for _ in range(3):  # born, brought, and brought again where there was no lane
        pair.step(keys)
    found = pair.ours.lookup(TableKeys(keys.ids.to(device), keys.splits), missing="training")
    without = next(iter(found.epoch.values())).slots < 0
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


def test_an_old_row_leaves_for_one_that_finds_no_lane(device: torch.device) -> None:
    """Of 33 ids that share two buckets 32 are there, and nobody uses them any more.

    Nor the 15 in each of two others, which stay: there is room for all but one.
    """
    pair = Pair("CACHING", device, 5, [config(name) for name in NAMES], fast_rows=N, slots=N)
    ids = torch.arange(20_000)
    first, second = reference.place(ids, N // 16)
    shared = ids[(first == 3) & (second == 5)][:33]
    beside = ids[(first == 2) & (second == 7)][:30]
    old = torch.cat([shared[:32], beside])
    old, new = (TableKeys(part, (0, *[len(part)] * 3)) for part in (old, shared[32:]))
    pair.step(new)  # born, and not there
    for _ in range(2):
        pair.step(old)
    lanes = []
    for _ in range(40):
        found = pair.ours.lookup(TableKeys(new.ids.to(device), new.splits), missing="training")
        lanes.append(int(next(iter(found.epoch.values())).slots))
        pair.step(new)
    assert lanes[0] < 0 <= lanes[-1]
    assert pair.stat("cache_evictions") == 1  # there is room for all others
    pair.compare()
