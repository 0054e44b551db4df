"""The ranks that train one model: their shares of batches, sums over ranks, common decisions."""

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
    """All ranks of a distributed model, or this process alone, which communicates with no other.

    Every rank reads the same batches and takes its share of each, so a step has the same samples as
    in one process. All methods except `share` and `loss` are collectives. If the rows are on
    servers, the ranks are the workers of the job, and the share of each worker is its own optimizer
    step.

    >>> import hedgerow as hr
    >>> ranks = RunRanks(hr.EmbeddingBags([hr.Table("user", 2)]))
    >>> ranks.is_first, ranks.any(False), ranks.total(3)
    (True, False, 3)
    """

    def __init__(self, model: nn.Module) -> None:
        self._ranks = workers_of(model)

    @property
    def is_first(self) -> bool:
        """Whether this rank is the first, which writes logs and checkpoints."""
        return self._ranks.rank == 0

    @property
    def count(self) -> int:
        """The number of ranks."""
        return self._ranks.count

    def whole_batches(self) -> AbstractContextManager[None]:
        """Returns a context in which sources yield whole batches, which `share` divides.

        With a single rank the sources are unchanged, so a source still raises if it is read on one
        of several ranks and the model is not distributed.
        """
        return whole_batches() if self.count > 1 else nullcontext()

    def share(self, batch: Batch) -> Batch:
        """Returns this rank's samples of a batch.

        The shares of ranks differ by at most one sample.
        """
        if self.count == 1:
            return batch
        rank, samples = self._ranks.rank, batch.samples
        return batch.part(samples * rank // self.count, samples * (rank + 1) // self.count)

    def loss(self, logits: Float32[Tensor, "share"], share: Batch, whole: Batch) -> Tensor:
        """Returns the loss of this rank.

        Gradients averaged over ranks are those of the whole batch.

        Shares can differ in size and weight, so every rank divides by the total of the whole batch.
        """
        if self.count == 1 and whole.weights is None:
            return functional.binary_cross_entropy_with_logits(logits, whole.labels)
        each = functional.binary_cross_entropy_with_logits(logits, share.labels, reduction="none")
        if share.weights is None or whole.weights is None:
            return each.sum() * (self.count / whole.samples)
        return (each * share.weights).sum() * self.count / whole.weights.sum().clamp(min=1e-12)

    def any(self, wish: bool) -> bool:
        """Whether `wish` is true on any rank."""
        return self._ranks.total(float(wish)) > 0

    def total(self, number: int) -> int:
        """Returns the sum over ranks."""
        return int(self._ranks.total(number))

    def first(self, word: Any) -> Any:
        """Returns the value of the first rank."""
        return self._ranks.tell(word)[0]

    def metrics(self, own: BinaryMetrics) -> BinaryMetrics:
        """Returns the metrics of the samples of all ranks, with the same bits on each rank."""
        if self.count == 1:
            return own
        found = BinaryMetrics()
        for state in self._ranks.tell(_packed(own)):
            found.merge(_unpacked(state))
        return found

    def hand_over(self, own: BinaryMetrics) -> None:
        """Moves the metrics of all ranks to the first rank, whose state is saved."""
        if self.count == 1:
            return
        found = self.metrics(own)
        own.reset()
        if self.is_first:
            own.merge(found)

    def taken_up(self, own: BinaryMetrics) -> None:
        """Resets the metrics on all ranks but the first after a load, so that they count once."""
        if not self.is_first:
            own.reset()


def _packed(metrics: BinaryMetrics) -> dict[str, Tensor]:
    """Returns the state without its empty buckets, which are nearly all buckets."""
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
