"""Reads beside updates, moves, write-backs, prefetches and saves see whole rows, no old ones."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from hedgerow.tables.checkpoint.load import load_tables
from hedgerow.tables.checkpoint.save import save_tables
from hedgerow.tables.host import HostTable
from hedgerow.tables.initializers import Zeros
from hedgerow.tables.optimizers import Sgd
from hedgerow.tiers.caching import CachingTable
from hedgerow.tiers.hybrid import HybridTable

from ..support import everything, table_config

IDS, DIM = 300, 8
CONFIG = table_config(Sgd(lr=1.0), dim=DIM, init=Zeros())


def _table(mode: str) -> HybridTable | CachingTable:
    fast, slow = HostTable(CONFIG), HostTable(CONFIG)
    if mode == "hybrid":
        return HybridTable(fast, slow, fast_rows=50, promotions=25)
    return CachingTable(fast, slow, cache_rows=120, queue_rows=60)


class _Reader:
    """Counts of all ids, again and again: none may fall, and no row may be torn."""

    def __init__(self, table: HybridTable | CachingTable) -> None:
        self.table, self.rounds = table, 0
        self.stop = threading.Event()
        self.wrong: list[str] = []
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self) -> None:
        ids, seen = torch.arange(IDS), torch.zeros(IDS)
        while not self.stop.is_set() and not self.wrong:
            if self.rounds % 2:
                rows = self.table.lookup(ids).rows_of()
            else:
                rows = self.table.entries(ids).rows
            if bool((rows != rows[:, :1]).any()):
                self.wrong.append("a torn row")
            if bool((rows[:, 0] < seen).any()):
                self.wrong.append("an old row")
            seen = rows[:, 0].clone()
            self.rounds += 1


@pytest.mark.parametrize("mode", ["hybrid", "caching"])
def test_a_reader_and_a_saver_beside_training(mode: str, tmp_path: Path) -> None:
    table, random = _table(mode), np.random.default_rng(1)
    batches = [torch.from_numpy(random.choice(IDS, 40, replace=False)) for _ in range(120)]
    reader = _Reader(table)
    saved: list[int] = []
    finished = threading.Event()

    def save() -> None:
        while not finished.is_set():
            saved.append(save_tables([table], tmp_path, overwrite=True).rows)

    saver = threading.Thread(target=save)
    saver.start()
    ahead = None
    for step, batch in enumerate(batches):
        coming = batches[(step + 1) % len(batches)]
        before, ahead = ahead, table.prefetch(coming) if mode == "caching" else None
        table.lookup(batch, missing="training")
        table.apply_gradients(batch, torch.full((len(batch), DIM), -1.0))
        if before is not None:
            before.release()
    if ahead is not None:
        ahead.release()
    finished.set()
    saver.join()
    reader.stop.set()
    reader.thread.join()
    assert not reader.wrong
    assert reader.rounds > 0
    assert saved == sorted(saved)
    expected = torch.bincount(torch.cat(batches), minlength=IDS).float()
    assert torch.equal(table.lookup(torch.arange(IDS)).rows_of()[:, 0], expected)
    fresh = HostTable(CONFIG)
    save_tables([table], tmp_path, overwrite=True)
    load_tables(tmp_path, [fresh])
    assert everything(fresh) == everything(table)
    stats = table.stats()
    assert stats["demotions" if mode == "hybrid" else "write_backs"] > 0
