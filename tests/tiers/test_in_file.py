"""Memory over a file: tables of two tiers whose slow rows lie on a disk, four times the budget."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hedgerow as hr
from hedgerow.core.clock import ManualClock
from hedgerow.core.errors import FileMissingError, OutOfMemoryError
from hedgerow.tables.config import TableConfig
from hedgerow.tables.eviction import Ttl
from hedgerow.tables.host import HostTable
from hedgerow.tables.host_core import RowFile
from hedgerow.tables.optimizers import Adagrad, Adam
from hedgerow.tables.store import Entries
from hedgerow.tiers.tier_tables import MODES, Tiers, TierTable, tier_table

from ..support import table_config
from .against_one import Against

# On the disk of the checkout: a folder for temporary files may lie in memory. Files have no names.
HERE = Path(__file__).parent
WIDE = table_config(Adagrad(lr=0.1), dim=64)
ROW_BYTES = 64 * 2 * 4 + 8
CHUNK_ROWS = 32_768
SEEDS = [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(1, 9))]
SMALL = table_config(Adam(lr=0.1), dim=5, evict=Ttl(30 / 86400))


def in_file(mode: str, fast_rows: int, resident_bytes: int, folder: Path = HERE) -> Any:
    def make(config: TableConfig, clock: ManualClock | None = None) -> TierTable:
        rows_in = RowFile(folder, resident_bytes)
        slow = HostTable(config, clock=clock, rows_in=rows_in)
        tiers = Tiers(mode=mode, fast_rows=fast_rows, allow_small=True)
        return tier_table(config, tiers, clock=clock, slow=slow)

    return make


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_calls_saves_and_loads_see_one_table(mode: str, seed: int, tmp_path: Path) -> None:
    long = seed > 0
    pair = Against(SMALL, in_file(mode, 10 + seed, 2**12), seed=seed, ids=100 if long else 60)
    pair.run(300 if long else 40)
    pair.save_and_load(tmp_path)
    pair.run(20)
    moved = pair.ours.stats()
    assert moved["promotions" if mode == "HYBRID" else "fetches"] > 0


def _batches(ids: torch.Tensor, steps: int, batch_ids: int) -> Iterator[torch.Tensor]:
    """Every id once, in the order in which rows are born; then Zipf, hot ones anywhere."""
    random = np.random.default_rng(2)
    order = torch.from_numpy(random.permutation(len(ids)))
    yield from ids.split(batch_ids)
    for _ in range(steps):
        yield ids[order[torch.from_numpy(random.zipf(1.2, batch_ids) % len(ids))]]


def _same(ours: Entries, plain: Entries) -> bool:
    (state,), (expected,) = ours.states, plain.states
    columns = [(ours.found, plain.found), (ours.ts, plain.ts), (ours.rows, plain.rows)]
    columns += [(values, expected[name]) for name, values in state.items()]
    return bool(ours.found.all()) and all(torch.equal(a, b) for a, b in columns)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("rows", "steps"), [(16_000, 12), pytest.param(400_000, 60, marks=pytest.mark.long)]
)
def test_a_table_4_times_its_memory_trains_as_one_in_memory(
    mode: str, rows: int, steps: int, tmp_path: Path
) -> None:
    """The budget is of rows: half of it for hot ones, half for pages of the file."""
    ids = torch.from_numpy(np.random.default_rng(1).integers(-(2**63), 2**63 - 1, rows))
    budget = rows * ROW_BYTES // 4
    ours = in_file(mode, budget // 2 // ROW_BYTES, budget // 2)(WIDE)
    plain, most_bytes = HostTable(WIDE), 0
    for step, batch in enumerate(_batches(ids, steps, 1000)):
        for table in (ours, plain):
            found = table.lookup(batch, missing="training")
            table.apply_gradients(found, found.rows_of() + 0.1, step=step, ts=step)
        fast_bytes = len(ours.resident) * ROW_BYTES
        most_bytes = max(most_bytes, fast_bytes + ours.slow.measured_bytes())
    # Above the budget are pages of a call, and those that the system is late with.
    assert budget / 2 < most_bytes < 1.25 * budget
    assert ours.stats()["fast_hits"] > 0
    assert ours.stats()["resident_bytes"] <= budget // 2 < ours.stats()["file_bytes"]
    assert ours.size() == plain.size() == rows
    assert all(_same(ours.entries(part), plain.entries(part)) for part in ids.split(65_536))
    hr.save([ours], tmp_path / "saved")
    loaded = in_file("CACHING" if mode == "HYBRID" else "HYBRID", 100, budget)(WIDE)
    hr.load([loaded], tmp_path / "saved")
    assert all(_same(loaded.entries(part), plain.entries(part)) for part in ids.split(65_536))


@contextmanager
def _no_more_file(table: TierTable) -> Iterator[None]:
    """Files may not be longer than the table's is now: as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = int(table.slow.stats()["file_bytes"]) + 2**12
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class _Full:
    """A table of two tiers whose file has one chunk and gets no other, and a plain one."""

    def __init__(self, mode: str, fast_rows: int = 600) -> None:
        self.ours, self.plain = in_file(mode, fast_rows, 2**21)(WIDE), HostTable(WIDE)
        self.ids = torch.arange(CHUNK_ROWS + 2 * fast_rows)

    def both(self, ids: torch.Tensor) -> None:
        for table in (self.ours, self.plain):
            table.apply_gradients(ids, torch.full((len(ids), 64), 0.5))

    def same(self, table: Any) -> bool:
        there = self.ids[self.plain.contains(self.ids)]
        return table.size() == len(there) and _same(table.entries(there), self.plain.entries(there))

    def fill(self) -> None:
        """Until not one row more is born."""
        start, rows = self.plain.size(), 1000
        while rows:
            batch = self.ids[start : start + rows]
            try:
                self.ours.apply_gradients(batch, torch.full((len(batch), 64), 0.5))
            except OutOfMemoryError:
                rows //= 2
            else:
                self.plain.apply_gradients(batch, torch.full((len(batch), 64), 0.5))
                start += rows


@pytest.mark.parametrize("mode", MODES)
def test_a_file_that_cannot_grow_is_an_error_and_loses_nothing(mode: str) -> None:
    pair = _Full(mode)
    pair.both(pair.ids[:1])
    with _no_more_file(pair.ours):
        for _ in range(3):
            pair.both(pair.ids[:1000])  # some of them come to memory
        with pytest.raises(OutOfMemoryError, match=r"more bytes of a file.*Nothing was changed"):
            pair.ours.apply_gradients(pair.ids, torch.ones(len(pair.ids), 64))
        assert pair.same(pair.ours)
        pair.fill()
        assert pair.same(pair.ours)
        for first in range(0, 9000, 900):  # what is there learns on
            pair.both(pair.ids[first : first + 900])
        assert pair.same(pair.ours)
        if mode == "HYBRID":
            assert pair.ours.stats()["failed_moves"] > 0
        else:
            pair.ours.flush()
            assert pair.same(pair.ours.slow)
    pair.both(pair.ids)  # it grows again
    assert pair.same(pair.ours)


@pytest.mark.parametrize("mode", MODES)
def test_a_folder_that_is_missing_is_named(mode: str, tmp_path: Path) -> None:
    with pytest.raises(FileMissingError, match=r"rows_in names .*absent, which is not a folder"):
        in_file(mode, 10, 2**20, tmp_path / "absent")(WIDE)
