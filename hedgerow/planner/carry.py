"""Whether machines can carry a plan: what they lack is told in words."""

from __future__ import annotations

from ..core.units import format_bytes
from .plan import Plan
from .problem.topology import Topology
from .problem.variant import Mode


def shortages(plan: Plan, topology: Topology) -> list[str]:
    """What these machines lack; nothing if they carry the plan. The reserve may be used up."""
    wrong = []
    if topology.world != plan.topology.world:
        wrong.append(f"the plan is for {plan.topology.world} ranks, not {topology.world}")
        return wrong
    on_cards = [table.name for table in plan.tables if table.mode is not Mode.HOST_ONLY]
    if topology.device == "cpu" and on_cards:
        return [f"there are no cards, and {len(on_cards)} tables need HBM: {', '.join(on_cards)}"]
    loads = plan.loads()
    if topology.device != "cpu":
        for rank, (load, size) in enumerate(zip(loads, topology.hbm_by_device, strict=True)):
            if load.hbm > size:
                wrong.append(_short(f"HBM of rank {rank}", load.hbm, size))
    first = 0
    for number, machine in enumerate(topology.machines):
        used = sum(load.ddr for load in loads[first : first + machine.ranks])
        first += machine.ranks
        if used > machine.ddr:
            wrong.append(_short(f"host memory of machine {number}", used, machine.ddr))
    return wrong


def _short(what: str, used: int, size: int) -> str:
    need, has = format_bytes(used), format_bytes(size)
    return f"{what}: needs {need}, has {has}: short by {format_bytes(used - size)}"
