"""Holds back the row updates of several backwards, and applies them as one update."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..core import checks
from ..core.errors import InputError
from ..core.shapes import Float32, Int64
from .embedding_modules import EmbeddingModule, collections_of, ranks_of


@dataclass(frozen=True, slots=True, eq=False)
class TableGradients:
    """The summed gradients of the rows of one table. `counts` are the occurrences of each id.

    Changing `grads` in place changes the update.
    """

    table: str
    ids: Int64[Tensor, "n"]
    grads: Float32[Tensor, "n dim"]
    counts: Int64[Tensor, "n"]


class HeldUpdates:
    """Row updates of a model that wait, so that gradients can be clipped by their global norm."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._collections = collections_of(model)
        self._ranks = ranks_of(model)
        self._unscaled = False

    def row_gradients(self) -> list[TableGradients]:
        """Returns, for every table, the ids that have a gradient and the sum for each id.

        For a distributed model they are the gradients from all ranks for the rows that this rank
        owns. All ranks must call it.

        >>> import hedgerow as hr
        >>> bags = hr.EmbeddingBags([hr.Table("user", 1)])
        >>> with hr.hold_updates(bags) as held:
        ...     bags(hr.IdBatch.from_lists({"user": [[7, 8], [7]]}))["user"].sum().backward()
        ...     (user,) = held.row_gradients()
        >>> user.table, user.ids.tolist(), user.grads.tolist(), user.counts.tolist()
        ('user', [7, 8], [[2.0], [1.0]], [2, 1])
        """
        return [
            TableGradients(name, sums.keys.ids_of(k), sums.grads_of(k), sums.counts_of(k))
            for collection in self._collections
            for sums in [collection.updates.gradients()]
            for k, name in enumerate(collection.store.names)
        ]

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scales all gradients, dense and of rows, so that their total norm is at most `max_norm`.

        Returns the norm before. Call it once, after the last backward.
        """
        checks.setting("clip_grad_norm_", "max_norm", max_norm, least=0)
        dense = [p.grad for p in self._model.parameters() if p.grad is not None]
        rows = self._row_grads()
        every = [*dense, *rows]
        norm = _norm([*map(torch.linalg.vector_norm, dense), self._norm_of_rows(rows)])
        if norm == 0:
            return norm
        factor = (max_norm / norm.clamp(min=1e-30)).clamp(max=1.0)
        for grad in every:
            grad.mul_(factor)
        return norm

    def _row_grads(self) -> list[Tensor]:
        return [one.grads for one in self.row_gradients()]

    def _norm_of_rows(self, rows: list[Tensor]) -> Tensor:
        """Returns the norm over the rows of all ranks. `rows` are the gradients on this rank."""
        norm = _norm([torch.linalg.vector_norm(grad) for grad in rows])
        if self._ranks.count == 1:
            return norm
        total = self._ranks.total(norm.double().square().item()) ** 0.5
        return torch.tensor(total, device=norm.device)

    def unscale_(self, scaler: torch.amp.GradScaler) -> bool:
        """Divides row gradients by the scale, once. Returns whether all gradients are finite.

        A block that was given a `scaler` calls it at its end. To clip gradients, call it earlier,
        after the last backward and `scaler.unscale_(optimizer)`. Dense gradients are checked, too.
        """
        rows = self._row_grads()
        if not self._unscaled:
            self._unscaled = True
            for grad in rows:
                grad.div_(scaler.get_scale())
        dense = [p.grad for p in self._model.parameters() if p.grad is not None]
        bad = sum(not bool(torch.isfinite(grad).all()) for grad in [*dense, *rows])
        return self._ranks.total(bad) == 0  # one answer for all ranks


@contextmanager
def hold_updates(
    model: nn.Module, scaler: torch.amp.GradScaler | None = None
) -> Iterator[HeldUpdates]:
    """Collects the row gradients of all backwards in the block, and applies them once at its end.

    With a `scaler`, they are unscaled first. If any gradient of the model is not finite, they are
    discarded, as the scaler then skips the dense step, too. An error in the block discards them.

    >>> import hedgerow as hr
    >>> bags = hr.EmbeddingBags([hr.Table("user", 1)], init=hr.Zeros(), optimizer=hr.Sgd(lr=1.0))
    >>> batch = hr.IdBatch.from_lists({"user": [[7]]})
    >>> with hr.hold_updates(bags):
    ...     for _ in range(2):
    ...         bags(batch)["user"].sum().backward()
    >>> bags.eval()(batch)["user"].tolist(), bags.updates.step
    ([[-2.0]], 1)
    """
    collections = collections_of(model)
    if not collections:
        raise InputError("hold_updates of a model without EmbeddingBags or Embeddings.")
    held = HeldUpdates(model)
    _change(collections, 1)
    try:
        yield held
    except BaseException:
        _change(collections, -1)
        for one in collections:
            one.updates.drop()
        raise
    _change(collections, -1)
    if any(one.updates.held for one in collections):  # the outer block applies them
        return
    if scaler is not None and scaler.is_enabled() and not held.unscale_(scaler):
        for one in collections:
            one.updates.drop()
    _apply(collections)


def _apply(collections: list[EmbeddingModule]) -> None:
    try:
        for one in collections:
            one.updates.apply()
    except BaseException:
        for one in collections:
            one.updates.drop()
        raise


def _norm(norms: list[Tensor]) -> Tensor:
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())


def _change(collections: list[EmbeddingModule], by: int) -> None:
    for one in collections:
        one.updates.held += by
