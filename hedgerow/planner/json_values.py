"""Conversion of the planner's values to JSON and back.

Unknown fields of newer versions are kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from ..core.errors import FileDamagedError
from .plan import WeighedOption
from .problem.key_stats import KeyStats
from .problem.table_spec import Feature, TableSpec
from .problem.topology import MOST_RANKS, Links, Reserve, Topology
from .times.calibration import Calibration, Residuals
from .times.step_time import TimeParameters

_WIDTH = 160


def canonical(value: Any) -> str:
    """Returns canonical JSON: sorted keys and no spaces. Raises for NaN and infinity.

    >>> canonical({"b": 1, "a": [1.5, None]})
    '{"a":[1.5,null],"b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def sha256(value: Any) -> str:
    """Returns the SHA-256 of the canonical JSON.

    >>> sha256({})[:8]
    '44136fa3'
    """
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def readable(value: Any, indent: int = 0) -> str:
    """Returns indented JSON. Short flat values stay on one line.

    >>> print(readable({"sizes": [1, 2], "tables": [{"name": "a"}, {"name": "b"}]}))
    {
     "sizes": [1, 2],
     "tables": [
      {"name": "a"},
      {"name": "b"}
     ]
    }
    """
    flat = json.dumps(value, allow_nan=False)
    if not isinstance(value, dict | list) or not value or _fits(value, flat, indent):
        return flat
    space = " " * (indent + 1)
    if isinstance(value, dict):
        parts = [f"{json.dumps(str(k))}: {readable(v, indent + 1)}" for k, v in value.items()]
    else:
        parts = [readable(item, indent + 1) for item in value]
    ends = "{}" if isinstance(value, dict) else "[]"
    return f"{ends[0]}\n{space}" + f",\n{space}".join(parts) + f"\n{' ' * indent}{ends[1]}"


def _fits(value: Any, flat: str, indent: int) -> bool:
    """Returns whether the value fits on one line and contains no lists or dicts."""
    inner = value.values() if isinstance(value, dict) else value
    return len(flat) + indent <= _WIDTH and not any(isinstance(v, dict | list) for v in inner)


def topology_dict(topology: Topology) -> dict[str, Any]:
    """Returns the topology as a dict."""
    sizes = {
        name: value if isinstance(value, int) else list(value)
        for name, value in (
            ("hbm_per_device", topology.hbm_per_device),
            ("ddr_per_machine", topology.ddr_per_machine),
        )
    }
    return {
        "world": topology.world,
        "local_world": topology.ranks_per_machine,
        "device": topology.device,
        **sizes,
        "links": asdict(topology.links),
    }


def topology_of(values: Mapping[str, Any]) -> Topology:
    """Returns the topology from its dict form. Missing fields take their defaults."""
    world = values.get("world")
    if isinstance(world, int) and world > MOST_RANKS:
        raise FileDamagedError(f"topology: world is {world}; at most {MOST_RANKS:,} ranks.")
    known = {f.name for f in fields(Topology)}
    given = {name: value for name, value in values.items() if name in known}
    if "links" in given:
        given["links"] = Links(**_known(Links, given["links"], "links"))
    return _made(Topology, given, "topology")


def reserve_of(values: Mapping[str, Any]) -> Reserve:
    """Returns the reserve from its dict form."""
    return _made(Reserve, _known(Reserve, values, "reserve"), "reserve")


def _made(kind: Any, given: Mapping[str, Any], what: str) -> Any:
    """Builds an object. Missing fields and wrong types raise `FileDamagedError`."""
    try:
        return kind(**given)
    except TypeError as error:
        raise FileDamagedError(f"{what} is {dict(given)!r}: {error}.") from error


def _known(kind: Any, values: Any, what: str) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        raise FileDamagedError(f"{what} is {values!r}; it must be an object.")
    return {f.name: values[f.name] for f in fields(kind) if f.name in values}


def spec_dict(spec: TableSpec) -> dict[str, Any]:
    """Returns the fields of a table as a dict, with a hash instead of the key samples."""
    values: dict[str, Any] = {
        "name": spec.name,
        "rows": spec.rows,
        "dim": spec.dim,
        "dtype": spec.dtype,
        "optimizer": spec.optimizer,
        "counter_rows": spec.counter_rows,
        "features": [[float(feature.ids_per_sample), feature.pooled] for feature in spec.features],
        "dist_type": spec.dist_type,
        "modes": None if spec.modes is None else [str(mode) for mode in spec.modes],
        "load_factor": spec.load_factor,
        "group": spec.group,
    }
    if spec.stats is not None:
        values["stats_sha256"] = stats_digest(spec.stats)
    return values


def stats_digest(stats: KeyStats) -> str:
    """Returns the SHA-256 of key statistics."""
    return sha256(asdict(stats))


def spec_of(values: Mapping[str, Any]) -> TableSpec:
    """Returns a table from its dict form, without key samples."""
    given = _known(TableSpec, values, "a table")
    given.pop("stats", None)
    for name in ("name", "optimizer"):
        if name in given and not isinstance(given[name], str):
            raise FileDamagedError(f"inputs.tables: {name} is {given[name]!r}; it must be a text.")
    pairs = given.pop("features", [[1.0, True]])
    try:
        read = tuple(Feature(float(ids), bool(pooled)) for ids, pooled in pairs)
    except (TypeError, ValueError) as error:
        raise FileDamagedError(
            f"table {values.get('name')!r}: features is {pairs!r}; it must be a list of "
            f"[ids a sample, pooled]."
        ) from error
    return TableSpec(**given, features=read)


def choice_list(choice: WeighedOption) -> list[Any]:
    """Returns an option as a short list. The reason of a refused option comes last."""
    line = [choice.label, choice.hbm, choice.ddr, choice.ms, choice.hit_rate]
    return [*line, choice.refused] if choice.refused else line


def choice_of(line: Any) -> WeighedOption:
    """Returns an option from its list form."""
    kinds: tuple[Any, ...] = (str, int, int, int | float, int | float, str)
    if (
        not isinstance(line, list)
        or not 5 <= len(line) <= 6
        or not all(isinstance(v, kind) for v, kind in zip(line, kinds, strict=False))
    ):
        raise FileDamagedError(
            f"option {line!r}; it must be [label, HBM bytes, host bytes, ms, hit rate]."
        )
    return WeighedOption(*line)


def calibration_dict(calibration: Calibration) -> dict[str, Any]:
    """Returns the parameters of a calibration as a dict, without the measured points."""
    found: dict[str, Any] = {
        "device": calibration.device,
        "parameters": calibration.parameters.to_dict(),
        "origin": calibration.origin,
    }
    if calibration.residuals is not None:
        found["residuals"] = asdict(calibration.residuals)
    return found


def calibration_of(values: Mapping[str, Any]) -> Calibration:
    """Returns a calibration from its dict form, without the measured points."""
    kept = values.get("residuals")
    return Calibration(
        device=str(values.get("device", "")),
        parameters=TimeParameters.from_dict(values.get("parameters", {})),
        origin=str(values.get("origin", "")),
        residuals=None if kept is None else Residuals(**_known(Residuals, kept, "residuals")),
    )


def unknown_in(values: Any, known: Any) -> Any:
    """Returns the parts of `values` that `known` lacks, with the same nesting.

    Empty if there are none.

    >>> unknown_in({"a": {"b": 1, "new": 2}, "c": [{"x": 1}]}, {"a": {"b": 1}, "c": [{"x": 1}]})
    {'a': {'new': 2}}
    """
    if isinstance(values, Mapping) and isinstance(known, Mapping):
        parts = {n: unknown_in(v, known[n]) for n, v in values.items() if n in known}
        new = {n: v for n, v in values.items() if n not in known}
        return {**{n: part for n, part in parts.items() if part}, **new}
    if isinstance(values, list) and isinstance(known, list) and len(values) == len(known):
        lines = [unknown_in(v, k) for v, k in zip(values, known, strict=True)]
        return lines if any(lines) else []
    return {}


def with_unknown(known: Any, unknown: Any) -> Any:
    """Merges the result of `unknown_in` back into `known`.

    >>> with_unknown({"a": {"b": 1}}, {"a": {"new": 2}})
    {'a': {'b': 1, 'new': 2}}
    """
    if isinstance(known, Mapping) and isinstance(unknown, Mapping):
        both = {n: with_unknown(known[n], v) if n in known else v for n, v in unknown.items()}
        return {**known, **both}
    if isinstance(known, list) and isinstance(unknown, list) and len(known) == len(unknown):
        return [with_unknown(k, u) for k, u in zip(known, unknown, strict=True)]
    return known
