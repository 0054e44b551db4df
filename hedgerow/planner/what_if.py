"""The same tables under other conditions: memory, ranks, batch, or a mode that is pinned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..core.errors import ConfigError, StateError
from .plan import Plan
from .plan_inputs import PlanInputs
from .problem.solution import PlanError
from .problem.topology import Topology

CURVE = (0.5, 0.7, 0.85, 1.0, 1.15, 1.5, 2.0, 3.0)
"""Sizes of a device beside the present one that a report shows."""


def what_if(
    plan: Plan,
    *,
    hbm: int | None = None,
    ddr: int | None = None,
    world: int | None = None,
    batch: int | None = None,
    pin: Mapping[str, str] | None = None,
) -> Plan:
    """See `Plan.what_if`. Memory and pins need the stored options alone."""
    from .make_plan import finish, plan_from
    from .plan_values import calibration_of

    inputs = _inputs(plan)
    topology = _changed(plan.topology, hbm, ddr, world)
    if world is None and batch is None:
        return finish(inputs, topology, plan.budget.reserve, plan.calibration, pin=pin)
    if inputs.lacks_samples:
        raise StateError(
            f"what_if of another world or batch needs the samples of "
            f"{', '.join(inputs.lacks_samples)}, which a plan's file does not keep; plan again "
            f"from the tables."
        )
    settings = inputs.settings if batch is None else replace(inputs.settings, batch=batch)
    reserve = plan.budget.reserve
    known = calibration_of(plan.calibration)
    return plan_from(inputs.specs, topology, known, reserve, settings, pin=pin)


Curve = list[tuple[int, Plan | None]]
"""Sizes of a memory, smallest first, each with its plan; None where nothing fits."""


def hbm_curve(plan: Plan, sizes: Sequence[int] = ()) -> Curve:
    """Plans for other cards."""
    card = min(plan.topology.hbm_by_device)
    return _curve(plan, "hbm", card, sizes or [int(card * share) for share in CURVE])


def host_curve(plan: Plan, sizes: Sequence[int] = ()) -> Curve:
    """Plans for other machines."""
    pool = min(machine.ddr for machine in plan.topology.machines)
    return _curve(plan, "ddr", pool, sizes or [int(pool * share) for share in CURVE])


def _curve(plan: Plan, name: str, present: int, sizes: Sequence[int]) -> Curve:
    found: Curve = []
    for size in sorted(set(sizes)):
        try:
            other = plan
            if size != present:
                other = what_if(plan, hbm=size) if name == "hbm" else what_if(plan, ddr=size)
            found.append((size, other))
        except (PlanError, ConfigError):  # too small for the tables, or for the reserve
            found.append((size, None))
    return found


def _inputs(plan: Plan) -> PlanInputs:
    if plan.inputs is None:
        raise StateError(
            "this plan's file holds decisions alone, without the options that were weighed; plan "
            "again to ask what if."
        )
    return plan.inputs


def _changed(topology: Topology, hbm: int | None, ddr: int | None, world: int | None) -> Topology:
    sizes = {"hbm_per_device": topology.hbm_per_device, "ddr_per_machine": topology.ddr_per_machine}
    if hbm is not None:
        sizes["hbm_per_device"] = hbm
    if ddr is not None:
        sizes["ddr_per_machine"] = ddr
    if world is not None:  # lists are of the old ranks
        sizes = {n: s if isinstance(s, int) else min(s) for n, s in sizes.items()}
    local = topology.ranks_per_machine
    return replace(
        topology,
        world=world or topology.world,
        local_world=min(local, world) if world else local,
        **sizes,
    )
