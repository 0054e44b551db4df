"""What Ray runs of a job: a server in an actor, a worker's script below an actor."""

from __future__ import annotations

import os
import pkgutil
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import LaunchError
from . import env
from .free_port import free_port
from .ray_library import ray_library
from .script_process import ScriptProcess, Told
from .worker_variables import Spot


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOrder:
    """A server: the dotted name of what runs it, who it is, where it is at home, what it keeps."""

    entry: str
    shard: str
    spot: Spot
    folder: Path | None
    job: str
    keys: Path | None
    insecure: bool


def look_around(local: bool, avoid: Collection[int]) -> Spot:
    """Where this runs, and a port that is free there."""
    ray = ray_library()
    host = "127.0.0.1" if local else ray.util.get_node_ip_address()
    return Spot(ray.get_runtime_context().get_node_id(), host, free_port(host, avoid))


class ServerActor:
    """One server; Ray makes the actor again after a crash, and `serve` goes on from the log.

    Methods run side by side in threads: `serve` for the server's whole life, the others beside.
    """

    def __init__(self, order: ServerOrder) -> None:
        self._order = order
        self._address = ""
        self._stop: Callable[[], None] | None = None
        self._listens, self._gone = threading.Event(), threading.Event()

    def serve(self) -> None:
        """Serves at the address it has for good, until `stop`."""
        try:
            self._serve()
        finally:
            self._gone.set()
            self._listens.set()

    def _serve(self) -> None:
        order, spot = self._order, self._order.spot
        here = ray_library().get_runtime_context().get_node_id()
        if here != spot.machine:
            raise LaunchError(
                f"server {order.shard} was at {spot.host}, and that machine is gone; start the job "
                f"again: the rows are in its checkpoint folder."
            )
        # The name comes from the program's own verb; this folder may not know the servers'.
        run = pkgutil.resolve_name(order.entry)
        run(
            order.shard,
            f"{spot.host}:{spot.port}",
            keys=order.keys,
            insecure=order.insecure,
            checkpoint=self._folder(),
            durability="log",
            tell=self._tell,
            stop_with=self._take_stop,
        )

    def _folder(self) -> Path:
        if self._order.folder is not None:
            return self._order.folder
        return Path(tempfile.gettempdir()) / f"hedgerow-{self._order.job}"

    def _tell(self, address: str) -> None:
        self._address = address
        self._listens.set()

    def _take_stop(self, stop: Callable[[], None]) -> None:
        self._stop = stop

    def where(self) -> tuple[str, int]:
        """Its address and process, once clients may come; no address if it could not start."""
        self._listens.wait()
        return self._address, os.getpid()

    def stop(self) -> None:
        """Lets it save and end; what nobody asked to keep is removed."""
        if self._stop is not None and not self._gone.is_set():
            self._stop()
            self._gone.wait()
        if self._order.folder is None:
            shutil.rmtree(self._folder(), ignore_errors=True)


class WorkerActor:
    """One worker: the script as a process of its own."""

    def __init__(self, script: Sequence[str], told: Mapping[str, str], folder: str) -> None:
        if not Path(folder).is_dir():
            raise LaunchError(
                f"{folder}, where the job was started, is not on {told['MASTER_ADDR']}; every "
                f"machine of the cluster must have the script at the same place."
            )
        environ = {**env.current(), **told}
        self._process = ScriptProcess([sys.executable, *script], environ, folder)

    def next(self) -> Told:
        """What the script said; waits for it."""
        return self._process.next()

    def stop(self) -> None:
        """Ends the script."""
        self._process.stop()
