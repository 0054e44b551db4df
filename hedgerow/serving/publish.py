"""`hr.publish`: pushes the changes of a model in training to the replicas that serve it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ..core.checks import CPU
from ..core.errors import DtypeError, InputError, NotSupportedError
from ..core.units import parse_seconds
from ..discovery.targets import Targets
from ..nn.embedding_modules import collections_of, unwrap
from ..nn.model_tables import row_shards
from ..sync.protocol import DenseState
from ..sync.publisher import MOST_PENDING, Publisher
from ..sync.source import HostSource, RowSource, ShardSource
from ..tables.changes import RowShard
from ..wire.rpc import TlsCredentials


class DenseWatch:
    """Copies the weights at most every `every_s` seconds, between two steps. Owns a lock.

    The training thread copies them at the start of a training forward, when the previous step is
    complete. `copy_now` copies the weights after the last step.
    """

    def __init__(self, model: nn.Module, every_s: float) -> None:
        self._model, self._every_s = unwrap(model), every_s
        self._lock = threading.Lock()
        self._state: DenseState | None = None
        self._due_s = 0.0
        self._hook = model.register_forward_pre_hook(self._before_forward)

    def state(self) -> DenseState | None:
        """Returns the last copy; None before the first."""
        return self._state

    def copy_now(self) -> None:
        """Copies the weights if they changed; call it between two steps."""
        with self._lock, torch.no_grad():
            number = 1 if self._state is None else self._state.number + 1
            tensors = {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}
            if self._state is not None and _equal(self._state, tensors):
                return
            copies = {name: t.detach().cpu().clone() for name, t in tensors.items()}
            self._state = DenseState(number, copies)

    def close(self) -> None:
        """Stops copying."""
        self._hook.remove()

    def _before_forward(self, module: nn.Module, _: Any) -> None:
        now_s = time.monotonic()
        if module.training and now_s >= self._due_s:
            self._due_s = now_s + self._every_s
            self.copy_now()


def _equal(state: DenseState, tensors: dict[str, Any]) -> bool:
    return all(torch.equal(state.weights[name], t.detach().cpu()) for name, t in tensors.items())


def row_sources(model: nn.Module) -> list[RowSource]:
    """Returns the sources of rows: this process's tables, its rank's shard, or one per server.

    Every rank publishes its own rows. If several processes train on the same servers, one of them
    publishes.

    >>> import hedgerow as hr
    >>> (source,) = row_sources(hr.EmbeddingBags([hr.Table("user", 2)]))
    >>> source.shard, source.shards, [table.name for table in source.tables]
    (0, 1, ['user'])
    >>> source.close()
    """
    updates = [one.updates for one in collections_of(model)]

    def step() -> int:
        return max(one.step for one in updates)

    made: list[RowSource] = []
    try:
        for shard in row_shards(model):
            made.append(_source(shard, step))
    except BaseException:
        for source in made:
            source.close()
        raise
    return made


def _source(shard: RowShard, step: Callable[[], int]) -> RowSource:
    # Tables in this process have a layout; tables on servers give access to rows only.
    here: dict[str, Any] = {n: t for n, t in shard.tables.items() if hasattr(t, "layout")}
    for name, table in here.items():
        if table.device != CPU:
            raise NotSupportedError(
                f"publish of table {name!r}, which is on {table.device}; rows are sent from host "
                f"memory. Train it there, or hr.save the model and serve what hr.load loads."
            )
    if here:
        return HostSource(
            list(here.values()),
            routers=shard.routers,
            shard=shard.shard,
            shards=shard.shards,
            step=step,
        )
    away: dict[str, Any] = dict(shard.tables)
    return ShardSource(away, shard.routers, shard=shard.shard, shards=shard.shards, step=step)


class ModelPublisher(Publisher):
    """A publisher of a model: its rows, and optionally its dense weights."""

    dense: DenseWatch | None = None

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Pushes all changes so far; returns whether all replicas have them within `timeout_s`.

        Call it between two steps, because it copies the dense weights.
        """
        if self.dense is not None:
            self.dense.copy_now()
        return super().flush(timeout_s)

    def stop(self, timeout_s: float = 5.0) -> bool:
        """Pushes the remaining changes within `timeout_s`; stops; returns whether all were sent."""
        try:
            return super().stop(timeout_s)
        finally:
            if self.dense is not None:
                self.dense.close()


def publish(
    model: nn.Module,
    to: Targets | str | Sequence[str] = (),
    *,
    every: str | float = "1s",
    listen: str | None = None,
    dense_every: str | float | None = None,
    served_as: str | None = None,
    most_pending: int = MOST_PENDING,
    tls: TlsCredentials | None = None,
) -> ModelPublisher:
    """Starts to push a model's changes to its replicas; stop the publisher, or use it in a `with`.

    `to` is an address, a list of addresses, or an object whose `current()` returns them. `listen`
    is an address at which replicas announce themselves (`hedgerow serve BUNDLE --follow
    HOST:PORT`). Each interval `every`, changed and deleted rows are pushed to every replica.
    Changes that a replica lacks are kept until it has them. Above `most_pending` keys, and after a
    restart of the replica, it gets all rows again.

    Dense weights are pushed only with `dense_every`, at most once per that interval. A replica's
    weights are then at most `dense_every` plus `every` older than its rows. Without it the replica
    keeps its bundle's weights. `served_as` selects a model of a server by name. With several
    ranks, each rank calls this function for its own rows; pass `dense_every` on rank 0 only.

    >>> import hedgerow as hr
    >>> bags = hr.EmbeddingBags([hr.Table("user", 2)])
    >>> with hr.publish(bags, listen="127.0.0.1:0", every="200ms") as publisher:
    ...     publisher.status().pending_rows
    0
    """
    if not isinstance(model, nn.Module):
        raise DtypeError(f"publish of a {type(model).__name__}; pass an nn.Module.")
    if not to and listen is None:
        raise InputError("publish without to= and listen=; give at least one of them.")
    watch = None if dense_every is None else DenseWatch(model, parse_seconds(dense_every))
    sources: list[RowSource] = []
    try:
        sources = row_sources(model)
        made = ModelPublisher(
            sources,
            to,
            every=every,
            listen=listen,
            model=served_as,
            most_pending=most_pending,
            trust=tls,
            dense=(lambda: None) if watch is None else watch.state,
        )
    except BaseException:  # else the model's change feeds would grow for ever
        for source in sources:
            source.close()
        if watch is not None:
            watch.close()
        raise
    made.dense = watch
    made.start()
    return made
