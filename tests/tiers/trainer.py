"""Trains a table of two tiers and saves it again and again, until somebody kills it."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch

from hedgerow.tables.checkpoint.increments import save_increment
from hedgerow.tables.checkpoint.save import save_tables
from hedgerow.tables.host import HostTable
from hedgerow.tables.optimizers import Adagrad
from hedgerow.tiers.caching import CachingTable
from hedgerow.tiers.hybrid import HybridTable

from ..support import table_config

CONFIG = table_config(Adagrad(lr=0.1), dim=4, name="trained")
EVERY = 10  # steps between saves: a base, then two increments


def tiered(mode: str) -> HybridTable | CachingTable:
    fast, slow = HostTable(CONFIG), HostTable(CONFIG)
    if mode == "hybrid":
        return HybridTable(fast, slow, fast_rows=30)
    return CachingTable(fast, slow, cache_rows=64)


def one_step(table: Any, step: int) -> None:
    """Follows from the step alone."""
    random = np.random.default_rng(step)
    ids = torch.from_numpy(random.zipf(1.2, 50) % 500)
    grads = torch.from_numpy(random.normal(size=(50, CONFIG.dim)).astype(np.float32))
    table.apply_gradients(ids, grads, step=step, ts=step)
    if step % 7 == 0:
        table.erase(ids[:3])


def main(mode: str, folder: str) -> None:
    table = tiered(mode)
    for step in range(1, 1_000_000):
        one_step(table, step)
        if step % (3 * EVERY) == EVERY:
            save_tables([table], folder, step=step, consumer="saves", overwrite=True)
        elif step % EVERY == 0:
            save_increment(folder, [table], consumer="saves", step=step)
        if step % EVERY == 0:
            sys.stdout.write(f"{step}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
