"""Rows that leave several caches of a device together, and are written by a thread."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hedgerow.kernels.layout import EMPTY, ERASED
from hedgerow.tables.multi import device_group
from hedgerow.tables.store import TableKeys
from hedgerow.tiers import eviction
from hedgerow.tiers.cache_moves import CacheMoves
from hedgerow.tiers.eviction import PendingWriteBack

from .test_group import NAMES, Pair, config


def _pair(device: torch.device, seed: int = 3, **more: Any) -> Pair:
    settings = {"fast_rows": 24, "slots": 32, **more}
    return Pair("CACHING", device, seed, [config(name) for name in NAMES], **settings)


def _all(*ids: int) -> TableKeys:
    """The same ids for all tables."""
    one = torch.tensor(ids)
    return TableKeys(torch.cat([one] * 3), tuple(len(ids) * k for k in range(4)))


def _fill(pair: Pair) -> None:
    """Caches are full of changed rows; others are behind them."""
    for first in (40, 40, 0, 0):
        pair.step(_all(*range(first, first + 24)))


def _last(pair: Pair) -> PendingWriteBack:
    after = pair.groups[0].miss_handler.evictions.next
    assert after is not None
    return after.write_back


def _last_ids(pair: Pair) -> list[int]:
    """Ids of the first table that were chosen to leave."""
    after = pair.groups[0].miss_handler.evictions.next
    slots = after.chosen.going[: after.most[0]]
    return pair.ours.table(0).resident.ids_at(slots[slots >= 0].cpu().numpy()).tolist()


def test_the_longest_unused_rows_of_all_tables_leave_at_once(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def alone(*_: object) -> None:
        raise AssertionError("a table dropped rows by itself")

    monkeypatch.setattr(CacheMoves, "drop", alone)
    pair = _pair(device)
    _fill(pair)
    before = pair.stat("cache_evictions")
    pair.step(_all(*range(12, 20)))
    pair.step(_all(40, 41, 42))
    assert pair.stat("cache_evictions") == before + 9
    for table in pair.ours.tables:
        here = set(table.resident.ids_at(table.resident.at()).tolist())
        assert {*range(12, 20), 40, 41, 42} <= here
        assert len(here) == 24
    pair.compare()
    assert pair.stat("write_backs") >= 9


def test_a_part_of_a_large_cache_is_kept_free(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eviction, "_SPARE", 8)
    monkeypatch.setattr(eviction, "MOST_SPARE", 8)
    pair = _pair(device)
    pair.run(30)
    assert pair.stat("cache_evictions") > 0
    for table in pair.ours.tables:
        assert len(table.resident) <= 24


def test_a_sample_of_slots_says_how_old_rows_are(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_group, "_SAMPLE", 16)
    pair = _pair(device, fast_rows=100, slots=128)
    for first in (0, 0, 60, 60, 120, 120, 0, 60, 120):
        pair.step(_all(*range(first, first + 60)))
    assert pair.stat("cache_evictions") > 0
    for table in pair.ours.tables:
        assert len(table.resident) <= 100
    pair.compare()


def test_rows_that_were_waited_for_are_written_by_the_thread(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits to learn how many rows there are starts their copy, and nothing else."""
    monkeypatch.setattr(eviction, "_SPARE", 6)
    monkeypatch.setattr(eviction, "MOST_SPARE", 6)
    pair = _pair(device)
    _fill(pair)
    pair.step(_all(40, 41, 42))  # for which others leave at once
    leaving: Any = pair.groups[0].miss_handler.evictions
    assert leaving.next is not None
    leaving.thread.submit(lambda: None).result(timeout=60)  # after all that it has to do
    assert leaving.next.write_back.has_landed
    before = pair.ours.table(0).slow.entries(torch.arange(60)).ts.clone()
    pair.ours.table(0).moves.write_back.land()
    assert torch.equal(pair.ours.table(0).slow.entries(torch.arange(60)).ts, before)
    pair.compare()


def test_rows_that_could_not_be_handed_over_are_so_with_the_next_step(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eviction, "_SPARE", 6)
    monkeypatch.setattr(eviction, "MOST_SPARE", 6)
    pair = _pair(device)
    _fill(pair)
    leaving: Any = pair.groups[0].miss_handler.evictions

    def broken(_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(PendingWriteBack, "start", broken)
        pair.step(_all(40, 41, 42))  # which is done all the same
    pair.groups[0].miss_handler.evictions.go_on()
    leaving.thread.submit(lambda: None).result(timeout=60)
    assert leaving.next.write_back.has_landed
    pair.compare()


def test_nothing_leaves_while_it_is_being_written_unless_it_must(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eviction, "_SPARE", 6)
    monkeypatch.setattr(eviction, "MOST_SPARE", 6)
    pair = _pair(device)
    leaving: Any = pair.groups[0].miss_handler.evictions
    late: list[bool] = []
    turn_over = leaving.turn_over

    def noted(needs: Any, *more: Any) -> None:
        late.append(leaving.next is not None and not leaving.next.write_back.has_landed)
        assert not late[-1] or any(need.now() > 0 for need in needs)
        turn_over(needs, *more)

    monkeypatch.setattr(leaving, "turn_over", noted)
    monkeypatch.setattr(leaving, "go_on", lambda: None)  # the thread never comes to it
    for first in range(0, 96, 2):
        pair.step(_all(first % 48, first % 48 + 1))
    assert sum(late) > 1
    pair.compare()


def test_ids_that_look_like_free_places_stay_and_are_counted(device: torch.device) -> None:
    pair = _pair(device, fast_rows=8, slots=16)
    pair.step(_all(EMPTY, ERASED))
    pair.step(_all(EMPTY, ERASED))
    for first in (0, 0, 10, 10, 20, 20):
        pair.step(_all(*range(first, first + 5)))
    for table in pair.ours.tables:
        assert len(table.resident) <= 8
    pair.compare()


def test_rows_that_cannot_be_written_are_kept(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = _pair(device)
    _fill(pair)
    assert pair.stat("write_backs") > 0  # what had left before has landed
    with monkeypatch.context() as patch:

        def broken(*_: object) -> None:
            raise MemoryError

        patch.setattr("hedgerow.tiers.eviction.move_in_several", broken)
        pair.step(_all(12, 13))
        for _ in range(2):
            with pytest.raises(MemoryError):
                pair.ours.lookup(_on(device, _all(40, 41)), missing="training")
        pair.groups[0].miss_handler.evictions.go_on()
        with pytest.raises(MemoryError):
            _last(pair).land()
        with pytest.raises(MemoryError):
            pair.ours.table(1).flush()
    pair.compare()
    pair.step(_all(*range(24)))
    pair.compare()


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("when", ["old_rows", "clean", "take_out"])
def test_rows_whose_leaving_breaks_off_are_not_lost(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], when: str
) -> None:
    pair = _pair(device)
    _fill(pair)
    group = pair.groups[0].device_group
    with monkeypatch.context() as patch:

        def broken(*_: object, **more: object) -> None:
            raise error

        patch.setattr(group, when, broken)
        with pytest.raises(error):
            pair.ours.lookup(_on(device, _all(40, 41)), missing="training")
    pair.compare()
    for first in (40, 0, 40):
        pair.step(_all(*range(first, first + 24)))
    pair.compare()


def test_chosen_rows_that_are_used_or_changed_again_stay(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eviction, "_SPARE", 6)
    monkeypatch.setattr(eviction, "MOST_SPARE", 6)
    pair = _pair(device)
    for first in (40, 0, 0):
        pair.step(_all(*range(first, first + 16)))
    pair.step(_all(60))  # those of the step before it stay, whoever comes
    pair.step(_all(*range(40, 45)))  # 0 to 15 are the longest unused: some are chosen
    _last(pair).land()
    chosen = _last_ids(pair)
    assert len(chosen) > 4
    again, changed = chosen[:2], chosen[2:4]
    pair.step(TableKeys(torch.tensor(again), (0, 2, 2, 2)))
    for store in (pair.ours, pair.model):
        table = store.table(0)
        there = torch.tensor(changed, device=table.device)
        table.assign(there, torch.full((2, 4), 0.5, device=table.device), ts=900)
    pair.step(_all(*range(44, 48)))
    here = pair.ours.table(0).resident.find(np.array(chosen)) >= 0
    assert here.tolist() == [True] * 4 + [False] * (len(chosen) - 4)
    pair.compare()


def test_a_thread_that_cannot_start_fails_no_step(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = _pair(device)
    _fill(pair)
    with monkeypatch.context() as patch:

        def broken(*_: object, **more: object) -> None:
            raise RuntimeError("can't start new thread")

        patch.setattr(eviction, "ThreadPoolExecutor", broken)
        pair.groups[0].miss_handler.evictions.thread = None
        for first in (40, 0):
            pair.step(_all(*range(first, first + 24)))
    pair.compare()


def test_prefetched_rows_come_while_others_leave(device: torch.device) -> None:
    pair = _pair(device, seed=9)
    _fill(pair)
    for turn in range(12):
        ids = [(turn * 5 + i) % 64 for i in range(8)]
        keys = _all(*ids)
        there = _on(device, keys)
        pair.ours.prefetch(there)
        pair.step(_all(*((turn * 11 + i) % 64 for i in range(9))))
        found = pair.ours.lookup(there, missing="training")
        assert torch.equal(found.rows.cpu(), pair.model.lookup(keys, missing="training").rows)
        grads = torch.full((len(keys.ids) * 4,), 0.1 * turn)
        pair.ours.apply_gradients(found, grads.to(device))
        pair.model.apply_gradients(keys, grads)
    assert pair.stat("prefetches") > 0
    pair.compare()


def test_held_rows_do_not_leave(device: torch.device) -> None:
    pair = _pair(device)
    _fill(pair)
    table = pair.ours.table(0)
    with table.prefetch(torch.arange(5, device=device)) as held:
        held.wait()
        for first in (40, 44):
            pair.step(_all(*range(first, first + 19)))
        assert bool((table.resident.find(torch.arange(5).numpy()) >= 0).all())
    pair.step(_all(*range(40, 64)))
    pair.compare()


def _on(device: torch.device, keys: TableKeys) -> TableKeys:
    return TableKeys(keys.ids.to(device), keys.splits)
