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

DEADLINE_S = 600.0  # of one phase, however many rows
_QUIET_S = 5.0
_RENEW_S = 3.0  # a server lets a save go that it has not heard of for LEASE_S


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
    """Every server writes its rows into the folder `path`, which all see; the manifest.

    `router` is what the clients route by. `dense` is the dense part of a model, which this process
    writes. The checkpoint is complete or not there; writes that come meanwhile are not in it.
    """
    orders = _Orders(Verb.SAVE, shards, deadline_s, path, router)
    folder, mark = local_path(path).absolute(), ""
    try:
        # Server 0 holds the folder, from here to its `close`. The others are asked after it, so
        # that a save that is refused does not disturb the one that holds it.
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
    """The file of the dense part, as servers tell of theirs."""
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
    """Every server loads the rows it owns, from a checkpoint of any number of them; its step.

    Nothing changes before all servers together have proved that they have every row.
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
    """Phases of one job; a server that gets one twice does it once."""

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
        """Tells server 0 now and then that this save goes on, until the block is left."""
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
        """One phase on every server at once; all have ended when this raises."""
        return self._on(self._shards, phase, more)

    def others(self, phase: str, **more: Any) -> list[dict[str, Any]]:
        """As `all`, on every server but the first."""
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
        """One phase on one server."""
        order = {**self._order, "phase": phase, **more}
        return self._shards[shard].ask(self._verb, order, deadline_s=self._deadline_s)

    def quietly(self, phase: str, *, of: Sequence[RemoteShard] | None = None, **more: Any) -> None:
        """Without errors of its own: the caller hears of what failed before, or will fail."""
        order = {**self._order, "phase": phase, **more}
        for shard in self._shards if of is None else of:
            try:
                shard.ask(self._verb, order, deadline_s=_QUIET_S)
            except HedgerowError:
                continue
