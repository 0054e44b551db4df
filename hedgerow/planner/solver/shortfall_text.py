"""Why a plan does not fit, in words: what is missing in which memory, which tables, what would."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...core.units import format_count
from ..problem.option import TableOptions
from ..problem.solution import PlanError, Shortfall
from ..problem.table_spec import TableSpec
from ..problem.topology import GIB, Machine, Reserve, Topology
from .would_fit import Weigh, would_fit

_MOST_TABLES = 10  # named one by one; more are counted


NOTHING_KEPT = Reserve(hbm_fraction=0, ddr_fraction=0)


def explained(
    error: PlanError,
    tables: Sequence[TableSpec],
    topology: Topology,
    weigh: Weigh,
    reserve: Reserve = NOTHING_KEPT,
) -> PlanError:
    """The same error with a text for people, and hints that were checked to fit.

    `topology` is what the plan could use: its reserve is taken off. `weigh` gives the options of
    changed tables on changed machines.
    """
    if error.kind != "infeasible" or len(error.shortfalls) != 2:
        return error
    hbm, ddr = error.shortfalls
    hints = would_fit(tables, topology, hbm, weigh, reserve)
    lines = [_heading(tables, topology), *_memories(hbm, ddr, topology)]
    lines += _tables(error.never_fit, tables, weigh(tables, topology))
    if reserve != NOTHING_KEPT:
        lines += [_in_bytes(hbm, ddr), _kept(reserve)]
    if hints:
        lines.append(f"Would fit: {', or '.join(hints)}.")
    return PlanError(
        "\n".join(lines),
        kind=error.kind,
        shortfalls=error.shortfalls,
        never_fit=error.never_fit,
        hints=hints,
    )


def _heading(tables: Sequence[TableSpec], topology: Topology) -> str:
    name = "device" if topology.device == "cuda" else "rank"
    counts = [
        _counted(len(tables), "table"),
        _counted(topology.world, name),
        _counted(len(topology.machines), "machine"),
    ]
    return f"Does not fit: {counts[0]} on {counts[1]} ({counts[2]})."


def _counted(count: int, name: str) -> str:
    return f"{count:,} {name}{'s' * (count != 1)}"


def _memories(hbm: Shortfall, ddr: Shortfall, topology: Topology) -> list[str]:
    """One line for each memory that is short, with what holds for the other."""
    poorest = min(topology.machines, key=_share)
    found = []
    if topology.device == "cuda":
        found.append((_memory("HBM ", "device", hbm, 1), "host memory kept within its budget"))
    found.append((_memory("host", "machine", ddr, poorest.ranks), "HBM kept within its budget"))
    width = max(len(line) for line, _ in found) + 4
    alone = topology.device != "cuda"
    plain = [alone or "suffices" in line for line, _ in found]
    return [
        line if bare else f"{line:{width}}({why})"
        for bare, (line, why) in zip(plain, found, strict=True)
    ]


def _share(machine: Machine) -> float:
    return machine.ddr / machine.ranks


def _memory(name: str, scope: str, short: Shortfall, ranks: int) -> str:
    budget = float(short.budget) * ranks
    if short.least_joint is None:
        other = "HBM" if short.memory == "ddr" else "host memory"
        return (
            f"  {name} has {_gib(budget)} GiB per {scope}: no amount suffices, since {other} "
            f"alone is short"
        )
    needs = short.least_joint * ranks
    return (
        f"  {name} needs {_gib(needs)} GiB per {scope}, has {_gib(budget)}: "
        f"short by {_gib(needs - budget)} GiB"
    )


def _in_bytes(hbm: Shortfall, ddr: Shortfall) -> str:
    """To the byte: a plan may fail by one."""
    parts = []
    for name, scope, short in (("HBM", "device", hbm), ("host", "rank", ddr)):
        joint, alone = short.short_joint, math.ceil(short.short_alone)
        beside = "by no amount" if joint is None else f"by {math.ceil(joint):,} B"
        parts.append(f"{name} {beside} per {scope} ({alone:,} B if the other were endless)")
    return f"  Short, exactly: {', '.join(parts)}."


def _kept(reserve: Reserve) -> str:
    return (
        f"  Kept free already: {reserve.hbm_fraction:.0%} of HBM and {reserve.hbm_bytes:,} B, "
        f"{reserve.ddr_fraction:.0%} of host memory and {reserve.ddr_bytes:,} B."
    )


def _gib(size: float) -> str:
    """Three digits of GiB, at least two after the point below ten.

    >>> _gib(3829035640), _gib(43009179648), _gib(0)
    ('3.57', '40.1', '0.00')
    """
    value = size / GIB
    return f"{value:,.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def _tables(
    names: Sequence[str], tables: Sequence[TableSpec], options: Sequence[TableOptions]
) -> list[str]:
    specs = {spec.name: spec for spec in tables}
    ways = {table.name: table.options for table in options}
    lines = []
    for name in names[:_MOST_TABLES]:
        spec, least = specs[name], min(ways[name], key=lambda option: (option.hbm, option.ddr))
        lines.append(
            f"  {name} ({format_count(spec.rows)} x {spec.dim}, {spec.optimizer}): no variant "
            f"fits on its own; smallest HBM {_gib(least.hbm)} GiB with {_gib(least.ddr)} GiB host "
            f"per rank"
        )
    if len(names) > _MOST_TABLES:
        lines.append(f"  and {len(names) - _MOST_TABLES:,} more tables that fit in no variant")
    return lines
