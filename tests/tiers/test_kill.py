"""A process that is killed leaves a checkpoint of its tiers with every row of one step, once."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hedgerow.tables.checkpoint.load import load_tables
from hedgerow.tables.host import HostTable

from ..support import everything
from .trainer import CONFIG, one_step, tiered


def _killed(mode: str, folder: Path, saves: int, after_s: float) -> None:
    """Runs the trainer until it has made so many saves, and a little longer."""
    command = [sys.executable, "-m", "tests.tiers.trainer", mode, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for _ in range(saves):
            assert process.stdout.readline().strip()
        time.sleep(after_s)  # some moment of the steps that follow
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("mode", "seed"),
    [
        pytest.param("hybrid", 0, marks=pytest.mark.long),
        ("caching", 1),
        *(
            pytest.param(mode, seed, marks=pytest.mark.long)
            for mode in ("hybrid", "caching")
            for seed in range(2, 8)
        ),
    ],
)
def test_what_a_killed_process_saved_is_what_one_table_has(
    mode: str, seed: int, tmp_path: Path
) -> None:
    random = np.random.default_rng(seed)
    saves = int(random.integers(1, 4 if seed < 2 else 30))
    _killed(mode, tmp_path / "saved", saves, random.uniform(0, 0.2))
    table, alone = tiered(mode), HostTable(CONFIG)
    loaded = load_tables(tmp_path / "saved", [table])
    for step in range(1, loaded.step + 1):
        one_step(alone, step)
    assert everything(table) == everything(alone)
    for step in range(loaded.step + 1, loaded.step + 20):  # training goes on from there
        one_step(table, step)
        one_step(alone, step)
    assert everything(table) == everything(alone)
