"""A server's own folder: what it starts from after a stop or a crash.

`rows` is a checkpoint of this server alone, with what it remembers of its clients; with the log,
the segments after it lie beside. `clean` is there while nothing was lost since the checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import (
    CheckpointError,
    CheckpointMissingError,
    ConfigError,
    HedgerowError,
    SaveError,
)
from ..routing.router import Router
from ..tables.checkpoint.files import make_folder, sole_writer, sync_folder
from ..tables.checkpoint.load import load_tables
from ..tables.checkpoint.load_job import LoadJob
from ..tables.checkpoint.manifest import MANIFEST, Manifest
from ..tables.checkpoint.manifest_reader import read_manifest
from ..tables.checkpoint.newest import newest
from .client_file import BLOB, blob_name, unpack
from .clients import Clients
from .configs import config_of
from .desk import open_tables
from .errors import LogError
from .frames import Verb, read_request
from .log import Log, LogClock, has_records, replay, segments
from .service import Service

CLEAN, ROWS = "clean", "rows"


@dataclass(frozen=True, slots=True)
class Recovered:
    """How a server starts: `step` is that of the rows it has, `incarnation` 0 for a new life."""

    step: int = 0
    incarnation: int = 0
    log: Log | None = None


def own_folder(root: Path, shard: int, shards: int) -> Path:
    """Where one server keeps its things below the folder that all are given."""
    return root / f"server-{shard:05d}-of-{shards:05d}"


@contextmanager
def sole_server(folder: Path) -> Iterator[None]:
    """Holds a server's folder: a second one would cut the log that the first is writing."""
    with ExitStack() as held:
        try:
            held.enter_context(sole_writer(folder))
        except SaveError as error:
            raise ConfigError(
                f"{folder} belongs to a server that still runs; stop it first, or use another "
                f"folder."
            ) from error
        yield


class Recovery:
    """Brings a server to where it was. Runs once, before the first client."""

    def __init__(
        self, root: Path, shard: int, shards: int, service: Service, clients: Clients
    ) -> None:
        self._root, self._shard, self._shards = root, shard, shards
        self._folder = own_folder(root, shard, shards)
        self._service, self._clients = service, clients
        self._segment = 1

    def from_checkpoint(self) -> Recovered:
        """The newest checkpoint: this server's own, or one of all servers with a higher step."""
        make_folder(self._folder)
        if segments(self._folder):
            raise ConfigError(
                f"{self._folder} holds a log, whose writes would be lost; start the server with "
                f"--durability log, or with another folder."
            )
        incarnation = self._take_clean()
        step, together = self._own_step(), self._newest_of_all()
        if together is not None and (step is None or together[1] > step):
            self._load_shared(together[0])
            return Recovered(together[1])
        if step is None:
            return Recovered()
        self._load_own()
        return Recovered(step, incarnation)

    def from_log(self, clock: LogClock) -> Recovered:
        """The own checkpoint, if there is one, and every accepted write since."""
        make_folder(self._folder)
        self._take_clean()
        step, together = self._own_step(), self._newest_of_all()
        if step is not None:
            self._load_own()
        elif not has_records(self._folder) and together is not None:
            self._load_shared(together[0])
            step = together[1]
        applied = step or 0
        for record in replay(self._folder, self._segment):
            clock.set(record.now_s)
            for frames in record.requests:
                applied = max(applied, self._apply(frames))
        number = max([self._segment, *segments(self._folder)])
        log = Log(self._folder, number, clock=clock)
        log.remove_before(self._segment)
        return Recovered(applied, log=log)

    def _apply(self, frames: list[memoryview]) -> int:
        request = read_request(frames)
        if request.verb == Verb.OPEN:
            try:
                open_tables(self._service, request)
            except HedgerowError as error:  # its client was told so then
                logging.getLogger("hedgerow").info("tables that were refused: %s", error)
        else:
            self._clients.finish(request.origin, self._service.write(request))
        return request.options.step or 0

    def _take_clean(self) -> int:
        """The life that ended in good order, if it did; it is told only once."""
        path = self._folder / CLEAN
        try:
            incarnation = int(path.read_text())
        except (OSError, ValueError):
            return 0
        path.unlink()
        sync_folder(self._folder)
        return incarnation

    def _own_step(self) -> int | None:
        rows = self._folder / ROWS
        return read_manifest(rows).step if (rows / MANIFEST).exists() else None

    def _newest_of_all(self) -> tuple[Path, int] | None:
        try:
            path = newest(self._root)
        except CheckpointMissingError:
            return None
        return path, read_manifest(path).step

    def _load_own(self) -> None:
        rows = self._folder / ROWS
        self._open(read_manifest(rows), rows)
        loaded = load_tables(rows, self._service.store.tables)
        if BLOB not in loaded.blobs:
            raise CheckpointError(
                f"{rows} does not tell what its server knew of its clients, so no server wrote it. "
                f"Move it away, and load it through a client."
            )
        self._remember(loaded.blobs[BLOB])

    def _load_shared(self, path: Path) -> None:
        manifest = read_manifest(path)
        self._open(manifest, path)
        rules = {name: manifest.router_of(name) for name in self._service.store.names}
        routers = {name: spread(name, rule, self._shards) for name, rule in rules.items()}
        job = LoadJob(path, self._service.store.tables, router=routers, shard=self._shard)
        job.bring()
        blobs = job.finish().blobs
        mine = blobs.get(blob_name(self._shard, self._shards))
        if mine is not None and manifest.routing.shards == self._shards:
            self._remember(mine)
        logging.getLogger("hedgerow").info("rows of %s, step %d", path, manifest.step)

    def _open(self, manifest: Manifest, path: Path) -> None:
        if self._service.is_open:
            return
        configs = [table.config for table in manifest.tables.values()]
        if any(config is None for config in configs):
            raise CheckpointError(f"{path} does not tell the tables' configs; use --tables.")
        self._service.open(config_of(configs))

    def _remember(self, data: bytes) -> None:
        found = unpack(data)
        for number, client in found.clients:
            self._clients.put(number, client)
        self._segment = max(found.segment, 1)
        if found.segment and found.segment not in segments(self._folder):
            raise LogError(
                f"{self._folder} lacks log segment {found.segment}, with which its checkpoint goes "
                f"on; bring it back."
            )


def spread(name: str, rule: Router | None, shards: int) -> Router:
    """The same rule over so many servers."""
    if rule is None or (rule.bounds is not None and rule.shards != shards):
        raise CheckpointError(
            f"table {name!r} was saved with ranges that do not tell how to cut them for {shards} "
            f"servers; load it through a client, with reroute."
        )
    if rule.shards == shards:
        return rule
    return Router(rule.dist_type, shards, rows=rule.rows, rank0_empty=rule.rank0_empty)
