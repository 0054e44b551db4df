"""`hedgerow ps-status` as a user and as a script runs it."""

from __future__ import annotations

import json

import torch
from typer.testing import CliRunner

from hedgerow.cli import app as program
from hedgerow.ps.remote_shard import RemoteShard
from hedgerow.tables.store import TableKeys
from tests.ps.servers import server_thread
from tests.ps.tables import counting_table


def test_health_and_counters_of_servers_and_of_one_that_is_away() -> None:
    with server_thread(name="0/2") as first, server_thread(name="1/2") as second:
        shard = RemoteShard(first.address, counting_table())
        shard.start_apply_gradients(TableKeys.of_one(torch.arange(3)), torch.ones(3)).wait()
        shard.close()
        there = [first.address, second.address.removeprefix("tcp://")]
        done = CliRunner().invoke(program.app, ["ps-status", *there, "--json"])
        assert done.exit_code == 0
        found = json.loads(done.stdout)["servers"]
        assert [one["health"]["state"] for one in found] == ["serving", "empty"]
        assert found[0]["health"]["rows"] == 3
        assert found[0]["counters"]["writes_applied"] == 1
        away = ["ps-status", *there, "127.0.0.1:1", "--deadline", "0.5"]
        done = CliRunner(env={"COLUMNS": "200"}).invoke(program.app, away)
        assert done.exit_code == 1
        lines = done.stdout.splitlines()
        assert any("0/2" in line and "serving" in line for line in lines)
        assert any("127.0.0.1:1" in line and "away" in line for line in lines)
        assert "within its deadline of 0.5 s" in done.stdout
