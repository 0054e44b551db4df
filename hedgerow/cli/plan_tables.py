"""Reads what `hedgerow plan` plans: a file of tables in TOML or JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ..core.errors import ConfigError, FileMissingError, HedgerowError
from ..planner.problem.key_stats import KeyStats
from ..planner.problem.table_spec import Feature, TableSpec
from ..train.config_text import Origin
from ..train.config_values import Count, Place, Rate, Size, read_section

DistType = Literal["continuous", "roundrobin", "hash_roundrobin"]
ModeName = Literal["HBM_ONLY", "HYBRID", "CACHING", "HOST_ONLY"]


@dataclass(frozen=True, kw_only=True)
class FeatureEntry:
    """One feature of a table: ids of a sample on average, and whether they become one vector."""

    ids_per_sample: Rate = 1.0
    pooled: bool = True


@dataclass(frozen=True, kw_only=True)
class TableEntry:
    """One table of the file; `stats` is a file of `hedgerow sample-keys`."""

    rows: Size
    dim: Size
    dtype: Literal["fp32", "fp16", "bf16"] = "fp32"
    optimizer: str = "adagrad"
    counter_rows: Count = 0
    features: tuple[FeatureEntry, ...] = (FeatureEntry(),)
    dist_type: DistType = "hash_roundrobin"
    modes: tuple[ModeName, ...] | None = None
    load_factor: str | None = None
    stats: str | None = None
    group: str | None = None


def tables_of(values: Mapping[str, Any], origin: Origin, folder: Path) -> list[TableSpec]:
    """The tables of a file that holds `tables`: by name, or as a list with names."""
    place = Place(origin)
    for key in values:
        if key != "tables":
            place.key(key).refuse_name("unknown key", key, ["tables"])
    given = values.get("tables")
    if isinstance(given, list):
        given = _by_name(given, place.key("tables"))
    if not isinstance(given, Mapping) or not given:
        place.key("tables").refuse(
            "must hold at least one table: [tables.NAME] with rows and dim, or a list of tables "
            "with names."
        )
    return [
        _spec(name, entry, place.key("tables").key(name), folder) for name, entry in given.items()
    ]


def _by_name(given: list[Any], place: Place) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, entry in enumerate(given):
        name = entry.get("name") if isinstance(entry, Mapping) else None
        if not isinstance(name, str) or not name:
            place.refuse(f"number {number + 1} of the list has no name.")
        if name in found:
            place.refuse(f"two tables are named {name!r}.")
        found[name] = {key: value for key, value in entry.items() if key != "name"}
    return found


def _spec(name: str, given: Any, place: Place, folder: Path) -> TableSpec:
    entry: TableEntry = read_section(TableEntry, given, place)
    stats = None
    if entry.stats is not None:
        stats = read_stats(folder / entry.stats, name)
    try:
        return TableSpec(
            name=name,
            rows=entry.rows,
            dim=entry.dim,
            dtype=entry.dtype,
            optimizer=entry.optimizer,
            counter_rows=entry.counter_rows,
            features=tuple(Feature(f.ids_per_sample, f.pooled) for f in entry.features),
            dist_type=entry.dist_type,
            modes=entry.modes,
            load_factor=entry.load_factor,
            stats=stats,
            group=entry.group,
        )
    except HedgerowError as error:
        place.refuse(str(error))


def read_stats(path: Path, table: str) -> KeyStats:
    """Key statistics of a file: of one table, or of several by name."""
    if not path.is_file():
        raise FileMissingError(f"{path} is no file; `hedgerow sample-keys` writes one.")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: this is no JSON: {error}.") from error
    if isinstance(values, Mapping) and isinstance(values.get("tables"), Mapping):
        values = values["tables"]
    if isinstance(values, Mapping) and isinstance(values.get(table), Mapping):
        values = values[table]
    try:
        return KeyStats.from_dict(values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def with_rows(specs: list[TableSpec], rows: Mapping[str, int]) -> list[TableSpec]:
    """The same tables with the sizes of a command line."""
    known = [spec.name for spec in specs]
    for name in rows:
        if name not in known:
            raise ConfigError(f"--rows names {name!r}; the tables are {', '.join(known)}.")
    return [replace(spec, rows=rows.get(spec.name, spec.rows)) for spec in specs]
