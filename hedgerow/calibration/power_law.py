"""Tables in two tiers, and batches whose ids follow a power law."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..tables.config import Segment, TableConfig
from ..tables.host import HostTable
from ..tables.initializers import Zeros
from ..tables.optimizers import Sgd
from ..tables.store import TableKeys
from ..tables.transfer import MovingRows
from ..tiers.tier_tables import Tiers, TierTables, device_tier_tables
from .module_steps import ModuleSteps
from .quiet import Yardstick

_ZIPF, _RATE = 1.05, 0.01
_CHUNK = 100_000  # rows per table in one chunk
_PATIENCE_S = 20.0  # the total time to wait for a quiet host


@dataclass(frozen=True, slots=True)
class PowerLawWork:
    """The tables, the keys of a step, and the numbers of steps."""

    tables: int = 10
    rows: int = 4_000_000
    dim: int = 128
    keys: int = 1 << 20
    steps: int = 20  # of a round
    warm_up: int = 320  # until a hybrid holds its hot rows, which change for 200 steps
    dense: int = 4096  # side of the squares that a dense part multiplies, between rows and step

    @staticmethod
    def quick() -> PowerLawWork:
        """Returns a small work to test the tool."""
        return PowerLawWork(tables=2, rows=200, dim=4, keys=64, steps=2, warm_up=2, dense=4)


class Batches:
    """Batches of Zipf-distributed keys of every table; every store gets the same batches."""

    def __init__(self, work: PowerLawWork, device: torch.device) -> None:
        self.work, self.device = work, device
        weights = torch.arange(1, work.rows + 1, dtype=torch.float64, device=device) ** -_ZIPF
        self._chances = weights.cumsum(0) / weights.sum()
        self.ids = [self._ids(k) for k in range(work.tables)]
        per = work.keys // work.tables
        self.splits = tuple(per * k for k in range(work.tables + 1))
        self.grads = 1e-3 * torch.randn(self.splits[-1] * work.dim, device=device)
        self._random = torch.Generator(device)
        self.drawn = 0
        self.yardstick = Yardstick(1.0 if device.type == "cuda" else 0.0, _PATIENCE_S)

    def _ids(self, k: int) -> Tensor:
        """Returns the ids of a table, the most frequent first."""
        order = torch.randperm(self.work.rows, generator=torch.Generator().manual_seed(k))
        return ((order * 2654435761 + 7 * k + 12345) * 0x9E3779B1).to(self.device)

    def start(self) -> None:
        """Restarts at the first batch."""
        self._random.manual_seed(5)

    def next(self, shift: int = 0) -> TableKeys:
        """Returns the next batch; a shift makes other rows hot."""
        self.drawn += 1
        per = self.splits[1]
        drawn = torch.rand(
            self.splits[-1], generator=self._random, device=self.device, dtype=torch.float64
        )
        ranks = torch.searchsorted(self._chances, drawn).clamp(max=self.work.rows - 1) + shift
        parts = [
            self.ids[k][ranks[per * k : per * (k + 1)] % self.work.rows]
            for k in range(self.work.tables)
        ]
        return TableKeys(torch.cat(parts), self.splits)

    def chances_of_a_step(self) -> Tensor:
        """Returns, by rank, the probability that a step uses the key."""
        first = torch.zeros_like(self._chances[:1])
        weight = torch.diff(self._chances, prepend=first)
        return -torch.expm1(self.splits[1] * torch.log1p(-weight))


def in_chunks(tables: Sequence[Tensor]) -> Iterator[TableKeys]:
    """Yields the ids of tables of equal size in chunks."""
    for start in range(0, len(tables[0]), _CHUNK):
        parts = [ids[start : start + _CHUNK] for ids in tables]
        splits = tuple(len(parts[0]) * k for k in range(len(parts) + 1))
        yield TableKeys(torch.cat(parts), splits)


def table_configs(work: PowerLawWork) -> list[TableConfig]:
    """Returns the configs of all tables: zero initialization and SGD."""
    segments = (Segment(work.dim, Zeros(), Sgd(lr=_RATE)),)
    return [TableConfig(f"t{k:02d}", segments) for k in range(work.tables)]


def fill_table(table: HostTable, ids: Tensor, dim: int) -> None:
    """Adds rows of zeros for all ids."""
    for part in ids.cpu().split(5 * _CHUNK):
        n = len(part)
        found, ts = torch.ones(n, dtype=torch.bool), torch.ones(n, dtype=torch.int64)
        table.move_in(MovingRows(part, found, torch.zeros(n, dim), torch.zeros(n, 0), ts))


def in_tiers(batches: Batches, mode: str, share: float) -> TierTables:
    """Returns tables in two tiers with all rows; `share` of them fit into the fast tier."""
    work = batches.work
    rows = max(1, int(share * work.rows))
    tiers = Tiers(mode=mode, fast_rows=rows, slots=max(64, int(rows / 0.8)), allow_small=True)
    made = [(config, tiers) for config in table_configs(work)]
    tables, groups = device_tier_tables(made, batches.device)
    for table, ids in zip(tables, batches.ids, strict=True):
        fill_table(table.slow, ids, work.dim)
    store = TierTables(tables, device=batches.device, together=groups)
    if mode == "CACHING":
        _age(store, batches, share)
    return store


def _age(store: TierTables, batches: Batches, share: float) -> None:
    """Fills caches with the rows that they hold after thousands of steps: the last used ones.

    The age of a key is drawn from its distribution: every step uses it with the same probability.
    """
    chance, rows = batches.chances_of_a_step(), int(share * batches.work.rows)
    parts = []
    for ids in batches.ids:
        drawn = torch.rand(len(ids), dtype=torch.float64, device=batches.device)
        age = drawn.log() / torch.log1p(-chance.clamp(max=1 - 1e-12))
        parts.append(ids[age.argsort()[:rows].flip(0)])
    for keys in in_chunks(parts):
        # With an update, which marks rows as used and dirty. After lookups alone the cache would
        # evict recently used rows, have twice as many misses, and write none back.
        zeros = torch.zeros(keys.splits[-1] * batches.work.dim, device=batches.device)
        store_steps(store, [keys], zeros)


def module_steps(store: Any) -> ModuleSteps:
    """Returns steps of a module over a store."""
    return ModuleSteps(store, Sgd(lr=_RATE))


def store_steps(store: Any, ready: Sequence[TableKeys], grads: Tensor) -> None:
    """Runs a lookup and an update for each batch, without a module."""
    for keys in ready:
        store.apply_gradients(store.lookup(keys, missing="training"), grads)
