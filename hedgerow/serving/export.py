"""Exports a trained model to versioned folders that servers load."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import secrets
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import torch
from torch import nn

from ..core import checks
from ..core.clock import Clock, SystemClock
from ..core.errors import ConfigError, DtypeError, SaveError, StateError
from ..core.files import local_path
from ..nn.embedding_modules import collections_of, unwrap
from ..tables.checkpoint.files import make_folder, sync_folder
from .arguments import Arguments
from .bundle_files import (
    MANIFEST,
    ROWS,
    BundleManifest,
    entries_below,
    plain_outputs,
    read_key,
    read_manifest,
    sign,
)
from .program import trace
from .row_signatures import multi_name
from .rows import ServedTable, known_ids, plain_routing, served_tables, write_rows

PART = ".part"  # the end of the name of a folder that is still being written
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def check_sub_graph(name: str) -> str:
    """Returns the name if it is a legal folder name on every system, else raises."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"name is {name!r}; use letters, digits, '_', '-' and '.'.")
    return name


def versions_in(folder: Path) -> list[int]:
    """Returns the versions of a sub graph, the oldest first.

    >>> versions_in(Path("/nowhere"))
    []
    """
    if not folder.is_dir():
        return []
    found = (path.name for path in folder.iterdir() if path.is_dir())
    return sorted(int(name) for name in found if name.isascii() and name.isdecimal())


def next_version(base: Path, sub_graphs: list[str], clock: Clock) -> int:
    """Returns the time in seconds, or the newest version plus 1 if that is larger."""
    there = [v for name in sub_graphs for v in versions_in(base / name)]
    return max(clock.now_s(), max(there, default=0) + 1)


def write_version(folder: Path, write: Callable[[Path], None]) -> None:
    """Makes a version folder atomically; `write` fills it.

    The folder is written under another name, flushed to disk and renamed. If the process is
    killed, a folder whose name ends in `.part` is left, which is not a version. The next export
    on the same machine deletes it.
    """
    checks.whole("publish", "version", int(folder.name))
    make_folder(folder.parent)
    part = folder.with_name(f".{folder.name}-{_machine()}-{secrets.token_hex(6)}{PART}")
    try:
        with _claimed(part):
            write(part)
            _flush(part)
            os.rename(part, folder)  # fails if the folder exists and is not empty
            sync_folder(folder.parent)
    except OSError as error:
        raise SaveError(
            f"{folder} could not be written: {error.strerror or error}. Other versions are "
            f"untouched."
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def _claimed(part: Path) -> Iterator[None]:
    """Deletes abandoned folders, then makes a folder that is locked inside the `with` block."""
    with _locked(part.parent, wait=True):  # no process may sweep a folder before it is locked
        _sweep(part.parent)
        part.mkdir()
        held = ExitStack()
        held.enter_context(_locked(part, wait=False))
    with held:
        yield


def _sweep(folder: Path) -> None:
    """Deletes `.part` folders of dead processes of this machine: their locks are free.

    Locks of other machines may not be visible here, so their folders stay.
    """
    for left in folder.glob(f".*-{_machine()}-*{PART}"):
        try:
            with _locked(left, wait=False):
                shutil.rmtree(left)
        except OSError as error:
            if not isinstance(error, BlockingIOError):  # another process is writing that folder
                text = "%s, a folder of an export that was stopped, cannot be deleted: %s"
                logging.getLogger("hedgerow").warning(text, left, error)


@contextmanager
def _locked(folder: Path, *, wait: bool) -> Iterator[None]:
    """Holds a folder's lock; raises BlockingIOError if it is taken and `wait` is False."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        try:
            yield
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)  # a forked child also has the descriptor
    finally:
        os.close(fd)


def _machine() -> str:
    """Returns a short name of this machine, valid in folder names."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def _flush(folder: Path) -> None:
    """Flushes everything below a folder to disk."""
    for path in folder.iterdir():
        if path.is_dir():
            _flush(path)
        else:
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
    sync_folder(folder)


ENTRY = "entry"


def export(
    model: nn.Module,
    path: str | PathLike[str],
    *,
    example: object,
    version: int | None = None,
    rows: str = "fp32",
    name: str = ENTRY,
    servers: int = 0,
    fields: Mapping[str, str] | None = None,
    sigmoid: bool = False,
    key: str | PathLike[str] | None = None,
    clock: Clock | None = None,
) -> Path:
    """Writes a version of a model to `<path>/<name>/<version>` for servers, and returns that path.

    `example` is the model's input for one batch: one argument, or a tuple of them. Only names,
    types and widths are taken from it. The default `version` is the time in seconds. `rows` is
    the form in which a server keeps rows: "fp32", "fp16" or "int8".

    `fields` has the features for which clients may send strings, for example `{"user": "user"}`:
    the server converts them by `hr.id64(value, field)`, as training does. With `sigmoid` a model
    that returns logits is served with probabilities. `key` is the file of a key that signs the
    bundle.

    With `servers` the rows go to bundles of their own, `<path>/ps_0` to `ps_<servers - 1>`, which
    are written first; the model then reads rows from the servers of these bundles. A bundle is
    written atomically. An existing version is left unchanged. The model must not be trained
    during the export.

    >>> import tempfile, hedgerow as hr
    >>> from hedgerow.serving.bundle import load_bundle
    >>> bags = hr.EmbeddingBags([hr.Table("user", 2)], init=hr.Zeros(), optimizer=hr.Sgd(lr=1.0))
    >>> ids = hr.IdBatch.from_lists({"user": [[7], [8]]})
    >>> bags(ids)["user"].sum().backward()
    >>> with tempfile.TemporaryDirectory() as base:
    ...     served = load_bundle(hr.serving.export(bags, base, example=ids, version=3), "demo")
    >>> ask = {"user": torch.tensor([7, 9]), "user_lengths": torch.tensor([1, 1])}
    >>> served.signatures["serving_default"].run(ask)["user"].tolist(), served.version
    ([[-1.0, -1.0], [0.0, 0.0]], 3)
    """
    if not isinstance(model, nn.Module):
        raise DtypeError(f"export of a {type(model).__name__}; pass an nn.Module.")
    base, servers = local_path(path), checks.count("servers", servers)
    names = [*(f"ps_{i}" for i in range(servers)), check_sub_graph(name)]
    if version is None:
        version = next_version(base, names, clock or SystemClock())
    job = _Export(
        updates=_updates(model),  # before any row is read
        model=unwrap(model),
        arguments=Arguments.of(unwrap(model), example, fields),
        tables=served_tables(model, rows),
        version=checks.count("version", version),
        servers=servers,
        sigmoid=sigmoid,
        key=None if key is None else read_key(Path(key)),
    )
    for i, own in enumerate(names):
        job.write(base / own / str(version), i if i < servers else None)
    return base / name / str(version)


def _updates(model: nn.Module) -> list[int]:
    return [one.updates.step for one in collections_of(model)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Export:
    """One version, whose bundles are written one after the other."""

    updates: list[int]
    model: nn.Module
    arguments: Arguments
    tables: dict[str, ServedTable]
    version: int
    servers: int
    sigmoid: bool
    key: bytes | None

    def write(self, folder: Path, server: int | None) -> None:
        """Writes the bundle of a row server, or of the model itself."""
        if folder.exists():
            read_manifest(folder)  # raises if the folder is not a bundle
            return
        write_version(folder, lambda part: self._fill(part, folder.parent.name, server))

    def _fill(self, part: Path, sub_graph: str, server: int | None) -> None:
        holds_rows = bool(self.tables) and (server is not None or not self.servers)
        outputs = None
        if server is None:
            known = known_ids(self.model, self.tables)
            written = trace(self.model, self.arguments, known, sigmoid=self.sigmoid)
            written.save(part)
            outputs = plain_outputs(written.outputs, written.cuts)
        if holds_rows:
            write_rows(self.tables, part / ROWS, server or 0, max(1, self.servers))
        manifest = BundleManifest(
            sub_graph=sub_graph,
            version=self.version,
            arguments=None if server is not None else self.arguments.to_list(),
            outputs=outputs,
            tables={name: table.config.to_dict() for name, table in self.tables.items()},
            routing=plain_routing(self.tables),
            holds_rows=holds_rows,
            servers=self.servers,
            multi_table=multi_name(server or 0),
            made_with={"torch": str(torch.__version__)},
            files=entries_below(part),
        )
        text = manifest.to_text()
        (part / MANIFEST).write_text(text)
        if self.key is not None:
            sign(part, self.key, text.encode())
        if _updates(self.model) != self.updates:
            raise StateError(
                f"the model was trained while version {self.version} of {sub_graph} was written, "
                f"which is discarded because it mixes two states. Export between two steps."
            )
