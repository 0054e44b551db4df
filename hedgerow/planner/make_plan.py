"""Makes a plan: weighs every option of every table, and chooses exactly or says what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..core import checks
from ..core.errors import ConfigError
from ..core.units import format_count
from .json_values import calibration_dict, stats_digest
from .plan import (
    Forecast,
    Placed,
    Plan,
    PlanInputs,
    PlanSettings,
    Solved,
    Usable,
    WeighedOption,
    check_pins,
    fits_pin,
)
from .plan_file import fingerprint
from .problem.options import (
    FACTORS,
    Mode,
    Option,
    PlanError,
    Solution,
    TableOptions,
    Variant,
    variants,
)
from .problem.table_spec import TableSpec
from .problem.topology import GIB, Reserve, Topology
from .sizes.layout import LAYOUTS
from .sizes.storage import StepLoad, Storage, storage_of
from .solver.shortfall_text import explained
from .solver.solve import solve
from .times.calibration import Calibration
from .times.routing_advice import routing_advice
from .times.time_model import Expected, expected, thrashes


def weigh(
    spec: TableSpec,
    topology: Topology,
    calibration: Calibration,
    settings: PlanSettings,
    alike: int = 1,
) -> tuple[WeighedOption, ...]:
    """The options of one of so many alike tables; a cache that would thrash is refused, with the
    reason."""
    ways = variants(
        settings.factors, device=topology.device, fixed=spec.load_factor, modes=spec.modes
    )
    load, layout = StepLoad(batch=settings.batch), LAYOUTS[settings.layout]
    found = []
    for variant in ways:
        storage = storage_of(spec, variant, topology, layout, load)
        cost = expected(spec, variant, topology, calibration, settings.batch, alike=alike)
        refused = ""
        if not settings.thrashing:
            refused = _refusal(spec, variant, topology, settings.batch, cost)
        found.append(_choice(variant, storage, cost, refused))
    return tuple(found)


def alike_tables(specs: Sequence[TableSpec]) -> dict[str, int]:
    """By name: how many tables step together with it, itself among them, if kept in one mode.

    >>> pair = [TableSpec(name=name, rows=9, dim=8) for name in "ab"]
    >>> alike_tables([*pair, TableSpec(name="c", rows=9, dim=16)])
    {'a': 2, 'b': 2, 'c': 1}
    """
    kinds = Counter(_kind(spec) for spec in specs)
    return {spec.name: kinds[_kind(spec)] for spec in specs}


def _kind(spec: TableSpec) -> tuple[object, ...]:
    """Rows that one launch can serve are alike; a table that admits ids is asked for itself."""
    alone = spec.name if spec.counter_rows else None
    return spec.group, spec.dim, spec.dtype, spec.optimizer, alone


def _choice(variant: Variant, storage: Storage, cost: Expected, refused: str) -> WeighedOption:
    """Times to the nanosecond: what the solver counts in."""
    numbers = (storage.hbm, storage.ddr, round(cost.ms, 6), round(cost.hit_rate, 6))
    return WeighedOption(variant.label, *numbers, refused)


def _refusal(
    spec: TableSpec, variant: Variant, topology: Topology, batch: int, cost: Expected
) -> str:
    """Why a cache is no use: one step touches more keys than it holds."""
    if not thrashes(spec, variant, topology, batch):
        return ""
    room = format_count(int(spec.rows * variant.share) // topology.world)
    needs = format_count(round(cost.distinct))
    return f"a step touches {needs} keys of a rank and the cache holds {room}: it would thrash"


EXPONENTS = (0.8, 1.3)
"""Power laws beside the assumed one at which a plan's time is told."""


@dataclass(frozen=True, slots=True)
class Doubts:
    """Time of the plan by exponent, where a table has no samples; warnings and advice."""

    zipf_ms: dict[str, float]
    notes: tuple[str, ...]


def doubts_of(
    specs: Sequence[TableSpec],
    tables: Sequence[Placed],
    topology: Topology,
    calibration: Calibration,
    batch: int,
) -> Doubts:
    """Of the plan as it is: the choices stay, the keys change."""
    pairs, alike = list(zip(specs, tables, strict=True)), alike_tables(specs)
    uses = [
        (spec.dim, expected(spec, table.variant, topology, calibration, batch).distinct)
        for spec, table in pairs
    ]
    notes = (*calibration.warnings(uses=uses), *_advice(specs, topology))
    if all(spec.stats is not None for spec in specs):
        return Doubts({}, notes)
    zipf_ms = {}
    for exponent in EXPONENTS:
        times = [
            expected(
                *(spec, table.variant, topology, calibration, batch),
                exponent=exponent,
                alike=alike[spec.name],
            ).ms
            for spec, table in pairs
        ]
        zipf_ms[str(exponent)] = round(sum(times), 6)
    return Doubts(zipf_ms, notes)


def _advice(specs: Sequence[TableSpec], topology: Topology) -> list[str]:
    """Of tables whose sampled keys speak for another rule; it is told, never applied."""
    if topology.world == 1:
        return []
    found = [routing_advice(spec, topology.world) for spec in specs]
    return [a.text for a in found if a is not None and a.recommended != a.dist_type]


def told(
    error: PlanError,
    specs: Sequence[TableSpec],
    topology: Topology,
    reserve: Reserve,
    settings: PlanSettings,
    pin: Mapping[str, str],
) -> PlanError:
    """The error in words."""

    def sizes(tables: Sequence[TableSpec], usable: Topology) -> list[TableOptions]:
        return [_sizes(spec, usable, settings, pin.get(spec.name)) for spec in tables]

    return explained(error, specs, reserve.of(topology), sizes, reserve)


def _sizes(
    spec: TableSpec, topology: Topology, settings: PlanSettings, pin: str | None
) -> TableOptions:
    """Bytes of every way to keep a table; whether it fits is no question of time."""
    load, layout = StepLoad(batch=settings.batch), LAYOUTS[settings.layout]
    ways = variants(
        settings.factors, device=topology.device, fixed=spec.load_factor, modes=spec.modes
    )
    options = []
    for way in ways:
        if pin is None or pin in (way.label, str(way.mode)):
            storage = storage_of(spec, way, topology, layout, load)
            options.append(Option(way.label, storage.hbm, storage.ddr, 0.0))
    return TableOptions(spec.name, tuple(options))


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
