"""A plan that does not fit, told in full: what is missing, and what was checked to fit instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .plan_inputs import PlanSettings
from .problem.option import Option, TableOptions
from .problem.solution import PlanError
from .problem.table_spec import TableSpec
from .problem.topology import Reserve, Topology
from .problem.variant import variants
from .sizes.layout import LAYOUTS
from .sizes.step_load import StepLoad
from .sizes.storage import storage_of
from .solver.shortfall_text import explained


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
