"""Reads the tables that a command works on, from a TOML or JSON file or from a training job."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..core.errors import ConfigError, FileMissingError, HedgerowError
from ..nn.plan import spec_of
from ..planner.problem.key_stats import SAMPLE_IDS, KeySampler, KeyStats
from ..planner.problem.table_spec import Feature, TableSpec
from ..tables.config import Table, TableConfig
from ..train.config_file import ConfigOrigin, ConfigPlace, NonNegativeInt, Rate, Size, read_section
from ..train.job_plan import job_tables

if TYPE_CHECKING:
    from ..data.source import Batch
    from ..train.job import Job


def read_configs(path: Path) -> list[TableConfig]:
    """Returns the table configs in a JSON file, a list in the form of `TableConfig.to_dict()`."""
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}.") from error
    if not isinstance(document, list):
        raise ConfigError(f"{path} holds no list; it must be a list of TableConfig.to_dict().")
    return [TableConfig.from_dict(values) for values in document]


DistType = Literal["continuous", "roundrobin", "hash_roundrobin"]
ModeName = Literal["HBM_ONLY", "HYBRID", "CACHING", "HOST_ONLY"]


@dataclass(frozen=True, kw_only=True)
class FeatureEntry:
    """A feature of a table: its mean number of ids per sample, and whether it is pooled."""

    ids_per_sample: Rate = 1.0
    pooled: bool = True


@dataclass(frozen=True, kw_only=True)
class TableFileEntry:
    """A table of the file; `stats` is a file of `hedgerow sample-keys`."""

    rows: Size
    dim: Size
    dtype: Literal["fp32", "fp16", "bf16"] = "fp32"
    optimizer: str = "adagrad"
    counter_rows: NonNegativeInt = 0
    features: tuple[FeatureEntry, ...] = (FeatureEntry(),)
    dist_type: DistType = "hash_roundrobin"
    modes: tuple[ModeName, ...] | None = None
    load_factor: str | None = None
    stats: str | None = None
    group: str | None = None


def tables_of(values: Mapping[str, Any], origin: ConfigOrigin, folder: Path) -> list[TableSpec]:
    """Returns the tables in a file's `tables`, which has them by name or as a list with names."""
    place = ConfigPlace(origin)
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


def _by_name(given: list[Any], place: ConfigPlace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, entry in enumerate(given):
        name = entry.get("name") if isinstance(entry, Mapping) else None
        if not isinstance(name, str) or not name:
            place.refuse(f"number {number + 1} of the list has no name.")
        if name in found:
            place.refuse(f"two tables are named {name!r}.")
        found[name] = {key: value for key, value in entry.items() if key != "name"}
    return found


def _spec(name: str, given: Any, place: ConfigPlace, folder: Path) -> TableSpec:
    entry: TableFileEntry = read_section(TableFileEntry, given, place)
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
    """Returns the key statistics in a file, which has those of one table, or of several by name."""
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
    """Returns the tables with the row counts of `rows`."""
    known = [spec.name for spec in specs]
    for name in rows:
        if name not in known:
            raise ConfigError(f"--rows names {name!r}; the tables are {', '.join(known)}.")
    return [replace(spec, rows=rows.get(spec.name, spec.rows)) for spec in specs]


Progress = Callable[[str, int, int], None]


class _SampledIds:
    """A sample of one table's ids, and the number of ids per sample and feature. Single-owner."""

    def __init__(self, table: Table) -> None:
        self.table, self.sampler = table, KeySampler(SAMPLE_IDS)
        self.ids = dict.fromkeys(table.features, 0)
        self.samples = 0

    def add(self, batch: Batch) -> None:
        self.samples += batch.samples
        for name in self.table.features:
            keys = batch.ids.feature(name).values
            self.ids[name] += len(keys)
            self.sampler.add(keys)

    def spec(self, rows: int) -> TableSpec:
        means = {name: count / max(1, self.samples) for name, count in self.ids.items()}
        stats = self.sampler.stats() if self.sampler.taken else None
        return spec_of(self.table, rows, ids_per_sample=means, stats=stats)


def specs_of_job(job: Job, rows: Mapping[str, int], progress: Progress) -> list[TableSpec]:
    """Returns the tables of a job, after a sample of its data: at most two million ids per table.

    Row counts are those of `rows` or of the job. If the sample has a whole epoch, the default is
    its number of distinct ids.
    """
    tables = job_tables(job)
    unknown = set(rows) - {table.name for table in tables}
    if unknown:
        names = ", ".join(table.name for table in tables)
        raise ConfigError(f"--rows names {', '.join(sorted(unknown))}; the tables are {names}.")
    seen = [_SampledIds(table) for table in tables]
    whole = _sample(job, seen, progress)
    found = []
    for one in seen:
        count = rows.get(one.table.name) or one.table.rows
        if not count and not whole:
            raise ConfigError(
                f"table {one.table.name!r} has no rows, and the job's data is more than what is "
                f"sampled; say how many ids it has: rows = ... in [model.tables.{one.table.name}], "
                f"or --rows {one.table.name}=..."
            )
        found.append(one.spec(count or max(1, one.sampler.stats().distinct)))
    return found


def _sample(job: Job, seen: list[_SampledIds], progress: Progress) -> bool:
    """Samples the job's training data; returns whether it was read to the end."""
    source = job.data.train(job.model.fields(job.data)).share(0, 1)
    for step, batch in enumerate(source, start=1):
        if all(one.sampler.full for one in seen):
            return False
        for one in seen:
            one.add(batch)
        progress("batches sampled", step, 0)
    return not any(one.sampler.full for one in seen)
