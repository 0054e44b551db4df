"""`hedgerow bench gpu` runs from a plain checkout, and tells whether results are equal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu
from benchmarks.gpu_timer import Case
from hedgerow.core.errors import ConfigError

ROOT = Path(__file__).parents[2]
_ABSENT = ("hedgerow.native._native", "pyarrow", "zmq", "typer", "rich", "scipy")
_ALONE = f"""
import sys
for name in {_ABSENT}:
    sys.modules[name] = None  # an import of it fails
from benchmarks.gpu import main
cases = "ops/fused*,module/*sgd*ten*"
sys.exit(main(["--json", "--quick", "--device", "cpu", "--rounds", "1", "--cases", cases]))
"""


def test_it_needs_torch_and_triton_alone() -> None:
    run = subprocess.run(
        [sys.executable, "-c", _ALONE],
        cwd=ROOT,
        env={"TRITON_INTERPRET": "1", "PATH": "/usr/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert report["bench"] == "gpu"
    module, *results = report["results"]
    assert module["case"] == "module, sgd, ten ids a bag"
    assert module["missing"]  # modules need the core
    assert [r["case"] for r in results] == [
        "fused gather",
        "fused gather gradient",
        "fused reorder of 4 slots for 8 ranks, by torch's sorts",
    ]
    for result in results:
        assert result.get("equal", True) is True
        assert result["bytes"] > 0 < result["ms"]
        assert result["wall_ms"] > 0


def test_what_users_run_comes_first(device: torch.device) -> None:
    assert next(iter(gpu.makers())) == "module"
    report = gpu.run(rounds=1, cases=["module/*sgd*26*"], quick=True, device=device)
    (result,) = report["results"]
    assert result["case"] == "module, sgd, 26 tables x 4096 ids"
    assert result["bytes"] > 0 < result["in_a_row_ms"]
    assert result["peer"] == "TBE"
    assert ("missing" in result) != ("peer_ms" in result)
    assert gpu.lines(report)[1].startswith(result["case"])


def test_an_unequal_result_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Case("wrong", 8, lambda: None, 1, lambda: False)
    monkeypatch.setattr(gpu, "makers", lambda: {"one": lambda device, quick: [wrong]})
    assert gpu.main(["--device", "cpu", "--rounds", "1"]) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(ConfigError, match="needs a GPU"):
        gpu.run()
