"""The same job once more with ids that share rows: what collisions would have cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from ..data.batch import Batch, Source
    from ..sharding.agreement import Ranks
    from ..train.job import Job

DIVISOR = 4


def hashed_baseline(job: Job, model: nn.Module, steps: int, ranks: Ranks) -> dict[str, float]:
    """Test metrics of the job after as many steps, with a quarter of the model's rows a table.

    Nothing where there is no test, or where Ctrl-C ended it. All ranks of the job take part.
    """
    import torch

    from ..bench.quality_variants import hashed
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
    variant, parts = hashed(DIVISOR, tables), build(job)

    def change(batch: Batch) -> Batch:
        return Batch(batch.dense, variant.ids(batch.ids, known), batch.labels, batch.weights)

    if parts.test is None:
        return {}
    schedule = Schedule(epochs=job.train.epochs, steps=steps)
    train = _Changed(parts.train, change)
    outcome = Trainer(parts.model, parts.optimizer, train, schedule=schedule).run()
    if outcome.why == "interrupted":  # what it has learned so far is nothing to compare with
        return {}
    return evaluate(parts.model, _Changed(parts.test, change))


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
