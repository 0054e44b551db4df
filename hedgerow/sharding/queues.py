"""Queues around the steps of a batch, by the original's names: how deep, and what runs behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any, Generic, TypeVar

from ..core import checks
from ..core.errors import InputError
from .pipeline import Delayed, Item, Prefetch

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
    post_push: int = 0  # gradients leave for servers during the next step

    @staticmethod
    def of(queue_configs: Mapping[str, int | None] | None) -> QueueDepths:
        """From names and capacities; None, or a capacity of None or 0, is off."""
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
class Steps(Generic[A, B]):
    """What is done with a batch: `start` its reading, `arrive` with rows; `send` its gradients,
    `update` rows with what was sent. Each takes an item that carries its step and time."""

    start: Callable[[Item[A]], Any]
    arrive: Callable[[Item[Any]], B]
    send: Callable[[Item[Any]], Any]
    update: Callable[[Item[Any]], object]


class Queues(Generic[A, B]):
    """The queues of one table: reading ahead of training, and updates behind it.

    Updates run in the caller's thread, in the order of the puts, so that all ranks exchange in one
    order; with `post_push` in one thread beside it. Reading ahead with exchanges needs a group of
    its own.

    >>> done = []
    >>> steps = Steps(
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

    def __init__(self, depths: QueueDepths, steps: Steps[A, B]) -> None:
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

    def ahead(self, source: Iterable[Item[A]]) -> Ahead[A, B]:
        """Batches with their rows, read ahead as deep as the queues are."""
        return Ahead(source, self.depths, self._steps)

    def put(self, item: Item[Any]) -> None:
        """Gradients of a batch; they reach the rows when the queues let them go."""
        self.optimizing.put(item)

    def drain(self) -> None:
        """All that waits is done when this returns."""
        self.optimizing.drain()
        self.updating.drain()

    def close(self) -> None:
        """Ends the thread; what waits is lost."""
        self.optimizing.close(drain=False)
        self.updating.close(drain=False)

    def _send(self, item: Item[Any]) -> None:
        self.updating.put(Item(self._steps.send(item), item.step, item.ts))


class Ahead(Prefetch[Any, B], Generic[A, B]):
    """Two queues, one behind the other: of lookups that were started, and of rows that are here."""

    def __init__(self, source: Iterable[Item[A]], depths: QueueDepths, steps: Steps[A, B]) -> None:
        self.started = Prefetch(source, steps.start, depths.enable_pipelined_fwda2a)
        super().__init__(self.started, steps.arrive, depths.embedding_prefetch_capacity)

    def close(self) -> None:
        """Stops both."""
        super().close()
        self.started.close()
