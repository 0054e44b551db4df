"""Collects row gradients during backward(), applies them at its end, and then evicts rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, runtime_checkable
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from ..core import checks
from ..core.clock import Clock
from ..core.recycle import Recycler
from ..core.shapes import Float32
from ..tables.eviction import Eviction, Lfu, Lru, Ttl
from ..tables.module_store import Gradients, ModuleStore, ReadRecord
from ..tables.store import ClipRow, Joined, Lookup, SummedGradients, TableKeys, UpdatePolicy

if TYPE_CHECKING:
    from ..tables.host import HostTable


# Eviction runs once the rows exceed the limit by one eighth, or once per eighth of the age. A scan
# of all rows for each row above the limit would cost more than the update. A smaller part means
# more scans. A larger part means that rows stay longer.
_SHARE = 8


@runtime_checkable
class SizeBound(Protocol):
    """A table with an upper bound of its size that is known without waiting for the device."""

    def size_at_most(self) -> int:
        """Returns an upper bound of the number of rows."""
        ...


class Evictions:
    """Runs the eviction rules of tables when they are due.

    It has no state, so a resumed run evicts like an uninterrupted one. A rule of size is due when a
    table holds an eighth more rows than the rule allows. Over ranks, each shard may keep its share
    of these rows. A rule of age is due once per eighth of the age: when the clock has entered a new
    such period since the newest update of the tables.
    """

    def __init__(self, tables: Sequence[HostTable], rank: int = 0, ranks: int = 1) -> None:
        self._tables = [table for table in tables if table.config.evict is not None]
        self._rank, self._ranks = rank, ranks

    def __bool__(self) -> bool:
        """Returns whether any table has a rule."""
        return bool(self._tables)

    def __call__(self, before_s: int, now_s: int) -> None:
        """Runs the rules that are due after an update at `now_s`, the last being at `before_s`."""
        for table in self._tables:
            rule = table.config.evict
            rows = self._share(rule.rows) if isinstance(rule, Lru | Lfu) else None
            if _is_due(rule, table, rows, before_s, now_s):
                _ = table.evict() if rows is None else table.evict(rows=rows)

    def _share(self, rows: int) -> int:
        """Returns this rank's share of the rows that all shards together may keep."""
        return max(1, rows // self._ranks + (self._rank < rows % self._ranks))


def _is_due(
    rule: Eviction | None, table: HostTable, rows: int | None, before_s: int, now_s: int
) -> bool:
    if rows is not None:
        most = rows + rows // _SHARE
        # Counting the rows of a table on a device waits for it.
        may_be = table.size_at_most() if isinstance(table, SizeBound) else table.size()
        return may_be > most and table.size() > most
    if isinstance(rule, Ttl):
        period_s = max(1, rule.shortest_s() // _SHARE)
        return before_s // period_s != now_s // period_s
    return False


class _Learn(Protocol):
    """Makes one update of the rows."""

    def __call__(self, *, step: int, ts: int) -> object: ...


class _Backward:
    """The gradients that one running backward has collected.

    Only torch holds a reference to it, so a backward that fails leaves nothing behind.
    """

    def __init__(self) -> None:
        self.found: list[Gradients] = []


class RowUpdates:
    """Collects row gradients, and applies them once at the end of a backward. Not thread-safe.

    `held` counts the open blocks that hold updates back; gradients are added up until the last
    block ends. `step` counts updates; schedules and bias corrections depend on it. A backward whose
    gradients are those of no ids counts as an update, as with torch's sparse optimizers. A backward
    without any gradient does not. After an update, rows are evicted by the rules of the tables.

    If rows are spread over ranks, an update is a collective of all ranks. `gradients` and `apply`
    then take part even if this rank has no gradients. The first gradient of a backward makes all
    modules in `together` take part at its end, in their order.
    """

    def __init__(self, store: ModuleStore, clip: ClipRow | None, clock: Clock) -> None:
        self.held = 0
        self.step = 0
        self._clock, self._policy = clock, UpdatePolicy(clip=clip)
        self._clip = 0.0 if clip is None else clip.norm
        self._waiting: list[Gradients] = []
        self._merged: SummedGradients | None = None
        self._running: WeakValueDictionary[int, _Backward] = WeakValueDictionary()
        self._memory = Recycler()
        self.set_store(store, Evictions(store.tables), (self,))

    def set_store(
        self, store: ModuleStore, evict: Evictions, together: Sequence[RowUpdates]
    ) -> None:
        """Replaces the store that is updated, and the eviction that follows an update."""
        self._store, self._evict, self._together = store, evict, together

    @property
    def store(self) -> ModuleStore:
        """The store whose rows are updated."""
        return self._store

    def collect(self, read: ReadRecord, grads: Sequence[Tensor | None]) -> None:
        """Takes gradients from autograd, once for every read that took part in the loss."""
        task = torch._C._current_graph_task_id()
        if task not in self._running:
            for one in self._together:
                one._open(task)
        for grad in grads:  # not `None in grads`: torch would compare each of them with None
            if grad is not None:
                self._running[task].found.append(Gradients(read, tuple(grads)))
                return

    def _open(self, task: int) -> None:
        backward = self._running[task] = _Backward()
        at_end = partial(self._end_of_backward, backward)
        torch.autograd.Variable._execution_engine.queue_callback(at_end)

    def _end_of_backward(self, backward: _Backward) -> None:
        self._waiting += backward.found
        backward.found = []
        if not self.held:
            self.apply()

    def gradients(self) -> SummedGradients:
        """Returns the gradients that wait to be applied, summed per id.

        Changing them in place changes the update. Over ranks, they are the gradients from all ranks
        for the rows that this rank owns.
        """
        merged = self._sums()
        self._waiting, self._merged = [], merged
        return merged

    def drop(self) -> None:
        """Discards the gradients that wait to be applied."""
        self._waiting, self._merged = [], None

    def apply(self) -> None:
        """Makes one optimizer step for every row that has a gradient."""
        if self._merged is not None:
            merged = self._sums()
            self.drop()
            if merged.given:
                self._step(partial(self._learn_sums, merged))
            return
        waiting = self._waiting
        self.drop()
        learner = waiting[0].read.learner if waiting else None
        if not waiting:
            self._step(partial(self._store.take_part, policy=self._policy))
        elif learner is not None and learner.learns(waiting, self._clip):
            self._step(partial(learner.learn, waiting, clip=self._clip))
        else:
            self._step(partial(self._learn, waiting))

    def _step(self, learn: _Learn) -> None:
        evicts = bool(self._evict)
        before_s = self._store.max_ts() if evicts else 0
        now_s = self._clock.now_s()
        if learn(step=self.step, ts=now_s) is False:  # no process has any gradient
            return
        self.step += 1
        if evicts:
            self._evict(before_s, now_s)

    def _learn(self, waiting: Sequence[Gradients], *, step: int, ts: int) -> object:
        at, grads = self._joined(waiting)
        return self._store.apply_gradients(at, grads, step=step, ts=ts, policy=self._policy)

    def _learn_sums(self, sums: SummedGradients, *, step: int, ts: int) -> object:
        return self._store.apply_gradients(
            sums.at, sums.grads, counts=sums.counts, step=step, ts=ts, policy=self._policy
        )

    def _sums(self) -> SummedGradients:
        """Returns the sum of all gradients that wait, including those summed by an earlier call."""
        at, grads = self._joined(self._waiting)
        found = self._store.summed_gradients(at, grads, given=bool(self._waiting))
        return found if self._merged is None else self._merged.with_later(found)

    def _joined(self, waiting: Sequence[Gradients]) -> tuple[TableKeys | Lookup, Tensor]:
        """Returns the keys and the gradients of all reads that wait.

        The gradients are table after table; within a table, in the order of reads and features.
        """
        found = list[Lookup]()
        by_table: dict[int, list[Tensor]] = {}
        for one in waiting:
            whole = True
            for i, (feature, grad) in enumerate(zip(one.read.features, one.grads, strict=True)):
                whole = whole and grad is not None
                if grad is not None:
                    own = by_table.setdefault(feature.table, [])
                    own.append(one.read.key_gradients(i, grad))
            found.append(one.read.at if whole else one.at)
        grads = list[Tensor]()
        for k in sorted(by_table):
            grads += by_table[k]
        flat = self._flat(grads)
        if found:
            return found[0] if len(found) == 1 else Joined.of(found), flat
        nothing = torch.empty(0, dtype=torch.int64, device=self._store.device)
        return TableKeys(nothing, (0,) * (len(self._store.names) + 1)), flat

    def _flat(self, grads: Sequence[Tensor]) -> Float32[Tensor, "floats"]:
        """Returns the gradients in one flat tensor. Each is copied once, whatever its strides.

        In host memory the tensor of the previous update is reused: new memory from the system costs
        more than the copy. On a device torch reuses memory by itself.
        """
        floats, device = 0, self._store.device
        for grad in grads:
            floats += grad.numel()
        if device == checks.CPU:
            flat = self._memory.take(floats)[0]
        else:
            flat = torch.empty(floats, dtype=torch.float32, device=device)
        start = 0
        for grad in grads:
            flat[start : start + grad.numel()].view(grad.shape).copy_(grad)
            start += grad.numel()
        return flat
