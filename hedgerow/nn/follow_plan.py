"""Checks that all ranks have the same plan, and moves tables to where the plan places them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..core import checks
from ..core.errors import DtypeError, NotSupportedError
from ..core.units import format_bytes, format_count
from ..launch.process_group import get_device
from ..launch.rank_info import rank_info
from ..planner.compare import PlanMismatchError
from ..planner.json_values import sha256
from ..planner.plan import Placed, Plan
from ..planner.plan_file import plan_of
from ..planner.problem.options import Mode
from ..planner.problem.table_spec import TableSpec
from ..planner.problem.topology import Topology
from ..sharding.agreement import RankGroup
from .embedding_modules import EmbeddingModule, collections_of
from .plan import plan as make_plan
from .plan import spec_of, tables_with_sizes
from .tier_stores import IN_TIERS, compare_with_plan, tiers_as_planned

PlanLike = Plan | str | Path


def follow_plan(
    model: nn.Module, given: PlanLike, ranks: RankGroup, *, accept_drift: bool = False
) -> Plan:
    """Returns the plan that all ranks follow, after every rank has checked it. A collective.

    The first rank makes the plan for "auto", for host memory only. Every rank logs what it holds.
    """
    plan = _made(model, ranks) if given == "auto" else _read(given, ranks)
    _agree(ranks.tell(_digests(plan)))

    def check() -> None:
        _check_world(plan, ranks)
        for table in plan.tables:
            _check_buildable(table)
        plan.check(_tables(model, plan), accept_drift=accept_drift)

    ranks.together("the check of the plan", check)
    for line in plan_lines(plan, ranks):
        logging.getLogger("hedgerow").info("%s", line)
    return plan


def plan_lines(plan: Plan, ranks: RankGroup) -> list[str]:
    """Returns one line per table that this rank holds: mode, load factor, rows and bytes.

    >>> from ..planner.make_plan import plan
    >>> tables = [TableSpec(name="item", rows=1000, dim=4)]
    >>> alone = plan(tables, Topology(world=1, ddr_per_machine=2**30, device="cpu"))
    >>> plan_lines(alone, RankGroup())[0][:52]
    'plan, rank 0 of 1: item HOST_ONLY factor 0, hash_rou'
    """
    whose = f"plan, rank {ranks.rank} of {ranks.count}"
    return [
        f"{whose}: {t.name} {t.mode} factor {t.load_factor}, {t.dist_type}, "
        f"{format_count(t.rows_per_rank)} rows, HBM {format_bytes(t.hbm_bytes)}, "
        f"host {format_bytes(t.ddr_bytes)}"
        for t in plan.tables
        if t.rank in (None, ranks.rank)
    ]


def _made(model: nn.Module, ranks: RankGroup) -> Plan:
    """Returns a plan for host memory, which the first rank makes and sends to the others."""

    def make() -> dict[str, Any]:
        if ranks.rank:
            return {}
        local = min(ranks.count, rank_info().local_world_size)
        return make_plan(model, Topology.detect(ranks.count, local, device="cpu")).to_dict()

    return plan_of(ranks.together("planning", make)[0])


def _read(given: PlanLike, ranks: RankGroup) -> Plan:
    """Returns the plan as given, or from the file, which every rank reads."""
    if isinstance(given, Plan):
        return given
    if not isinstance(given, str | Path):
        raise DtypeError(f'plan is a {type(given).__name__}; pass a Plan, a path or "auto".')
    read: list[Plan] = []
    ranks.together("reading the plan", lambda: read.append(Plan.load(given)))
    return read[0]


def _digests(plan: Plan) -> dict[str, str]:
    """Returns what ranks compare: the fingerprint and the placements, without solver times."""
    words = {table.name: sha256(_line(table)) for table in plan.tables}
    return {"fingerprint": plan.fingerprint, **{f"table {n}": w for n, w in words.items()}}


def _line(table: Placed) -> list[Any]:
    place = [table.variant.label, table.dist_type, table.sharding, table.rank]
    return [*place, table.rows_per_rank, table.row_bytes, table.hbm_bytes, table.ddr_bytes]


def _agree(told: list[dict[str, str]]) -> None:
    """Raises `PlanMismatchError` on all ranks if a rank's plan differs from that of rank 0."""
    for rank, words in enumerate(told):
        if words != told[0]:
            differ = [n for n in {**told[0], **words} if words.get(n) != told[0].get(n)]
            raise PlanMismatchError(
                f"rank {rank} has another plan than rank 0: they differ in {', '.join(differ)}. "
                f"Give every rank the same file."
            )


def _check_world(plan: Plan, ranks: RankGroup) -> None:
    if plan.topology.world != ranks.count:
        raise PlanMismatchError(
            f"the plan is for {plan.topology.world} ranks, the job has {ranks.count}; plan again "
            f"with --ranks {ranks.count}."
        )


def _check_buildable(table: Placed) -> None:
    """Raises `NotSupportedError` for a table that is kept whole on one rank."""
    if table.sharding != "row_wise":
        raise NotSupportedError(
            f"table {table.name!r} is {table.sharding} in the plan, but tables can only be spread "
            f"over all ranks so far. Plan without tables that are whole on one rank."
        )


def _tables(model: nn.Module, plan: Plan) -> list[TableSpec]:
    """Returns the model's tables. A table without `rows=` has the planned number of rows."""
    planned = plan.inputs.by_name if plan.inputs else {}
    found = []
    for table, _ in tables_with_sizes(model):
        known = planned[table.name].rows if table.name in planned else 1
        found.append(spec_of(table, table.rows or known))
    return found


def place_as_planned(model: nn.Module, plan: Plan) -> None:
    """Moves HBM_ONLY tables to this process's device. HYBRID and CACHING tables get two tiers.

    HOST_ONLY tables do not move. The dense weights move to the device with the tables. A plan that
    has all tables in host memory changes nothing. Without a GPU, fast tiers are in host memory,
    which allows a plan to be tried out.
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
            "host memory. This makes no training faster."
        )
    for one in collections_of(model):
        _place(one, placed, device)
    if device != checks.CPU:
        model.to(device)


def _place(one: EmbeddingModule, placed: Mapping[str, Placed], device: torch.device) -> None:
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
    """Returns the GPU of this process."""
    device = get_device(rank_info())
    if device.type != "cuda":
        raise NotSupportedError(
            "the plan has tables in HBM, but torch sees no GPU here: plan without GPUs "
            "(--hbm 0), or start the job on a machine that has one."
        )
    return device
