"""Rows that come to caches of several tables while others come, leave or are written."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from hedgerow.tiers import cache_moves, device_residency
from hedgerow.tiers.misses import MissRead

from .test_group_beside_threads import _after_once, _keys, _on, _pair


def test_a_row_that_came_by_another_hand_is_read(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = _pair(device, fast_rows=16, slots=32)
    for ids in ((0, 1, 2), (3, 4), (3, 4)):
        pair.step(_keys(*ids))
    table, keys = pair.ours.table(0), _keys(0, 1, 2, 3)
    batches = []

    def bring() -> None:
        batches.append(table.prefetch(torch.tensor([0, 1], device=device)))
        batches[0].wait()

    _after_once(monkeypatch, MissRead, "read", bring)
    found = pair.ours.lookup(_on(device, keys), missing="training")
    assert batches
    assert torch.equal(found.rows.cpu(), pair.model.lookup(keys, missing="training").rows)


def test_a_large_cache_is_asked_for_more_rows_than_it_has_slots(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_residency, "_MANY_SLOTS", 8)
    monkeypatch.setattr(device_residency, "_SAMPLE", 8)
    pair = _pair(device)
    for first in (0, 0, 60, 60):
        pair.step(_keys(*range(first, first + 60)))
    assert pair.stat("cache_evictions") > 0
    pair.compare()


def test_notes_that_begin_while_others_end_are_kept(device: torch.device) -> None:
    table, missed = _pair(device).ours.table(0), []
    book = table.moves.log
    kept = [book.begin() for _ in range(100)]

    def note() -> None:
        for _ in range(1000):
            with table.pair.write_lock:
                notes = book.begin()
            with table.pair.write_lock:
                table.moves.log_written(np.array([7]))
            missed.extend([1] if not notes.log else [])
            book.end(notes)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=note) for _ in range(3)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    finally:
        sys.setswitchinterval(interval)
    assert not missed
    assert all(len(one.log) == 3000 for one in kept)


def test_notes_that_nobody_ends_do_not_grow_for_ever(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_moves, "_LOGGED_ROWS", 9)
    pair = _pair(device)
    pair.step(_keys(1, 2, 3))
    later = _keys(1, 2, 40)
    there = _on(device, later)
    pair.ours.prefetch(there)
    pair.groups[0].miss_handler.prefetcher.go_on()
    table = pair.ours.table(0)
    (notes,) = table.moves.log.readers
    for turn in range(8):
        table.assign(torch.arange(2, device=device), torch.full((2, 4), 1.0 * turn, device=device))
        pair.model.table(0).assign(torch.arange(2), torch.full((2, 4), 1.0 * turn))
    assert not notes.log
    found = pair.ours.lookup(there, missing="training")
    assert torch.equal(found.rows.cpu(), pair.model.lookup(later, missing="training").rows)


def test_a_row_that_was_changed_and_leaves_for_its_batch_does_not_come_back_old(
    device: torch.device,
) -> None:
    pair = _pair(device)
    for ids in (range(20), range(8), range(10, 18), range(10, 18)):
        pair.step(_keys(*ids))
    later = _keys(0, *range(2, 9))
    there = _on(device, later)
    pair.ours.prefetch(there)
    pair.groups[0].miss_handler.prefetcher.go_on()
    pair.step(_keys(0))  # it comes and is changed, and is the longest unused then
    pair.step(_keys(*range(11, 18)))
    found = pair.ours.lookup(there, missing="training")
    assert torch.equal(found.rows.cpu(), pair.model.lookup(later, missing="training").rows)
    pair.compare()


def test_a_prefetch_leaves_the_kept_cuts_alone(device: torch.device) -> None:
    pair = _pair(device)
    pair.step(_keys(1, 2))
    group = pair.groups[0].device_group
    kept = group._last
    pair.ours.prefetch(_on(device, _keys(1, 2, 3)))
    pair.groups[0].miss_handler.prefetcher.ask()  # on another stream than steps
    assert group._last is kept


def test_an_empty_batch_makes_nobody_forget_another(device: torch.device) -> None:
    pair = _pair(device)
    for _ in range(2):
        pair.step(_keys(1, 2, 3))
    ahead, later = pair.groups[0].miss_handler.prefetcher, _on(device, _keys(1, 4))
    pair.ours.prefetch(_on(device, _keys()))
    assert len(ahead) == 0
    pair.ours.prefetch(later)
    pair.step(_keys())
    assert len(ahead) == 1


def test_a_batch_that_cannot_be_read_fails_no_step(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = _pair(device)
    pair.step(_keys(1, 2, 3))
    ahead, later = pair.groups[0].miss_handler.prefetcher, _keys(1, 2)
    there = _on(device, later)
    pair.ours.prefetch(there)
    with monkeypatch.context() as patch:

        def broken(*_: object) -> None:
            raise MemoryError

        patch.setattr(ThreadPoolExecutor, "submit", broken)
        pair.step(_keys(4, 5))
        with pytest.raises(MemoryError):
            pair.ours.lookup(there, missing="training")
    assert not any(len(table.moves.log) for table in pair.ours.tables)
    assert len(ahead) == 0
    found = pair.ours.lookup(there, missing="training")
    assert torch.equal(found.rows.cpu(), pair.model.lookup(later, missing="training").rows)
    pair.compare()
