"""What a crash costs: nothing with the log, and with checkpoints what the client is told."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import hedgerow as hr
from hedgerow.core.errors import CheckpointError, ConfigError
from hedgerow.ps.clients import unpack
from hedgerow.ps.errors import DeadlineError, RolledBackError
from hedgerow.ps.messages import RequestOrigin, ServerRequest, Verb
from hedgerow.ps.pending_requests import WaitPolicy
from hedgerow.ps.recovery import ROWS, own_folder
from hedgerow.ps.remote_shard import RemoteShard
from hedgerow.ps.saving import load_servers, save_servers
from hedgerow.ps.shard import LocalShard
from hedgerow.routing.router import Router
from hedgerow.tables.multi.host_tables import HostTables
from hedgerow.tables.store import TableKeys

from .servers import ServerProcess, server, until
from .tables import counting_table, some_keys, some_rows, two_tables
from .tcp_proxy import TcpProxy
from .test_hostile import asked
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


def test_a_write_under_way_that_the_checkpoint_holds_is_said_to_be_in_it(tmp_path: Path) -> None:
    """Its answer was lost, and the server saved before it crashed."""
    with server(checkpoint=tmp_path) as started:
        proxy = TcpProxy(started.address)
        shard = RemoteShard(proxy.address, counting_table(), deadline_s=60, retry_s=60)
        other = RemoteShard(started.address, counting_table(), deadline_s=60)
        count_one(shard)
        proxy.order("stall", "out")
        saved = shard.start_apply_gradients(KEYS, -torch.ones(4))
        until(lambda: counted(other) == [2.0] * 4)
        other.checkpoint(5)
        os.kill(started.pid, signal.SIGSTOP)
        lost = shard.start_apply_gradients(KEYS, -torch.ones(4))
        started.crash()
        for write, may_have_happened in ((saved, True), (lost, False)):
            with pytest.raises(RolledBackError) as told:
                write.wait()
            assert told.value.may_have_happened == may_have_happened
            assert ("do not repeat it" in str(told.value)) == may_have_happened
        count_one(shard)  # what was lost, again
        assert counted(shard) == [3.0] * 4
        for one in (shard, other):
            one.close()
        proxy.close()


def test_tables_are_shown_again_to_a_server_that_could_not_be_reached_when_it_was_time() -> None:
    with server() as started:
        proxy = TcpProxy(started.address)
        shard = RemoteShard(proxy.address, counting_table(), deadline_s=60, retry_s=0.1)
        started.crash()
        with pytest.raises(RolledBackError):
            count_one(shard)
        proxy.refuses = True
        proxy.cut_all()
        shard.connection.patience = WaitPolicy(0.5, 0.1)
        with pytest.raises(DeadlineError, match="no answer to open"):
            count_one(shard)
        proxy.refuses = False
        shard.connection.patience = WaitPolicy()
        count_one(shard)
        assert counted(shard) == [1.0] * 4
        shard.close()
        proxy.close()


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


def test_rows_that_no_server_wrote_are_refused_in_words(tmp_path: Path) -> None:
    config = dataclasses.replace(counting_table()["count"], name="count")
    hr.save([hr.HostTable(config)], own_folder(tmp_path, 0, 1) / ROWS)
    with (
        pytest.raises(CheckpointError, match="not written by a server"),
        server(checkpoint=tmp_path),
    ):
        raise AssertionError("it has started")


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


def saved_by_one(tmp_path: Path) -> Path:
    """A checkpoint of all servers, which are one, in a folder of such."""
    path = tmp_path / "all" / "step-1"
    with server(checkpoint=tmp_path / "before") as started:
        shard = RemoteShard(started.address, counting_table(), deadline_s=60)
        count_one(shard)
        save_servers([shard], path, router=Router("roundrobin", 1), step=1)
        shard.close()
    return path


def test_a_log_on_top_of_a_checkpoint_of_all_outlives_a_crash(tmp_path: Path) -> None:
    path = saved_by_one(tmp_path)
    with server(checkpoint=path.parent, durability="log") as started:
        shard = RemoteShard(started.address, counting_table(), deadline_s=60)
        count_one(shard)
        started.crash()
        assert counted(shard) == [2.0] * 4
        count_one(shard)
        started.crash()
        assert counted(shard) == [3.0] * 4
        shard.close()


def test_a_log_knows_the_tables_that_a_load_or_an_option_brought(tmp_path: Path) -> None:
    path = saved_by_one(tmp_path)
    with server(checkpoint=tmp_path / "log", durability="log") as started:
        load_servers(
            [RemoteShard(started.address, counting_table())], path, router=Router("roundrobin", 1)
        )
        started.crash()
        shard = RemoteShard(started.address)
        assert counted(shard) == [1.0] * 4
        shard.close()
    tables = [dataclasses.replace(counting_table()["count"], name="count")]
    options: dict[str, Any] = {"checkpoint": tmp_path / "option", "durability": "log"}
    with server(**options, tables=tables) as started:
        shard = RemoteShard(started.address, deadline_s=60)
        count_one(shard)
        shard.close()
    with server(**options) as started:
        shard = RemoteShard(started.address)
        assert counted(shard) == [1.0] * 4
        shard.close()


REFUSED = {"text": b"garbage", "one": b"[1]", "none": b"[]", "deep": b"[" * 10**6}


@pytest.mark.parametrize("kind", REFUSED)
def test_tables_that_were_refused_do_not_stop_a_restart(tmp_path: Path, kind: str) -> None:
    with server(checkpoint=tmp_path, durability="log") as started:
        assert asked(
            started.address, [ServerRequest(Verb.OPEN, RequestOrigin(1, 1)).head(), REFUSED[kind]]
        )
        shard = RemoteShard(started.address, counting_table(), deadline_s=60)
        count_one(shard)
        started.crash()
        assert counted(shard) == [1.0] * 4
        shard.close()


@pytest.mark.parametrize("durability", ["log", "checkpoint"])
def test_a_second_server_does_not_touch_the_folder_of_the_first(
    tmp_path: Path, durability: str
) -> None:
    options: dict[str, Any] = {"checkpoint": tmp_path, "durability": durability}
    with server(**options), pytest.raises(ConfigError, match="in use by a running server"):
        ServerProcess(0, 1, **options)


def test_a_write_that_left_before_a_crash_is_said_to_be_unsure(tmp_path: Path) -> None:
    with server(checkpoint=tmp_path, durability="log") as started:
        shard = RemoteShard(started.address, counting_table(), deadline_s=1)
        under_way = shard.start_apply_gradients(KEYS, -torch.ones(4))
        started.kill()
        with pytest.raises(DeadlineError, match="may have happened"):
            under_way.wait()
        shard.close()


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"segment": 0, "clients": [[1, 1, 1e999, []]]}',
        '{"segment": Infinity, "clients": []}',
        '{"segment": 0, "clients": 7}',
        '{"segment": 0, "clients": [[1, 1, 1, [[1, 1, 1, [1], []]]]]}',
    ],
    ids=range(5),
)
def test_what_is_remembered_of_clients_is_checked(text: str) -> None:
    with pytest.raises(CheckpointError, match="the blob of a server is not readable"):
        unpack(text.encode())
