"""A plan for the tables of a model."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from ..planner import make_plan
from ..planner.plan import Plan
from ..planner.problem.topology import Reserve, Topology
from ..planner.sizes.reservation import dense_size, reserve_for
from ..planner.times.calibration import Calibration
from .table_specs import specs_of


def plan(
    model: nn.Module,
    topology: Topology,
    *,
    rows: Mapping[str, int] | None = None,
    batch: int = 4096,
    calibration: Calibration | None = None,
    reserve: Reserve | None = None,
    pin: Mapping[str, str] | None = None,
) -> Plan:
    """Where every table of the model should live on those machines: `hr.distribute` follows it.

    A table's size is `rows` here, `rows=` of its hr.Table, or the rows it has now. Its `dist_type`
    stands as it is. `batch` is samples of a rank and step. The reserve, if not given, is a share of
    both memories, and room for the dense part of the model and the batches under way. `pin` gives
    tables a mode, or one option such as "CACHING@0.1". More choices are in `hr.planner.plan`, which
    takes TableSpecs.

    >>> import hedgerow as hr
    >>> model = hr.EmbeddingBags([hr.Table("item", 16, rows=1_000_000, dist_type="roundrobin")])
    >>> machine = hr.planner.Topology(world=2, ddr_per_machine=2**33, device="cpu")
    >>> placed = hr.plan(model, machine).of("item")
    >>> placed.mode.value, placed.dist_type, placed.rows_per_rank >= 500_000
    ('HOST_ONLY', 'roundrobin', True)
    """
    tables = specs_of(model, rows)
    if reserve is None:
        reserve = reserve_for(
            topology,
            dense_bytes=_dense_bytes(model),
            ids_per_sample=[f.ids_per_sample for table in tables for f in table.features],
            batch=batch,
        )
    return make_plan.plan(tables, topology, calibration, reserve, batch=batch, pin=pin)


def _dense_bytes(model: nn.Module) -> int:
    """What every rank has whole while it trains: weights, their states and gradients, buffers."""
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    buffers = sum(b.numel() * b.element_size() for b in model.buffers())
    return dense_size(weights, buffers)
