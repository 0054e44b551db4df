"""The same job once more with ids that share rows: what collisions would have cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from ..core.id_batch import IdBatch
    from ..data.batch import Batch, Source
    from ..sharding.agreement import Ranks
    from ..train.job import Job

DIVISOR = 4


def hashed_baseline(job: Job, model: nn.Module, steps: int, ranks: Ranks) -> dict[str, float]:
    """Test metrics of the job after as many steps, with a quarter of the model's rows a table.

    Nothing where there is no test, or where Ctrl-C ended it. All ranks of the job take part.
    """
    import torch

    from ..data.batch import Batch
    from ..nn.collection import collections_of
    from ..nn.summary import tables_of
    from ..train.evaluate import evaluate
    from ..train.job_parts import build
    from ..train.loop import Schedule, Trainer

    own = {
        name: torch.cat([part.ids for part in table.scan()] or [torch.empty(0, dtype=torch.int64)])
        for name, table in tables_of(model).items()
    }
    told = ranks.tell(own)
    known = {name: torch.cat([one[name] for one in told]) for name in own}
    tables = {f: t.name for c in collections_of(model) for t in c.tables for f in t.features}
    parts = build(job)

    def rows(feature: str) -> int:
        return shared_rows(len(known[tables[feature]]), DIVISOR)

    def change(batch: Batch) -> Batch:
        return Batch(batch.dense, hashed_ids(batch.ids, rows), batch.labels, batch.weights)

    if parts.test is None:
        return {}
    schedule = Schedule(epochs=job.train.epochs, steps=steps)
    train = _Changed(parts.train, change)
    outcome = Trainer(parts.model, parts.optimizer, train, schedule=schedule).run()
    if outcome.why == "interrupted":  # what it has learned so far is nothing to compare with
        return {}
    return evaluate(parts.model, _Changed(parts.test, change))


def shared_rows(ids: int, divisor: int) -> int:
    """How many rows so many ids share: a part of them, at least one.

    >>> shared_rows(10, 4), shared_rows(3, 4)
    (2, 1)
    """
    return max(1, ids // divisor)


def hashed_ids(batch: IdBatch, rows: Callable[[str], int], seed: int = 0) -> IdBatch:
    """Each id becomes the row that it shares: its hash, modulo the `rows` of its feature."""
    import torch

    from ..core.hashing import mix64
    from ..core.id_batch import IdBatch
    from ..core.ids import Ragged

    columns: dict[str, Ragged | torch.Tensor] = {}
    for name in batch.names:
        column = batch.feature(name)
        shared = torch.remainder(mix64(column.values ^ seed), rows(name))
        columns[name] = Ragged.trusted(shared, column.row_splits)
    return IdBatch.from_dict(columns)


class _Changed:
    """A source whose batches are changed on their way."""

    def __init__(self, source: Source, change: Callable[[Batch], Batch]) -> None:
        self._source, self._change = source, change

    def __iter__(self) -> Iterator[Batch]:
        return map(self._change, self._source)

    def state_dict(self) -> dict[str, Any]:
        """The source's."""
        return self._source.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The source's."""
        self._source.load_state_dict(state)
