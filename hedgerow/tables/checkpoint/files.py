"""Files that are whole or absent: written beside, flushed to the disk, then renamed."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

from ...core.errors import CheckpointError, SaveError
from .sha256 import Sha256Behind
from .workers import in_background

PART = ".part"  # the end of the name of a file that is still being written
_CHUNK_BYTES = 2**22
_FLUSH_BYTES = 2**25  # written since the last flush: enough to keep a disk busy


class HashedFile:
    """A new file that knows its checksum; what Arrow writes into. Single-owner.

    With `behind` the checksum is computed in another thread while the file is written.
    """

    def __init__(self, path: Path, *, behind: bool = False) -> None:
        self.path = path
        self.file_bytes = 0
        self._sha256 = Sha256Behind() if behind else hashlib.sha256()
        self._part = path.with_name(path.name + PART)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._fd = os.open(self._part, flags, 0o644)
        self._flushing: Future[None] | None = None
        self._flushed_bytes = 0

    @property
    def closed(self) -> bool:
        """Whether nothing more can be written."""
        return self._fd < 0

    def write(self, data: bytes) -> int:
        """Appends all of `data`, which must not change later."""
        view = memoryview(data).cast("B")
        self._sha256.update(view)
        written = 0
        while written < len(view):
            written += os.write(self._fd, view[written:])
        self.file_bytes += written
        self._flush_ahead()
        return written

    def _flush_ahead(self) -> None:
        """Lets the disk work while more rows are read, so that little is left for the end."""
        if self.file_bytes - self._flushed_bytes < _FLUSH_BYTES:
            return
        if self._flushing is not None and not self._flushing.done():
            return
        self._end_flush()
        self._flushed_bytes = self.file_bytes
        self._flushing = in_background(os.fsync, self._fd)

    def _end_flush(self) -> None:
        """Raises what went wrong: the system tells an error of the disk only once."""
        # Forgotten first: Arrow holds this file where no collector sees it, so an error that the
        # file held would stay for ever, and the table with it.
        flushing, self._flushing = self._flushing, None
        if flushing is not None:
            flushing.result()

    def flush(self) -> None:
        """Nothing is held back."""

    def publish(self) -> str:
        """Flushes to the disk and gives the file its name; the checksum."""
        self._end_flush()
        os.fsync(self._fd)
        self.close()
        checksum = self._sha256.hexdigest()
        self._part.rename(self.path)
        return checksum

    def close(self) -> None:
        """Leaves the file unfinished, unless it was published."""
        if self._fd >= 0:
            if self._flushing is not None:
                self._flushing.exception()  # a flush under way needs the file; what it says is moot
            os.close(self._fd)
            self._fd = -1


def sync_folder(folder: Path) -> None:
    """Makes names and renames in `folder` last through a power failure."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(folder: Path) -> None:
    """The folder and its parents, with names that last."""
    try:
        missing = [p for p in (folder, *folder.parents) if not p.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for made in missing:
            sync_folder(made.parent)
    except OSError as error:
        raise SaveError(f"cannot save to {folder}: {error.strerror or error}.") from error


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Holds the folder against other savers; a killed process holds nothing."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SaveError(
                f"{folder} is being saved to by another save; wait for it, or use another folder."
            ) from error
        try:
            yield
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)  # a forked child has the descriptor, too
    finally:
        os.close(fd)


def remove(paths: list[Path]) -> None:
    """Removes files and folders, those that are already gone included."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def check_file(path: Path, file_bytes: int, sha256: str) -> None:
    """Raises unless the file has exactly these bytes."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"{path} is no plain file; the manifest names one.")
        if status.st_size != file_bytes:
            raise CheckpointError(
                f"{path} is damaged: {status.st_size} bytes where the manifest says {file_bytes}. "
                f"Use an older checkpoint, or a copy of this one."
            )
        actual = hashlib.sha256()
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(_CHUNK_BYTES):
                actual.update(chunk)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing; the manifest names it.") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error
    if actual.hexdigest() != sha256:
        raise CheckpointError(
            f"{path} is damaged: its SHA-256 is {actual.hexdigest()} where the manifest says "
            f"{sha256}. Use an older checkpoint, or a copy of this one."
        )
