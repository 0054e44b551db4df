"""Evictions that break off, and prefetched batches that are read late: no old row comes back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hedgerow.kernels.leave import NEVER
from hedgerow.tiers import eviction

from .test_eviction import _all, _on, _pair
from .test_group import NAMES, Pair, config
from .test_group_beside_threads import _keys


@pytest.fixture(name="pair")
def pair_of_stores(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """As in large caches, rows leave some steps after they were chosen; 48 rows, 24 places."""
    monkeypatch.setattr(eviction, "_SPARE", 6)
    monkeypatch.setattr(eviction, "MOST_SPARE", 6)
    pair = _pair(device)
    for first in range(0, 48, 12):
        pair.step(_all(*range(first, first + 12)))
    return pair


def _evictions(pair: Pair) -> Any:
    fetches: Any = pair.groups[0].miss_handler
    return fetches.evictions


def _steps(pair: Pair, first: int, last: int) -> None:
    """Few rows come each time; nobody looks behind the caches."""
    for turn in range(first, last):
        pair.step(_all(*(i % 48 for i in range(3 * turn, 3 * turn + 3))))


def _broken_step(pair: Pair, turn: int) -> None:
    keys = _all(*(i % 48 for i in range(3 * turn, 3 * turn + 3)))
    with pytest.raises(KeyboardInterrupt):
        pair.ours.lookup(_on(pair.device, keys), missing="training")


@pytest.mark.parametrize(
    ("where", "after"),
    [
        ("clean", False),
        ("clean", True),
        pytest.param("begin_count", False, marks=pytest.mark.long),
        pytest.param("begin_count", True, marks=pytest.mark.long),
    ],
)
def test_rows_that_set_out_before_a_break_land_before_others(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, where: str, after: bool
) -> None:
    _steps(pair, 0, 6)
    owner: Any = pair.groups[0].device_group if where == "clean" else pair.ours.table(0).resident
    with monkeypatch.context() as patch:
        real = getattr(owner, where)

        def broken(*args: Any) -> None:
            if after:
                real(*args)
            raise KeyboardInterrupt

        patch.setattr(owner, where, broken)
        _broken_step(pair, 6)
    for turn in (0, 0, 1, 1):  # they are changed again
        pair.step(_all(*range(3 * turn, 3 * turn + 3)))
    _steps(pair, 6, 14)
    pair.compare()


def test_a_batch_to_come_that_is_read_late_has_no_old_rows(pair: Pair) -> None:
    keys = _all(0, 1, 2, *range(24, 29))
    later = _on(pair.device, keys)
    pair.ours.prefetch(later)
    _lookups(pair, 0, 1)  # they come
    for store in (pair.ours, pair.model):
        for k in range(3):
            table = store.table(k)
            some = torch.arange(3, device=table.device)
            table.assign(some, torch.full((3, 4), 0.5, device=table.device), ts=900)
    _lookups(pair, 1, 7)
    assert _evictions(pair).next is not None
    found = pair.ours.lookup(later, missing="training")
    assert torch.equal(found.rows.cpu(), pair.model.lookup(keys, missing="training").rows)
    pair.compare()


def _lookups(pair: Pair, first: int, last: int) -> None:
    for turn in range(first, last):
        there = _on(pair.device, _all(*range(3 * turn, 3 * turn + 3)))
        pair.ours.lookup(there, missing="training")


def test_departures_that_are_over_are_not_kept(pair: Pair) -> None:
    _steps(pair, 0, 14)
    assert max(len(table.moves.write_back.pending) for table in pair.ours.tables) <= 2
    pair.compare()


def test_rows_that_go_while_the_device_counts_are_not_counted(pair: Pair) -> None:
    _steps(pair, 0, 2)
    table = pair.ours.table(0)
    table.resident.begin_count()
    rows = len(table.resident)
    table.erase(torch.arange(4, device=table.device))
    table.resident.end_count(rows)
    assert len(table.resident) == rows - 4


def test_rows_that_came_before_a_break_are_counted(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    _steps(pair, 0, 7)
    assert _evictions(pair).counting is not None
    with monkeypatch.context() as patch:
        real = pair.groups[0].device_group.put

        def broken(*args: Any) -> None:
            real(*args)
            raise KeyboardInterrupt

        patch.setattr(pair.groups[0].device_group, "put", broken)
        _broken_step(pair, 7)
    _evictions(pair).learn_counts(wait=True)
    for table in pair.ours.tables:
        assert table.resident.at_most >= len(table.resident.at())
    pair.compare()


def _cached(table: Any) -> tuple[int, int]:
    """Rows in the cache, and how many of them would never leave."""
    taken = table.fast.arrays.taken()
    return table.fast.size(), int((taken & (table.resident.used[: len(taken)] == NEVER)).sum())


@pytest.mark.parametrize("what", ["added", "move_out"])
def test_rows_that_stayed_when_something_broke_off_count_and_leave(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    pair = Pair("CACHING", device, 3, [config(name) for name in NAMES], fast_rows=24, slots=32)
    for _ in range(2):
        for first in range(0, 200, 8):
            pair.step(_keys(*range(first, first + 8)))
    table: Any = pair.ours.table(0)

    def broken(*_: object) -> None:
        raise MemoryError

    owner = table.resident if what == "added" else table.fast
    with monkeypatch.context() as patch:
        patch.setattr(owner, what, broken)
        for first in range(100, 148, 8):
            with pytest.raises(MemoryError):
                table.lookup(torch.arange(first, first + 8, device=device), missing="training")
    assert _cached(table)[1] == 0
    for turn in range(30):
        first = 8 * turn % 96
        pair.step(_keys(*range(first, first + 8)))
        assert table.resident.at_most >= table.fast.size()
    assert _cached(table)[0] <= 24
    assert _cached(table)[1] == 0
    pair.compare()
