"""A plan is followed: all ranks have the same one, it is of these tables, and it can be built."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from torch import nn

from ..core.errors import DtypeError, NotSupportedError
from ..core.units import format_bytes, format_count
from ..launch.rank_info import rank_info
from ..planner.as_json import sha256
from ..planner.placed import Placed
from ..planner.plan import Plan
from ..planner.plan_check import PlanMismatchError
from ..planner.plan_file import plan_of
from ..planner.problem.table_spec import TableSpec
from ..planner.problem.topology import Topology
from ..sharding.agreement import Ranks
from .plan import plan as make_plan
from .table_specs import spec_of, tables_with_sizes

PlanLike = Plan | str | Path


def follow_plan(
    model: nn.Module, given: PlanLike, ranks: Ranks, *, accept_drift: bool = False
) -> Plan:
    """The plan that all ranks follow, after every rank has checked it. A collective.

    "auto" is made by the first rank, for host memory alone. Every rank logs where tables live.
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


def plan_lines(plan: Plan, ranks: Ranks) -> list[str]:
    """What this rank holds of every table: mode, factor and bytes.

    >>> from ..planner.make_plan import plan
    >>> tables = [TableSpec(name="item", rows=1000, dim=4)]
    >>> alone = plan(tables, Topology(world=1, ddr_per_machine=2**30, device="cpu"))
    >>> plan_lines(alone, Ranks())[0][:52]
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


def _made(model: nn.Module, ranks: Ranks) -> Plan:
    """Of the first rank, sent to the others; for host memory alone."""

    def make() -> dict[str, Any]:
        if ranks.rank:
            return {}
        local = min(ranks.count, rank_info().local_world_size)
        return make_plan(model, Topology.detect(ranks.count, local, device="cpu")).to_dict()

    return plan_of(ranks.together("planning", make)[0])


def _read(given: PlanLike, ranks: Ranks) -> Plan:
    """As given, or from the file that every rank has."""
    if isinstance(given, Plan):
        return given
    if not isinstance(given, str | Path):
        raise DtypeError(f'plan is a {type(given).__name__}; pass a Plan, a path or "auto".')
    read: list[Plan] = []
    ranks.together("reading the plan", lambda: read.append(Plan.load(given)))
    return read[0]


def _digests(plan: Plan) -> dict[str, str]:
    """What ranks compare; the seconds that solving took are no part of a plan."""
    words = {table.name: sha256(_line(table)) for table in plan.tables}
    return {"fingerprint": plan.fingerprint, **{f"table {n}": w for n, w in words.items()}}


def _line(table: Placed) -> list[Any]:
    place = [table.variant.label, table.dist_type, table.sharding, table.rank]
    return [*place, table.rows_per_rank, table.row_bytes, table.hbm_bytes, table.ddr_bytes]


def _agree(told: list[dict[str, str]]) -> None:
    """Names the first rank that has another plan than the first one; all ranks raise it."""
    for rank, words in enumerate(told):
        if words != told[0]:
            differ = [n for n in {**told[0], **words} if words.get(n) != told[0].get(n)]
            raise PlanMismatchError(
                f"rank {rank} has another plan than rank 0: they differ in {', '.join(differ)}. "
                f"Give every rank the same file."
            )


def _check_world(plan: Plan, ranks: Ranks) -> None:
    if plan.topology.world != ranks.count:
        raise PlanMismatchError(
            f"the plan is for {plan.topology.world} ranks, the job has {ranks.count}; plan again "
            f"with --ranks {ranks.count}."
        )


def _check_buildable(table: Placed) -> None:
    """Tables of single ranks are still to come."""
    if table.sharding != "row_wise":
        raise NotSupportedError(
            f"table {table.name!r} is {table.sharding} in the plan, but every table is spread over "
            f"all ranks so far. Plan without whole tables."
        )


def _tables(model: nn.Module, plan: Plan) -> list[TableSpec]:
    """The model's tables; one that does not say its rows has those that were planned."""
    planned = plan.inputs.by_name if plan.inputs else {}
    found = []
    for table, _ in tables_with_sizes(model):
        known = planned[table.name].rows if table.name in planned else 1
        found.append(spec_of(table, table.rows or known))
    return found
