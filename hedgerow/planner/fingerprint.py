"""What a plan was made for, as one number: tables, machines and calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .as_json import sha256
from .plan_values import spec_dict, topology_dict
from .problem.table_spec import TableSpec
from .problem.topology import Topology


def fingerprint(
    specs: Sequence[TableSpec],
    topology: Topology,
    calibration: Mapping[str, Any],
    stats_digests: Mapping[str, str] | None = None,
) -> str:
    """SHA-256 of the three as canonical JSON; the order of tables does not count.

    `stats_digests` stand in for samples that a file did not keep.

    >>> tables = [TableSpec(name=name, rows=9, dim=2) for name in "ab"]
    >>> world = Topology(world=1, hbm_per_device=1)
    >>> fingerprint(tables, world, {}) == fingerprint(tables[::-1], world, {})
    True
    """
    lines = []
    for spec in sorted(specs, key=lambda spec: spec.name):
        line = spec_dict(spec)
        if spec.stats is None and spec.name in (stats_digests or {}):
            line["stats_sha256"] = (stats_digests or {})[spec.name]
        lines.append(line)
    made_for = {
        "tables": lines,
        "topology": topology_dict(topology),
        "calibration": {n: calibration.get(n) for n in ("device", "parameters")},
    }
    return sha256(made_for)
