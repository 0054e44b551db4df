"""Python threads and forked processes on one table."""

from __future__ import annotations

import os
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
    kept, moving = _ids(5000, 1), _ids(8000, 2)
    table.assign(kept, torch.full((5000, DIM), 5.0))
    stop = threading.Event()

    def writes() -> None:
        for round_number in range(30):
            table.assign(moving, torch.full((8000, DIM), float(round_number)))
            table.apply_gradients(moving, torch.full((8000, DIM), 0.5))
        stop.set()

    def erases() -> None:
        while not stop.is_set():
            table.erase(moving[:3000])

    def scans() -> None:
        while not stop.is_set():
            ids = torch.cat([part.ids for part in table.scan(1000)])
            assert len(ids.unique()) == len(ids)
            assert bool(torch.isin(kept, ids).all())

    def reads() -> None:
        while not stop.is_set():
            assert bool((table.lookup(kept).rows == 5).all())
            assert _whole(table.lookup(moving).rows_of())

    _together(writes, erases, scans, reads)
    assert bool((table.lookup(kept).rows == 5).all())


def _together(*jobs: Callable[[], None]) -> None:
    with ThreadPoolExecutor(len(jobs)) as pool:
        for job in [pool.submit(job) for job in jobs]:
            job.result(timeout=300)


def test_no_update_of_four_threads_is_lost(table: HostTable) -> None:
    ids = _ids(6000, 3)

    def adds() -> None:
        for _ in range(25):
            table.assign_add(ids, torch.ones(6000, DIM))

    _together(adds, adds, adds, adds)
    assert bool((table.lookup(ids).rows == 100).all())
    assert table.size() == 6000


def test_the_gil_is_released_during_a_call(table: HostTable) -> None:
    """A second Python thread makes progress while one call runs."""
    ids = _ids(1_500_000, 4)
    rows = torch.ones(len(ids), DIM)
    ticks, running = 0, threading.Event()
    done = threading.Event()

    def call() -> None:
        running.set()
        table.assign(ids, rows)
        done.set()

    worker = threading.Thread(target=call)
    worker.start()
    running.wait()
    while not done.is_set():
        ticks += 1
    worker.join()
    assert ticks > 1000


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
