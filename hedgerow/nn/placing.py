"""Brings the tables of a model where a plan says: to a device, to the host, or to both."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch
from torch import nn

from ..core import checks
from ..core.errors import NotSupportedError
from ..launch.device import get_device
from ..launch.rank_info import rank_info
from ..planner.placed import Placed
from ..planner.plan import Plan
from ..planner.problem.variant import Mode
from .collection import Collection, collections_of
from .tiers import IN_TIERS, compare_with_plan, tiers_as_planned


def place_as_planned(model: nn.Module, plan: Plan) -> None:
    """HBM_ONLY tables go to this process's device, HOST_ONLY ones stay, others lie in two tiers.

    The weights follow the tables. A plan of tables in host memory alone changes nothing. Where
    torch sees no GPU, the fast tier of a table is in host memory, too: to try a plan out.
    """
    placed = {table.name: table for table in plan.tables}
    modes = {table.mode for table in plan.tables}
    if modes <= {Mode.HOST_ONLY}:
        return
    device = checks.CPU
    if Mode.HBM_ONLY in modes or torch.cuda.is_available():
        device = job_device()
    else:
        logging.getLogger("hedgerow").warning(
            "the plan has tables in two tiers, and torch sees no GPU here: their fast tiers are in "
            "host memory. Nothing is faster for it."
        )
    for one in collections_of(model):
        _place(one, placed, device)
    if device != checks.CPU:
        model.to(device)


def _place(one: Collection, placed: Mapping[str, Placed], device: torch.device) -> None:
    own = [placed[name] for name in one.store.names]
    if any(table.mode in IN_TIERS for table in own):
        one.set_store(tiers_as_planned(one, own, device))
    elif device != checks.CPU:
        room = {t.name: t.rows_per_rank for t in own if t.mode is Mode.HBM_ONLY}
        on_host = [t.name for t in own if t.mode is not Mode.HBM_ONLY]
        one.place(device, capacity_rows=room, on_host=on_host)
        for table in own:
            compare_with_plan(table, one.table(table.name))


def job_device() -> torch.device:
    """The GPU of this process."""
    device = get_device(rank_info())
    if device.type != "cuda":
        raise NotSupportedError(
            "tables in HBM were asked for, and torch sees no GPU here: plan without cards "
            "(--hbm 0), or start the job where there is one."
        )
    return device
