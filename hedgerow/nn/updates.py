"""Row gradients between `backward()` and the one update at its end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Protocol
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from ..core import checks
from ..core.clock import Clock
from ..core.errors import NotFiniteError
from ..core.recycle import Recycler
from ..core.shapes import Float32, Int64
from ..sharding.brought import Brought
from ..sharding.exchange import Exchange
from ..tables.bags import Gradients, Read
from ..tables.leave_order import one_call
from ..tables.module_store import ModuleStore
from ..tables.store import Lookup, TableKeys
from .clip import ClipRow
from .evictions import Evictions
from .reading import flat_gradients


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

    def with_later(self, later: RowGradients) -> RowGradients:
        """Each id once, of these and of others."""
        if not len(later.ids):
            return self
        later = later.merged()
        return RowGradients(
            torch.cat([self.ids, later.ids]),
            torch.cat([self.grads, later.grads]),
            torch.cat([self.counts_or_ones(), later.counts_or_ones()]),
        ).merged()

    def counts_or_ones(self) -> Int64[Tensor, "n"]:
        """How many occurrences each entry stands for."""
        return torch.ones_like(self.ids) if self.counts is None else self.counts


class OverRanks(ModuleStore, Protocol):
    """A store whose rows are spread over ranks: gradients are brought to their owners first."""

    @property
    def exchange(self) -> Exchange:
        """The ranks."""
        ...

    def bring_gradients(
        self,
        at: TableKeys | Lookup,
        grads: Tensor,
        *,
        counts: Tensor | None = None,
        finite: bool = True,
        given: bool = False,
    ) -> Brought:
        """Gradients of all ranks for the rows of this one."""
        ...


class _Learn(Protocol):
    """One update of the rows."""

    def __call__(self, *, step: int, ts: int) -> None: ...


class _Backward:
    """What one running backward has collected. Only torch holds it: a failed one leaves nothing."""

    def __init__(self) -> None:
        self.found: list[Gradients] = []


class RowUpdates:
    """Collects row gradients and applies them once, when a backward ends. Single-owner.

    `held` counts the blocks that hold updates back: then gradients add up until the last is left.
    `step` counts updates; schedules and bias corrections follow it. An update in which no id has a
    gradient counts if autograd gave one, of no rows, as with torch's sparse optimizers. After an
    update, rows leave as the rules of the tables say.

    Over ranks (`spread`) gradients first go to the owners of their rows. That is a collective of
    all ranks: `gradients` and `apply` take part also where nothing waits, and the first gradient of
    a backward makes every module of the model take part at its end, in the order of modules.
    """

    def __init__(self, store: ModuleStore, clip: ClipRow | None, clock: Clock) -> None:
        self.held = 0
        self.step = 0
        self._store, self._device = store, store.device
        self._clip, self._clock = clip, clock
        self._over: OverRanks | None = None
        self._model: Sequence[RowUpdates] = (self,)
        self._evict = Evictions(store.tables)
        self._waiting: list[Gradients] = []
        self._merged: list[RowGradients] | None = None
        self._some = False  # of what is merged: whether any rank gave a gradient, of rows or none
        self._uses: list[int] = []  # of what ranks brought since the last update, in each table
        self._running: WeakValueDictionary[int, _Backward] = WeakValueDictionary()
        self._memory = Recycler()

    def spread(self, over: OverRanks, model: Sequence[RowUpdates]) -> None:
        """Rows are those of all ranks from now on; `model` are the updates of all its modules."""
        self._over, self._model = over, model
        self._evict = Evictions(over.tables, over.exchange.rank, over.exchange.ranks)

    def set_store(self, store: ModuleStore) -> None:
        """Rows are in another store from now on. Servers make a step of every update of this
        process, and run no rule of eviction for it.
        """
        self._store, self._device, self._evict = store, store.device, Evictions(store.tables)

    @property
    def store(self) -> ModuleStore:
        """Where rows learn."""
        return self._store

    def collect(self, read: Read, grads: Sequence[Tensor | None]) -> None:
        """Called by autograd, once for every read that took part in the loss."""
        task = torch._C._current_graph_task_id()
        if task not in self._running:
            for one in self._model:
                one._open(task)
        self._running[task].found.append(Gradients(read, tuple(grads)))

    def _open(self, task: int) -> None:
        backward = self._running[task] = _Backward()
        at_end = partial(self._end_of_backward, backward)
        torch.autograd.Variable._execution_engine.queue_callback(at_end)

    def _end_of_backward(self, backward: _Backward) -> None:
        self._waiting += backward.found
        backward.found = []
        if not self.held:
            self.apply()

    def gradients(self) -> list[RowGradients]:
        """What waits, of each table: every id once. Changing the gradients changes the update.

        Over ranks: of the rows of this rank, what all ranks gave.
        """
        waiting, some = self._of_tables()
        merged = [one.merged() if self._over is not None else one.summed() for one in waiting]
        self._waiting, self._merged, self._some = [], merged, some
        return merged

    def drop(self) -> None:
        """Forgets what waits."""
        self._waiting, self._merged, self._some, self._uses = [], None, False, []

    def apply(self) -> None:
        """One optimizer step for every row that has a gradient."""
        clip = 0.0 if self._clip is None else self._clip.norm
        waiting = self._waiting
        if self._over is None and self._merged is None and any(one.are_some for one in waiting):
            read = waiting[0].read
            if read.learns(waiting, clip):
                self.drop()
                self._step(partial(read.learn, waiting, clip=clip))
                return
        by_table, some = self._of_tables(refuse=True)
        uses = self._uses
        self.drop()
        if not some:  # on all ranks
            return
        if self._clip is not None:
            summed = [one.merged() if self._over is not None else one.summed() for one in by_table]
            by_table = [self._clip(one) for one in summed]
        self._step(partial(self._write, by_table, uses))

    def _step(self, learn: _Learn) -> None:
        before_s = self._store.max_ts() if self._evict else 0
        now_s = self._clock.now_s()
        learn(step=self.step, ts=now_s)
        self.step += 1
        self._evict(before_s, now_s)

    def _write(
        self, by_table: Sequence[RowGradients], uses: Sequence[int], *, step: int, ts: int
    ) -> None:
        splits = tuple(accumulate((len(one.ids) for one in by_table), initial=0))
        counted = [one.counts for one in by_table if one.counts is not None]
        with self._one_call_of_all_ranks(uses, ts):
            if splits[-1]:
                self._store.apply_gradients(
                    TableKeys(_joined([one.ids for one in by_table]), splits),
                    self._flat([one.grads for one in by_table]),
                    step=step,
                    ts=ts,
                    counts=_joined(counted) if counted else None,
                )

    def _one_call_of_all_ranks(self, uses: Sequence[int], ts: int) -> ExitStack:
        """Around the part of an update that is this rank's: shards of one table count alike.

        Otherwise rows of two shards, which a load may bring together, would not compare.
        """
        calls = ExitStack()
        if self._over is not None:
            for table, n in zip(self._over.tables, uses, strict=True):
                if n:
                    calls.enter_context(one_call(table.order, ts, n))
        return calls

    def _flat(self, grads: Sequence[Tensor]) -> Float32[Tensor, "floats"]:
        """In the memory of the update before: what the system gives anew costs more than the copy.

        The memory of a device is kept by torch.
        """
        if self._device != checks.CPU:
            device = self._device
            return flat_gradients(
                grads, lambda n: torch.empty(n, dtype=torch.float32, device=device)
            )
        return flat_gradients(grads, lambda n: self._memory.take(n)[0])

    def _of_tables(self, *, refuse: bool = False) -> tuple[list[RowGradients], bool]:
        """What waits and what was merged before; whether there is any, on any rank.

        `refuse`: what is not finite on any rank raises on all of them, and is dropped.
        """
        if self._over is None:
            found = [self._of_table(k, dim) for k, dim in enumerate(self._store.dims)]
            some = self._given()
        else:
            found, some = self._from_ranks(self._over, refuse)
        if self._merged is not None:
            pairs = zip(self._merged, found, strict=True)
            found = [merged.with_later(one) for merged, one in pairs]
            some = some or self._some
        return found, some

    def _given(self) -> bool:
        """Whether autograd gave a gradient here since the last update."""
        return any(one.are_some for one in self._waiting)

    def _of_table(self, table: int, dim: int) -> RowGradients:
        """All that waits for one table, in the order of lookups and features."""
        ids: list[Tensor] = []
        grads: list[Tensor] = []
        for one in self._waiting:
            for i, grad in enumerate(one.grads):
                if grad is not None and one.read.features[i].table == table:
                    ids.append(one.read.ids_of(i))
                    grads.append(one.read.key_gradients(i, grad))
        if not ids:
            nothing = torch.empty(0, dim, dtype=torch.float32, device=self._device)
            return RowGradients(nothing.new_empty(0, dtype=torch.int64), nothing)
        return RowGradients(_joined(ids), _joined(grads))

    def _from_ranks(self, over: OverRanks, refuse: bool) -> tuple[list[RowGradients], bool]:
        """What all ranks have for the rows of this one; whether any of them has anything."""
        brought = self._brought(over)
        if refuse and brought.not_finite:
            self.drop()
            raise NotFiniteError(
                f"row gradients that came from rank {', '.join(map(str, brought.not_finite))} have "
                f"a NaN or an infinity; no row was changed on any rank. Find its source, or leave "
                f"such steps out with hr.hold_updates(model, scaler)."
            )
        sizes = [stop - start for start, stop in pairwise(brought.keys.splits)]
        dims = self._store.dims
        floats = [n * dim for n, dim in zip(sizes, dims, strict=True)]
        parts = brought.grads.split(floats), brought.counts.split(sizes)
        found = [
            RowGradients(brought.keys.ids_of(k), grads.view(-1, dims[k]), counts)
            for k, (grads, counts) in enumerate(zip(*parts, strict=True))
        ]
        before = self._uses or [0] * len(dims)
        self._uses = [one + more for one, more in zip(before, brought.uses, strict=True)]
        return found, brought.given

    def _brought(self, over: OverRanks) -> Brought:
        """Of what waits, and of nothing else."""
        finite = all(bool(one.grads.isfinite().all()) for one in self._merged or ())
        whole = self._waiting[0] if len(self._waiting) == 1 else None
        at = None if whole is None else whole.read.at
        if whole is not None and at is not None and whole.are_whole:
            grads = [grad for grad in whole.grads if grad is not None]
            return over.bring_gradients(at, self._flat(grads), finite=finite, given=True)
        mine = [self._of_table(k, dim) for k, dim in enumerate(self._store.dims)]
        splits = tuple(accumulate((len(one.ids) for one in mine), initial=0))
        keys = TableKeys(_joined([one.ids for one in mine]), splits)
        flat, given = self._flat([one.grads for one in mine]), self._given()
        return over.bring_gradients(keys, flat, finite=finite, given=given)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    filled = [part for part in parts if len(part)]
    return filled[0] if len(filled) == 1 else torch.cat(filled or [parts[0]])
