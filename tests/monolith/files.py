"""Tables and files that the tests of this folder share."""

from __future__ import annotations

import torch

from hedgerow.tables import monolith_rules
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.host import HostTable
from hedgerow.tables.initializers import Uniform
from hedgerow.tables.optimizers import Optimizer

ADAGRAD = monolith_rules.MonolithAdagrad()


def config(name: str, *optimizers: Optimizer, dim: int = 3) -> TableConfig:
    segments = tuple(
        Segment(1 if o.kind == "batch_softmax" else dim, Uniform(0.3), o)
        for o in optimizers or (ADAGRAD,)
    )
    return TableConfig(name, segments, seed=7)


def trained(cfg: TableConfig, ids: list[int], steps: int = 2) -> HostTable:
    """A table that has learned from each of `ids`; times and states differ from row to row."""
    table = HostTable(cfg)
    torch.manual_seed(len(ids))
    for i, key in enumerate(ids):
        for step in range(1, steps + 1):
            grads = torch.randn(1, table.layout.dim)
            table.apply_gradients(torch.tensor([key]), grads, step=step, ts=1_600_000_000 + i)
    return table
