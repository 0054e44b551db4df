"""Row gradients between `backward()` and the one update at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from ..core.clock import Clock
from ..core.shapes import Float32
from ..tables.store import RowStore, TableKeys
from .clip import ClipRow
from .reading import Reading


@dataclass(frozen=True, slots=True, eq=False)
class Collected:
    """Gradients of one reading: those of features that took part in the loss."""

    reading: Reading
    grads: tuple[Tensor | None, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Gradients:
    ids: Tensor
    grads: Tensor
    counts: Tensor


_NOTHING = torch.empty(0, dtype=torch.int64)


class RowUpdates:
    """Collects row gradients and applies them once, when a backward ends. Single-owner.

    `held` counts the blocks that hold updates back: then gradients add up until the last is left.
    `step` counts updates; schedules follow it.
    """

    def __init__(self, store: RowStore, tables: int, clip: ClipRow | None, clock: Clock) -> None:
        self.held = 0
        self.step = 0
        self._store, self._tables, self._clip, self._clock = store, tables, clip, clock
        self._waiting: list[Collected] = []
        self._of_task: int | None = None

    def collect(self, reading: Reading, grads: Sequence[Tensor | None]) -> None:
        """Called by autograd, once for every lookup that took part in the loss."""
        task = torch._C._current_graph_task_id()
        if not self.held and task != self._of_task:
            self._waiting.clear()  # of a backward that failed before its end
            self._of_task = task
            torch.autograd.Variable._execution_engine.queue_callback(self._end_of_backward)
        self._waiting.append(Collected(reading, tuple(grads)))

    def _end_of_backward(self) -> None:
        self._of_task = None
        if not self.held:
            self.apply()

    def waiting(self) -> list[Float32[Tensor, "n dim"]]:
        """The gradients that wait; they may be changed in place, to scale or clip them."""
        return [grad for one in self._waiting for grad in one.grads if grad is not None]

    def drop(self) -> None:
        """Forgets what waits."""
        self._waiting.clear()

    def apply(self) -> None:
        """One optimizer step for every row that has a gradient."""
        collected, self._waiting = self._waiting, []
        if not collected:
            return
        by_table = [self._of_table(k, collected) for k in range(self._tables)]
        splits = tuple(accumulate((len(one.ids) for one in by_table), initial=0))
        if splits[-1]:
            keys = TableKeys(_joined([one.ids for one in by_table]), splits)
            grads = _joined([one.grads.view(-1) for one in by_table])
            counts = None if self._clip is None else _joined([one.counts for one in by_table])
            now = self._clock.now_s()
            self._store.apply_gradients(keys, grads, step=self.step, ts=now, counts=counts)
        self.step += 1

    def _of_table(self, table: int, collected: Sequence[Collected]) -> _Gradients:
        """The gradients of one table, in the order of lookups and features."""
        ids: list[Tensor] = []
        grads: list[Tensor] = []
        for one in collected:
            for i, grad in enumerate(one.grads):
                if grad is not None and one.reading.features[i].table == table and len(grad):
                    ids.append(one.reading.ids_of(i))
                    grads.append(grad.float())
        if not ids:
            return _Gradients(_NOTHING, torch.empty(0), _NOTHING)
        found = _joined(ids), _joined(grads)
        if self._clip is None:
            return _Gradients(*found, _NOTHING)
        return _Gradients(*self._clip.summed(*found))


def _joined(parts: Sequence[Tensor]) -> Tensor:
    filled = [part for part in parts if len(part)]
    return filled[0].contiguous() if len(filled) == 1 else torch.cat(filled or [parts[0]])
