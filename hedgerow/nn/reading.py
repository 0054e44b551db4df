"""What a module reads, as tensors that autograd knows, and what its update gets of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..core.shapes import Float32, Int64
from ..tables.bags import Feature, FeatureKeys, Read
from ..tables.store import Lookup

Outputs = tuple[Tensor, ...]
Make = Callable[[], tuple[Outputs, Read | None]]
Collect = Callable[[Read, Sequence[Tensor | None]], None]


@dataclass(frozen=True, slots=True, eq=False)
class RowsRead:
    """Rows of all ids that a store read: those of each feature are an output.

    The store itself learns, `at` the lookup, which has no rows any more.
    """

    keys: FeatureKeys
    at: Lookup
    learner: None = None

    @staticmethod
    def of(keys: FeatureKeys, found: Lookup) -> tuple[Outputs, RowsRead]:
        """Return the outputs, and the lookup without its rows, which an update does not need."""
        return keys.rows(found), RowsRead(keys, replace(found, rows=found.rows[:0].clone()))

    @property
    def features(self) -> tuple[Feature, ...]:
        """The features, in the order of the outputs."""
        return self.keys.features

    def ids_of(self, i: int) -> Int64[Tensor, "n"]:
        """The ids of feature `i`."""
        return self.keys.ids_of(i)

    def key_gradients(self, i: int, grad: Tensor) -> Float32[Tensor, "n dim"]:
        """The gradient of each id of feature `i`: what came."""
        del i
        return grad.float()


class Collected(torch.autograd.Function):
    """Outputs whose gradients are collected instead of flowing on.

    The anchor is an empty tensor that requires a gradient: without an input that does, autograd
    would not come back here. It is no Parameter, so optimizers and DDP never see it.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, make: Make, collect: Collect) -> Outputs:
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
