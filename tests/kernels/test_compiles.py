"""Kernels compile for a GPU, to code that rounds every operation and swaps 64 bits at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.twins import kernels_features, kernels_ops, kernels_table, kernels_tiers

ROOT = Path(__file__).parents[2]
# Keys that a thread loads while others swap: 2 lines of 16 keys a row, over the threads. Any other
# number would mean that threads load the same keys, see `toolchain.writer_tile`.
SWAPPING = {
    "_apply": 2 * 8 * 16 // 64,
    "_assign": 8,
    "_assign_add": 8,
    "_find_or_insert": 2 * 32 * 16 // 128,
    "_add_counts": 2 * 32 * 16 // 128,
    "_seat": 2 * 128 * 16 // 128,
    "_exchange": 8,
    "_put_rows": 2 * 2 * 16 // 32,
    "_rehash": 2 * 32 * 16 // 64,
    "_insert_and_evict": 4 * 16 * 16 // 64,  # and two lines of scores
}
SWAPS = {"_insert_and_evict": 3}  # of a key, of the score of a row that leaves, of one that stays
READING_AS_MUCH = {"_counts_of": 2 * 32 * 16 // 128}  # the same search, without a swap
TWINS = {
    f"_{name}"
    for file in (
        kernels_table,
        kernels_table,
        kernels_features,
        kernels_ops,
        kernels_tiers,
        kernels_table,
    )
    for name in file.__all__
} - {"_find_and_list", "_read", "_lookup_features", "_spread_at"}  # forms of other kernels
LAYOUTS = {"_to_layout", "_to_layout_backward"}  # their twins are `ops.layout.plain`
BY_SLOTS = {  # their twins have other names, or are several
    *("_seat", "_count_runs", "_write_runs", "_sum_long_runs", "_step", "_exchange", "_rehash"),
    *("_insert_and_evict", "_pin", "_touch", "_count_chosen", "_write_chosen", "_erase_chosen"),
}


@pytest.mark.parametrize("forms", ["one", pytest.param("all", marks=pytest.mark.long)])
def test_every_kernel_compiles_for_hopper(tmp_path: Path, forms: str) -> None:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compile_for_hopper", forms],
        env={**env, "TRITON_CACHE_DIR": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    told = [json.loads(line) for line in run.stdout.splitlines()]
    assert {kernel["kernel"] for kernel in told} == TWINS | LAYOUTS | BY_SLOTS
    for kernel in told:
        assert kernel["cubin_bytes"] > 0
        assert kernel["fused"] == kernel["flushed"] == 0 or not kernel["exact"], kernel
        swapping = kernel["kernel"] in SWAPPING and kernel["places"]
        swaps = SWAPS.get(kernel["kernel"], 1) if swapping else 0
        assert kernel["swaps"] == ["b64"] * swaps, kernel
        assert kernel["keys_a_thread"] == (
            {**SWAPPING, **READING_AS_MUCH}.get(kernel["kernel"], 0) if kernel["places"] else 0
        ), kernel
