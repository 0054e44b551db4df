"""Evaluates a model on a source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from ..core import checks
from ..data.source import Batch
from ..nn.embedding_modules import EmbeddingModule
from .metrics import BinaryMetrics
from .run_ranks import RunRanks


def predictions(model: nn.Module, source: Iterable[Batch]) -> Iterator[tuple[Tensor, Batch]]:
    """Yields the logits of every batch in eval mode. Ids without a row have zeros."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for given in source:
                batch = given.to(device_of(model), non_blocking=True)
                yield model(batch.dense, batch.ids), batch
    finally:
        model.train(was_training)


def device_of(model: nn.Module) -> torch.device:
    """Returns the device of a model's tables, or of its weights if it has no table."""
    tables = [one for one in model.modules() if isinstance(one, EmbeddingModule)]
    if tables:
        return tables[0].store.device
    return next((weight.device for weight in model.parameters()), checks.CPU)


def evaluate(model: nn.Module, source: Iterable[Batch]) -> dict[str, float]:
    """Returns loss, AUC, normalized entropy and calibration over one epoch of a source.

    For a distributed model, every rank calls it with the same source, takes its share of every
    batch, and gets the metrics of all samples.

    >>> import hedgerow as hr
    >>> source = hr.data.clicks(batch_size=64, steps=4)
    >>> model = hr.models.DeepFM([hr.Table("user", 4), hr.Table("item", 4)], dense=4)
    >>> evaluate(model, source)["samples"]
    256.0
    """
    metrics, ranks = BinaryMetrics(), RunRanks(model)
    with ranks.whole_batches():
        for logits, batch in predictions(model, map(ranks.share, source)):
            metrics.update(logits, batch.labels, batch.weights)
    return ranks.metrics(metrics).result()
