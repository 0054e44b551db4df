"""A server process: its plan, its signals, its start and its end."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import ConfigError
from ..tables.config import TableConfig
from ..tables.multi.multi_config import MultiConfig
from .clients import Clients
from .curve import ServerKeys
from .server import Server
from .service import Service

_SWITCH_S = 0.0005  # threads of a server hold the interpreter for microseconds at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan:
    """What a server is to be."""

    shard: int
    shards: int
    listen: str
    tables: MultiConfig | None = None
    keys: Path | None = None
    insecure: bool = False

    @staticmethod
    def of(
        shard: str,
        listen: str,
        *,
        tables: Sequence[TableConfig] | None = None,
        keys: Path | None = None,
        insecure: bool = False,
    ) -> ServerPlan:
        """From what a command line says.

        >>> ServerPlan.of("1/4", "127.0.0.1:0").listen
        'tcp://127.0.0.1:0'
        """
        number, _, count = shard.partition("/")
        if not (number.isdigit() and count.isdigit() and int(number) < int(count)):
            raise ConfigError(f"shard is {shard!r}; it must be i/n with i from 0 to n-1, as 0/4.")
        return ServerPlan(
            shard=int(number),
            shards=int(count),
            listen=listen if "://" in listen else f"tcp://{listen}",
            tables=None if tables is None else MultiConfig.of({t.name: t for t in tables}),
            keys=keys,
            insecure=insecure,
        )

    @property
    def name(self) -> str:
        """As errors call it: `1/4`."""
        return f"{self.shard}/{self.shards}"


def serve(plan: ServerPlan, tell: Callable[[str], None]) -> None:
    """Serves until SIGTERM or SIGINT; `tell` gets the address once clients may come."""
    sys.setswitchinterval(_SWITCH_S)
    keys = None if plan.keys is None else ServerKeys.read(plan.keys)
    service, clients = Service(), Clients()
    if plan.tables is not None:
        service.open(plan.tables)
    server = Server(
        service,
        clients,
        name=plan.name,
        listen=plan.listen,
        keys=keys,
        insecure=plan.insecure,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: server.stop())
    try:
        tell(server.address)
        server.run()
    finally:
        server.close()
