"""The ranks that train one model together: shares of batches, sums over all, one decision."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..core.shapes import Float32
from ..data.source import Batch, whole_batches
from ..nn.distribute import workers_of
from .metrics import BinaryMetrics


class RunRanks:
    """All ranks of a distributed model, or this process alone, where nothing has a cost.

    Every rank reads the same batches and takes its share of each, so that the samples of a step are
    those of one process. All calls but `share` and `loss` are collectives. Where servers hold the
    rows, ranks are the workers of the job: each one's share is an optimizer step of its own.

    >>> import hedgerow as hr
    >>> ranks = RunRanks(hr.EmbeddingBags([hr.Table("user", 2)]))
    >>> ranks.is_first, ranks.any(False), ranks.total(3)
    (True, False, 3)
    """

    def __init__(self, model: nn.Module) -> None:
        self._ranks = workers_of(model)

    @property
    def is_first(self) -> bool:
        """Whether this rank writes and speaks for all."""
        return self._ranks.rank == 0

    @property
    def count(self) -> int:
        """How many there are."""
        return self._ranks.count

    def whole_batches(self) -> AbstractContextManager[None]:
        """Within it sources yield whole batches, which `share` divides; alone, as they were told.

        A source that was not told of ranks still raises where the model is not of all ranks.
        """
        return whole_batches() if self.count > 1 else nullcontext()

    def share(self, batch: Batch) -> Batch:
        """This rank's samples of a batch: as many as the others', or one more or less."""
        if self.count == 1:
            return batch
        rank, samples = self._ranks.rank, batch.samples
        return batch.part(samples * rank // self.count, samples * (rank + 1) // self.count)

    def loss(self, logits: Float32[Tensor, "share"], share: Batch, whole: Batch) -> Tensor:
        """What this rank learns from; gradients averaged over ranks are those of the whole batch.

        Shares may differ by a sample and samples in their weight, so every rank divides by what the
        whole batch has, not by its own.
        """
        if self.count == 1 and whole.weights is None:
            return functional.binary_cross_entropy_with_logits(logits, whole.labels)
        each = functional.binary_cross_entropy_with_logits(logits, share.labels, reduction="none")
        if share.weights is None or whole.weights is None:
            return each.sum() * (self.count / whole.samples)
        return (each * share.weights).sum() * self.count / whole.weights.sum().clamp(min=1e-12)

    def any(self, wish: bool) -> bool:
        """Whether one of them wishes it."""
        return self._ranks.total(float(wish)) > 0

    def total(self, number: int) -> int:
        """The sum over ranks."""
        return int(self._ranks.total(number))

    def first(self, word: Any) -> Any:
        """What the first rank says."""
        return self._ranks.tell(word)[0]

    def metrics(self, own: BinaryMetrics) -> BinaryMetrics:
        """Of the samples of all ranks, the same bits on each of them."""
        if self.count == 1:
            return own
        found = BinaryMetrics()
        for state in self._ranks.tell(_packed(own)):
            found.merge(_unpacked(state))
        return found

    def hand_over(self, own: BinaryMetrics) -> None:
        """What ranks have seen goes to the first, whose state is the one that is saved."""
        if self.count == 1:
            return
        found = self.metrics(own)
        own.reset()
        if self.is_first:
            own.merge(found)

    def taken_up(self, own: BinaryMetrics) -> None:
        """After a load, where all were given what the first had saved: it counts once."""
        if not self.is_first:
            own.reset()


def _packed(metrics: BinaryMetrics) -> dict[str, Tensor]:
    """Without the buckets that are empty: nearly all of them."""
    state = metrics.state_dict()
    buckets = state["histograms"].flatten()
    at = buckets.nonzero().flatten()
    return {**state, "histograms": buckets[at], "at": at}


def _unpacked(state: dict[str, Tensor]) -> BinaryMetrics:
    metrics = BinaryMetrics()
    histograms = torch.zeros_like(metrics.state_dict()["histograms"])
    histograms.view(-1)[state["at"]] = state["histograms"]
    sums = {name: state[name] for name in ("sums", "samples")}
    metrics.load_state_dict({**sums, "histograms": histograms})
    return metrics
