"""The kernels of ops compile for a GPU, to code that rounds every operation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hedgerow.kernels import reference_ops

ROOT = Path(__file__).parents[2]
# The twins of layouts are `ops.layout.plain`.
TWINS = {f"_{name}" for name in (*reference_ops.__all__, "to_layout", "to_layout_backward")}


@pytest.mark.parametrize(
    "dtypes",
    [
        ["float32"],
        pytest.param(["float32", "float64", "bfloat16", "float16"], marks=pytest.mark.long),
    ],
    ids=["float32", "all"],
)
def test_every_kernel_of_ops_compiles_for_hopper(tmp_path: Path, dtypes: list[str]) -> None:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compile_ops", *dtypes],
        env={**env, "TRITON_CACHE_DIR": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    told = [json.loads(line) for line in run.stdout.splitlines()]
    assert {kernel["kernel"] for kernel in told} == TWINS
    for kernel in told:
        assert kernel["cubin_bytes"] > 0
        assert kernel["fused"] == kernel["flushed"] == 0, kernel
