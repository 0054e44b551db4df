"""Monolith's parameter sync clients: they follow tables and push changed rows in steps."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from torch import nn

from ...core import checks, process_state
from ...core.errors import DtypeError, InputError
from ...core.process_state import ForkLock
from ...tables.changes import ChangeSource
from ...wire import push
from ...wire.codec import to_bytes
from ...wire.messages import parameter_sync
from ...wire.push import read_config
from .strict import EVERY_S, StrictClient, StrictLoop

if TYPE_CHECKING:
    from ...wire.messages.parameter_sync import ClientConfig, PushResult


_log = logging.getLogger(__name__)
CLIENT_NAME, DUMMY_NAME = "MonolithSyncClient_", "MonolithDummySyncClient"
_making = ForkLock()  # two threads that request one name get one client


class DummySyncClient:
    """A client that follows no table and pushes nothing.

    >>> DummySyncClient().step(b"").responses
    []
    """

    name = DUMMY_NAME

    def attach(self, name: str, table: ChangeSource) -> None:
        """Does nothing: this client has no change feed."""

    def attach_multi(self, name: str, tables: Mapping[str, ChangeSource]) -> None:
        """Does nothing."""

    def step(self, config: bytes) -> PushResult:
        """Pushes nothing. The config must still be valid."""
        read_config(config)
        return parameter_sync.PushResult()


class ParameterSyncClient:
    """A client, given by its handle or by another client with the same handle.

    A table takes it, or the handle, as `sync_client`. `placement` is where Monolith would place it.
    Here it is in the process that created it.

    >>> client = ParameterSyncClient(create_dummy_sync_client())
    >>> client.create_sync_op(b"")
    ['{}']
    """

    def __init__(
        self,
        client: StrictClient | DummySyncClient | ParameterSyncClient,
        *,
        placement: str | None = None,
    ) -> None:
        if isinstance(client, ParameterSyncClient):
            placement = client.placement if placement is None else placement
            client = client.handle
        if not isinstance(client, StrictClient | DummySyncClient):
            raise DtypeError(
                f"client is a {type(client).__name__}; pass a client, its handle, or what "
                f"create_dummy_sync_client gives."
            )
        self._client, self.placement = client, placement

    def __repr__(self) -> str:
        return f"ParameterSyncClient({self._client.name!r})"

    @property
    def handle(self) -> StrictClient | DummySyncClient:
        """The underlying client, which several of these objects may share."""
        return self._client

    def create_sync_op(self, config_str: bytes) -> list[str]:
        """Performs one step at once. Returns the results of the pushes as one JSON text."""
        if not isinstance(config_str, bytes):
            raise DtypeError(
                f"config_str is a {type(config_str).__name__}; pass a serialized ClientConfig, as "
                f"refresh_sync_config gives."
            )
        return [push.result_json(self._client.step(config_str))]

    def as_op(self, name: str | None = None) -> Callable[[], None]:
        """Returns a callable that does nothing, because the client already exists."""
        return _nothing

    def attach(self, name: str, table: ChangeSource) -> None:
        """Follows a plain table from now on."""
        self._client.attach(name, table)

    def attach_multi(self, name: str, tables: Mapping[str, ChangeSource]) -> None:
        """Follows all tables of a multi table from now on."""
        self._client.attach_multi(name, tables)


def parameter_sync_client_from_config(
    config: ClientConfig | bytes | None = None, name_suffix: str = ""
) -> ParameterSyncClient:
    """Returns the client of this process with that suffix, and creates it if there is none.

    Only the targets of a config are used, and only for a new client.

    >>> one = parameter_sync_client_from_config(name_suffix="example")
    >>> one is parameter_sync_client_from_config(name_suffix="example"), one.handle.name
    (True, 'MonolithSyncClient_example')
    """
    if not isinstance(name_suffix, str):
        raise DtypeError(f"name_suffix is {name_suffix!r}; it must be a str.")
    return _client(CLIENT_NAME + name_suffix, _parsed(config), None)


def _client(name: str, config: ClientConfig, placement: str | None) -> ParameterSyncClient:
    with _making:
        found = process_state.find(name)
        if isinstance(found, ParameterSyncClient):
            return found
        if found is not None:
            raise InputError(
                f"the name {name!r} belongs to a {type(found).__name__} of this process; choose "
                f"another name_suffix."
            )
        made = ParameterSyncClient(StrictClient(name, config), placement=placement)
        process_state.register(name, made)
        return made


def create_parameter_sync_clients(
    ps_num: int, exporting_standalone: bool = False
) -> list[ParameterSyncClient]:
    """Creates one client per server, or one for tables of this process.

    >>> [client.placement for client in create_parameter_sync_clients(2)]
    ['/job:ps/task:0/device:CPU:0', '/job:ps/task:1/device:CPU:0']
    """
    checks.flag("exporting_standalone", exporting_standalone)
    empty = _parsed(None)
    if checks.count("ps_num", ps_num) == 0:
        _log.info("1 sync client is made, for the tables of this process")
        return [_client(CLIENT_NAME, empty, None)]
    _log.info("%d sync clients are made, one per server", ps_num)
    return [
        _client(
            f"{CLIENT_NAME}{i}",
            empty,
            None if exporting_standalone else f"/job:ps/task:{i}/device:CPU:0",
        )
        for i in range(ps_num)
    ]


def create_dummy_sync_client() -> DummySyncClient:
    """Returns the client for tables that have none.

    >>> create_dummy_sync_client().name
    'MonolithDummySyncClient'
    """
    return DummySyncClient()


def _parsed(config: ClientConfig | bytes | None) -> ClientConfig:
    data = b"" if config is None else config if isinstance(config, bytes) else to_bytes(config)
    return read_config(data)


def _nothing() -> None:
    """Does nothing."""


REFRESH_S = 100.0


class Syncs(Protocol):
    """An object that performs sync steps, such as `ParameterSyncClient`."""

    def create_sync_op(self, config_str: bytes) -> list[str]:
        """Performs one step at once."""
        ...


class ParameterSyncLoop(StrictLoop):
    """Performs steps of a client in a thread. `refresh` returns the config of each step.

    `refresh` is for example `lambda: refresh_sync_config(backend, index)`.

    >>> from hedgerow.monolith.distributed_serving_ops import parameter_sync_client_from_config
    >>> with ParameterSyncLoop(parameter_sync_client_from_config(), lambda: b"", 0.01) as loop:
    ...     loop.wait_for_step()
    >>> loop.failures
    0
    """

    def __init__(
        self, client: Syncs, refresh: Callable[[], bytes], every_s: float = EVERY_S
    ) -> None:
        super().__init__(lambda: client.create_sync_op(refresh()), every_s)


class ParameterSyncHook:
    """Performs a sync step after every training step of a rank, with a config that is refreshed.

    `hedgerow.train.loop.Trainer` calls it: `Trainer(..., hooks=[ParameterSyncHook(...)])`.

    >>> from hedgerow.monolith.distributed_serving_ops import parameter_sync_client_from_config
    >>> hook = ParameterSyncHook(parameter_sync_client_from_config(), lambda: b"")
    >>> hook.after_step()
    ['{}']
    """

    def __init__(
        self,
        client: Syncs,
        refresh: Callable[[], bytes],
        refresh_s: float = REFRESH_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        checks.setting("ParameterSyncHook", "refresh_s", refresh_s, above=0)
        self._client, self._refresh = client, refresh
        self._refresh_s, self._now_s = refresh_s, now_s
        self._config, self._at_s = b"", -float("inf")

    def on_start(self, model: nn.Module, optimizer: object, step: int) -> None:
        """Does nothing: the first config is requested after the first step."""

    def after_step(self, step: int = 0, samples: int = 0) -> list[str]:
        """Pushes changed rows. Returns the results of the pushes."""
        if self._now_s() - self._at_s >= self._refresh_s:
            self._config, self._at_s = self._refresh(), self._now_s()
        return self._client.create_sync_op(self._config)
