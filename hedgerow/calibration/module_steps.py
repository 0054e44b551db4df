"""Training steps through a module over filled tables, as users run them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from itertools import pairwise

import torch
from torch import Tensor

from ..core.checks import CPU
from ..core.id_batch import Cut, IdBatch
from ..nn.embedding_modules import EmbeddingBags
from ..nn.prefetch import prefetch
from ..tables.config import Table
from ..tables.initializers import Zeros
from ..tables.module_store import ModuleStore
from ..tables.optimizers import Optimizer
from ..tables.store import TableKeys


class ModuleSteps:
    """Steps of `EmbeddingBags` over a store, with one feature per table; single-owner.

    A step makes an `IdBatch` of one id per bag and runs the forward pass, and the backward pass
    with the update. The caller passes the gradients of the vectors.

    >>> from hedgerow.tables.config import Segment, TableConfig
    >>> from hedgerow.tables.multi.host_tables import HostTables
    >>> from hedgerow.tables.optimizers import Sgd
    >>> rule = Sgd(lr=1.0)
    >>> store = HostTables({"user": TableConfig("user", (Segment(2, Zeros(), rule),))})
    >>> steps = ModuleSteps(store, rule)
    >>> steps.step(TableKeys.of_one(torch.tensor([7, 8])), torch.ones(4))
    >>> store.size(), steps.forward(TableKeys.of_one(torch.tensor([7])))[0].tolist()
    (2, [[-1.0, -1.0]])
    """

    def __init__(self, store: ModuleStore, optimizer: Optimizer) -> None:
        tables = [Table(name, dim) for name, dim in zip(store.names, store.dims, strict=True)]
        self._module = EmbeddingBags(tables, init=Zeros(), optimizer=optimizer)
        self._module.set_store(store)
        self.store = store
        self._offsets = torch.zeros(1, dtype=torch.int64, device=store.device)

    def batch(self, keys: TableKeys) -> IdBatch:
        """Returns the batch of one step; on a device, with the tables' splits known to the host."""
        if len(self._offsets) != len(keys.ids) + 1:
            self._offsets = torch.arange(len(keys.ids) + 1, device=keys.ids.device)
        cut = None if keys.ids.device == CPU else Cut(keys.splits, True)
        return IdBatch(self.store.names, keys.ids, self._offsets, None, cut)

    def forward(self, keys: TableKeys | IdBatch) -> list[Tensor]:
        """Returns the vectors of every table."""
        batch = keys if isinstance(keys, IdBatch) else self.batch(keys)
        return list(self._module(batch).values())

    def backward(self, vectors: list[Tensor], grads: Tensor) -> None:
        """Runs the backward pass and the update; `grads` is flat, table after table."""
        ends = [0]
        for vector in vectors:
            ends.append(ends[-1] + vector.numel())
        own = [grads[a:b].view_as(v) for (a, b), v in zip(pairwise(ends), vectors, strict=True)]
        torch.autograd.backward(vectors, own)

    def step(self, keys: TableKeys | IdBatch, grads: Tensor, square: Tensor | None = None) -> None:
        """Runs a training step; `square` is multiplied twice between forward and backward pass."""
        vectors = self.forward(keys)
        if square is not None:
            torch.mm(torch.mm(square, square), square)
        self.backward(vectors, grads)

    def run(
        self,
        steps: Iterable[TableKeys],
        grads: Tensor,
        *,
        square: Tensor | None = None,
        ahead: bool = False,
    ) -> None:
        """Runs steps one after the other; with `ahead`, `hr.prefetch` supplies the batches."""
        batches = (self.batch(keys) for keys in steps)
        with prefetch(self._module, batches) if ahead else nullcontext(batches) as given:
            for batch in given:
                self.step(batch, grads, square)
