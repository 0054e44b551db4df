"""Reads the rows of a batch through autograd, and pools them into vectors."""

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
    """What an update needs of a read that returned the rows of all ids, one tensor per feature.

    `at` is the lookup without its rows. `learner` is None: the store itself makes the update.
    """

    keys: FeatureKeys
    at: Lookup
    learner: None = None

    @staticmethod
    def of(keys: FeatureKeys, found: Lookup) -> tuple[Outputs, BatchKeys]:
        """Returns the outputs, and a record that holds the lookup without its rows."""
        nothing = found.rows[:0].clone()  # a view would keep all rows alive
        return keys.rows(found), BatchKeys(keys, replace(found, rows=nothing))

    @property
    def features(self) -> tuple[TableFeature, ...]:
        """The features, in the order of the outputs."""
        return self.keys.features

    def ids_of(self, i: int) -> Int64[Tensor, "n"]:
        """Returns the ids of feature `i`."""
        return self.keys.ids_of(i)

    def key_gradients(self, i: int, grad: Tensor) -> Float32[Tensor, "n dim"]:
        """Returns the gradient of each id of feature `i`: the gradient of its output."""
        del i
        return grad.float()


class CollectGradients(torch.autograd.Function):
    """Returns tensors whose gradients are collected and not passed on.

    The anchor is an empty tensor that requires a gradient. Without such an input, autograd would
    not call this backward. The anchor is not a Parameter, so optimizers and DDP never see it.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, make: ReadOutputs, collect: Collect) -> Outputs:
        """Returns the outputs of `make`."""
        del anchor
        ctx.set_materialize_grads(False)
        outputs, ctx.read = make()
        ctx.collect = collect
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[None, None, None]:
        """Passes the gradients to `collect`."""
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
    """Returns one vector per bag, and zeros for an empty bag. `("first", n)` gives [bags, n, dim].

    `splits` are the offsets at which the rows of each bag begin, and the end of the last bag.

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
    """Sums the rows of each bag, in host memory."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, splits: Tensor) -> Tensor:
        """Adds up all rows in one pass, in order."""
        ctx.splits, ctx.rows = splits, len(rows)
        places = torch.arange(len(rows), device=rows.device)
        return embedding_bag(places, rows, splits, mode="sum", include_last_offset=True)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Returns for each row the gradient of its bag."""
        lengths = ctx.splits.diff()
        return torch.repeat_interleave(grads[0], lengths, dim=0, output_size=ctx.rows), None


def _ragged(splits: Tensor, rows: Tensor) -> Ragged:
    """Returns a ragged tensor with one placeholder value per row."""
    return Ragged.trusted(splits.new_empty(len(rows)), splits)


def _largest(
    splits: Int64[Tensor, "bags+1"], rows: Float[Tensor, "n dim"]
) -> Float[Tensor, "bags dim"]:
    """Returns the largest value of each column of each bag.

    Of equal values, the first gets the gradient, as in `nn.EmbeddingBag(mode="max")`.
    `torch.segment_reduce` would divide a positive gradient among equal values, and a negative one
    not.
    """
    if len(splits) == 1:
        return rows.new_empty(0, rows.shape[1])
    places = torch.arange(rows.shape[0], device=rows.device)
    return embedding_bag(places, rows, splits, mode="max", include_last_offset=True)


def pool_features(bags: FeatureBags, rows: Sequence[Tensor]) -> list[Tensor]:
    """Returns the vectors of every feature, pooled from its rows; with "none", the rows."""
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
