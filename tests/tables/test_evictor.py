"""Background eviction: its schedule, its thread, its errors."""

from __future__ import annotations

import threading

import pytest
import torch

import hedgerow as hr
from hedgerow.core.clock import ManualClock
from hedgerow.core.errors import DtypeError, InputError
from hedgerow.monolith.tables.evictor import Evictor
from hedgerow.tables.eviction import Evicted, Eviction
from hedgerow.tables.host import HostTable
from tests.support import make_table


def _table(name: str = "user", rule: Eviction | None = None) -> HostTable:
    table = make_table(dim=1, name=name, evict=rule or hr.Lru(3))
    _refill(table)
    return table


def _refill(table: HostTable) -> None:
    table.assign(torch.arange(10), torch.ones(10, 1))


def test_the_first_poll_notes_the_time_and_a_period_later_rows_leave() -> None:
    clock, table = ManualClock(500), _table()
    evictor = Evictor([table], every="2h", clock=clock)
    sizes = []
    for seconds in (0, 7199, 1, 1, 7198, 1):
        clock.advance(seconds)
        evictor.poll()
        sizes.append(table.size())
        _refill(table)
    assert sizes == [10, 10, 3, 10, 10, 3]
    assert evictor.counts() == {"errors": 0, "evictions": 2, "polls": 6, "rows": 14}


def test_a_clock_that_goes_back_evicts_nothing() -> None:
    clock, table = ManualClock(10**6), _table()
    evictor = Evictor([table], every="1h", clock=clock)
    evictor.poll()
    clock.set(5)
    evictor.poll()
    assert table.size() == 10


def test_the_hook_gets_every_evicted_id_by_table() -> None:
    clock, told = ManualClock(0), dict[str, list[int]]()

    def hook(name: str, evicted: Evicted) -> None:
        assert evicted.ids is not None
        told[name] = sorted(evicted.ids.tolist())

    tables = [_table("a"), _table("b", hr.Lfu(8)), _table("idle", hr.Lru(100))]
    evictor = Evictor(tables, every=60, on_evicted=hook, clock=clock)
    evictor.poll()
    clock.advance(60)
    evictor.poll()
    assert told == {"a": list(range(7)), "b": [0, 1]}
    assert evictor.counts()["evictions"] == 3


class _Waits:
    """Stands in for the wait between polls: moves the clock, and holds the thread at the end."""

    def __init__(self, clock: ManualClock, polls: int) -> None:
        self.clock, self.left = clock, polls
        self.reached, self.released = threading.Event(), threading.Event()

    def __call__(self, seconds: float) -> None:
        self.left -= 1
        self.clock.advance(round(seconds))
        if self.left <= 0:
            self.reached.set()
            self.released.wait()

    def finish(self) -> None:
        assert self.reached.wait(60)
        self.released.set()


def test_the_thread_polls_until_it_is_stopped() -> None:
    clock, table = ManualClock(0), _table()
    waits = _Waits(clock, polls=8)
    evictor = Evictor([table], every="1min", clock=clock, wait=waits)
    with evictor as running:
        assert running is evictor
        with pytest.raises(InputError, match="runs already"):
            evictor.start()
        waits.finish()
    assert table.size() == 3
    assert evictor.counts()["polls"] >= 8
    assert "hedgerow-evictor" not in {thread.name for thread in threading.enumerate()}
    evictor.stop()  # again: nothing to do


def test_a_stop_does_not_wait_for_the_next_poll() -> None:
    evictor = Evictor([_table()]).start()
    evictor.stop()
    assert evictor.counts()["evictions"] == 0


def test_a_started_again_evictor_notes_the_time_anew() -> None:
    clock, table = ManualClock(0), _table()
    evictor = Evictor([table], every=60, clock=clock)
    evictor.poll()
    clock.advance(1000)
    with evictor:
        pass
    assert table.size() == 10


def _failing(name: str, evicted: Evicted) -> None:
    raise RuntimeError(f"no room for the ids of {name}")


def test_errors_are_counted_spare_other_tables_and_come_out_at_stop() -> None:
    clock, tables = ManualClock(0), [_table("a"), _table("b")]
    waits = _Waits(clock, polls=8)
    evictor = Evictor(tables, every=60, on_evicted=_failing, clock=clock, wait=waits).start()
    waits.finish()
    with pytest.raises(RuntimeError, match="no room for the ids of a"):
        evictor.stop()
    assert [table.size() for table in tables] == [3, 3]
    assert evictor.counts()["errors"] == 2
    evictor.stop()  # told once


def test_an_error_of_the_body_goes_before_one_of_the_thread() -> None:
    clock = ManualClock(0)
    waits = _Waits(clock, polls=8)
    evictor = Evictor([_table("a")], every=60, on_evicted=_failing, clock=clock, wait=waits)

    def body() -> None:
        with evictor:
            waits.finish()
            raise KeyError("the body's")

    with pytest.raises(KeyError) as caught:
        body()
    assert "background eviction failed" in caught.value.__notes__[0]


def test_bad_arguments_are_named() -> None:
    with pytest.raises(InputError, match="table 'test' has no eviction rule"):
        Evictor([make_table()])
    with pytest.raises(DtypeError, match="tables holds a str; pass HostTables"):
        Evictor(["user"])  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="every is 0; it must be a positive duration"):
        Evictor([_table()], every=0)
    with pytest.raises(InputError, match="every is nan"):
        Evictor([_table()], every=float("nan"))
    with pytest.raises(InputError, match="'often' is not a duration"):
        Evictor([_table()], every="often")
