"""Tables by slot name with one shard per rank, and the queues around the steps of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any, Generic, NoReturn, TypeVar

from torch import Tensor

from ...core import checks
from ...core.errors import InputError, NotSupportedError
from ...core.shapes import Float32, Int64
from ...routing.router import Router
from ...sharding.all_to_all_tables import AllToAllTables, PendingLookup
from ...sharding.exchange import Exchange
from ...sharding.pipeline import Delayed, Item, Prefetch
from ...tables.store import Applied, Lookup
from .multi_type import MultiTypeTable, NativeMultiTable
from .slot_tables import SlotIds, SlotRows, StoreFront

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class QueueDepths:
    """Capacities of the queues; 0 is off.

    >>> QueueDepths.of({"embedding_prefetch_capacity": 2}).embedding_prefetch_capacity
    2
    """

    embedding_prefetch_capacity: int = 0  # after rows are received: lookups run ahead
    enable_pipelined_fwda2a: int = 0  # between the owners' lookup and the exchange of rows
    enable_async_optimize: int = 0  # between gradients and their exchange
    enable_pipelined_bwda2a: int = 0  # between the exchange of gradients and the update
    post_push: int = 0  # gradients are sent to servers during the next step

    @staticmethod
    def of(queue_configs: Mapping[str, int | None] | None) -> QueueDepths:
        """Builds the value from names and capacities. None, or a capacity of None or 0, is off."""
        if queue_configs is None:
            return QueueDepths()
        if not isinstance(queue_configs, Mapping):
            raise InputError(
                f"queue_configs is {queue_configs!r}; give a dict of names and capacities."
            )
        known = [one.name for one in fields(QueueDepths)]
        for name in queue_configs:
            if name not in known:
                raise InputError(
                    f"queue_configs has {name!r}; queues are named {', '.join(known)}."
                )
        given = {name: depth for name, depth in queue_configs.items() if depth is not None}
        return QueueDepths(
            **{name: checks.count(f"queue_configs[{name!r}]", n) for name, n in given.items()}
        )


@dataclass(frozen=True, slots=True)
class BatchSteps(Generic[A, B]):
    """Steps of a batch: `start` a lookup, `arrive` with rows, `send` gradients, `update` rows.

    Each takes an item that carries its step and time.
    """

    start: Callable[[Item[A]], Any]
    arrive: Callable[[Item[Any]], B]
    send: Callable[[Item[Any]], Any]
    update: Callable[[Item[Any]], object]


class Queues(Generic[A, B]):
    """The queues of one table: lookups ahead of training, and updates behind it.

    Updates run in the caller's thread, in the order of the puts, so that all ranks exchange in the
    same order; with `post_push` they run in one other thread. Lookups ahead with exchanges need a
    separate process group.

    >>> done = []
    >>> steps = BatchSteps(
    ...     lambda item: item.value, lambda item: item.value * 10, lambda item: item.value,
    ...     lambda item: done.append((item.value, item.step)),
    ... )
    >>> depths = QueueDepths(embedding_prefetch_capacity=1, enable_async_optimize=1)
    >>> with Queues(depths, steps) as queues:
    ...     with queues.ahead([Item(1, step=0), Item(2, step=1)]) as ahead:
    ...         for item in ahead:
    ...             queues.put(item)
    ...             print(item.value, done)
    10 []
    20 [(10, 0)]
    >>> done
    [(10, 0), (20, 1)]
    """

    def __init__(self, depths: QueueDepths, steps: BatchSteps[A, B]) -> None:
        self.depths, self._steps = depths, steps
        self.updating: Delayed[Any] = Delayed(
            steps.update, depths.enable_pipelined_bwda2a, background=False
        )
        beside = depths.post_push > 0
        self.optimizing: Delayed[Any] = Delayed(
            self._send, depths.enable_async_optimize + depths.post_push, background=beside
        )

    def __enter__(self) -> Queues[A, B]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.drain()
        self.close()

    def ahead(self, source: Iterable[Item[A]]) -> QueuedBatches[A, B]:
        """Returns batches with their rows, looked up ahead as far as the queues allow."""
        return QueuedBatches(source, self.depths, self._steps)

    def put(self, item: Item[Any]) -> None:
        """Adds the gradients of a batch. The queues decide when they reach the rows."""
        self.optimizing.put(item)

    def drain(self) -> None:
        """Finishes everything in the queues."""
        self.optimizing.drain()
        self.updating.drain()

    def close(self) -> None:
        """Ends the thread. What is still in the queues is lost."""
        self.optimizing.close(drain=False)
        self.updating.close(drain=False)

    def _send(self, item: Item[Any]) -> None:
        self.updating.put(Item(self._steps.send(item), item.step, item.ts))


class QueuedBatches(Prefetch[Any, B], Generic[A, B]):
    """Two queues in sequence: started lookups, and received rows."""

    def __init__(
        self, source: Iterable[Item[A]], depths: QueueDepths, steps: BatchSteps[A, B]
    ) -> None:
        self.started = Prefetch(source, steps.start, depths.enable_pipelined_fwda2a)
        super().__init__(self.started, steps.arrive, depths.embedding_prefetch_capacity)

    def close(self) -> None:
        """Stops both queues."""
        super().close()
        self.started.close()


@dataclass(frozen=True, slots=True, eq=False)
class SlotLookup:
    """Rows by slot, and what an update of the same ids needs."""

    rows: dict[str, Float32[Tensor, "n dim"]]
    found: Lookup


class AllToAllMultiTypeTable(StoreFront):
    """The tables of `local` on every rank of an exchange, each with the rows it owns.

    Every call is a collective. Equal ids of a rank are sent once. The gradients of each rank are a
    separate optimizer step, in rank order, as in Monolith. `queues` holds lookups ahead of training
    and updates behind it, as deep as `queue_configs` says.

    >>> import torch
    >>> from hedgerow.tables.config import Segment, TableConfig
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.optimizers import Sgd
    >>> config = TableConfig("any", (Segment(1, Zeros(), Sgd(lr=1.0)),))
    >>> table = AllToAllMultiTypeTable(1, MultiTypeTable({"1": config}), Exchange())
    >>> ids = torch.tensor([1, 1])
    >>> table.apply_gradients({"1": (ids, torch.full((2, 1), 0.5))})
    Applied(inserted=1, refused=0, dropped=0)
    >>> table.lookup({"1": ids})["1"].tolist()
    [[-1.0], [-1.0]]
    """

    store: AllToAllTables

    def __init__(
        self,
        shard_num: int,
        local: MultiTypeTable | NativeMultiTable,
        exchange: Exchange,
        queue_configs: Mapping[str, int | None] | None = None,
        *,
        updates: Exchange | None = None,
    ) -> None:
        if checks.count("shard_num", shard_num) != exchange.ranks:
            raise InputError(
                f"shard_num is {shard_num}, and the world has {exchange.ranks} ranks; every rank "
                f"holds one shard, so they must be equal."
            )
        depths = QueueDepths.of(queue_configs)
        if depths.post_push:
            raise InputError("queue_configs has 'post_push', which is for servers, not for ranks.")
        self.local = local
        routers = [Router("roundrobin", shard_num)] * len(local.names)
        store = AllToAllTables(
            local.store,
            routers,
            exchange,
            merge_across_ranks=False,
            reduce="sum",
            updates=updates,
        )
        super().__init__(store, local.store.config)
        steps: BatchSteps[SlotIds, SlotLookup] = BatchSteps(
            self._start, self._arrive, self._send, _update
        )
        self.queues = Queues(depths, steps)

    def assign(self, batch: SlotRows, *, ts: int = 0) -> NoReturn:
        """Not supported over ranks, as in Monolith."""
        raise NotSupportedError(
            "assign is not supported over ranks; every rank assigns to its own `local` tables."
        )

    def assign_add(self, batch: SlotRows, *, ts: int = 0) -> NoReturn:
        """Not supported over ranks, as in Monolith."""
        raise NotSupportedError(
            "assign_add is not supported over ranks; every rank assigns to its own `local` tables."
        )

    def reinitialize(self, slot: str, ids: Int64[Tensor, "n"]) -> NoReturn:
        """Not supported over ranks, as in Monolith."""
        raise NotSupportedError(f"reinitialize of slot {slot!r} is not supported over ranks.")

    # ---- the steps of a batch, with queues between them

    def _start(self, item: Item[SlotIds]) -> tuple[SlotIds, PendingLookup]:
        return item.value, self.store.start_lookup(self.keys(item.value), step=item.step)

    def _arrive(self, item: Item[tuple[SlotIds, PendingLookup]]) -> SlotLookup:
        ids, coming = item.value
        found = coming.wait()
        return SlotLookup({slot: found.rows_of(self.config.at(slot)) for slot in ids}, found)

    def _send(self, item: Item[tuple[Lookup, Tensor]]) -> Any:
        at, grads = item.value
        return self.store.start_apply(at, grads)

    def put_gradients(
        self, at: SlotLookup, grads: Mapping[str, Tensor], *, step: int = 0, ts: int = 0
    ) -> None:
        """Adds the gradients of looked-up rows to the queues."""
        batch = {slot: (at.found.keys.ids_of(self.config.at(slot)), g) for slot, g in grads.items()}
        _, flat = self._batch("grads", batch)
        if len(flat) != len(at.found.rows):
            raise InputError(
                f"gradients of slots {sorted(grads)} for rows of {sorted(at.rows)}; give all."
            )
        self.queues.put(Item((at.found, flat), step, ts))


def _update(item: Item[Any]) -> Applied:
    return item.value(step=item.step, ts=item.ts)
