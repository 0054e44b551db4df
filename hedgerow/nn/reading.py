"""What a module reads, as tensors that autograd knows, and what its update gets of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..core.shapes import Float32, Int64
from ..tables.bags import Feature, FeatureKeys, Gradients, Read
from ..tables.policy import PLAIN, ClipRow, UpdatePolicy
from ..tables.store import Learns, Lookup

Outputs = tuple[Tensor, ...]
Make = Callable[[], tuple[Outputs, Read | None]]
Collect = Callable[[Read, Sequence[Tensor | None]], None]


@dataclass(frozen=True, slots=True, eq=False)
class RowsRead:
    """Rows of all ids that a store read: those of each feature are an output."""

    store: Learns
    keys: FeatureKeys
    found: Lookup  # without its rows

    @staticmethod
    def of(store: Learns, keys: FeatureKeys, found: Lookup) -> tuple[Outputs, RowsRead]:
        """Return the outputs, and the lookup without its rows, which an update does not need."""
        return keys.rows(found), RowsRead(store, keys, replace(found, rows=found.rows[:0].clone()))

    @property
    def features(self) -> tuple[Feature, ...]:
        """The features, in the order of the outputs."""
        return self.keys.features

    @property
    def at(self) -> Lookup | None:
        """Where the rows were found."""
        return self.found

    def ids_of(self, i: int) -> Int64[Tensor, "n"]:
        """The ids of feature `i`."""
        return self.keys.ids_of(i)

    def key_gradients(self, i: int, grad: Tensor) -> Float32[Tensor, "n dim"]:
        """The gradient of each id of feature `i`: what came."""
        del i
        return grad.float()

    def learns(self, given: Sequence[Gradients], clip: float) -> bool:
        """One read, with a gradient of every feature."""
        del clip
        return len(given) == 1 and None not in given[0].grads

    def learn(self, given: Sequence[Gradients], *, clip: float, step: int, ts: int) -> None:
        """One optimizer step per id, where its row was found."""
        grads = [grad for grad in given[0].grads if grad is not None]
        flat = flat_gradients(grads, self._empty)
        policy = UpdatePolicy(clip=ClipRow(clip)) if clip else PLAIN
        self.store.apply_gradients(self.found, flat, step=step, ts=ts, policy=policy)

    def _empty(self, floats: int) -> Float32[Tensor, "floats"]:
        return torch.empty(floats, dtype=torch.float32, device=self.keys.keys.ids.device)


def flat_gradients(
    grads: Sequence[Tensor], room: Callable[[int], Tensor]
) -> Float32[Tensor, "floats"]:
    """Gradients of all tables as a store takes them; each is copied once, whatever its strides."""
    sizes = [grad.numel() for grad in grads]
    flat = room(sum(sizes))
    for part, grad in zip(flat.split(sizes), grads, strict=True):
        part.view(grad.shape).copy_(grad)
    return flat


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
