"""Python threads and forked processes on one table."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from hedgerow import native
from hedgerow.tables import initializers
from hedgerow.tables.host import HostTable

from ..support import make_table, threads

DIM = 8


@pytest.fixture
def table() -> HostTable:
    return make_table(init=initializers.Zeros(), dim=DIM)


def _ids(n: int, seed: int) -> torch.Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (n,), generator=torch.Generator().manual_seed(seed))


def _whole(rows: torch.Tensor) -> bool:
    return bool((rows == rows[:, :1]).all())


def test_readers_writers_scan_and_erase_share_a_table(table: HostTable) -> None:
    n = 150_000  # several blocks of 1,024 rows in every shard
    kept, moving = _ids(5000, 1), _ids(n, 2)
    table.assign(kept, torch.full((5000, DIM), 5.0))
    stop = threading.Event()

    def writes() -> None:
        for round_number in range(8):
            table.assign(moving, torch.full((n, DIM), float(round_number)))
            table.apply_gradients(moving, torch.full((n, DIM), 0.5))
        stop.set()

    def erases() -> None:
        while not stop.is_set():
            table.erase(moving[: n // 2])

    def scans() -> None:
        while not stop.is_set():
            ids = torch.cat([part.ids for part in table.scan(5000)])
            assert len(ids.unique()) == len(ids)
            assert bool(torch.isin(kept, ids).all())

    def reads() -> None:
        while not stop.is_set():
            assert bool((table.lookup(kept).rows == 5).all())
            assert _whole(table.lookup(moving).rows_of())

    _together(writes, erases, scans, reads)
    assert bool((table.lookup(kept).rows == 5).all())
    assert table.size() == 5000 + int(table.contains(moving).sum())


def _together(*jobs: Callable[[], None]) -> None:
    with ThreadPoolExecutor(len(jobs)) as pool:
        for job in [pool.submit(job) for job in jobs]:
            job.result(timeout=300)


def test_no_update_of_four_threads_is_lost(table: HostTable) -> None:
    n = 150_000
    ids, ones = _ids(n, 3), torch.ones(n, DIM)

    def adds() -> None:
        for _ in range(3):
            table.assign_add(ids, ones)

    _together(adds, adds, adds, adds)
    assert bool((table.lookup(ids).rows == 12).all())
    assert table.size() == n
    assert len(torch.cat([part.ids for part in table.scan()])) == n


def test_new_ids_of_two_threads_are_born_once(table: HostTable) -> None:
    ones = torch.ones(200_000, DIM)
    for seed in range(4):
        ids = _ids(200_000, 100 + seed)
        together = threading.Barrier(2)

        def adds(ids: torch.Tensor = ids, together: threading.Barrier = together) -> None:
            together.wait()
            table.assign_add(ids, ones)

        _together(adds, adds)
        assert table.size() == len(ids)
        assert bool((table.lookup(ids).rows == 2).all())
        table.clear()


def test_clearing_beside_a_writer_keeps_every_call_whole(table: HostTable) -> None:
    ids, rows = _ids(200_000, 8), torch.ones(200_000, DIM)
    stop = threading.Event()

    def writes() -> None:
        for _ in range(10):
            table.assign(ids, rows)
        stop.set()

    def clears() -> None:
        while not stop.is_set():
            table.clear()

    _together(writes, clears)
    table.assign(ids, rows)
    assert table.size() == len(ids)


def test_the_gil_is_released_during_a_call(table: HostTable) -> None:
    """A second Python thread makes progress while one call runs."""
    ids = _ids(1_500_000, 4)
    rows = torch.ones(len(ids), DIM)
    native_table = table.core.native_table
    ticks, running = 0, threading.Event()
    done = threading.Event()

    def call() -> None:
        running.set()
        native_table.assign(ids.data_ptr(), len(ids), rows.data_ptr(), 0)
        done.set()

    worker = threading.Thread(target=call)
    worker.start()
    running.wait()
    while not done.is_set():
        ticks += 1
    worker.join()
    assert ticks > 1000


def test_a_child_forked_while_others_count_can_count_itself() -> None:
    """Locks of Python code must not stay locked in the child either.

    In a small process of its own: a fork of this one takes a tenth of a second.
    """
    script = """
        import os, signal, sys, threading
        from hedgerow.core.counters import Counters

        counters, stop = Counters(), threading.Event()

        def counts():
            while not stop.is_set():
                counters.add("n")

        sys.setswitchinterval(1e-6)
        worker = threading.Thread(target=counts)
        worker.start()
        try:
            for _ in range(200):
                child = os.fork()
                if child == 0:
                    signal.alarm(20)  # kills a child that hangs
                    counters.add("n")
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
        finally:
            sys.setswitchinterval(0.005)
            stop.set()
            worker.join()
        print(counters.read("n") > 0)
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120
    )
    assert run.stdout == "True\n", run.stderr


def test_a_system_without_threads_to_give_still_works() -> None:
    script = """
        import resource, torch
        import hedgerow.native as native
        from hedgerow import HostTable, Segment, Sgd, TableConfig, Zeros
        table = HostTable(TableConfig("t", (Segment(1, Zeros(), Sgd()),)))
        ids, rows = torch.arange(100_000), torch.ones(100_000, 1)
        native.set_threads(1000)
        with open("/proc/self/statm") as statm:
            mapped = int(statm.read().split()[0]) * resource.getpagesize()
        out = torch.empty(100_000, 1)
        resource.setrlimit(resource.RLIMIT_AS, (mapped + 100 * 2**20, -1))
        table.lookup(ids, out=out)  # wants 1,000 threads of 8 MiB and gets a few
        resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
        table.assign(ids, rows)
        print(table.size())
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120
    )
    assert run.stdout == "100000\n", run.stderr


class _Rows(Dataset[torch.Tensor]):
    def __init__(self, table: HostTable, ids: torch.Tensor) -> None:
        self.table, self.ids = table, ids

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> torch.Tensor:
        self.table.assign_add(self.ids, torch.ones(len(self.ids), DIM))  # stays in the worker
        return self.table.lookup(self.ids).rows_of()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_data_loader_workers_keep_working_on_their_copy(table: HostTable) -> None:
    ids = _ids(20_000, 5)
    table.assign(ids, torch.full((20_000, DIM), 2.0))
    loader = DataLoader(
        _Rows(table, ids), batch_size=None, num_workers=2, multiprocessing_context="fork"
    )
    seen = [float(rows.mean()) for rows in loader]
    assert sorted(seen) == [3.0, 3.0, 4.0, 4.0, 5.0, 5.0, 6.0, 6.0]
    assert bool((table.lookup(ids).rows == 2).all())


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_in_the_middle_of_calls_leaves_both_sides_working(table: HostTable) -> None:
    ids, ones, zeros = _ids(20_000, 6), torch.ones(20_000, DIM), torch.zeros(20_000, DIM)
    table.assign(ids, ones)
    stop = threading.Event()

    def writes() -> None:
        while not stop.is_set():
            table.assign(ids, ones)

    with threads(4):
        writer = threading.Thread(target=writes)
        writer.start()
        try:
            for _ in range(10):
                child = os.fork()
                if child == 0:
                    # numpy, since torch's own threads do not survive a fork
                    fine = (table.lookup(ids).rows.numpy() == 1).all() and native.threads() == 4
                    table.assign(ids, zeros)
                    table.erase(ids)
                    os._exit(0 if fine and table.size() == 0 else 1)
                assert os.waitpid(child, 0)[1] == 0
                assert bool((table.lookup(ids).rows == 1).all())
        finally:
            stop.set()
            writer.join()


def test_the_thread_count_can_change_while_calls_run(table: HostTable) -> None:
    ids = _ids(20_000, 7)
    stop = threading.Event()

    def writes() -> None:
        for _ in range(40):
            table.assign_add(ids, torch.ones(20_000, DIM))
        stop.set()

    def changes() -> None:
        while not stop.is_set():
            for count in (1, 3, 2, 4):
                native.set_threads(count)

    before = native.threads()
    try:
        _together(writes, changes)
    finally:
        native.set_threads(before)
    assert bool((table.lookup(ids).rows == 40).all())


def test_the_thread_count_can_change_while_several_tables_are_read() -> None:
    script = """
        import threading
        import torch
        import hedgerow as hr
        from hedgerow import native
        from hedgerow.tables.host import lookup_several

        config = hr.TableConfig("a", (hr.Segment(1, hr.Zeros(), hr.Sgd()),))
        tables, ids = [hr.HostTable(config) for _ in range(2)], torch.arange(100_000)
        for table in tables:
            table.assign(ids, torch.ones(100_000, 1))
        stop, out = threading.Event(), torch.empty(200_000, 1)

        def reads():
            while not stop.is_set():
                lookup_several(tables, ids.repeat(2), (0, 100_000, 200_000), "zeros", None, out)

        reader = threading.Thread(target=reads)
        reader.start()
        for turn in range(100):
            native.set_threads(3 + turn % 2)
            threading.Event().wait(0.01)
        stop.set()
        reader.join()
        assert bool((out == 1).all())
    """
    code = textwrap.dedent(script)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
