"""Monolith's sync step, which pushes targets and parts in order without retries, and a publisher.

Keys that were taken from the change feed but not pushed are lost, as in Monolith. This is for
parity; `Publisher` loses nothing.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor, nn

from ...core import checks
from ...core.errors import (
    DtypeError,
    HedgerowError,
    InputError,
    MissingExtraError,
    NameTakenError,
    StateError,
)
from ...core.shapes import Float32, Int64
from ...core.units import parse_seconds
from ...discovery.targets import Targets, targets_of
from ...nn.model_tables import row_shards
from ...sync.metrics import UNKNOWN, PushMetrics, PushTags
from ...tables.changes import DEFAULT_CAPACITY, ChangeSource, RowShard, TouchedSource
from ...wire import push
from ...wire.codec import to_bytes
from ...wire.messages import parameter_sync
from ...wire.push import config_bytes, read_config
from ...wire.rpc import PREDICTION_SERVICE, methods

if TYPE_CHECKING:
    from ...wire.messages.parameter_sync import ClientConfig, PushRequest, PushResponse, PushResult


MAX_MESSAGE_BYTES = 32 << 20  # in each direction, as in Monolith
_INVALID_ARGUMENT = 3


@dataclass(frozen=True, slots=True)
class ReplicaPlace:
    """The location of a replica, for metrics."""

    idc: str = UNKNOWN
    replica_id: int = -1


class StrictTargets:
    """Connections by address. Not thread-safe: `replace` and pushes must not overlap.

    >>> targets = StrictTargets()
    >>> targets.replace(parameter_sync.ClientConfig(targets=["b:1", "a:1", "b:1"]))
    >>> targets.addresses
    ('a:1', 'b:1')
    >>> targets.close()
    """

    def __init__(self, metrics: PushMetrics | None = None) -> None:
        self.metrics = metrics or PushMetrics()
        self._channels: dict[str, Any] = {}
        self._stands: dict[str, ReplicaPlace] = {}

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses that are pushed to, in this order."""
        return tuple(sorted(self._channels))

    def stands(self, address: str) -> ReplicaPlace:
        """Returns the location of an address, if the config gave one for every address."""
        return self._stands.get(address, ReplicaPlace())

    def replace(self, config: ClientConfig) -> None:
        """Switches to a config's targets.

        Connections of kept targets stay open; others are closed.
        """
        wanted = set(config.targets)
        for address in sorted(self._channels.keys() - wanted):
            self._channels.pop(address).close()
        for address in sorted(wanted - self._channels.keys()):
            self._channels[address] = _channel(address)
        self._stands = {}
        if len(config.targets) == len(config.targets_extra_info):
            for address, info in zip(config.targets, config.targets_extra_info, strict=True):
                self._stands.setdefault(address, _stands(info))  # first of equals

    def push(self, address: str, part: PushRequest) -> PushResponse:
        """Sends one part, waits for the answer at most its timeout, and returns the result."""
        if not push.tables_of(part):
            return parameter_sync.PushResponse(target=address)
        try:
            data = to_bytes(push.to_predict(part, compat="typed"))
        except HedgerowError as error:
            return _response(_INVALID_ARGUMENT, str(error), address, 0)
        began = time.perf_counter()
        code, text = _call(self._channels[address], data, part.timeout_in_ms / 1000)
        rows = 0 if code else push.row_count(part)
        stands = self.stands(address)
        tags = PushTags(
            part.model_name,
            part.signature_name,
            address,
            "KO" if code else "OK",
            stands.idc,
            str(stands.replica_id),
        )
        micros = 1e6 * (time.perf_counter() - began)
        self.metrics.pushed(tags, micros=micros, fids=push.row_count(part), sent_bytes=len(data))
        return _response(code, text, address, rows)

    def close(self) -> None:
        """Closes all connections."""
        self.replace(parameter_sync.ClientConfig())


def _stands(info: ClientConfig.TargetExtraInfo) -> ReplicaPlace:
    return ReplicaPlace(f"{info.idc}:{info.cluster}" if info.idc else UNKNOWN, info.replica_id)


def _channel(address: str) -> Any:
    try:
        import grpc
    except ImportError as error:
        raise MissingExtraError(
            f"pushing rows needs grpcio ({error}); pip install hedgerow[serving]."
        ) from error
    options = (
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    )
    return grpc.insecure_channel(address, options=options)


def _call(channel: Any, data: bytes, timeout_s: float) -> tuple[int, str]:
    """Returns the status of a Predict call. Its answer is not read."""
    import grpc

    try:
        channel.unary_unary(methods(PREDICTION_SERVICE)["Predict"].path)(data, timeout=timeout_s)
    except grpc.RpcError as error:
        failed: Any = error
        return failed.code().value[0], failed.details() or ""
    return 0, ""


def _response(code: int, text: str, address: str, rows: int) -> PushResponse:
    return parameter_sync.PushResponse(
        status_code=code, error_message=text, target=address, update_num=rows
    )


RAW_ASSIGN = "raw_assign"


@dataclass(frozen=True, slots=True, eq=False)
class ChangedRows:
    """The rows of one table that a step pushes, possibly none."""

    name: str
    ids: Int64[Tensor, "n"]
    rows: Float32[Tensor, "n dim"]


def strict_step(
    config: ClientConfig,
    targets: StrictTargets,
    changed: Sequence[ChangedRows],
    multi: str | None = None,
    limit_bytes: int = push.LIMIT_BYTES,
) -> PushResult:
    """Pushes to every target of the config. Returns the result of each part.

    `changed` holds every table, even those without rows, because servers expect all of them.
    `multi` is the name of the multi table that they form. Without it they are plain tables, pushed
    in name order. If there are no rows, no server is called.

    >>> import torch
    >>> table = ChangedRows("t", torch.empty(0, dtype=torch.int64), torch.empty(0, 2))
    >>> targets = StrictTargets()
    >>> config = parameter_sync.ClientConfig(targets=["localhost:1"])
    >>> len(strict_step(config, targets, [table]).responses), targets.addresses
    (0, ('localhost:1',))
    >>> targets.close()
    """
    targets.replace(config)
    request = push_request(config, changed, multi)
    result = parameter_sync.PushResult()
    if push.row_count(request):
        parts = push.split_request(request, limit_bytes, "reference")
        for address in targets.addresses:
            result.responses.extend(targets.push(address, part) for part in parts)
    return result


def push_request(
    config: ClientConfig, changed: Sequence[ChangedRows], multi: str | None = None
) -> PushRequest:
    """Returns the rows of a step as one message, as in Monolith.

    >>> import torch
    >>> table = ChangedRows("t", torch.tensor([7]), torch.ones(1, 2))
    >>> config = parameter_sync.ClientConfig(model_name="ps_0", signature_name="hashtable_assign")
    >>> push_request(config, [table], "MonolithMultiHashTable_0").signature_name
    'MonolithMultiHashTable_0/raw_assign'
    """
    request = parameter_sync.PushRequest(
        model_name=config.model_name,
        signature_name=config.signature_name if multi is None else f"{multi}/{RAW_ASSIGN}",
        timeout_in_ms=config.timeout_in_ms,
    )
    plain = multi is None
    for one in sorted(changed, key=lambda one: one.name) if plain else changed:
        push.add_rows(request, one.name, one.ids, one.rows, multi=not plain)
    return request


@dataclass(frozen=True, slots=True, eq=False)
class _Attached:
    table: ChangeSource
    changes: TouchedSource

    def taken(self, name: str) -> ChangedRows:
        """Returns the rows that changed since the last call, with their present values."""
        ids = self.changes.take().ids
        return ChangedRows(name, ids, self.table.lookup(ids).rows_of())


class StrictClient:
    """Follows tables by Monolith's rule and pushes their changed rows. Owns a lock.

    It follows plain tables or one multi table. It forgets changed keys beyond `capacity` per table,
    and those of a failed push.

    >>> from hedgerow import HostTable, Segment, Sgd, TableConfig, Zeros
    >>> client = StrictClient("MonolithSyncClient_")
    >>> table = HostTable(TableConfig("t", (Segment(1, Zeros(), Sgd(lr=0.1)),)))
    >>> client.attach("t", table)
    >>> len(client.step(b"").responses)
    0
    """

    def __init__(
        self,
        name: str,
        config: ClientConfig | None = None,
        *,
        metrics: PushMetrics | None = None,
        capacity: int = DEFAULT_CAPACITY,
    ) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._capacity = capacity
        self._targets = StrictTargets(metrics)
        self._tables: dict[str, _Attached] = {}
        self._multi: str | None = None
        if config is not None:  # model, signature and timeout come with each step
            self._targets.replace(config)

    def __repr__(self) -> str:
        tables = ", ".join(self._tables) or "no tables"
        return f"StrictClient({self.name!r}, {tables})"

    @property
    def metrics(self) -> PushMetrics:
        """What was pushed, under Monolith's metric names."""
        return self._targets.metrics

    @property
    def targets(self) -> tuple[str, ...]:
        """The addresses of the last config."""
        with self._lock:
            return self._targets.addresses

    def attach(self, name: str, table: ChangeSource) -> None:
        """Follows a plain table from now on."""
        with self._lock:
            if self._multi is not None:
                raise InputError(
                    f"table {name!r} for the client {self.name!r}, which holds the multi table "
                    f"{self._multi!r}; a client holds plain tables or one multi table."
                )
            if name in self._tables:
                raise NameTakenError(
                    f"client {self.name!r} follows a table {name!r} already; receivers tell tables "
                    f"by name: give each its own."
                )
            self._tables[name] = self._followed(table)

    def attach_multi(self, name: str, tables: Mapping[str, ChangeSource]) -> None:
        """Follows all tables of a multi table from now on, in this order."""
        with self._lock:
            if self._multi is not None:
                raise NameTakenError(
                    f"client {self.name!r} holds the multi table {self._multi!r} already, and "
                    f"{name!r} would be a second; make another client."
                )
            if self._tables:
                raise InputError(
                    f"multi table {name!r} for the client {self.name!r}, which holds plain tables; "
                    f"a client holds plain tables or one multi table."
                )
            self._tables = {own: self._followed(table) for own, table in tables.items()}
            self._multi = name

    def step(self, config: bytes) -> PushResult:
        """Takes the changed keys, reads their present rows, and pushes them once."""
        parsed = read_config(config)
        with self._lock:
            changed = [one.taken(name) for name, one in self._tables.items()]
            return strict_step(parsed, self._targets, changed, self._multi)

    def close(self) -> None:
        """Closes the connections. A later step opens new ones."""
        with self._lock:
            self._targets.close()

    def _followed(self, table: ChangeSource) -> _Attached:
        changes = table.touched(self.name, capacity=self._capacity, overflow="forget")
        return _Attached(table, changes)


EVERY_S = 10.0  # as in Monolith
_log = logging.getLogger("hedgerow")


class StrictLoop:
    """Starts a step every `every_s` seconds until `stop`. Use it in a `with`. Owns a thread.

    A failed step is logged and counted. The next step starts on schedule.

    >>> with StrictLoop(lambda: None, 0.01) as loop:
    ...     loop.wait_for_step()
    >>> loop.failures
    0
    """

    def __init__(self, step: Callable[[], object], every_s: float = EVERY_S) -> None:
        checks.setting(type(self).__name__, "every_s", every_s, above=0)
        self._step, self.every_s = step, every_s
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self.steps = self.failures = 0
        self._thread = threading.Thread(target=self._run, name="parameter sync", daemon=True)

    def start(self) -> Self:
        """Starts the thread with a step at once."""
        if self._thread.ident is not None:
            raise StateError("this loop was started before; make a new one.")
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stops after the current step. A second call does nothing."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def wait_for_step(self) -> None:
        """Waits for the end of a step that starts after this call."""
        with self._changed:
            wanted = self.steps + 2  # the current step may have read its keys before
            while self.steps < wanted and self._thread.is_alive():
                self._changed.wait(0.1)

    def _run(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self._step()
            except (HedgerowError, OSError) as error:
                self.failures += 1
                _log.warning("parameter sync: %s", error)
            except Exception:  # from a custom backend: log it and continue, as in Monolith
                self.failures += 1
                _log.exception("parameter sync")
            with self._changed:
                self.steps += 1
                self._changed.notify_all()
            self._stopping.wait(max(0.0, self.every_s - (time.monotonic() - began)))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()


class StrictPublisher(StrictLoop):
    """Pushes the changed rows of shards to every replica, shard after shard, once each.

    There are no deletions, retries or full resyncs. A shard that changes more keys than its change
    feed holds forgets them. `served_as` is the model's name at the replicas.
    """

    def __init__(
        self,
        shards: Sequence[RowShard],
        to: Targets | str | Sequence[str],
        *,
        served_as: str,
        every: str | float = EVERY_S,
    ) -> None:
        self._targets, self._served_as = targets_of(to), served_as
        self.metrics = PushMetrics()
        name = f"strict-{secrets.token_hex(8)}"  # two publishers of one model share no change feed
        self._clients = [StrictClient(name, metrics=self.metrics) for _ in shards]
        for shard, client in zip(shards, self._clients, strict=True):
            for table, rows in shard.tables.items():
                client.attach(table, rows)
        super().__init__(self.push, parse_seconds(every))

    def push(self) -> list[PushResult]:
        """Performs one step of every shard now. Returns the results."""
        config = config_bytes(self._served_as, self._targets.current())
        return [client.step(config) for client in self._clients]

    def stop(self) -> None:
        """Stops after the current step. Later changes are not sent."""
        super().stop()
        for client in self._clients:
            client.close()


def publish_strict(
    model: nn.Module,
    to: Targets | str | Sequence[str],
    *,
    served_as: str,
    every: str | float = "10s",
) -> StrictPublisher:
    """Publishes a model as Monolith does: replica after replica, each row once, lost if that fails.

    Call `start()` or use it in a `with`. It sends no deletions and no dense weights. Any server
    with TensorFlow Serving's protocol can receive it. `hr.publish` loses nothing.

    >>> import hedgerow as hr
    >>> bags = hr.EmbeddingBags([hr.Table("user", 2)])
    >>> with publish_strict(bags, "127.0.0.1:1", served_as="ps_0") as publisher:
    ...     [len(result.responses) for result in publisher.push()]
    [0]
    """
    if not isinstance(model, nn.Module):
        raise DtypeError(f"publish_strict of a {type(model).__name__}; pass an nn.Module.")
    return StrictPublisher(row_shards(model), to, served_as=served_as, every=every)
