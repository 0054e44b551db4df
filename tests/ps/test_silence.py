"""A client that waits for a server says so: whom, since when, until when, and what comes next."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from hedgerow.ps.remote_shard import RemoteShard
from hedgerow.tables.store import TableKeys

from .servers import server, until
from .tables import counting_table

KEYS = TableKeys.of_one(torch.tensor([7]))
WAITS = re.compile(
    r"waiting for server 0/1 at tcp://127\.0\.0\.1:\d+: no answer to (\w+) since "
    r"\d\d:\d\d:\d\d \(\d+ s\); (.+)\. The request is repeated until \d\d:\d\d:\d\d and executed "
    r"once; after that it fails with DeadlineError\."
)


def said(caplog: pytest.LogCaptureFixture) -> list[re.Match[str]]:
    return [found for line in caplog.messages if (found := WAITS.fullmatch(line))]


@pytest.mark.parametrize("away", ["killed", "stopped"])
def test_a_client_says_whom_it_waits_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, away: str
) -> None:
    with (
        server(checkpoint=tmp_path, durability="log") as started,
        ThreadPoolExecutor(1) as beside,
    ):
        shard = RemoteShard(started.address, counting_table(), name="0/1", deadline_s=100)
        shard.start_apply_gradients(KEYS, -torch.ones(1)).wait()
        caplog.clear()  # where the machine is slow, the start may have been told of
        if away == "killed":
            started.kill()
        else:
            os.kill(started.pid, signal.SIGSTOP)
        written = beside.submit(lambda: shard.start_apply_gradients(KEYS, -torch.ones(1)).wait())
        until(lambda: said(caplog))
        verb, state = said(caplog)[0].groups()
        assert verb == "apply_gradients"
        assert state == ("it cannot be reached" if away == "killed" else "it is connected")
        assert {record.levelname for record in caplog.records} == {"WARNING"}
        if away == "killed":
            started.restart()
        else:
            os.kill(started.pid, signal.SIGCONT)
        written.result(60)
        assert any(
            "server 0/1" in line and "answers again, after" in line for line in caplog.messages
        )
        assert shard.start_lookup(KEYS).wait().rows.tolist() == [2.0]
        shard.close()


def test_many_threads_that_wait_for_one_server_do_not_each_say_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        server(checkpoint=tmp_path, durability="log") as started,
        ThreadPoolExecutor(8) as beside,
    ):
        shard = RemoteShard(started.address, counting_table(), name="0/1", deadline_s=100)
        shard.start_apply_gradients(KEYS, -torch.ones(1)).wait()
        caplog.clear()
        started.kill()
        reads = [beside.submit(lambda: shard.start_lookup(KEYS).wait()) for _ in range(8)]
        until(lambda: said(caplog))
        assert not threading.Event().wait(3)
        assert len(said(caplog)) < 4  # and not one for each thread
        started.restart()
        for read in reads:
            assert read.result(60).rows.tolist() == [1.0]
        shard.close()


TRAINS = """
import sys, torch, hedgerow as hr
bags = hr.EmbeddingBags([hr.Table("user", 2)], init=hr.Zeros(), optimizer=hr.Sgd(lr=1.0))
model = hr.distribute(bags)
for step in range(10**6):
    model(hr.IdBatch.from_lists({"user": [[7]]}))["user"].sum().backward()
    if step == 5:
        print("trains", flush=True)
    if step >= 5 and sys.argv[1:] and __import__("os").path.exists(sys.argv[1]):
        break
rows = model.eval()(hr.IdBatch.from_lists({"user": [[7]]}))["user"]
print("right" if rows.tolist() == [[-(step + 1.0)] * 2] else f"wrong: {rows} after {step}")
"""


def test_a_script_shows_it_on_its_terminal(tmp_path: Path) -> None:
    """Without any setting of its log; it goes on when the server is back."""
    enough = tmp_path / "enough"
    with server(checkpoint=tmp_path / "rows", durability="log") as started:
        script = subprocess.Popen(
            [sys.executable, "-c", TRAINS, str(enough)],
            env={**os.environ, "HEDGEROW_SERVERS": started.address, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert script.stdout is not None
            assert script.stderr is not None
            assert script.stdout.readline() == "trains\n"
            started.kill()
            assert WAITS.fullmatch(script.stderr.readline().rstrip("\n"))
            enough.touch()
            started.restart()
            told, errors = script.communicate(timeout=100)
            assert told == "right\n"
            assert "answers again" in errors
        finally:
            script.kill()
            script.communicate()
