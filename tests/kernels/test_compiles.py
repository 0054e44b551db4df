"""Kernels compile for a GPU, to code that rounds every operation and swaps 64 bits at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from hedgerow.kernels import reference, reference_ops

ROOT = Path(__file__).parents[2]
# Keys that a thread loads while others swap: 2 lines of 16 keys a row, over the threads. Any other
# number would mean that threads load the same keys, see `toolchain.writer_tile`.
SWAPPING = {"_apply": 2 * 16 * 16 // 64, "_assign": 8, "_find_or_insert": 2 * 32 * 16 // 128}


def test_every_kernel_compiles_for_hopper(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compile_for_hopper"],
        env={**env, "TRITON_CACHE_DIR": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    told = [json.loads(line) for line in run.stdout.splitlines()]
    twins = {*reference.__all__, *reference_ops.__all__, "to_layout", "to_layout_backward"}
    assert {kernel["kernel"] for kernel in told} == {f"_{name}" for name in twins}
    for kernel in told:
        assert kernel["cubin_bytes"] > 0
        assert kernel["fused"] == kernel["flushed"] == 0, kernel
        swapping = kernel["kernel"] in SWAPPING and not kernel["later_segment"]
        assert kernel["swaps"] == (["b64"] if swapping else []), kernel
        assert kernel["keys_a_thread"] == (SWAPPING[kernel["kernel"]] if swapping else 0), kernel
