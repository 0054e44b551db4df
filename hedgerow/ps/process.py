"""A server process: its plan, its signals, its start and its end."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core import checks
from ..core.errors import ConfigError
from ..tables.checkpoint.files import make_folder
from ..tables.config import TableConfig
from ..tables.multi.multi_config import MultiConfig
from .clients import Clients
from .curve import ServerKeys
from .keeper import Keeper
from .log import LogClock
from .recovery import Recovered, Recovery, own_folder, sole_server
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
    checkpoint: Path | None = None
    durability: str = "checkpoint"

    def __post_init__(self) -> None:
        checks.choice("ServerPlan", "durability", self.durability, ("checkpoint", "log"))
        if self.durability == "log" and self.checkpoint is None:
            raise ConfigError("durability is 'log' without a folder; pass --checkpoint DIR.")

    @staticmethod
    def of(
        shard: str,
        listen: str,
        *,
        tables: Sequence[TableConfig] | None = None,
        keys: Path | None = None,
        insecure: bool = False,
        checkpoint: Path | None = None,
        durability: str = "checkpoint",
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
            checkpoint=checkpoint,
            durability=durability,
        )

    @property
    def name(self) -> str:
        """As errors call it: `1/4`."""
        return f"{self.shard}/{self.shards}"

    @property
    def folder(self) -> Path | None:
        """The server's own, below the one that all are given."""
        return self.checkpoint and own_folder(self.checkpoint, self.shard, self.shards)


def serve(
    plan: ServerPlan,
    tell: Callable[[str], None],
    stop_with: Callable[[Callable[[], None]], None] | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT; `tell` gets the address once clients may come.

    With `stop_with`, which gets what ends the server from any thread, signals are left alone.
    """
    sys.setswitchinterval(_SWITCH_S)
    stopped_by = stop_with or _by_signals
    if plan.folder is None:
        _serve(plan, tell, stopped_by)
        return
    make_folder(plan.folder)
    with sole_server(plan.folder):
        _serve(plan, tell, stopped_by)


def _serve(
    plan: ServerPlan,
    tell: Callable[[str], None],
    stopped_by: Callable[[Callable[[], None]], None],
) -> None:
    keys = None if plan.keys is None else ServerKeys.read(plan.keys)
    clock = LogClock() if plan.durability == "log" else None
    service, clients = Service(clock), Clients()
    if plan.tables is not None:
        service.open(plan.tables)
    start = _recover(plan, service, clients, clock)
    service.note_start()
    server = Server(
        service,
        clients,
        name=plan.name,
        listen=plan.listen,
        keys=keys,
        insecure=plan.insecure,
        journal=start.log,
        rolled_back_to=start.step,
        incarnation=start.incarnation,
    )
    keeper = Keeper(server.desk, plan.shard, plan.shards, folder=plan.folder, log=start.log)
    server.desk.keeper = keeper
    stopped_by(server.stop)
    try:
        keeper.begin()
        tell(server.address)
        server.run()
        keeper.leave()
    finally:
        server.close()


def serve_shard(
    shard: str,
    listen: str,
    *,
    tell: Callable[[str], None],
    stop_with: Callable[[Callable[[], None]], None],
    keys: Path | None,
    insecure: bool,
    checkpoint: Path | None,
    durability: str,
) -> None:
    """`serve`, for launchers that start it by its name."""
    plan = ServerPlan.of(
        shard,
        listen,
        keys=keys,
        insecure=insecure,
        checkpoint=checkpoint,
        durability=durability,
    )
    serve(plan, tell, stop_with)


def _by_signals(stop: Callable[[], None]) -> None:
    """SIGTERM or SIGINT stops, also one that comes just before the main thread goes to sleep.

    Python's own handlers wait for that thread, which may sleep in a poll that nobody wakes any
    more. What the system's handler writes to the wakeup file another thread reads at once.
    """
    told, tell = socket.socketpair()
    tell.setblocking(False)
    signal.set_wakeup_fd(tell.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: None)

    ends = (told, tell)
    thread = threading.Thread(target=_stop_when_told, args=(stop, ends), daemon=True)
    thread.start()


def _stop_when_told(stop: Callable[[], None], ends: tuple[socket.socket, socket.socket]) -> None:
    """Keeps both ends open for good: later signals are written, too, and change nothing."""
    told, _ = ends
    told.recv(1)
    stop()
    while told.recv(1):
        continue


def _recover(
    plan: ServerPlan, service: Service, clients: Clients, clock: LogClock | None
) -> Recovered:
    if plan.checkpoint is None:
        return Recovered()
    import pyarrow  # noqa: F401 - now: a save loads it in a thread that gives way to all others

    recovery = Recovery(plan.checkpoint, plan.shard, plan.shards, service, clients)
    return recovery.from_checkpoint() if clock is None else recovery.from_log(clock)
