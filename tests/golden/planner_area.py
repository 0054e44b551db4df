"""The area `planner`: what its files share, and how a case becomes our own words."""

from __future__ import annotations

from typing import Any

from hedgerow.planner.problem.options import Variant, variants
from hedgerow.planner.problem.table_spec import ELEMENT_BYTES, Feature, TableSpec
from hedgerow.planner.problem.topology import Topology
from hedgerow.planner.sizes.layout import LAYOUTS, Layout
from hedgerow.planner.sizes.storage import StepLoad
from tests.planner.published_planner import TENTHS, baseline_grid

from .runner import Area, take

AREA = Area("planner")

_TABLE_KEYS = (
    *("name", "rows", "dim", "element_bytes", "optimizer", "bucket_capacity", "counter_rows"),
    *("counter_bucket_capacity", "batch", "pooling", "pooled", "output_bytes", "load_factor"),
)
_TOPOLOGY_KEYS = ("world", "local_world", "device", "hbm_per_device", "ddr_per_machine")
_DTYPES = {size: name for name, size in reversed(ELEMENT_BYTES.items())}


def spec_of(table: dict[str, Any]) -> TableSpec:
    t = take(table, _TABLE_KEYS)
    return TableSpec(
        name=t["name"],
        rows=t["rows"],
        dim=t["dim"],
        dtype=_DTYPES[t["element_bytes"]],
        optimizer=t["optimizer"],
        counter_rows=t["counter_rows"],
        features=(Feature(t["pooling"], t["pooled"]),),
        load_factor=t["load_factor"],
    )


def load_of(table: dict[str, Any]) -> StepLoad:
    return StepLoad(batch=table["batch"], output_bytes=table["output_bytes"])


def layout_of(name: str, table: dict[str, Any]) -> Layout:
    return LAYOUTS[name].with_buckets(table["bucket_capacity"], table["counter_bucket_capacity"])


def topology_of(topology: dict[str, Any]) -> Topology:
    return Topology(**take(topology, _TOPOLOGY_KEYS))


def variants_of(axis: str, spec: TableSpec, topology: Topology) -> tuple[Variant, ...]:
    if axis == "grid":
        return baseline_grid(spec.load_factor, device=topology.device)
    assert axis == "modes", f"no such axis: {axis}"
    return variants(TENTHS[:-1], device=topology.device, fixed=spec.load_factor)
