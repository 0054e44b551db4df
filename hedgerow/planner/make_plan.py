"""Makes a plan: evaluates every option of every table, then chooses exactly or raises."""

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
    """Returns the options of a table with their bytes and times.

    `alike` is the number of tables of the same kind, this one included, that share a step. A cache
    that would thrash is marked as refused, with the reason.
    """
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
    """Returns, for each table name, how many tables of its kind there are, itself included.

    Tables of one kind share a step if they are kept in the same mode.

    >>> pair = [TableSpec(name=name, rows=9, dim=8) for name in "ab"]
    >>> alike_tables([*pair, TableSpec(name="c", rows=9, dim=16)])
    {'a': 2, 'b': 2, 'c': 1}
    """
    kinds = Counter(_kind(spec) for spec in specs)
    return {spec.name: kinds[_kind(spec)] for spec in specs}


def _kind(spec: TableSpec) -> tuple[object, ...]:
    """Returns what tables must have in common to share a launch.

    A table with admission has its own.
    """
    alone = spec.name if spec.counter_rows else None
    return spec.group, spec.dim, spec.dtype, spec.optimizer, alone


def _choice(variant: Variant, storage: Storage, cost: Expected, refused: str) -> WeighedOption:
    """Returns the option with its time rounded to a nanosecond, the unit of the solver."""
    numbers = (storage.hbm, storage.ddr, round(cost.ms, 6), round(cost.hit_rate, 6))
    return WeighedOption(variant.label, *numbers, refused)


def _refusal(
    spec: TableSpec, variant: Variant, topology: Topology, batch: int, cost: Expected
) -> str:
    """Returns why a cache is unusable: one step needs more keys than it holds.

    Empty if it is usable.
    """
    if not thrashes(spec, variant, topology, batch):
        return ""
    room = format_count(int(spec.rows * variant.share) // topology.world)
    needs = format_count(round(cost.distinct))
    return f"a step touches {needs} keys of a rank and the cache holds {room}: it would thrash"


EXPONENTS = (0.8, 1.3)
"""Zipf exponents, besides the assumed one, for which a plan reports its time."""


@dataclass(frozen=True, slots=True)
class Doubts:
    """What is uncertain about a plan.

    `zipf_ms` is the plan's time by Zipf exponent if some table has no key samples. `notes` are
    warnings and advice.
    """

    zipf_ms: dict[str, float]
    notes: tuple[str, ...]


def doubts_of(
    specs: Sequence[TableSpec],
    tables: Sequence[Placed],
    topology: Topology,
    calibration: Calibration,
    batch: int,
) -> Doubts:
    """Evaluates the same placement for other key distributions."""
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
    """Returns advice for tables whose sampled keys favor another routing rule.

    It is only reported.
    """
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
    """Returns the error with a text that explains what does not fit."""

    def sizes(tables: Sequence[TableSpec], usable: Topology) -> list[TableOptions]:
        return [_sizes(spec, usable, settings, pin.get(spec.name)) for spec in tables]

    return explained(error, specs, reserve.of(topology), sizes, reserve)


def _sizes(
    spec: TableSpec, topology: Topology, settings: PlanSettings, pin: str | None
) -> TableOptions:
    """Returns the bytes of every option of a table.

    Times are 0: fitting does not depend on them.
    """
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
"""Called with what was done, how many are done, and how many there are."""


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
    """Returns the placement of every table with the shortest step time that fits into memory.

    HBM belongs to a device, host memory to a machine. The reserve (by default 15 % and 10 %) is
    subtracted first. `batch` is the number of samples per rank and step. Without a calibration the
    default of the device is used. `thrashing` allows caches smaller than what one step needs. `pin`
    maps a table to the mode it must take. If nothing fits, PlanError says what is missing.

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
    """Returns the plan, like `plan`, with every argument explicit."""
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
    """Solves a plan whose options are already evaluated."""
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
    """Returns a price with nine digits.

    The last bits depend on the processor's numerical libraries.
    """
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
