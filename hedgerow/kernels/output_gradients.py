"""Gradients of the outputs of several features, read in place.

An update needs the gradient of every occurrence of an id: the gradient of its bag, times the weight
of the id, divided by the divisor of the bag. Kernels compute it while they sum equal ids. So the
gradients of the features are neither concatenated nor expanded to every id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.shapes import Float32, Int32, Int64
from .toolchain import jit, tl

FLAT, STRIDED, DENSE = 0, 1, 2  # one row per occurrence; any strides; contiguous, aligned
PLACE = 4  # numbers per feature that locate its gradient
_FLAT, _DENSE = tl.constexpr(FLAT), tl.constexpr(DENSE)
_PLACE = tl.constexpr(PLACE)


@dataclass(frozen=True, slots=True, eq=False)
class Occurrences:
    """The output vector of each occurrence of a batch, and its factors.

    `rows[i]` is `feature * room + row`, where `row` numbers the output vectors of a feature. With
    -1 the occurrence is in no output, and its gradient is zero. Without `rows` every feature has
    `room` occurrences, and each is an output vector of its own.
    """

    room: int  # at least the output vectors of one feature
    rows: Int32[Tensor, "n"] | None = None
    divisors: Float32[Tensor, "n"] | None = None  # of the sums of the bags
    weights: Float32[Tensor, "n"] | None = None
    # For max pooling: the occurrence that each value of the output vectors comes from.
    largest: Int32[Tensor, "vectors dim"] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class OutputGradients:
    """The gradients of one lookup, by address and stride.

    `places` has four numbers per feature: the start of its gradient in floats from `base`, the
    stride between output vectors, the stride between columns, and the feature's first row in
    `largest` (-1 if it has none). In the form `DENSE` the first two are in units of four floats.
    """

    base: Float32[Tensor, "..."]
    places: Int64[Tensor, "F 4"]
    at: Occurrences
    n: int
    dim: int
    form: int
    held: tuple[Tensor, ...]  # tensors kept alive for the addresses

    @property
    def shape(self) -> tuple[int, int]:
        """Occurrences and columns, like the shape of a tensor with one gradient per occurrence."""
        return self.n, self.dim

    @property
    def device(self) -> torch.device:
        """The device of the gradients."""
        return self.base.device

    @staticmethod
    def of(
        grads: Sequence[Tensor | None],
        at: Occurrences,
        n: int,
        dim: int,
        firsts: Sequence[int],
        on_device: Callable[[Sequence[int]], Int64[Tensor, "numbers"]],
    ) -> OutputGradients:
        """Builds the features' gradients from float32 tensors, of which at least one is not None.

        `firsts` are the first rows of the features in `at.largest`. `on_device` copies numbers to
        the device. A gradient is copied only if its output vectors do not have one stride.
        """
        numbers: list[int] = []
        held: list[Tensor] = []
        dense = dim % 4 == 0
        for grad, first in zip(grads, firsts, strict=True):
            if grad is None:
                numbers += (0, 0, 0, -1)
                continue
            grad, stride = _as_vectors(grad, dim)
            address, column = grad.data_ptr(), grad.stride(-1)
            if grad.numel():  # an empty tensor may have any address
                dense = dense and column == 1 and not (address % 16 or stride % 4)
                numbers += (address, stride, column, first)
            else:
                numbers += (0, 0, 0, first)
            held.append(grad)
        base = next((grad for grad in held if grad.numel()), held[0])
        start, words = base.data_ptr(), 4 if dense else 1
        for i in range(0, len(numbers), PLACE):
            if numbers[i]:
                numbers[i] = (numbers[i] - start) // (4 * words)
                numbers[i + 1] //= words
        form = DENSE if dense else STRIDED
        places = on_device(numbers).view(-1, PLACE)
        return OutputGradients(base, places, at, n, dim, form, tuple(held))


def _as_vectors(grad: Tensor, dim: int) -> tuple[Tensor, int]:
    """Returns a gradient whose output vectors have one stride, and that stride."""
    if grad.dim() == 2:
        return grad, grad.stride(0)
    outer, inner = grad.stride(0), grad.stride(1)
    if outer == inner * grad.shape[1] or grad.shape[0] <= 1:
        return grad, inner
    if grad.shape[1] == 1:
        return grad, outer
    return grad.reshape(-1, dim), dim


def arguments(grads: Float32[Tensor, "n dim"] | OutputGradients) -> tuple[Any, ...]:
    """Returns the kernel arguments: base, places, rows, divisors, weights, largest, room."""
    if isinstance(grads, Tensor):
        return grads, None, None, None, None, None, 1
    at = grads.at
    return (
        *(grads.base, grads.places, at.rows, at.divisors, at.weights, at.largest),
        max(at.room, 1),
    )


def form_of(grads: Float32[Tensor, "n dim"] | OutputGradients) -> int:
    """Returns the form in which kernels read these gradients."""
    return FLAT if isinstance(grads, Tensor) else grads.form


@jit
def gradient_at(
    grads: tl.tuple,
    source: tl.tensor,
    live: tl.tensor,
    column: tl.tensor,
    inside: tl.tensor,
    WIDTH: tl.constexpr,
    FORM: tl.constexpr,
) -> tl.tensor:
    """Returns the gradient of each `live` occurrence `source` in these columns; 0 elsewhere.

    Sources and columns broadcast: a column of sources and a row of columns give a block.
    """
    base, places, rows, divisors, weights, largest, room = grads
    if FORM == _FLAT:
        return tl.load(base + source * WIDTH + column, mask=live & inside, other=0.0)
    else:  # noqa: RET505 (Triton wants both arms)
        row = source.to(tl.int32)
        if rows is not None:
            row = tl.load(rows + source, mask=live, other=-1)
        there = live & (row >= 0)
        feature = tl.where(there, row // room, 0)
        row = tl.where(there, row - feature * room, 0).to(tl.int64)
        place = places + feature * _PLACE
        begin, stride = tl.load(place), tl.load(place + 1)
        if FORM == _DENSE:  # in fours, so that the compiler knows the 16-byte alignment
            at = (begin + row * stride) * 4 + column
        else:
            at = begin + row * stride + column * tl.load(place + 2)
        grad = tl.load(base + at, mask=there & inside, other=0.0)
        if largest is not None:
            first = tl.load(place + 3)
            picked = there & inside & (first >= 0)
            which = tl.load(largest + (first + row) * WIDTH + column, mask=picked, other=-1)
            grad = tl.where(picked & (which != source.to(tl.int32)), 0.0, grad)
        if divisors is not None:
            divisor = tl.load(divisors + source, mask=there, other=1.0)
            grad = tl.div_rn(grad, tl.zeros_like(grad) + divisor)
        if weights is not None:
            grad = grad * tl.load(weights + source, mask=live, other=0.0)
        return grad
