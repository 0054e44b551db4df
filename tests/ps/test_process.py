"""The program: a server by hand, keys, signals, forks, and waiting for one that is away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from hedgerow.cli import app as program
from hedgerow.core.errors import ConfigError, StateError
from hedgerow.ps.remote_shard import RemoteShard
from hedgerow.ps.server import Server, ServerPlan
from hedgerow.ps.service import TableService
from hedgerow.tables.store import TableKeys

from .servers import config_file, server, server_thread
from .tables import counting_table, two_tables

KEYS = TableKeys.of_one(torch.arange(3))


def test_a_server_by_hand_with_keys_and_tables(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    made = CliRunner().invoke(program.app, ["keys", "new", str(keys)])
    assert made.exit_code == 0
    assert sorted(p.name for p in keys.iterdir()) == [
        "client.key",
        "client.pub",
        "server.key",
        "server.pub",
    ]
    tables = config_file(tmp_path, list(counting_table().values()))
    command = [sys.executable, "-m", "hedgerow", "ps", "--shard", "1/2", "--listen", "0.0.0.0:0"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert refused.returncode == 2
    assert "no keys are given" in refused.stderr
    command += ["--keys", str(keys), "--tables", str(tables), "--checkpoint", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip().replace("0.0.0.0", "127.0.0.1")
            shard = RemoteShard(address, keys=keys, deadline_s=60)
            assert shard.names == ("any",)
            shard.start_apply_gradients(KEYS, -torch.ones(3), step=5).wait()
            assert shard.health()["name"] == "1/2"
            shard.close()
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
    saved = json.loads((tmp_path / "server-00001-of-00002/rows/manifest.json").read_text())
    assert (saved["step"], saved["tables"]["any"]["rows"]) == (5, 3)


def test_sigterm_right_behind_the_last_client_ends_a_server() -> None:
    # Python's handlers need the main thread awake; one in seven such signals came just too late.
    for _ in range(20):
        with server() as started:
            shard = RemoteShard(started.address, counting_table())
            shard.start_apply_gradients(KEYS, -torch.ones(3)).wait()
            shard.close()
            assert started.terminate() == 0


@pytest.mark.parametrize("shard", ["2/2", "1", "a/b", "-1/2", ""])
def test_a_shard_is_one_of_several(shard: str) -> None:
    with pytest.raises(ConfigError, match="i/n"):
        ServerPlan.of(shard, "127.0.0.1:0")


def test_the_log_needs_a_folder_and_a_folder_with_a_log_its_reader(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--checkpoint DIR"):
        ServerPlan.of("0/1", "127.0.0.1:0", durability="log")
    with server(checkpoint=tmp_path, durability="log") as started:
        RemoteShard(started.address, two_tables()).close()
        started.kill()
        started._settings["durability"] = "checkpoint"
        with pytest.raises(ConfigError, match="would be lost"):
            started.restart()


def test_waiting_for_a_server_that_is_away(tmp_path: Path) -> None:
    with server(checkpoint=tmp_path, durability="log") as started:
        patient = RemoteShard(started.address, counting_table(), deadline_s=0.01, away="wait")
        patient.start_apply_gradients(KEYS, -torch.ones(3)).wait()
        started.kill()
        back = threading.Timer(0.3, started.restart)
        back.start()
        patient.start_apply_gradients(KEYS, -torch.ones(3)).wait()
        assert patient.start_lookup(KEYS).wait().rows.tolist() == [2.0] * 3
        back.join()
        patient.close()


def test_a_connection_of_the_parent_is_refused_in_a_forked_child() -> None:
    with server_thread() as started:
        shard = RemoteShard(started.address, counting_table())
        under_way = shard.start_lookup(KEYS)
        readable, writable = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that other threads run: this is what is tested
            child = os.fork()
        if not child:
            told = []
            for use in (under_way.wait, lambda: shard.start_lookup(KEYS)):
                try:
                    use()
                except StateError as error:
                    told.append(str(error))
            os.write(writable, json.dumps(told).encode())
            os._exit(0)
        os.close(writable)
        with os.fdopen(readable) as pipe:
            told = json.loads(pipe.read())
        os.waitpid(child, 0)
        assert len(told) == 2
        assert all("connect again here" in one for one in told)
        assert under_way.wait().rows.tolist() == [0.0] * 3
        shard.close()


def test_a_closed_connection_says_so() -> None:
    with server_thread() as started:
        shard = RemoteShard(started.address, counting_table())
        shard.close()
        shard.close()
        with pytest.raises(StateError, match="is closed"):
            shard.start_lookup(KEYS)


def test_addresses_that_are_none_or_taken_are_named() -> None:
    with pytest.raises(ConfigError, match="'nonsense': Invalid argument"):
        RemoteShard("nonsense", counting_table())
    with server() as started:
        with pytest.raises(ConfigError, match=r"cannot listen.*already in use"):
            Server(TableService(), listen=started.address)
        with pytest.raises(ConfigError, match="retry_s"):
            RemoteShard(started.address, retry_s=0)


def test_every_signal_to_stop_is_heard() -> None:
    """Also one that comes just before the loop begins to wait, which then nothing would wake."""
    for asked in range(12):
        with server() as started:
            shard = RemoteShard(started.address, counting_table(), deadline_s=30)
            for _ in range(asked % 4):
                shard.health()
            os.kill(started.pid, signal.SIGTERM)
            started.process.join(20)
            assert started.process.exitcode == 0
            shard.close()
