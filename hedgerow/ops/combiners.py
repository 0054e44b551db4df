"""Combiners: turn the vectors of a row's ids into one vector, or into the first n of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..core import checks
from ..core.errors import DtypeError, InputError
from ..core.ids import Ragged
from ..core.shapes import Float
from . import arguments
from .library import register
from .reduce import wide
from .segment import check_ragged, ragged_rows, ragged_sum

Nested = list[Any]  # nested lists of numbers, of equal lengths


class Combiner(ABC):
    """Combines the vectors of each row of a ragged key. Only the rows of the key matter.

    `max_seq_length` is the number of vectors per row in the result, 0 for one combined vector.

    >>> isinstance(ReduceSum(), Combiner)
    True
    """

    def __init__(self, max_seq_length: int) -> None:
        self._max_seq_length = max_seq_length

    @property
    def max_seq_length(self) -> int:
        """The number of vectors per row in the result; 0 for a combiner that returns one vector."""
        return self._max_seq_length

    @abstractmethod
    def combine(
        self, key: Ragged, embedding: Float[Tensor, "n dim"] | Nested, name: str | None = None
    ) -> Tensor:
        """Combines on the device of `embedding`, where `key` must be too. `name` is ignored."""


class ReduceSum(Combiner):
    """Sums the vectors of each row.

    >>> ReduceSum().combine(Ragged.from_lists([[5, 6], []]), [[1.0], [2.0]]).tolist()
    [[3.0], [0.0]]
    """

    def __init__(self) -> None:
        super().__init__(0)

    def combine(
        self, key: Ragged, embedding: Float[Tensor, "n dim"] | Nested, name: str | None = None
    ) -> Float[Tensor, "rows dim"]:
        """Returns one vector per row; zeros for an empty row."""
        return _SUM(*_ready(key, embedding))


class ReduceMean(Combiner):
    """Averages the vectors of each row; zeros for an empty row.

    >>> ReduceMean().combine(Ragged.from_lists([[5, 6], []]), [[1.0], [2.0]]).tolist()
    [[1.5], [0.0]]
    """

    def __init__(self) -> None:
        super().__init__(0)

    def combine(
        self, key: Ragged, embedding: Float[Tensor, "n dim"] | Nested, name: str | None = None
    ) -> Float[Tensor, "rows dim"]:
        """Returns one vector per row; zeros for an empty row."""
        return _MEAN(*_ready(key, embedding))


class FirstN(Combiner):
    """Keeps the first `seq_length` vectors of each row. Shorter rows are padded with zeros.

    >>> key = Ragged.from_lists([[5], [6, 7, 8]])
    >>> FirstN(2).combine(key, [[1.0], [2.0], [3.0], [4.0]]).tolist()
    [[[1.0], [0.0]], [[2.0], [3.0]]]
    """

    def __init__(self, seq_length: int) -> None:
        super().__init__(checks.count("seq_length", seq_length, least=1))

    def combine(
        self, key: Ragged, embedding: Float[Tensor, "n dim"] | Nested, name: str | None = None
    ) -> Float[Tensor, "rows seq_length dim"]:
        """Returns `seq_length` vectors per row."""
        return _FIRST(*_ready(key, embedding), self.max_seq_length)


def _ready(key: Ragged, embedding: Tensor | Nested) -> tuple[Tensor, Tensor, int, int]:
    """Returns row splits, vectors, their width, and the number of the key's values.

    A list of vectors is moved to the key's device. The width is a plain number, so that it stays
    constant when the batch size is symbolic.
    """
    check_ragged("key", key)
    if not isinstance(embedding, Tensor):
        embedding = _converted(embedding, key.row_splits.device)
    arguments.together("embedding", embedding, "key", key.row_splits)
    width = embedding.shape[-1] if embedding.dim() else 0
    return key.row_splits, embedding, width, key.values.shape[0]


def _converted(embedding: Nested, device: torch.device) -> Tensor:
    try:
        return torch.tensor(embedding, dtype=torch.float32, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DtypeError(
            f"embedding is a {type(embedding).__name__} that makes no tensor ({error}); pass a "
            f"torch.Tensor, or lists of numbers, all of one length."
        ) from error


def _check(row_splits: Tensor, embedding: Tensor, dim: int, values: int) -> None:
    arguments.together("embedding", embedding, "key", row_splits)
    arguments.typed("embedding", embedding, arguments.FLOATS, (None, dim))
    if embedding.shape[0] != values:
        raise InputError(
            f"embedding has {embedding.shape[0]} vectors, key {values} values; pass a vector for "
            f"each."
        )
    arguments.row_splits("key.row_splits", row_splits, embedding.shape[0])


def _lengths(row_splits: Tensor, like: Tensor) -> Float[Tensor, "rows 1"]:
    """Returns the number of values per row, at least 1 so that an empty row divides to 0."""
    return row_splits.diff().clamp_min(1).to(like.dtype).unsqueeze(1)


def _sum(row_splits: Tensor, embedding: Tensor, dim: int, values: int) -> Tensor:
    _check(row_splits, embedding, dim, values)
    return ragged_sum(row_splits, embedding)


def _mean(row_splits: Tensor, embedding: Tensor, dim: int, values: int) -> Tensor:
    _check(row_splits, embedding, dim, values)
    vectors = wide(embedding)
    return (ragged_sum(row_splits, vectors) / _lengths(row_splits, vectors)).to(embedding.dtype)


def combine_sum_by_kernel(row_splits: Tensor, embedding: Tensor, dim: int, values: int) -> Tensor:
    """Implements `ReduceSum` on a device."""
    from ..kernels.segments import sum_segments

    _check(row_splits, embedding, dim, values)
    return sum_segments(row_splits.contiguous(), embedding.contiguous())


def combine_mean_by_kernel(row_splits: Tensor, embedding: Tensor, dim: int, values: int) -> Tensor:
    """Implements `ReduceMean` on a device."""
    vectors = wide(embedding)
    sums = combine_sum_by_kernel(row_splits, vectors, dim, values)
    return (sums / _lengths(row_splits, vectors)).to(embedding.dtype)


def _pooled_shape(row_splits: Tensor, embedding: Tensor, dim: int, values: int) -> Tensor:
    return embedding.new_empty((row_splits.shape[0] - 1, dim))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.count = inputs[1].shape[0]
    ctx.kept = inputs[4] if len(inputs) > 4 else 0


def _sum_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (row_splits,) = ctx.saved_tensors
    return None, ragged_rows(row_splits, grad, ctx.count), None, None


def _mean_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (row_splits,) = ctx.saved_tensors
    share = (wide(grad) / _lengths(row_splits, wide(grad))).to(grad.dtype)
    return None, ragged_rows(row_splits, share, ctx.count), None, None


def _first(row_splits: Tensor, embedding: Tensor, dim: int, values: int, seq_length: int) -> Tensor:
    _check(row_splits, embedding, dim, values)
    rows = row_splits.shape[0] - 1
    if embedding.shape[0] == 0:
        return embedding.new_zeros((rows, seq_length, dim))
    places = row_splits[:-1, None] + torch.arange(seq_length, device=row_splits.device)
    there = places < row_splits[1:, None]
    taken = embedding[places.clamp_max(embedding.shape[0] - 1)]
    return taken.masked_fill_(~there.unsqueeze(2), 0)


def _first_shape(
    row_splits: Tensor, embedding: Tensor, dim: int, values: int, seq_length: int
) -> Tensor:
    return embedding.new_empty((row_splits.shape[0] - 1, seq_length, dim))


def _first_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (row_splits,) = ctx.saved_tensors
    rows = torch.arange(grad.shape[0], device=grad.device)
    rows = ragged_rows(row_splits, rows, ctx.count)
    place = torch.arange(ctx.count, device=grad.device) - row_splits.index_select(0, rows)
    taken = grad.flatten(0, 1).index_select(0, rows * ctx.kept + place.clamp_max(ctx.kept - 1))
    return None, taken.masked_fill((place >= ctx.kept).unsqueeze(1), 0), None, None, None


def _pooling(
    name: str,
    forward: Callable[..., Any],
    device: Callable[..., Any],
    backward: Callable[..., Any],
) -> Any:
    return register(
        f"{name}(Tensor row_splits, Tensor embedding, int dim, SymInt values) -> Tensor",
        cpu=forward,
        plain=forward,
        device=device,
        shapes=_pooled_shape,
        backward=backward,
        keep=_keep,
    )


_SUM = _pooling("combine_sum", _sum, combine_sum_by_kernel, _sum_backward)
_MEAN = _pooling("combine_mean", _mean, combine_mean_by_kernel, _mean_backward)
_FIRST = register(
    "combine_first(Tensor row_splits, Tensor embedding, int dim, SymInt values, int seq_length) "
    "-> Tensor",
    cpu=_first,
    plain=_first,
    shapes=_first_shape,
    backward=_first_backward,
    keep=_keep,
)
