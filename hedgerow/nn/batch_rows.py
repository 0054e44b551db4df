"""The rows of a batch: read through autograd, and pooled into vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from ..core.errors import ConfigError
from ..core.ids import Ragged
from ..core.shapes import Float, Float32, Int64
from ..ops.combiners import FirstN, ReduceSum
from ..tables.module_store import FeatureBags, FeatureKeys, Pooling, ReadRecord, TableFeature
from ..tables.store import Lookup

Outputs = tuple[Tensor, ...]
ReadOutputs = Callable[[], tuple[Outputs, ReadRecord | None]]
Collect = Callable[[ReadRecord, Sequence[Tensor | None]], None]


@dataclass(frozen=True, slots=True, eq=False)
class BatchKeys:
    """Rows of all ids that a store read: those of each feature are an output.

    The store itself learns, `at` the lookup, which has no rows any more.
    """

    keys: FeatureKeys
    at: Lookup
    learner: None = None

    @staticmethod
    def of(keys: FeatureKeys, found: Lookup) -> tuple[Outputs, BatchKeys]:
        """Return the outputs, and the lookup without its rows, which an update does not need."""
        return keys.rows(found), BatchKeys(keys, replace(found, rows=found.rows[:0].clone()))

    @property
    def features(self) -> tuple[TableFeature, ...]:
        """The features, in the order of the outputs."""
        return self.keys.features

    def ids_of(self, i: int) -> Int64[Tensor, "n"]:
        """The ids of feature `i`."""
        return self.keys.ids_of(i)

    def key_gradients(self, i: int, grad: Tensor) -> Float32[Tensor, "n dim"]:
        """The gradient of each id of feature `i`: what came."""
        del i
        return grad.float()


class CollectGradients(torch.autograd.Function):
    """Outputs whose gradients are collected instead of flowing on.

    The anchor is an empty tensor that requires a gradient: without an input that does, autograd
    would not come back here. It is no Parameter, so optimizers and DDP never see it.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, make: ReadOutputs, collect: Collect) -> Outputs:
        """What `make` reads."""
        del anchor
        ctx.set_materialize_grads(False)
        outputs, ctx.read = make()
        ctx.collect = collect
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[None, None, None]:
        """Hands the gradients over."""
        if torch.is_grad_enabled():  # with create_graph; an update has no gradient of its own
            grads = tuple(None if grad is None else grad.detach() for grad in grads)
        ctx.collect(ctx.read, grads)
        return None, None, None


def pool(
    splits: Int64[Tensor, "bags+1"],
    rows: Float[Tensor, "n dim"],
    pooling: Pooling,
    weights: Float[Tensor, "n"] | None = None,
) -> Tensor:
    """One vector a bag; of an empty one, zeros. `("first", n)` gives [bags, n, dim].

    `splits` says where the rows of each bag begin, and the end.

    >>> splits, rows = torch.tensor([0, 2, 2, 3]), torch.tensor([[1.0], [3.0], [5.0]])
    >>> pool(splits, rows, "mean").tolist()
    [[2.0], [0.0], [5.0]]
    >>> pool(splits, rows, ("first", 1)).tolist()
    [[[1.0]], [[0.0]], [[5.0]]]
    """
    if weights is not None:
        rows = rows * weights.unsqueeze(1)
    if isinstance(pooling, tuple):
        return FirstN(pooling[1]).combine(_ragged(splits, rows), rows)
    if pooling == "max":
        return _largest(splits, rows)
    if pooling not in ("sum", "mean", "sqrtn"):
        raise ConfigError(f"pooling is {pooling!r}; use sum, mean, sqrtn, max or ('first', n).")
    if rows.is_cpu and 0 not in rows.shape and len(splits) > 1:
        sums: Tensor = _Sum.apply(rows, splits)  # pyright: ignore[reportAssignmentType]
    else:
        sums = ReduceSum().combine(_ragged(splits, rows), rows)
    if pooling == "sum":
        return sums
    counts = splits.diff().clamp_min(1).to(rows.dtype).unsqueeze(1)
    return sums / (counts if pooling == "mean" else counts.sqrt())


class _Sum(torch.autograd.Function):
    """The sum of the rows of each bag, in host memory."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, splits: Tensor) -> Tensor:
        """One pass over all rows in order."""
        ctx.splits, ctx.rows = splits, len(rows)
        places = torch.arange(len(rows), device=rows.device)
        return embedding_bag(places, rows, splits, mode="sum", include_last_offset=True)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """The gradient of its bag, for each row."""
        lengths = ctx.splits.diff()
        return torch.repeat_interleave(grads[0], lengths, dim=0, output_size=ctx.rows), None


def _ragged(splits: Tensor, rows: Tensor) -> Ragged:
    """Bags of values that stand for the rows."""
    return Ragged.trusted(splits.new_empty(len(rows)), splits)


def _largest(
    splits: Int64[Tensor, "bags+1"], rows: Float[Tensor, "n dim"]
) -> Float[Tensor, "bags dim"]:
    """The largest value of each column; equal ones: the first alone gets the gradient.

    These are the ties of `nn.EmbeddingBag(mode="max")`. `torch.segment_reduce` would divide a
    gradient among equal values only where it is positive.
    """
    if len(splits) == 1:
        return rows.new_empty(0, rows.shape[1])
    places = torch.arange(rows.shape[0], device=rows.device)
    return embedding_bag(places, rows, splits, mode="max", include_last_offset=True)


def pool_features(bags: FeatureBags, rows: Sequence[Tensor]) -> list[Tensor]:
    """The vectors of every feature, from its rows; "none" leaves them as they are."""
    batch, group, samples = bags.batch, bags.group, bags.batch.samples
    single = batch.weights is None and batch.has_one_id_each()
    pooled = []
    for feature, place, part in zip(group.features, group.places, rows, strict=True):
        if feature.pooling == "none" or (single and not isinstance(feature.pooling, tuple)):
            pooled.append(part)
            continue
        splits = batch.offsets[place * samples : (place + 1) * samples + 1]
        weights = None if batch.weights is None else batch.weights_of(feature.name)
        pooled.append(pool(splits - splits[0], part, feature.pooling, weights))
    return pooled
