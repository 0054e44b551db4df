"""Many threads and processes at once: no error, and the counters add up."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import zmq

from hedgerow.ps import request_scheduler
from hedgerow.ps.curve import ClientKeys, ServerKeys, new_keys
from hedgerow.ps.messages import RequestOrigin, ServerRequest, Verb
from hedgerow.ps.remote_shard import RemoteShard
from hedgerow.ps.server import ServerLimits
from hedgerow.tables.store import TableKeys

from .servers import FORKS, START_S, server, server_thread, until
from .tables import counting_table

IDS = 200


def push(shard: RemoteShard, seed: int, until_s: float) -> tuple[int, int, torch.Tensor]:
    """Pushes, lookups and what was pushed."""
    made = torch.Generator().manual_seed(seed)
    pushes = lookups = 0
    pushed = torch.zeros(IDS)
    while time.monotonic() < until_s:
        n = int(torch.randint(1, 3000, (), generator=made))
        ids = torch.randint(0, IDS, (n,), generator=made)
        keys = TableKeys.of_one(ids)
        under_way = shard.start_apply_gradients(keys, -torch.ones(n))
        found = shard.start_lookup(keys)
        assert found.wait().rows.min() >= 1  # a client sees what it wrote before
        under_way.wait()
        pushed.index_add_(0, ids, torch.ones(n))
        pushes, lookups = pushes + 1, lookups + 1
    return pushes, lookups, pushed


def _worker(address: str, seed: int, seconds_s: float, tell: Any) -> None:
    torch.set_num_threads(1)
    shard = RemoteShard(address, deadline_s=60)
    pushes, lookups, pushed = push(shard, seed, time.monotonic() + seconds_s)
    tell.send((pushes, lookups, pushed.tolist()))
    shard.close()


def many(folder: Path, durability: str, seconds_s: float) -> None:
    with server(checkpoint=folder, durability=durability) as started:
        shared = RemoteShard(started.address, counting_table(), deadline_s=60)
        workers = []
        for seed in range(3):
            ours, theirs = FORKS.Pipe(duplex=False)
            process = FORKS.Process(
                target=_worker, args=(started.address, seed, seconds_s, theirs), daemon=True
            )
            process.start()
            workers.append((process, ours))
        done: list[tuple[int, int, Any]] = []
        errors: list[BaseException] = []

        def work(seed: int) -> None:
            try:
                done.append(push(shared, seed, time.monotonic() + seconds_s))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(10 + i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(seconds_s + 90)
        assert errors == []
        assert not any(thread.is_alive() for thread in threads)
        for process, ours in workers:
            assert ours.poll(START_S), "a worker process did not end"
            done.append(ours.recv())
            process.join(START_S)
            assert process.exitcode == 0
            process.close()
            ours.close()
        total = sum(torch.as_tensor(pushed) for _, _, pushed in done)
        found = shared.start_lookup(TableKeys.of_one(torch.arange(IDS))).wait().rows
        assert found.tolist() == total.tolist()
        counted = shared.server_counters()
        assert counted["writes_applied"] == sum(pushes for pushes, _, _ in done)
        assert counted["requests_lookup"] == 1 + sum(lookups for _, lookups, _ in done)
        assert counted.get("faults", 0) == counted.get("answers_dropped", 0) == 0
        shared.close()


@pytest.mark.parametrize("durability", ["checkpoint", "log"])
def test_eight_threads_and_three_processes(tmp_path: Path, durability: str) -> None:
    many(tmp_path, durability, 2.5)


@pytest.mark.long
@pytest.mark.parametrize("durability", ["checkpoint", "log"])
def test_eight_threads_and_three_processes_for_a_minute(tmp_path: Path, durability: str) -> None:
    many(tmp_path, durability, 60)


def test_a_busy_server_says_so_and_nothing_is_lost() -> None:
    n = 200_000
    keys = TableKeys.of_one(torch.arange(n))
    with server_thread(limits=ServerLimits(requests=2)) as started:
        shard = RemoteShard(started.address, counting_table(), deadline_s=60)
        under_way = [shard.start_apply_gradients(keys, -torch.ones(n)) for _ in range(12)]
        for answer in under_way:
            answer.wait()
        assert shard.start_lookup(keys).wait().rows.unique().tolist() == [12.0]
        assert started.counters.read("writes_applied") == 12
        assert started.counters.read("busy") == shard.counters.read("busy") > 0
        shard.close()


def test_a_client_that_takes_nothing_does_not_fill_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_scheduler, "OUT_BYTES", 4 * 2**20)
    monkeypatch.setattr(request_scheduler, "OUT_PATIENCE_S", 0.2)
    n = 6_000_000  # 24 MB of answers
    request = ServerRequest(Verb.LOOKUP, RequestOrigin(1, 1), splits=(0, n))
    context = zmq.Context()
    lazy = context.socket(zmq.DEALER)
    for option, value in ((zmq.LINGER, 0), (zmq.RCVHWM, 1), (zmq.RCVBUF, 2**16)):
        lazy.setsockopt(option, value)
    with server_thread() as started:
        other = RemoteShard(started.address, counting_table(), deadline_s=60)
        lazy.connect(started.address)
        lazy.send_multipart([request.head(), bytes(8 * n)])  # and nobody reads
        until(lambda: started.counters.read("answers_dropped") > 0)
        assert 0 < other.health()["answer_bytes"] < 8 * 2**20
        assert other.start_contains(TableKeys.of_one(torch.arange(9))).wait().sum() == 0
        lazy.close()
        until(lambda: other.health()["answer_bytes"] == 0)
        other.close()
    context.term()


@pytest.mark.parametrize("has_keys", [False, True])
def test_a_client_that_floods_a_server_with_small_messages_is_cut_off(
    tmp_path: Path, has_keys: bool
) -> None:
    if has_keys:
        new_keys(tmp_path)
    server_keys = ServerKeys.read(tmp_path) if has_keys else None
    client_keys = ClientKeys.read(tmp_path) if has_keys else None
    context = zmq.Context()
    with server_thread(keys=server_keys) as started:
        other = RemoteShard(started.address, counting_table(), deadline_s=60, keys=client_keys)
        flood = context.socket(zmq.DEALER)
        for option in (zmq.LINGER, zmq.SNDHWM):
            flood.setsockopt(option, 0)
        if client_keys is not None:
            client_keys.protect(flood)
        flood.connect(started.address)
        for _ in range(1_000_000):
            flood.send(b"x")
        until(lambda: started.counters.read("clients_cut_off") > 0)
        flood.close()
        assert other.start_contains(TableKeys.of_one(torch.arange(9))).wait().sum() == 0
        other.close()
    context.term()


def test_many_requests_of_a_client_with_large_ones_between_them_are_all_answered(
    tmp_path: Path,
) -> None:
    new_keys(tmp_path)  # over TCP: without keys, clients of the same machine share memory
    mine = ClientKeys.read(tmp_path)
    keys, n = TableKeys.of_one(torch.arange(3)), 500_000
    large = TableKeys.of_one(torch.arange(n))
    with server_thread(keys=ServerKeys.read(tmp_path)) as started:
        shards = [
            RemoteShard(started.address, counting_table(), deadline_s=60, keys=mine)
            for _ in range(3)
        ]
        for _ in range(6):
            under_way = []
            for shard in shards:
                under_way += [shard.start_lookup(keys) for _ in range(300)]
                under_way.append(shard.start_apply_gradients(large, -torch.ones(n)))
                under_way += [shard.start_lookup(keys) for _ in range(300)]
            for one in under_way:
                one.wait()
        assert shards[0].start_lookup(keys).wait().rows.tolist() == [18.0] * 3
        assert started.counters.read("clients_cut_off") == 0
        for shard in shards:
            shard.close()
