"""Moves that break off, since memory ends or a user stops the program, lose and double no row."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import torch

from hedgerow.tables.eviction import Lru
from hedgerow.tables.host import HostTable
from hedgerow.tables.host_core import HostMoves
from hedgerow.tables.optimizers import Adagrad
from hedgerow.tiers.caching import CachingTable
from hedgerow.tiers.hybrid import HybridTable

from ..support import everything, table_config

CONFIG = table_config(Adagrad(lr=0.1), dim=2, evict=Lru(30))
STEPS = (
    *((HostMoves, name) for name in ("move_in", "move_out", "read_out")),
    *((HostTable, name) for name in ("assign", "erase", "evict", "apply_gradients")),
)


def _hybrid() -> HybridTable:
    return HybridTable(HostTable(CONFIG), HostTable(CONFIG), fast_rows=8, promotions=6)


def _caching() -> CachingTable:
    return CachingTable(HostTable(CONFIG), HostTable(CONFIG), cache_rows=8, queue_rows=2)


def _train(tables: list[Any], seed: int, steps: int = 12) -> None:
    random = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        ids = torch.randint(0, 24, (7,), generator=random)
        grads = torch.randn(7, 2, generator=random)
        for table in tables:
            table.apply_gradients(ids, grads)


class _Breaks:
    """Raises at the `nth` step of a table in host memory: before it, or just after it."""

    def __init__(self, nth: int, error: type[BaseException], after: bool) -> None:
        self.left, self.error, self.after = nth, error, after

    @contextmanager
    def under(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        with monkeypatch.context() as patch:
            for part, name in STEPS:
                patch.setattr(part, name, self._wrapped(getattr(part, name)))
            yield

    def _wrapped(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        def broken(*args: Any, **settings: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return verb(*args, **settings)  # a thread's error has its own test
            self.left -= 1
            if self.left == 0 and not self.after:
                raise self.error
            done = verb(*args, **settings)
            if self.left == 0:
                raise self.error
            return done

        return broken


def _check(table: Any, alone: HostTable) -> None:
    ids = torch.arange(-1, 26)
    assert everything(table) == everything(alone)
    assert table.size() == alone.size()
    assert torch.equal(table.lookup(ids).rows, alone.lookup(ids).rows)
    assert torch.equal(table.contains(ids), alone.contains(ids))
    assert len(table.resident) == len(table.resident.at())
    with table.snapshot() as saved:
        assert sum(len(part) for part in saved.scan()) == alone.size()
    if isinstance(table, CachingTable):
        table.flush()
        assert everything(table.slow) == everything(alone)
    else:
        assert table.fast.size() == len(table.resident)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("make", [_hybrid, _caching])
def test_no_row_is_lost_or_doubled_where_moves_break_off(
    make: Callable[[], Any], after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    broke, nth = True, 0
    while broke:
        nth += 1
        table, alone = make(), HostTable(CONFIG)
        _train([table, alone], seed=1)
        breaks = _Breaks(nth, KeyboardInterrupt if after else MemoryError, after)
        with breaks.under(monkeypatch):
            _breaks_in_moves(table)
        broke = breaks.left <= 0
        _check(table, alone)
        _train([table, alone], seed=2)
        _check(table, alone)
    assert nth > 6


def _breaks_in_moves(table: Any) -> None:
    """Moves rows, whose values stay; a hybrid table's stay where they are if memory ends."""
    with suppress(KeyboardInterrupt, MemoryError):
        if isinstance(table, CachingTable):
            table.lookup(torch.arange(8), missing="training")
        else:
            table.count_uses(torch.arange(6, 23).numpy())
            table.count_uses(torch.arange(6, 23).numpy())


@pytest.mark.parametrize("make", [_hybrid, _caching])
@pytest.mark.parametrize("verb", ["erase", "evict"])
def test_rows_that_go_are_gone_or_there_as_they_were(
    make: Callable[[], Any], verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broke, nth = True, 0
    while broke:
        nth += 1
        table, alone = make(), HostTable(CONFIG)
        _train([table, alone], seed=1)
        before = everything(alone)
        breaks = _Breaks(nth, KeyboardInterrupt, after=True)
        with breaks.under(monkeypatch):
            try:
                broke = False
                table.erase(torch.arange(0, 24, 2)) if verb == "erase" else table.evict(rows=5)
            except KeyboardInterrupt:
                broke = True
        left = everything(table)
        assert left == {key: before[key] for key in left}
        gone = [key for key in before if key not in left]
        alone.erase(torch.tensor(gone, dtype=torch.int64))
        _check(table, alone)
        _train([table, alone], seed=2)
        _check(table, alone)
    assert nth > 2


def test_an_update_that_breaks_off_after_it_wrote_is_written_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, ids = _caching(), torch.arange(4)
    table.apply_gradients(ids, torch.ones(4, 2))
    table.lookup(ids, missing="training")
    table.flush()
    breaks = _Breaks(1, KeyboardInterrupt, after=True)
    with monkeypatch.context() as patch:
        patch.setattr(table.fast, "apply_gradients", breaks._wrapped(table.fast.apply_gradients))
        with pytest.raises(KeyboardInterrupt):
            table.apply_gradients(ids, torch.ones(4, 2))
    rows = table.lookup(ids).rows
    table.flush()
    assert torch.equal(table.slow.lookup(ids).rows, rows)


def test_a_write_back_that_fails_is_told_and_its_rows_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table: Any = _caching()
    alone = HostTable(CONFIG)
    _train([table, alone], seed=1)

    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(table.slow.moves, "move_in", full)
        with pytest.raises(OSError, match="no space"):
            table.flush()
        told = [_told(table, torch.arange(first, first + 8)) for first in range(0, 24, 8)]
        assert "no space left on device" in told
        assert everything(table) == everything(alone)
    _check(table, alone)


def _told(table: CachingTable, ids: torch.Tensor) -> str:
    try:
        table.lookup(ids, missing="training")
    except OSError as error:
        return str(error)
    return ""


def _cannot_start(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_thread_that_cannot_start_is_told_and_started_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, alone = _caching(), HostTable(CONFIG)
    ids = torch.arange(24)
    for first in range(0, 24, 8):  # born in the slow store: nothing to write back yet
        for one in (table, alone):
            one.apply_gradients(ids[first : first + 8], torch.ones(8, 2))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _cannot_start)
        with pytest.raises(RuntimeError, match="new thread"):
            table.prefetch(ids[:8])
        for one in (table, alone):
            one.apply_gradients(ids[:8], torch.ones(8, 2))
        with pytest.raises(RuntimeError, match="new thread"):
            table.lookup(ids[8:16], missing="training")
    _check(table, alone)
    with table.prefetch(ids[:8]) as batch:  # the one that was refused counts no more
        batch.wait()
        assert int(table.resident.pins.sum()) == 8
    assert int(table.resident.pins.sum()) == 0
    _train([table, alone], seed=2)
    _check(table, alone)


def test_a_row_on_its_way_does_not_outlive_a_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    table, ids = _caching(), torch.arange(8)
    table.apply_gradients(ids, torch.ones(8, 2))
    back, clear = table.moves.write_back, table.slow.clear
    back.queued.move_in(table.slow.read_out(ids))
    back.order.append(ids)

    def while_a_thread_writes() -> None:
        clear()
        back.start()
        if back.thread is not None:
            back.thread.join(0.3)  # long enough to write, if it may

    monkeypatch.setattr(table.slow, "clear", while_a_thread_writes)
    table.clear()
    assert table.size() == 0
    assert not table.contains(ids).any()
