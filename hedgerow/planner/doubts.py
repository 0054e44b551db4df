"""What speaks against a plan: other keys, the limits of the calibration, uneven routing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .placed import Placed
from .problem.table_spec import TableSpec
from .problem.topology import Topology
from .times.calibration import Calibration
from .times.routing_advice import routing_advice
from .times.time_model import expected
from .weigh import alike_tables

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
