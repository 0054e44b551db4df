"""Steps of several tables beside threads that move or save rows, and steps that break off."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from hedgerow.core.errors import CacheTooSmallError, InputError, StateError
from hedgerow.kernels import incoming_rows
from hedgerow.tables.store import TableKeys

from .test_group import NAMES, Pair, config


def _pair(device: torch.device, **more: Any) -> Pair:
    settings = {"fast_rows": 8, "slots": 16, **more}
    return Pair("CACHING", device, 3, [config(name) for name in NAMES], **settings)


def _keys(*ids: int) -> TableKeys:
    """For the first table alone."""
    return TableKeys(torch.tensor(ids, dtype=torch.int64), (0, len(ids), len(ids), len(ids)))


def _after_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, then: Any) -> None:
    """The next call of a method is followed by another function."""
    real, todo = getattr(owner, name), [then]

    def call(*args: Any, **settings: Any) -> Any:
        done = real(*args, **settings)
        if todo:
            todo.pop()()
        return done

    monkeypatch.setattr(owner, name, call)


def _prefetch(table: Any, *ids: int) -> Callable[[], None]:
    """Brings rows in another thread as soon as that may be, which may be after a while."""

    def bring() -> None:
        batch = table.prefetch(torch.tensor(ids, device=table.device))
        batch.wait(0.3)

    return bring


def test_slots_that_a_prefetch_made_old_are_not_stepped(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = _pair(device)
    for ids in (range(8), range(8), range(20, 28), range(8)):
        pair.step(_keys(*ids))
    group = pair.groups[0].device_group
    _after_once(monkeypatch, group, "find", _prefetch(pair.ours.table(0), *range(20, 28)))
    keys, grads = _keys(0, 1, 2), torch.ones(12)
    there = TableKeys(keys.ids.to(device), keys.splits)
    pair.ours.apply_gradients(there, grads.to(device), ts=500)
    pair.model.apply_gradients(keys, grads, ts=500)
    pair.compare()


def test_a_row_that_comes_back_during_a_lookup_is_read_as_it_is(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = _pair(device, fast_rows=16, slots=32)
    table = pair.ours.table(0)
    pair.step(_keys(*range(16)))
    pair.step(_keys(*range(16)))
    monkeypatch.setattr(table.moves.write_back, "start", lambda: None)  # they stay on their way
    ids = [3, 5]
    with table.pair.write_lock, table.pair.move_lock.alone():
        table.moves.drop(table.resident.find(np.array(ids)))
    assert bool(table.moves.write_back.queued.contains(torch.tensor(ids)).all())
    group = pair.groups[0].device_group
    _after_once(monkeypatch, group, "lookup", _prefetch(table, *ids))
    keys = _keys(*ids)
    found = pair.ours.lookup(TableKeys(keys.ids.to(device), keys.splits))
    assert torch.equal(found.rows.cpu(), pair.model.lookup(keys).rows)
    monkeypatch.undo()
    pair.compare()


def test_a_save_in_any_order_and_a_step_do_not_wait_for_one_another(device: torch.device) -> None:
    pair = _pair(device)
    pair.step(TableKeys(torch.tensor([1, 2, 3]), (0, 1, 2, 3)))
    keys = TableKeys(torch.tensor([1, 2, 3], device=device), (0, 1, 2, 3))
    step = threading.Thread(
        target=lambda: pair.ours.apply_gradients(keys, torch.ones(12, device=device)), daemon=True
    )

    def save() -> None:
        held = [pair.ours.table(2).snapshot(paused=True)]
        step.start()
        step.join(0.3)  # it waits for the table that is paused
        held.append(pair.ours.table(0).snapshot(paused=True))
        for one in held:
            one.close()

    saver = threading.Thread(target=save, daemon=True)
    saver.start()
    for one in (saver, step):
        one.join(60)
        assert not one.is_alive()


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_ids_get_no_place_without_their_row(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    pair = _pair(device)
    for _ in range(2):
        pair.step(_keys(1, 2, 3))
    pair.step(_keys(4, 5))
    with monkeypatch.context() as patch:

        def broken(*_: Any) -> None:
            raise error

        patch.setattr(incoming_rows, "put_rows", broken)
        with pytest.raises(error):
            pair.ours.lookup(_on(device, _keys(1, 4, 5)), missing="training")
    assert len(pair.ours.table(0).resident) == 3
    pair.compare()
    pair.step(_keys(1, 4, 5))
    pair.compare()


def test_a_clear_that_breaks_off_leaves_no_row_in_the_cache(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = _pair(device)
    for _ in range(2):
        pair.step(_keys(1, 2, 3))
    table = pair.ours.table(0)
    with monkeypatch.context() as patch:

        def broken() -> None:
            raise KeyboardInterrupt

        patch.setattr(table.fast, "clear", broken)
        with pytest.raises(KeyboardInterrupt):
            table.clear()
    assert not bool(table.contains(torch.tensor([1, 2, 3], device=device)).any())
    pair.model.table(0).clear()
    pair.step(_keys(1, 2, 3))
    pair.compare()


def test_a_clear_that_is_refused_loses_no_row_on_its_way(device: torch.device) -> None:
    pair = _pair(device)
    table = pair.ours.table(0)
    for ids in (range(8), range(8)):
        pair.step(_keys(*ids))
    with table.snapshot(), table.moves.write_back.still():
        pair.step(_keys(*range(8)))
        with table.pair.write_lock, table.pair.move_lock.alone():
            table.moves.drop(table.resident.find(np.array([0, 1])))
        assert table.moves.write_back.queued.size() == 2
        with pytest.raises(StateError, match="nothing was removed"):
            table.clear()
    pair.compare()


def test_rows_that_come_are_counted_once(device: torch.device) -> None:
    pair = _pair(device)
    pair.step(_keys(5, 5, 5, 6))
    pair.step(_keys(5, 5, 5, 6, 7))
    assert pair.stat("fetches") == 2
    assert len(pair.ours.table(0).resident) == 2


def test_rows_do_not_leave_for_ids_without_a_row(device: torch.device) -> None:
    pair = _pair(device)
    for ids in (range(8), range(8), range(20, 25)):
        pair.step(_keys(*ids))
    assert pair.stat("cache_evictions") == 0
    pair.step(_keys(*range(20, 25)))
    assert pair.stat("cache_evictions") == 5


def test_a_table_without_keys_is_not_told_the_time(device: torch.device) -> None:
    pair = _pair(device)
    pair.step(_keys(1))
    keys = TableKeys(torch.tensor([2], device=device), (0, 0, 1, 1))
    pair.ours.apply_gradients(keys, torch.ones(4, device=device), ts=200)
    assert [table.max_ts() for table in pair.ours.tables] == [100, 200, 0]
    pair.ours.apply_gradients(keys, torch.ones(4, device=device), ts=2**40)  # of the future
    assert [int(table.stats()["clamped_ts"]) for table in pair.ours.tables] == [0, 1, 0]


def test_a_table_without_keys_needs_no_step(device: torch.device) -> None:
    pair = Pair("CACHING", device, 3, [config(name) for name in reversed(NAMES)])
    assert [group.names for group in pair.groups] == [NAMES]  # neighbours, as the store has them
    rates = [0.1, lambda step: 0.1 * step, 0.3]
    done = [
        store.apply_gradients(_on(at, _keys(1)), torch.ones(4, device=at), rates=rates)
        for store, at in ((pair.ours, device), (pair.model, torch.device("cpu")))
    ]
    assert repr(done[0]) == repr(done[1])
    keys = TableKeys(torch.tensor([1, 1], device=device), (0, 1, 2, 2))
    with pytest.raises(InputError, match="step is missing: table 'b' learns according to the step"):
        pair.ours.apply_gradients(keys, torch.ones(8, device=device), rates=rates)
    pair.compare()


def test_a_lookup_for_training_is_refused_as_its_step_is(device: torch.device) -> None:
    pair = _pair(device, allow_small=False)
    with pytest.raises(
        CacheTooSmallError, match=r"9 distinct keys, but the cache holds at most 8 rows"
    ):
        pair.ours.lookup(_on(device, _keys(*range(9))), missing="training")


def test_a_graph_has_its_own_cuts(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    group, keys = _pair(device).groups[0].device_group, _on(device, _keys(1, 2))
    kept = group._cuts(keys)
    assert group._cuts(keys) is kept
    if device.type == "cpu":
        monkeypatch.setattr(group._tables[0], "is_capturing", lambda: True)
        assert group._cuts(keys) is not kept
        monkeypatch.undo()
    assert group._cuts(keys) is kept


def _on(device: torch.device, keys: TableKeys) -> TableKeys:
    return TableKeys(keys.ids.to(device), keys.splits)


def test_a_row_that_sets_out_while_a_fetch_begins_does_not_come_back_old(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = _pair(device)
    for _ in range(3):
        pair.step(_keys(0, 1, 2))
    table, group, left = pair.ours.table(0), pair.groups[0], []
    monkeypatch.setattr(
        table.moves.write_back, "start", lambda: None
    )  # nobody writes rows back meanwhile

    def leave() -> None:
        left.append(1)
        with table.pair.write_lock, table.pair.move_lock.alone():
            table.moves.drop(table.resident.find(np.array([0])))

    keys = _on(device, _keys(0))
    fetches: Any = group.miss_handler
    missed = fetches.residency(keys, torch.full_like(keys.ids, -1), 0)
    _after_once(monkeypatch, table.moves.log, "begin", leave)
    fetches.fetch(keys, missed, group.now_resident)
    assert left
    pair.step(_keys(0))
    monkeypatch.undo()
    pair.compare()
