"""`hedgerow launch --servers` with plain processes of this machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hedgerow as hr
from hedgerow.core.errors import ConfigError
from hedgerow.launch.job_variables import server_list
from hedgerow.nn.embedding_modules import servers_of
from tests.ps.servers import servers

from .launched_servers import SCRIPT, launched

pytestmark = pytest.mark.xdist_group("processes")


def test_two_workers_on_two_servers(tmp_path: Path) -> None:
    (tmp_path / "enough").touch()
    with launched("--servers", 2, "--workers", 2, SCRIPT, tmp_path) as job:
        for rank in range(2):
            job.line(f"[{rank}] right after 60 steps and [0, 0] restarts")
        assert job.status() == 0, job.lines


def test_a_failing_worker_ends_the_job_with_its_status(tmp_path: Path) -> None:
    with launched("--servers", 1, "--workers", 2, SCRIPT, tmp_path, "--fail") as job:
        job.line("[1] about to fail")
        assert job.status() == 7, job.lines
        job.line("hedgerow: worker 1 of 2 ended with status 7; the other workers are ended.")


def test_a_lost_server_ends_a_job_of_plain_processes(tmp_path: Path) -> None:
    with launched("--servers", 2, SCRIPT, tmp_path) as job:
        job.line("[0] trains")
        job.kill_server("1/2")
        assert job.status() == 1, job.lines
        job.line("hedgerow: server 1/2 ended with status 137; the job ends.")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--workers", "2"), "--workers without --servers"),
        (("--ray",), "--ray without --servers"),
        (("--servers", "0"), "servers is 0"),
        (("--servers", "1", "--nproc", "2"), "use --workers N"),
    ],
)
def test_options_that_do_not_fit(args: tuple[str, ...], told: str) -> None:
    command = [sys.executable, "-m", "hedgerow", "launch", *args, str(SCRIPT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert told in done.stderr


def test_arguments_stand_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with servers(2) as started:
        first, second = started["ps"]
        monkeypatch.setenv("HEDGEROW_SERVERS", f"{first}, {second}")
        for given, count in ((None, 2), ([second], 1)):
            model = hr.distribute(hr.EmbeddingBags([hr.Table("user", 2)]), servers=given)
            group = servers_of(model)
            assert group is not None
            assert group.count == count
            group.close()
    monkeypatch.setenv("HEDGEROW_SERVERS", f"{first},")
    with pytest.raises(ConfigError, match="commas between them"):
        server_list()
    monkeypatch.delenv("HEDGEROW_SERVERS")
    assert server_list() is None
