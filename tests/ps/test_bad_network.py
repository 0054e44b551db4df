"""Connections that are cut, halved, delayed and played again under keys: every sum is exact."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest
import torch

from hedgerow.core.errors import HedgerowError
from hedgerow.ps.curve import new_keys
from hedgerow.ps.remote_shard import RemoteShard
from hedgerow.tables.store import TableKeys

from .servers import server, until
from .tables import counting_table
from .tcp_proxy import TcpProxy

IDS = 64
FAULTS = ("cut", "half", "delay", "twice", "stall", "replay")


class Pushers:
    """Threads that push over connections of their own, and count what was answered."""

    def __init__(self, address: str, keys: Path | None, threads: int) -> None:
        self.pushed = torch.zeros(IDS)
        self.pushes = 0
        self.errors: list[BaseException] = []
        self._lock, self._stopping = threading.Lock(), False
        self.shards = [
            RemoteShard(address, counting_table(), keys=keys, deadline_s=120, retry_s=0.1)
            for _ in range(threads)
        ]
        self._threads = [
            threading.Thread(target=self._push, args=(i, shard), daemon=True)
            for i, shard in enumerate(self.shards)
        ]
        for thread in self._threads:
            thread.start()

    def _push(self, seed: int, shard: RemoteShard) -> None:
        made = torch.Generator().manual_seed(seed)
        try:
            while not self._stopping:
                ids = torch.randint(0, IDS, (int(torch.randint(1, 400, (1,), generator=made)),))
                keys, ones = TableKeys.of_one(ids), torch.ones(len(ids))
                under_way = [shard.start_apply_gradients(keys, -ones) for _ in range(2)]
                assert shard.start_lookup(keys).wait().rows.shape == ids.shape
                for answer in under_way:
                    answer.wait()
                with self._lock:
                    self.pushed.index_add_(0, ids, 2 * ones)
                    self.pushes += 2
        except BaseException as error:
            self.errors.append(error)

    def go_on(self, pushes: int) -> None:
        goal = self.pushes + pushes
        until(lambda: self.pushes >= goal or self.errors, 120)
        assert self.errors == []

    def stop(self) -> None:
        self._stopping = True
        for thread in self._threads:
            thread.join(150)
        assert not any(thread.is_alive() for thread in self._threads)
        assert self.errors == []

    def close(self) -> None:
        self._stopping = True
        for shard in self.shards:
            shard.close()


def sums_after(faults: int, folder: Path, seed: int) -> None:
    new_keys(folder)
    with server(keys=folder) as started:
        proxy = TcpProxy(started.address, seed)
        pushers = Pushers(proxy.address, folder, 3)
        chosen = random.Random(seed)
        try:
            for turn in range(faults):
                kind = FAULTS[turn % len(FAULTS)]
                proxy.order(kind, "in" if kind == "replay" else chosen.choice(("in", "out", "any")))
                until(lambda: proxy.is_done() or pushers.errors, 60)
                pushers.go_on(chosen.randint(0, 4))
            pushers.stop()
            check = RemoteShard(started.address, keys=folder)
            found = check.start_lookup(TableKeys.of_one(torch.arange(IDS))).wait().rows
            assert found.tolist() == pushers.pushed.tolist()
            told = check.server_counters()
            assert told["writes_applied"] == pushers.pushes
            assert told["writes_repeated"] > 0
            assert told.get("faults", 0) == 0
            check.close()
            assert all(proxy.done[kind] >= faults // len(FAULTS) for kind in FAULTS)
        finally:
            pushers.close()
            proxy.close()


def test_sixty_faults_of_the_network_under_keys(tmp_path: Path) -> None:
    sums_after(60, tmp_path / "keys", seed=1)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_five_hundred_faults_of_the_network_under_keys(tmp_path: Path) -> None:
    sums_after(500, tmp_path / "keys", seed=2)
