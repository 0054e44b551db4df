"""Reads what `hedgerow plan` plans: the tables of a training job, sized by its data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ..core.errors import ConfigError
from ..nn.table_specs import spec_of
from ..planner.problem.key_sampling import SAMPLE_IDS, KeySampler
from ..planner.problem.table_spec import TableSpec
from ..tables.table import Table
from ..train.job_plan import job_tables

if TYPE_CHECKING:
    from ..data.batch import Batch
    from ..train.job import Job

Progress = Callable[[str, int, int], None]


class _Seen:
    """Ids of one table: their counts, and how many a sample each feature has. Single-owner."""

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
    """The tables of a job. Its training data is sampled: two million ids a table at most.

    Rows are as given here or in the job; if the sample holds an epoch, as many as it has ids.
    """
    tables = job_tables(job)
    unknown = set(rows) - {table.name for table in tables}
    if unknown:
        names = ", ".join(table.name for table in tables)
        raise ConfigError(f"--rows names {', '.join(sorted(unknown))}; the tables are {names}.")
    seen = [_Seen(table) for table in tables]
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


def _sample(job: Job, seen: list[_Seen], progress: Progress) -> bool:
    """Reads the job's training data; whether that was all of it."""
    source = job.data.train(job.model.fields(job.data)).share(0, 1)
    for step, batch in enumerate(source, start=1):
        if all(one.sampler.full for one in seen):
            return False
        for one in seen:
            one.add(batch)
        progress("batches sampled", step, 0)
    return not any(one.sampler.full for one in seen)
