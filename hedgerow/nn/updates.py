"""Row gradients between `backward()` and the one update at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from ..core.clock import Clock
from ..core.recycle import Recycler
from ..core.shapes import Float32, Int64
from ..tables.multi.host_tables import HostTables
from ..tables.store import TableKeys
from .clip import ClipRow
from .evictions import Evictions
from .reading import Reading


@dataclass(frozen=True, slots=True, eq=False)
class RowGradients:
    """Gradients of some rows of one table; `counts` says how often an id that stands once occurred.

    Without counts every occurrence stands for itself.
    """

    ids: Int64[Tensor, "n"]
    grads: Float32[Tensor, "n dim"]
    counts: Int64[Tensor, "n"] | None = None

    def summed(self) -> RowGradients:
        """Each id once, with the sum of its gradients.

        >>> two = RowGradients(torch.tensor([7, 7, 8]), torch.tensor([[3.0], [1.0], [0.5]]))
        >>> two.summed()
        RowGradients(ids=tensor([7, 8]), grads=tensor([[4.0000],
                [0.5000]]), counts=tensor([2, 1]))
        """
        return self if self.counts is not None else self.merged()

    def merged(self) -> RowGradients:
        """The same of gradients of which some are sums already."""
        unique, inverse = self.ids.unique(return_inverse=True)
        total = self.grads.new_zeros(len(unique), self.grads.shape[1])
        counts = torch.zeros_like(unique).index_add_(0, inverse, self.counts_or_ones())
        return RowGradients(unique, total.index_add_(0, inverse, self.grads), counts)

    def counts_or_ones(self) -> Int64[Tensor, "n"]:
        """How many occurrences each entry stands for."""
        return torch.ones_like(self.ids) if self.counts is None else self.counts


class _Backward:
    """What one running backward has collected. Only torch holds it: a failed one leaves nothing."""

    def __init__(self) -> None:
        self.found: list[tuple[Reading, tuple[Tensor | None, ...]]] = []


class RowUpdates:
    """Collects row gradients and applies them once, when a backward ends. Single-owner.

    `held` counts the blocks that hold updates back: then gradients add up until the last is left.
    `step` counts updates; schedules follow it. After an update, rows leave as the rules of the
    tables say.
    """

    def __init__(self, store: HostTables, clip: ClipRow | None, clock: Clock) -> None:
        self.held = 0
        self.step = 0
        self._store, self._clip, self._clock = store, clip, clock
        self._evict = Evictions(store.tables)
        self._waiting: list[tuple[Reading, tuple[Tensor | None, ...]]] = []
        self._merged: list[RowGradients] | None = None
        self._running: WeakValueDictionary[int, _Backward] = WeakValueDictionary()
        self._memory = Recycler()

    def collect(self, reading: Reading, grads: Sequence[Tensor | None]) -> None:
        """Called by autograd, once for every lookup that took part in the loss."""
        task = torch._C._current_graph_task_id()
        backward = self._running.get(task)
        if backward is None:
            backward = self._running[task] = _Backward()
            at_end = partial(self._end_of_backward, backward)
            torch.autograd.Variable._execution_engine.queue_callback(at_end)
        backward.found.append((reading, tuple(grads)))

    def _end_of_backward(self, backward: _Backward) -> None:
        self._waiting += backward.found
        backward.found = []
        if not self.held:
            self.apply()

    def gradients(self) -> list[RowGradients]:
        """What waits, of each table: every id once. Changing the gradients changes the update."""
        waiting = [one.summed() for one in self._of_tables()]
        self._waiting, self._merged = [], waiting
        return waiting

    def drop(self) -> None:
        """Forgets what waits."""
        self._waiting, self._merged = [], None

    def apply(self) -> None:
        """One optimizer step for every row that has a gradient."""
        by_table = self._of_tables()
        self.drop()
        if self._clip is not None:
            by_table = [self._clip(one.summed()) for one in by_table]
        splits = tuple(accumulate((len(one.ids) for one in by_table), initial=0))
        if not splits[-1]:
            return
        before_s, now_s = self._store.max_ts(), self._clock.now_s()
        counted = [one.counts for one in by_table if one.counts is not None]
        self._store.apply_gradients(
            TableKeys(_joined([one.ids for one in by_table]), splits),
            self._flat([one.grads for one in by_table]),
            step=self.step,
            ts=now_s,
            counts=_joined(counted) if counted else None,
        )
        self.step += 1
        self._evict(before_s, now_s)

    def _flat(self, grads: Sequence[Tensor]) -> Float32[Tensor, "floats"]:
        """Gradients of all tables as a store takes them; each is copied once, whatever its strides.

        In the memory of the update before: what the system gives anew costs more than the copy.
        """
        sizes = [grad.numel() for grad in grads]
        flat = self._memory.take(sum(sizes))[0]
        for part, grad in zip(flat.split(sizes), grads, strict=True):
            part.view(grad.shape).copy_(grad)
        return flat

    def _of_tables(self) -> list[RowGradients]:
        return [self._of_table(k, dim) for k, dim in enumerate(self._store.dims)]

    def _of_table(self, table: int, dim: int) -> RowGradients:
        """All that waits for one table, in the order of lookups and features."""
        ids: list[Tensor] = []
        grads: list[Tensor] = []
        for reading, given in self._waiting:
            for i, grad in enumerate(given):
                if grad is not None and reading.features[i].table == table:
                    ids.append(reading.ids_of(i))
                    grads.append(grad.float())
        merged = None if self._merged is None else self._merged[table]
        if not ids:
            return merged or RowGradients(torch.empty(0, dtype=torch.int64), torch.empty(0, dim))
        found = RowGradients(_joined(ids), _joined(grads))
        if merged is None:
            return found
        later = found.merged()
        return RowGradients(
            torch.cat([merged.ids, later.ids]),
            torch.cat([merged.grads, later.grads]),
            torch.cat([merged.counts_or_ones(), later.counts_or_ones()]),
        ).merged()


def _joined(parts: Sequence[Tensor]) -> Tensor:
    filled = [part for part in parts if len(part)]
    return filled[0] if len(filled) == 1 else torch.cat(filled or [parts[0]])
