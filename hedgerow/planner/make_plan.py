"""Makes a plan: weighs every option of every table, chooses exactly, and keeps the proof."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core import checks
from ..core.errors import ConfigError
from .doubts import doubts_of
from .fingerprint import fingerprint
from .placed import Forecast, Placed
from .plan import Plan, Solved, Usable
from .plan_inputs import PlanInputs, PlanSettings, check_pins, fits_pin
from .plan_values import calibration_dict, stats_digest
from .problem.solution import PlanError, Solution
from .problem.table_spec import TableSpec
from .problem.topology import GIB, Reserve, Topology
from .problem.variant import FACTORS, Mode, Variant
from .sizes.layout import LAYOUTS
from .sizes.step_load import StepLoad
from .sizes.storage import storage_of
from .solver.solve import solve
from .times.calibration import Calibration
from .unfit import told
from .weigh import alike_tables, weigh

Progress = Callable[[str, int, int], None]
"""Told what is done, how many of it, and of how many."""


def plan(
    tables: Sequence[TableSpec],
    topology: Topology,
    calibration: Calibration | None = None,
    reserve: Reserve | None = None,
    *,
    batch: int = 4096,
    time_limit: float = 10.0,
    factors: Sequence[str] | None = None,
    layout: str = "hedgerow",
    thrashing: bool = False,
    pin: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Where every table should live, so that a step takes the least time the memory allows.

    HBM is of a device, host memory of a machine; the reserve (15 % and 10 %) comes off first.
    `batch` is samples of a rank and step. Without a calibration, times rest on the one shipped for
    such a device. `thrashing` allows caches smaller than what one step touches; `pin` are tables
    with the mode that they must take. What does not fit raises a PlanError that says what is
    missing.

    >>> tables = [TableSpec(name="item", rows=1_000_000, dim=16)]
    >>> found = plan(tables, Topology(world=2, ddr_per_machine=2**33, device="cpu"))
    >>> found.of("item").mode.value, found.of("item").dist_type, found.solver.status
    ('HOST_ONLY', 'hash_roundrobin', 'optimal')
    """
    checks.whole("plan", "batch", batch, least=1)
    checks.choice("plan", "layout", layout, LAYOUTS)
    if not 0 < time_limit < float("inf"):
        raise ConfigError(f"plan.time_limit is {time_limit!r}; give seconds above 0.")
    settings = PlanSettings(
        batch=batch,
        layout=layout,
        factors=FACTORS if factors is None else tuple(factors),
        thrashing=thrashing,
        time_limit=time_limit,
    )
    used = calibration or Calibration.default(topology.device)
    return plan_from(
        tables, topology, used, reserve or Reserve(), settings, pin=pin, progress=progress
    )


def plan_from(
    tables: Sequence[TableSpec],
    topology: Topology,
    calibration: Calibration,
    reserve: Reserve,
    settings: PlanSettings,
    *,
    pin: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Plan:
    """As `plan`, with everything said."""
    names = [spec.name for spec in tables]
    if len(set(names)) != len(names):
        raise ConfigError(f"tables {', '.join(names)}: names must differ in a plan.")
    choices, alike = {}, alike_tables(tables)
    for done, spec in enumerate(tables, start=1):
        choices[spec.name] = weigh(spec, topology, calibration, settings, alike[spec.name])
        if progress is not None:
            progress("tables weighed", done, len(names))
    digests = {s.name: stats_digest(s.stats) for s in tables if s.stats is not None}
    inputs = PlanInputs(
        specs=tuple(tables), settings=settings, choices=choices, stats_digests=digests
    )
    known = calibration_dict(calibration)
    try:
        found = finish(inputs, topology, reserve, known, pin=pin)
    except PlanError as error:
        raise told(error, inputs.specs, topology, reserve, settings, pin or {}) from error
    doubts = doubts_of(inputs.specs, found.tables, topology, calibration, settings.batch)
    return replace(found, inputs=replace(inputs, zipf_ms=doubts.zipf_ms, notes=doubts.notes))


def finish(
    inputs: PlanInputs,
    topology: Topology,
    reserve: Reserve,
    calibration: Mapping[str, Any],
    *,
    pin: Mapping[str, str] | None = None,
) -> Plan:
    """The plan of options that are weighed already."""
    check_pins(inputs, pin or {})
    usable = reserve.of(topology)
    limit = inputs.settings.time_limit
    found = solve(inputs.options(pin), usable.budget(), time_limit=limit)
    return Plan(
        fingerprint=fingerprint(inputs.specs, topology, calibration, inputs.stats_digests),
        topology=topology,
        budget=_usable(usable, reserve),
        solver=_solved(found, usable),
        calibration=dict(calibration),
        tables=tuple(_placed(inputs, topology, found, pin or {})),
        inputs=inputs,
    )


def _usable(topology: Topology, reserve: Reserve) -> Usable:
    binding = min(topology.machines, key=lambda machine: machine.ddr / machine.ranks)
    hbm = topology.budget().hbm
    return Usable(hbm_per_device=hbm, ddr_per_machine=binding.ddr, reserve=reserve)


def _solved(found: Solution, topology: Topology) -> Solved:
    prices = found.prices
    sharing = min(topology.world, topology.ranks_per_machine)
    return Solved(
        status=found.status,
        lower_bound_ms=found.lower_bound_ms,
        total_ms=found.ms,
        gap=found.gap,
        hbm_ms_per_gib=_price(prices.hbm_ms_per_byte * GIB),
        ddr_ms_per_gib_machine=_price(prices.ddr_ms_per_byte * GIB / sharing),
        seconds=round(found.seconds, 3),
    )


def _price(exact: float) -> float:
    """To nine digits: the last bits depend on the processor, for which libraries choose code."""
    return float(f"{max(0.0, exact):.9g}")


def _placed(
    inputs: PlanInputs, topology: Topology, found: Solution, pin: Mapping[str, str]
) -> list[Placed]:
    load, layout = StepLoad(batch=inputs.settings.batch), LAYOUTS[inputs.settings.layout]
    lines = []
    for spec, index in zip(inputs.specs, found.choice, strict=True):
        kept = [c for c in inputs.choices[spec.name] if fits_pin(c, pin.get(spec.name))]
        choice = kept[index]
        mode, factor = choice.label.split("@")
        variant = Variant(Mode(mode), factor)
        storage = storage_of(spec, variant, topology, layout, load)
        lines.append(
            Placed(
                name=spec.name,
                variant=variant,
                dist_type=spec.dist_type,
                rows_per_rank=storage.rows_per_rank,
                row_bytes=storage.row_bytes,
                hbm_bytes=choice.hbm,
                ddr_bytes=choice.ddr,
                forecast=Forecast(choice.ms, choice.hit_rate),
                group=spec.group,
            )
        )
    return lines
