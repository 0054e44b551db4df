"""`hedgerow launch --ray`: servers and workers as actors of a local Ray cluster."""

from __future__ import annotations

import json
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from hedgerow.core.errors import MissingExtraError
from hedgerow.launch.ray_job import ray_library

from .launched_servers import SCRIPT, launched

pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.skipif(find_spec("ray") is None, reason="SKIPPED: Ray is not installed"),
]


def test_a_killed_server_actor_comes_back_and_every_row_is_right(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    options = ("--ray", "--servers", 2, "--workers", 2, "--checkpoint", kept)
    with launched(*options, SCRIPT, tmp_path) as job:
        job.line("[0] trains")
        job.line("[1] trains")
        job.kill_server("1/2")
        job.line("server 1/2 was lost")
        back = job.line("server 1/2 is back at")
        (tmp_path / "enough").touch()
        told = [job.line(f"[{rank}] right after") for rank in range(2)]
        assert job.status() == 0, job.lines
    assert all("[0, 1] restarts" in line for line in told)
    first = next(line for line in job.lines if "server 1/2 listens at" in line)
    assert first.split(" at ")[1].split()[0] == back.split(" at ")[1].split()[0]
    saved = [json.loads(path.read_text()) for path in kept.glob("server-*/rows/manifest.json")]
    rows = [sum(table["rows"] for table in one["tables"].values()) for one in saved]
    assert len(rows) == 2
    assert sum(rows) == 120  # drained: every id of both tables is in one of the two


@pytest.mark.long
def test_ctrl_c_ends_workers_then_servers_in_order(tmp_path: Path) -> None:
    with launched("--ray", "--servers", 1, SCRIPT, tmp_path) as job:
        job.line("[0] trains")
        job.process.send_signal(signal.SIGINT)
        assert job.status() == 128 + signal.SIGINT, job.lines
        assert "hedgerow: SIGINT: ending workers, then servers." in job.lines
        assert not any("Traceback" in line or "may not be saved" in line for line in job.lines)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install hedgerow\[ray\]"):
        ray_library()
