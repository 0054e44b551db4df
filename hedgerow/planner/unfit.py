"""A plan that does not fit, told in full: what is missing, and what was checked to fit instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .plan_inputs import PlanSettings
from .problem.option import Option, TableOptions
from .problem.solution import PlanError
from .problem.table_spec import TableSpec
from .problem.topology import Topology
from .problem.variant import variants
from .sizes.layout import LAYOUTS
from .sizes.step_load import StepLoad
from .sizes.storage import storage_of
from .solver.shortfall_text import explained


def told(
    error: PlanError,
    specs: Sequence[TableSpec],
    usable: Topology,
    settings: PlanSettings,
    pin: Mapping[str, str],
) -> PlanError:
    """The error in words. `usable` has the reserve taken off."""

    def sizes(tables: Sequence[TableSpec], topology: Topology) -> list[TableOptions]:
        return [_sizes(spec, topology, settings, pin.get(spec.name)) for spec in tables]

    return explained(error, specs, usable, sizes)


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
