"""Every way to keep a table, with the bytes and the time of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..core.units import format_count
from .plan_inputs import Choice, PlanSettings
from .problem.table_spec import TableSpec
from .problem.topology import Topology
from .problem.variant import Variant, variants
from .sizes.layout import LAYOUTS
from .sizes.step_load import StepLoad
from .sizes.storage import Storage, storage_of
from .times.calibration import Calibration
from .times.time_model import Expected, expected, thrashes


def weigh(
    spec: TableSpec,
    topology: Topology,
    calibration: Calibration,
    settings: PlanSettings,
    alike: int = 1,
) -> tuple[Choice, ...]:
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


def _choice(variant: Variant, storage: Storage, cost: Expected, refused: str) -> Choice:
    """Times to the nanosecond: what the solver counts in."""
    numbers = (storage.hbm, storage.ddr, round(cost.ms, 6), round(cost.hit_rate, 6))
    return Choice(variant.label, *numbers, refused)


def _refusal(
    spec: TableSpec, variant: Variant, topology: Topology, batch: int, cost: Expected
) -> str:
    """Why a cache is no use: one step touches more keys than it holds."""
    if not thrashes(spec, variant, topology, batch):
        return ""
    room = format_count(int(spec.rows * variant.share) // topology.world)
    needs = format_count(round(cost.distinct))
    return f"a step touches {needs} keys of a rank and the cache holds {room}: it would thrash"
