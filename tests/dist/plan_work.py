"""What every rank does in the tests of plans that are followed."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import hedgerow as hr
from hedgerow.core.errors import HedgerowError
from hedgerow.nn.model_tables import tables_of
from hedgerow.planner.plan import Placed


def model() -> hr.EmbeddingBags:
    tables = [
        hr.Table("user", 4, rows=100, dist_type="roundrobin"),
        hr.Table("item", 4, rows=50),
    ]
    return hr.EmbeddingBags(tables, optimizer=hr.Sgd(lr=0.1), seed=1)


def _said(**settings: Any) -> tuple[str, list[str]]:
    """The error of a distribution, if any, and the lines it logged."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger, handler = logging.getLogger("hedgerow"), Lines(logging.INFO)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        hr.distribute(model(), **settings)
    except HedgerowError as error:
        return f"{type(error).__name__}: {error}", lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    return "", lines


def follows(plan: str) -> tuple[str, list[str]]:
    return _said(plan=plan)


def follows_own(path: str, change: str) -> tuple[str, list[str]]:
    """The second rank has another plan, none at all, or a file that is damaged."""
    plan: Any = hr.planner.Plan.load(path)
    if dist.get_rank() == 1:
        if change == "fingerprint":
            plan = replace(plan, fingerprint="0" * 64)
        elif change == "bytes":
            first, *others = plan.tables
            edited: Placed = replace(first, ddr_bytes=first.ddr_bytes + 1)
            plan = replace(plan, tables=(edited, *others))
        elif change == "damaged":
            Path(f"{path}.bad").write_text("{")
            plan = f"{path}.bad"
        elif change == "none":
            plan = None
    elif change == "damaged":
        plan = path
    return _said(plan=plan)


def trained_and_saved(plan: str, folder: str) -> dict[str, list[int]]:
    """The ids that this rank has of every table, after a step of both and a save."""
    spread = hr.distribute(model(), plan=plan)
    batch = hr.IdBatch.from_lists(
        {"user": [[n] for n in range(20)], "item": [[n] for n in range(20)]}
    )
    out = spread(batch)
    (out["user"].sum() + out["item"].sum()).backward()
    hr.save(spread, folder)
    return {
        name: sorted(torch.cat([part.ids for part in table.scan()]).tolist())
        for name, table in tables_of(spread).items()
    }
