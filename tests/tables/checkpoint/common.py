"""What the tests of checkpoints share: tables with rows, and how two tables compare."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import hedgerow as hr
from hedgerow.tables.checkpoint.manifest import MANIFEST, seal
from hedgerow.tables.store import Entries


def config(name: str = "item") -> hr.TableConfig:
    """Two segments; states of every form: a value's, a row's, whole numbers."""
    segments = (
        hr.Segment(1, hr.Zeros(), hr.Ftrl(lr=0.1)),
        hr.Segment(4, hr.Uniform(0.05), hr.Adam(lr=0.1)),
        hr.Segment(2, hr.Uniform(0.05), hr.RowAdagrad(lr=0.1)),
    )
    return hr.TableConfig(name, segments)


def some_ids(n: int, seed: int = 0) -> torch.Tensor:
    """Distinct ids over all 64 bits, the extremes among them."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(-(2**63), 2**63 - 1, (n,), generator=generator)
    drawn[:3] = torch.tensor([0, -1, -(2**63)])[: min(n, 3)]
    return drawn.unique()


def step_of(table: hr.HostTable, ids: torch.Tensor, seed: int, ts: int = 5) -> None:
    generator = torch.Generator().manual_seed(seed)
    table.apply_gradients(ids, torch.randn(len(ids), table.layout.dim, generator=generator), ts=ts)


def filled(n: int = 500, name: str = "item", seed: int = 0) -> hr.HostTable:
    table = hr.HostTable(config(name))
    ids = some_ids(n, seed)
    step_of(table, ids, seed)
    step_of(table, ids[::2].contiguous(), seed + 1, ts=9)
    return table


def content(table: hr.HostTable) -> dict[int, tuple[Any, ...]]:
    """Every row with its time and states, bit for bit."""
    found: dict[int, tuple[Any, ...]] = {}
    for entries in table.scan():
        columns = _columns(entries)
        for i, key in enumerate(entries.ids.tolist()):
            assert key not in found
            found[key] = tuple(column[i] for column in columns)
    return found


def _columns(entries: Entries) -> list[list[Any]]:
    states = [value for named in entries.states for _, value in sorted(named.items())]
    return [column.tolist() for column in (entries.ts, entries.rows, *states)]


def change_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Rewrites the manifest, with a checksum that fits: what an enemy or a bug would write."""
    path = folder / MANIFEST
    values = json.loads(path.read_text())
    del values["checksum"]
    change(values)
    path.write_bytes(seal(json.dumps(values, indent=1)))
