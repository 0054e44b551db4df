"""Machines and tables that the planner's tests share."""

from __future__ import annotations

from hedgerow.planner.problem.options import Mode, Variant
from hedgerow.planner.problem.table_spec import TableSpec
from hedgerow.planner.problem.topology import GIB, Topology
from hedgerow.planner.sizes.layout import BASELINE, Layout
from hedgerow.planner.sizes.storage import StepLoad, Storage, storage_of

ONE_CARD = Topology(world=1, hbm_per_device=80 * GIB, ddr_per_machine=256 * GIB)
TWO_CARDS = Topology(world=2, hbm_per_device=80 * GIB, ddr_per_machine=256 * GIB)
NO_CARDS = Topology(world=2, ddr_per_machine=64 * GIB, device="cpu")
SMALL = TableSpec(name="t", rows=1024, dim=64, optimizer="none")


def stored(
    mode: str,
    factor: str,
    *,
    spec: TableSpec = SMALL,
    topology: Topology = ONE_CARD,
    layout: Layout = BASELINE,
    load: StepLoad | None = None,
    only_values: bool = False,
) -> Storage:
    variant = Variant(Mode(mode), factor)
    return storage_of(spec, variant, topology, layout, load or StepLoad(), only_values=only_values)
