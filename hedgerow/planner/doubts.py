"""How far a plan's times are to be trusted: other keys, and the limits of the calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .calibration import Calibration
from .placed import Placed
from .table_spec import TableSpec
from .time_model import expected
from .topology import Topology

EXPONENTS = (0.8, 1.3)
"""Power laws beside the assumed one at which a plan's time is told."""


@dataclass(frozen=True, slots=True)
class Doubts:
    """Time of the plan by exponent, where a table has no samples; warnings of the calibration."""

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
    pairs = list(zip(specs, tables, strict=True))
    uses = [
        (spec.dim, expected(spec, table.variant, topology, calibration, batch).distinct)
        for spec, table in pairs
    ]
    notes = tuple(calibration.warnings(uses=uses))
    if all(spec.stats is not None for spec in specs):
        return Doubts({}, notes)
    zipf_ms = {}
    for exponent in EXPONENTS:
        times = [
            expected(spec, table.variant, topology, calibration, batch, exponent=exponent).ms
            for spec, table in pairs
        ]
        zipf_ms[str(exponent)] = round(sum(times), 6)
    return Doubts(zipf_ms, notes)
