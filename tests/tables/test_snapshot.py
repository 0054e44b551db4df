"""Snapshots: the rows of one instant, whatever writers do while they are read."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from hedgerow.core.errors import DtypeError, InputError, StateError
from hedgerow.tables import initializers, optimizers
from hedgerow.tables.compressors import Fp16
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.host import HostTable
from hedgerow.tables.host_core import Snapshot
from hedgerow.tables.store import Entries

from ..support import make_table


def _ids(n: int, seed: int) -> torch.Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (n,), generator=torch.Generator().manual_seed(seed))


def _all(parts: Iterator[Entries]) -> tuple[torch.Tensor, ...]:
    """Ids, rows, times and states of a scan, in the order of ids."""
    found = list(parts)
    ids = torch.cat([part.ids for part in found])
    order = ids.argsort()
    columns = [
        torch.cat([part.rows for part in found]),
        torch.cat([part.ts for part in found]),
        *(torch.cat([p.states[0][name] for p in found]) for name in sorted(found[0].states[0])),
    ]
    assert len(ids.unique()) == len(ids)
    return ids[order], *(column[order] for column in columns)


def _same(ours: tuple[torch.Tensor, ...], theirs: tuple[torch.Tensor, ...]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.fixture
def table() -> HostTable:
    table = make_table(optimizers.Adagrad(lr=0.1))
    table.assign(torch.arange(1000), torch.rand(1000, 4), ts=5)
    return table


CHANGES: dict[str, Callable[[HostTable, torch.Tensor], object]] = {
    "assign": lambda t, ids: t.assign(ids, torch.zeros(len(ids), 4), ts=9),
    "assign_add": lambda t, ids: t.assign_add(ids, torch.ones(len(ids), 4), ts=9),
    "apply_gradients": lambda t, ids: t.apply_gradients(ids, torch.ones(len(ids), 4), ts=9),
    "reinitialize": lambda t, ids: t.reinitialize(ids),
    "erase": lambda t, ids: t.erase(ids),
    "restore": lambda t, ids: t.restore(make_filled(ids)),
    "erase and bring back": lambda t, ids: (t.erase(ids), CHANGES["assign"](t, ids.flip(0))),
}


def make_filled(ids: torch.Tensor) -> Entries:
    other = make_table(optimizers.Adagrad(lr=0.1))
    other.apply_gradients(ids, torch.ones(len(ids), 4), ts=77)
    return other.entries(ids)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("read_before", [0, 3], ids=["unread", "partly read"])
def test_no_verb_changes_what_a_snapshot_shows(
    table: HostTable, change: str, read_before: int
) -> None:
    expected = _all(table.scan())
    with table.snapshot() as view:
        slices = view.scan(100)
        parts = [next(slices) for _ in range(read_before)]
        CHANGES[change](table, torch.arange(0, 1500))
        CHANGES[change](table, torch.arange(500, 1500))
        parts += slices
        read = sum(map(len, parts[:read_before]))
        assert view.aside_rows == 1000 - read  # each row once, none that was read before
        assert _same(_all(iter(parts)), expected)
    assert view.aside_rows == 1000 - read
    assert (view.size, view.max_ts) == (1000, 5)


def test_nothing_is_copied_aside_when_nobody_writes(table: HostTable) -> None:
    with table.snapshot() as view:
        assert _same(_all(view.scan(64)), _all(table.scan()))
        assert list(view.scan()) == []  # each row once
        table.assign(torch.arange(1000), torch.zeros(1000, 4))
        assert view.aside_rows == 0  # writers of what was read pay nothing
        assert view.waited_s == 0


def test_an_empty_table_has_an_empty_snapshot() -> None:
    table = make_table()
    with table.snapshot() as view:
        table.assign(torch.arange(10), torch.ones(10, 4), ts=3)
        assert list(view.scan()) == []
        assert (view.size, view.max_ts) == (0, 0)


def test_growth_of_index_and_rows_does_not_disturb_a_snapshot(table: HostTable) -> None:
    expected = _all(table.scan())
    with table.snapshot() as view:
        slices = view.scan(50)
        parts = []
        for step, part in enumerate(slices):
            parts.append(part)
            table.assign(_ids(5000, step), torch.ones(5000, 4))
    assert _same(_all(iter(parts)), expected)


def test_a_serving_table_has_snapshots_too() -> None:
    table = HostTable(TableConfig("s", (Segment(4, compressor=Fp16()),), serving=True))
    table.assign(torch.arange(100), torch.rand(100, 4), ts=2)
    expected = _all(table.scan())
    with table.snapshot() as view:
        table.assign(torch.arange(100), torch.zeros(100, 4), ts=3)
        assert _same(_all(view.scan()), expected)


def test_a_second_snapshot_and_clearing_are_refused_while_one_is_open(table: HostTable) -> None:
    view = table.snapshot()
    with pytest.raises(StateError, match="second snapshot"):
        table.snapshot()
    for empty in (table.clear, table.close):
        with pytest.raises(StateError, match="snapshot"):
            empty()
    assert table.size() == 1000
    view.close()
    table.snapshot().close()
    table.clear()
    assert table.size() == 0


def test_a_closed_snapshot_says_so_and_never_closes_the_next(table: HostTable) -> None:
    first = table.snapshot()
    slices = first.scan(10)
    next(slices)
    first.close()
    with pytest.raises(StateError, match="closed"):
        next(slices)
    second = table.snapshot()
    first.close()
    del first, slices
    gc.collect()
    assert sum(map(len, second.scan())) == 1000


def test_a_dropped_snapshot_is_closed(table: HostTable) -> None:
    view = table.snapshot()
    next(view.scan(10))
    del view
    gc.collect()
    table.snapshot().close()


def test_at_start_runs_at_the_instant_of_the_snapshot() -> None:
    table = make_table(init=initializers.Zeros())
    ids, one = torch.arange(20_000), torch.ones(20_000, 4)
    stop, seen = threading.Event(), []

    def writes() -> None:
        while not stop.is_set():
            table.assign_add(ids, one)

    def at_start() -> None:
        before = _all(table.scan())
        assert _same(_all(table.scan()), before)  # other threads' writers wait
        seen.append(before)

    table.assign_add(ids, one)
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(writes) for _ in range(2)]
        try:
            for _ in range(5):
                with table.snapshot(at_start=at_start) as view:
                    found = _all(view.scan(1000))
                    assert _same(found, seen[-1])
                    assert len(found[1].unique()) == 1  # every call is in it whole, or not at all
        finally:
            stop.set()
        for job in jobs:
            job.result(timeout=60)


def test_at_start_may_write_and_a_failure_in_it_closes_the_snapshot(table: HostTable) -> None:
    expected = _all(table.scan())
    erase_some = lambda: table.erase(torch.arange(10))  # noqa: E731
    with table.snapshot(at_start=erase_some) as view:
        assert _same(_all(view.scan()), expected)
    assert table.size() == 990

    def fails() -> None:
        raise KeyError("filter")

    with pytest.raises(KeyError, match="filter"):
        table.snapshot(at_start=fails)
    table.clear()


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda t: t.snapshot(-1), InputError),
        (lambda t: t.snapshot(1.5), DtypeError),
        (lambda t: t.snapshot(at_start=3), InputError),
        (lambda t: t.snapshot().scan(0), InputError),
    ],
)
def test_bad_arguments_are_refused(
    table: HostTable, call: Callable[[HostTable], Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        call(table)
    gc.collect()
    table.clear()


def test_writers_wait_when_too_much_lies_aside_and_go_on_when_it_was_read(table: HostTable) -> None:
    expected = _all(table.scan())
    rows = torch.zeros(1000, 4)
    done = [threading.Event() for _ in range(3)]

    def writes() -> None:
        for event in done:
            table.assign(torch.arange(1000), rows)
            event.set()

    view = table.snapshot(aside_bytes=100)
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(writes)
        assert done[0].wait(30)
        assert not done[1].wait(0.1)
        assert view.waited_s == 0  # counted when it ends
        assert _same(_all(view.scan(100)), expected)
        job.result(timeout=30)
    assert view.aside_rows == 1000
    assert view.waited_s > 0.05
    view.close()


@pytest.mark.parametrize("end", ["close", "drop"])
def test_waiting_writers_go_on_when_the_snapshot_ends(table: HostTable, end: str) -> None:
    wrote = threading.Event()

    def writes() -> None:
        for _ in range(3):
            table.assign(torch.arange(1000), torch.zeros(1000, 4))
            wrote.set()

    view: Snapshot | None = table.snapshot(aside_bytes=0)
    assert view is not None
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(writes)
        assert wrote.wait(30)
        assert view.aside_rows == 1000
        assert not job.done()
        if end == "close":
            view.close()
        view = None
        gc.collect()
        job.result(timeout=30)


def test_the_thread_that_reads_never_waits_for_itself(table: HostTable) -> None:
    expected = _all(table.scan())
    parts = []
    with table.snapshot(aside_bytes=0) as view:
        for part in view.scan(10):
            parts.append(part)
            table.assign(torch.arange(1000), torch.zeros(1000, 4))
        assert view.waited_s == 0
    assert _same(_all(iter(parts)), expected)


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Ctrl-C raises, also where a shell that started us in the background has switched it off."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_a_waiting_writer_can_be_interrupted(table: HostTable) -> None:
    opened: list[Snapshot] = []
    opener = threading.Thread(target=lambda: opened.append(table.snapshot(aside_bytes=0)))
    opener.start()
    opener.join()
    table.assign(torch.arange(1000), torch.zeros(1000, 4))
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        table.assign(torch.arange(1000), torch.ones(1000, 4))
    timer.join()
    opened[0].close()
    assert bool((table.lookup(torch.arange(1000)).rows == 0).all())


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_no_snapshot_and_its_writers_do_not_wait(table: HostTable) -> None:
    ids, zeros = torch.arange(1000), torch.zeros(1000, 4)
    expected = _all(table.scan())
    view = table.snapshot(aside_bytes=0)
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # kills a child that hangs
        code = 1
        try:
            next(view.scan())
        except StateError:
            table.assign(ids, zeros)
            table.assign(ids, zeros)
            with table.snapshot() as own:
                code = 0 if own.size == 1000 else 2
            table.clear()
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert _same(_all(view.scan()), expected)
    view.close()


def test_a_large_snapshot_beside_writers_shows_its_start() -> None:
    n = 200_000
    table = make_table(optimizers.Adagrad(lr=0.1))
    ids, new = _ids(n, 1), _ids(n, 2)
    table.apply_gradients(ids, torch.rand(n, 4), ts=1)
    expected: list[tuple[torch.Tensor, ...]] = []
    stop = threading.Event()

    def learns() -> None:
        step = 2
        while not stop.is_set():
            for chunk in ids.split(20_000):
                table.apply_gradients(chunk, torch.ones(len(chunk), 4), ts=step)
            step += 1

    def churns() -> None:
        while not stop.is_set():
            for chunk in (*new.split(20_000), *ids.split(30_000)):
                table.assign_add(chunk, torch.ones(len(chunk), 4), ts=3)
                table.erase(chunk[::3].contiguous())

    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(learns), pool.submit(churns)]
        try:
            for aside_bytes in (256 << 20, 1 << 20):
                view = table.snapshot(
                    aside_bytes, at_start=lambda: expected.append(_all(table.scan()))
                )
                with view:
                    assert _same(_all(view.scan(5000)), expected[-1])
                    assert view.size == len(expected[-1][0])
                    assert view.aside_rows > 0
        finally:
            stop.set()
        for job in jobs:
            job.result(timeout=120)
