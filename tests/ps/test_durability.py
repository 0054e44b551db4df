"""What a crash costs: nothing with the log, and with checkpoints what the client is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hedgerow.ps.errors import DeadlineError, RolledBackError
from hedgerow.ps.remote_shard import RemoteShard
from hedgerow.ps.shard import LocalShard
from hedgerow.tables.multi.host_tables import HostTables
from hedgerow.tables.store import TableKeys

from .servers import server
from .tables import counting_table, some_keys, some_rows, two_tables
from .test_remote_shard import same

KEYS = TableKeys.of_one(torch.arange(4))


def count_one(shard: RemoteShard, step: int | None = None) -> None:
    shard.start_apply_gradients(KEYS, -torch.ones(4), step=step).wait()


def counted(shard: RemoteShard) -> list[float]:
    return shard.start_lookup(KEYS).wait().rows.tolist()


def test_with_the_log_a_crash_costs_nothing(tmp_path: Path) -> None:
    options: dict[str, Any] = {"checkpoint": tmp_path, "durability": "log"}
    local = LocalShard(HostTables(two_tables()))
    with server(**options) as started:
        remote = RemoteShard(started.address, two_tables(), deadline_s=60)
        for seed in range(4):
            keys = some_keys(seed)
            for shard in (remote, local):
                shard.start_apply_gradients(keys, some_rows(keys), step=seed, ts=seed).wait()
                shard.start_erase(some_keys(seed + 1, 2, 2)).wait()
            if seed == 1:
                assert remote.checkpoint() == 1
            if seed in (0, 2):
                started.crash()
        same((remote, local))
        assert remote.counters.read("server_restarts") == 2
        started.crash()
        late = RemoteShard(started.address)  # the tables came out of the log, not from a client
        same((late, local))
        for shard in (remote, late):
            shard.close()


def test_with_checkpoints_the_client_is_told_once(tmp_path: Path) -> None:
    with server(checkpoint=tmp_path) as started:
        shard = RemoteShard(started.address, counting_table(), deadline_s=60)
        for step in range(3):
            count_one(shard, step)
        assert shard.checkpoint() == 2
        count_one(shard, 3)
        started.crash()
        assert shard.health()["state"] == "serving"  # asking about it takes nothing away
        with pytest.raises(RolledBackError, match="went back to the checkpoint of step 2") as told:
            count_one(shard, 4)
        assert (told.value.step, told.value.sequence) == (2, 4)
        assert counted(shard) == [3.0] * 4
        count_one(shard, 4)
        assert counted(shard) == [4.0] * 4
        shard.close()


def test_a_server_that_never_saved_starts_empty_and_says_so() -> None:
    with server() as started:
        shard = RemoteShard(started.address, counting_table(), deadline_s=60)
        count_one(shard)
        under_way = shard.start_lookup(KEYS)
        assert under_way.wait().rows.tolist() == [1.0] * 4
        started.crash()
        with pytest.raises(RolledBackError, match="an empty start"):
            counted(shard)
        assert counted(shard) == [0.0] * 4
        shard.close()


def test_a_server_told_to_stop_saves_and_comes_back_as_it_was(tmp_path: Path) -> None:
    with server(checkpoint=tmp_path) as started:
        shard = RemoteShard(started.address, counting_table(), deadline_s=60)
        under_way = [shard.start_apply_gradients(KEYS, -torch.ones(4)) for _ in range(20)]
        under_way[-1].wait()
        assert started.terminate() == 0
        for answer in under_way:
            answer.wait()
        started.restart()
        assert counted(shard) == [20.0] * 4  # no word of a roll back: nothing was lost
        started.crash()
        with pytest.raises(RolledBackError):
            counted(shard)
        shard.close()


def test_zeros_and_waiting_while_a_server_is_away() -> None:
    with server() as started:
        zeros = RemoteShard(started.address, counting_table(), deadline_s=0.5, away="zeros")
        count_one(zeros)
        started.kill()
        assert counted(zeros) == [0.0] * 4
        assert zeros.counters.read("lookups_of_zeros") == 1
        with pytest.raises(DeadlineError, match="apply_gradients"):
            count_one(zeros)
        zeros.close()
