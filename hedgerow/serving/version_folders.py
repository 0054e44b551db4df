"""Folders of versions, `<base>/<sub graph>/<version>`: each is whole or not there."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import secrets
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ..core import checks
from ..core.clock import Clock
from ..core.errors import ConfigError, SaveError
from ..tables.checkpoint.files import make_folder, sync_folder

PART = ".part"  # the end of the name of a folder that is still being written
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def check_sub_graph(name: str) -> str:
    """A name that is a folder on every system."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"name is {name!r}; use letters, digits, '_', '-' and '.'.")
    return name


def versions_in(folder: Path) -> list[int]:
    """The versions of a sub graph, the oldest first.

    >>> versions_in(Path("/nowhere"))
    []
    """
    if not folder.is_dir():
        return []
    found = (path.name for path in folder.iterdir() if path.is_dir())
    return sorted(int(name) for name in found if name.isascii() and name.isdecimal())


def next_version(base: Path, sub_graphs: list[str], clock: Clock) -> int:
    """The time in seconds, or the number after the newest where that is not newer."""
    there = [v for name in sub_graphs for v in versions_in(base / name)]
    return max(clock.now_s(), max(there, default=0) + 1)


def publish(folder: Path, write: Callable[[Path], None]) -> None:
    """Makes a folder with what `write` puts into it, in one instant.

    It is written beside, flushed to the disk and renamed. What a killed process leaves ends in
    `.part` and is no version; the next publish() on the same machine clears it away.
    """
    checks.whole("publish", "version", int(folder.name))
    make_folder(folder.parent)
    part = folder.with_name(f".{folder.name}-{_machine()}-{secrets.token_hex(6)}{PART}")
    try:
        with _claimed(part):
            write(part)
            _flush(part)
            os.rename(part, folder)  # refused where the folder is there and not empty
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
    """Makes a folder that is locked while it is written, after those nobody writes are gone."""
    with _locked(part.parent, wait=True):  # so that none is seen between its birth and its lock
        _sweep(part.parent)
        part.mkdir()
        held = ExitStack()
        held.enter_context(_locked(part, wait=False))
    with held:
        yield


def _sweep(folder: Path) -> None:
    """Clears what processes of this machine left: whoever writes holds a lock, which dies with it.

    Locks of other machines may not be seen here, so their folders stay.
    """
    for left in folder.glob(f".*-{_machine()}-*{PART}"):
        try:
            with _locked(left, wait=False):
                shutil.rmtree(left)
        except OSError as error:
            if not isinstance(error, BlockingIOError):  # that one is being written
                text = "%s, left by an export that was stopped, stays: %s"
                logging.getLogger("hedgerow").warning(text, left, error)


@contextmanager
def _locked(folder: Path, *, wait: bool) -> Iterator[None]:
    """Holds a folder's lock; BlockingIOError where another has it and we do not wait."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        try:
            yield
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)  # a forked child has the descriptor, too
    finally:
        os.close(fd)


def _machine() -> str:
    """A short name of this machine that may stand in the name of a folder."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def _flush(folder: Path) -> None:
    """Everything below is on the disk."""
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
