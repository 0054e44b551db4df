"""Saves and loads the tables of all servers from a client, as one checkpoint."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

from ..core.errors import HedgerowError, InputError
from ..core.files import local_path
from ..tables.checkpoint.manifest import CheckpointManifest
from ..tables.checkpoint.manifest_reader import read_manifest
from ..tables.checkpoint.routers import Routers, TableRouters
from ..tables.checkpoint.writer import Dense, WrittenFiles, disk_error, remove_remains, write_dense
from .messages import Verb
from .remote_shard import RemoteShard

DEADLINE_S = 600.0  # of one phase of a save or load
_QUIET_S = 5.0
_RENEW_S = 3.0  # a server ends a save whose client is silent for LEASE_S


def save_servers(
    shards: Sequence[RemoteShard],
    path: str | PathLike[str],
    *,
    router: Routers,
    step: int = 0,
    metadata: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    dense: Dense | None = None,
    deadline_s: float = DEADLINE_S,
) -> CheckpointManifest:
    """Makes every server write its rows to `path`, a folder that all of them can reach.

    Returns the manifest. `router` holds the routing rules of the clients. `dense` is the dense part
    of a model, which this process writes. Either the whole checkpoint exists or none of it. Writes
    that arrive during the save are not in it.
    """
    orders = _Orders(Verb.SAVE, shards, deadline_s, path, router)
    folder, mark = local_path(path).absolute(), ""
    try:
        # Server 0 locks the folder from here until its `close`. The other servers are asked after
        # it, so that a refused save does not disturb the save that holds the lock.
        told = [orders.one(0, "open", overwrite=overwrite)]
        mark = told[0]["mark"]
        with orders.kept_alive():
            told += orders.others("open", overwrite=overwrite)
            names = told[0]["newest_s"]
            newest_s = {name: max(one["newest_s"][name] for one in told) for name in names}
            written = orders.all("write", mark=mark, newest_s=newest_s)
            if dense is not None:
                written.append(_written(folder, dense, mark))
            about = {"step": step, "metadata": dict(metadata or {})}
            orders.one(0, "finish", mark=mark, written=written, **about)
    except BaseException:
        if mark:
            orders.quietly("close", mark=mark, abandon=True)
            if folder.exists():
                remove_remains(folder, mark, owner=False)
        raise
    try:
        # Before `close`: another save may replace the manifest as soon as the folder is free.
        with orders.kept_alive():
            return read_manifest(folder)
    finally:
        orders.all("close", mark=mark)


def _written(folder: Path, dense: Dense, mark: str) -> dict[str, Any]:
    """Writes the dense part and describes its file in the format of the servers' answers."""
    try:
        return asdict(WrittenFiles(blobs=(write_dense(folder, dense, mark),)))
    except OSError as error:
        raise disk_error(folder, error, complete=False, needed=dense.file_bytes) from error


def load_servers(
    shards: Sequence[RemoteShard],
    path: str | PathLike[str],
    *,
    router: Routers,
    reroute: bool = False,
    deadline_s: float = DEADLINE_S,
) -> int:
    """Makes every server load the rows that it owns, and returns the step of the checkpoint.

    The checkpoint may have any number of shards. No row changes until the servers have checked
    together that they have every row.
    """
    orders = _Orders(Verb.LOAD, shards, deadline_s, path, router)
    try:
        brought = [one["rows"] for one in orders.all("bring", reroute=reroute)]
        told = orders.all("finish", brought=brought)
    except BaseException:
        orders.quietly("close")
        raise
    return int(told[0]["step"])


class _Orders:
    """The phases of one save or load. A server executes a repeated order only once."""

    def __init__(
        self,
        verb: Verb,
        shards: Sequence[RemoteShard],
        deadline_s: float,
        path: str | PathLike[str],
        router: Routers,
    ) -> None:
        rules = TableRouters.of(router, shards[0].names)
        if rules.default.shards != len(shards):
            raise InputError(
                f"a router over {rules.default.shards} shards for {len(shards)} servers."
            )
        self._verb, self._shards, self._deadline_s = verb, shards, deadline_s
        self._order = {
            "number": secrets.token_hex(8),
            "path": str(local_path(path).absolute()),
            "routers": {name: rule.to_dict() for name, rule in rules.by_name.items()},
        }

    @contextmanager
    def kept_alive(self) -> Iterator[None]:
        """Renews the lease of this save on server 0 until the block ends."""
        over = threading.Event()

        def tell() -> None:
            while not over.wait(_RENEW_S):
                self.quietly("hold", of=self._shards[:1])

        thread = threading.Thread(target=tell, name="hedgerow hold save", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def all(self, phase: str, **more: Any) -> list[dict[str, Any]]:
        """Runs one phase on all servers at once. Raises only after all of them have ended."""
        return self._on(self._shards, phase, more)

    def others(self, phase: str, **more: Any) -> list[dict[str, Any]]:
        """Runs one phase on every server but the first."""
        return self._on(self._shards[1:], phase, more)

    def _on(
        self, shards: Sequence[RemoteShard], phase: str, more: dict[str, Any]
    ) -> list[dict[str, Any]]:
        order = {**self._order, "phase": phase, **more}
        under_way = [
            shard.start_ask(self._verb, order, deadline_s=self._deadline_s) for shard in shards
        ]
        told: list[dict[str, Any]] = []
        errors: list[HedgerowError] = []
        for answer in under_way:
            try:
                told.append(answer.wait())
            except HedgerowError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return told

    def one(self, shard: int, phase: str, **more: Any) -> dict[str, Any]:
        """Runs one phase on one server."""
        order = {**self._order, "phase": phase, **more}
        return self._shards[shard].ask(self._verb, order, deadline_s=self._deadline_s)

    def quietly(self, phase: str, *, of: Sequence[RemoteShard] | None = None, **more: Any) -> None:
        """Runs one phase and ignores its errors, because the caller gets those of other phases."""
        order = {**self._order, "phase": phase, **more}
        for shard in self._shards if of is None else of:
            try:
                shard.ask(self._verb, order, deadline_s=_QUIET_S)
            except HedgerowError:
                continue
