"""Brings the tables of a model where a plan says: to the memory of a device, or of the host."""

from __future__ import annotations

import torch
from torch import nn

from ..core.errors import NotSupportedError
from ..launch.device import get_device
from ..launch.rank_info import rank_info
from ..planner.plan import Plan
from ..planner.problem.variant import Mode
from .collection import collections_of


def place_as_planned(model: nn.Module, plan: Plan) -> None:
    """HBM_ONLY tables go to this process's device, HOST_ONLY ones stay, and the weights follow.

    A plan without a table in HBM changes nothing.
    """
    rows = {t.name: t.rows_per_rank for t in plan.tables if t.mode is Mode.HBM_ONLY}
    if not rows:
        return
    device = job_device()
    for one in collections_of(model):
        names = one.store.names
        room = {name: rows[name] for name in names if name in rows}
        one.place(device, capacity_rows=room, on_host=[name for name in names if name not in rows])
    model.to(device)


def job_device() -> torch.device:
    """The GPU of this process."""
    device = get_device(rank_info())
    if device.type != "cuda":
        raise NotSupportedError(
            "tables in HBM were asked for, and torch sees no GPU here: plan without cards "
            "(--hbm 0), or start the job where there is one."
        )
    return device
