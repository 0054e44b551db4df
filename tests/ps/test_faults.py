"""No update is lost and none is doubled, whatever happens on the way: SGD of rate 1 counts."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from hedgerow.ps.errors import DeadlineError
from hedgerow.ps.messages import Verb
from hedgerow.ps.pending_requests import WaitPolicy
from hedgerow.ps.remote_shard import RemoteShard
from hedgerow.tables.store import TableKeys

from .proxy import Mischief, Proxy
from .servers import ServerProcess, server, server_thread
from .tables import counting_table

IDS = 64
FAULTS = {
    "drop": Mischief(drop=0.4),
    "delay": Mischief(delay=0.6),
    "duplicate": Mischief(duplicate=0.7),
    "reorder": Mischief(reorder=0.5),
}


class Workers:
    """Threads that push, each over its own connection, and count what they pushed."""

    def __init__(self, address: str, threads: int) -> None:
        self.pushed = torch.zeros(IDS)
        self.errors: list[BaseException] = []
        self.pushes = 0
        self._lock = threading.Lock()
        self._stopping = False
        self.shards = [
            RemoteShard(address, counting_table(), deadline_s=60, retry_s=0.05)
            for _ in range(threads)
        ]
        self._threads = [
            threading.Thread(target=self._work, args=(i, shard), daemon=True)
            for i, shard in enumerate(self.shards)
        ]
        for thread in self._threads:
            thread.start()

    def _work(self, seed: int, shard: RemoteShard) -> None:
        made = torch.Generator().manual_seed(seed)
        try:
            while not self._stopping:
                ids = torch.randint(0, IDS, (16,), generator=made)
                keys = TableKeys.of_one(ids)
                under_way = [shard.start_apply_gradients(keys, -torch.ones(16)) for _ in range(3)]
                assert shard.start_lookup(keys).wait().rows.shape == (16,)
                for answer in under_way:
                    answer.wait()
                with self._lock:
                    self.pushed.index_add_(0, ids, torch.full((16,), 3.0))
                    self.pushes += 3
        except BaseException as error:
            self.errors.append(error)

    def go_on(self, pushes: int) -> None:
        """Until so many more pushes are done."""
        goal, limit = self.pushes + pushes, time.monotonic() + 60
        while self.pushes < goal and not self.errors:
            assert time.monotonic() < limit, "the workers hang"
            time.sleep(0.002)

    def stop(self) -> None:
        self._stopping = True
        for thread in self._threads:
            thread.join(90)
        assert not any(thread.is_alive() for thread in self._threads)
        assert self.errors == []


@pytest.fixture
def logged(tmp_path: Path) -> Iterator[ServerProcess]:
    with server(checkpoint=tmp_path, durability="log") as started:
        yield started


def fault(kind: str, started: ServerProcess, proxy: Proxy, workers: Workers) -> None:
    if kind == "kill":
        started.crash()
    elif kind == "kill in a save":
        asker = RemoteShard(started.address)
        saving = asker.start_ask(Verb.CHECKPOINT, {}, deadline_s=30)
        started.crash()
        saving.wait()  # asked again of the one that came back
        asker.close()
    elif kind == "cut":
        proxy.cut()
    else:
        proxy.mischief = FAULTS[kind]
    workers.go_on(12)
    proxy.mischief = Mischief()


def counts_after(faults: int, started: ServerProcess, seed: int) -> None:
    proxy = Proxy(started.address, seed)
    workers = Workers(proxy.address, 3)
    chosen = random.Random(seed)
    kinds = [*FAULTS, "kill", "kill in a save", "cut"]
    try:
        for turn in range(faults):
            kind = kinds[turn] if turn < len(kinds) else chosen.choice(kinds)
            fault(kind, started, proxy, workers)
        workers.stop()
        started.crash()
        check = RemoteShard(started.address)
        found = check.start_lookup(TableKeys.of_one(torch.arange(IDS))).wait().rows
        assert found.tolist() == workers.pushed.tolist()
        assert {"drop", "delay", "duplicate", "reorder"} <= set(proxy.done)
        check.close()
    finally:
        workers._stopping = True
        for shard in workers.shards:
            shard.close()
        proxy.close()


def test_twenty_random_faults(logged: ServerProcess) -> None:
    counts_after(20, logged, seed=1)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_five_hundred_random_faults(logged: ServerProcess) -> None:
    counts_after(500, logged, seed=2)


def test_a_lost_answer_is_given_again_and_the_write_is_not_done_again() -> None:
    keys = TableKeys.of_one(torch.tensor([7]))
    with server_thread() as started:
        proxy = Proxy(started.address, seed=3)
        shard = RemoteShard(proxy.address, counting_table(), deadline_s=30, retry_s=0.05)
        proxy.mischief = Mischief(drop=0.3)
        for _ in range(40):
            shard.start_apply_gradients(keys, -torch.ones(1)).wait()
        proxy.mischief = Mischief()
        assert shard.start_lookup(keys).wait().rows.tolist() == [40.0]
        assert started.counters.read("writes_applied") == 40
        assert started.counters.read("writes_repeated") > 0
        client = started.scheduler.clients.remembered()[0]
        assert len(client[3]) <= 1  # answers that have arrived are not kept
        shard.close()
        proxy.close()


@pytest.mark.parametrize("deadline_s", [0.03, 0.3])
def test_a_slow_server_meets_the_deadline(deadline_s: float) -> None:
    """30 ms is what serving takes by default; the error names server and limit."""
    keys = TableKeys.of_one(torch.tensor([7]))
    with server_thread() as started:
        proxy = Proxy(started.address)
        RemoteShard(started.address, counting_table()).close()
        shard = RemoteShard(proxy.address, name="2/4")
        shard.connection.patience = WaitPolicy(deadline_s, 10.0)
        proxy.mischief = Mischief(delay=1.0, delay_s=5.0)
        begin = time.monotonic()
        with pytest.raises(DeadlineError, match=rf"server 2/4 at tcp.*deadline of {deadline_s} s"):
            shard.start_lookup(keys).wait()
        assert time.monotonic() - begin < 5
        shard.close()
        proxy.close()


def test_greetings_that_are_broken_off_are_no_refusal() -> None:
    """The listening socket of a killed process takes callers until it is closed."""
    with socket.create_server(("127.0.0.1", 0)) as dying, ThreadPoolExecutor(1) as beside:
        address = f"tcp://127.0.0.1:{dying.getsockname()[1]}"
        opened = beside.submit(RemoteShard, address, counting_table(), deadline_s=60)
        for _ in range(5):
            dying.accept()[0].close()
        dying.close()
        with server_thread(listen=address) as started:
            shard = opened.result()
            shard.start_apply_gradients(TableKeys.of_one(torch.tensor([7])), -torch.ones(1)).wait()
            assert started.counters.read("writes_applied") == 1
            shard.close()
