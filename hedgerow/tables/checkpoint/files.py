"""Checkpoint files: written under a temporary name, hashed, flushed, then renamed."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

from ...core.errors import CheckpointError, SaveError
from ...core.units import format_bytes
from .workers import in_background

_TASK_BYTES = 2**20  # takes much longer to hash than a thread takes to start
_TASKS = 8  # tasks that may wait; data that is not hashed yet stays in memory


def sha256_of(pieces: Iterable[bytes]) -> str:
    """Returns the SHA-256 of consecutive pieces.

    >>> sha256_of([b"a", b"b"]) == hashlib.sha256(b"ab").hexdigest()
    True
    """
    checksum = hashlib.sha256()
    for piece in pieces:
        checksum.update(piece)
    return checksum.hexdigest()


class BackgroundSha256:
    """Computes the SHA-256 of pieces in background threads, with a bounded backlog. Single-owner.

    >>> checksum = BackgroundSha256()
    >>> checksum.update(memoryview(b"ab"))
    >>> checksum.hexdigest() == hashlib.sha256(b"ab").hexdigest()
    True
    """

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._pieces: list[memoryview] = []
        self._bytes = 0
        self._tasks: deque[Future[None]] = deque()

    def update(self, piece: memoryview) -> None:
        """Adds a piece, whose bytes must not change afterwards."""
        self._pieces.append(piece)
        self._bytes += len(piece)
        if self._bytes >= _TASK_BYTES:
            self._start()
        if len(self._tasks) > _TASKS:
            self._tasks.popleft().result()

    def hexdigest(self) -> str:
        """Returns the checksum of all pieces."""
        self._start()
        self._tasks.pop().result()
        return self._sha256.hexdigest()

    def _start(self) -> None:
        before = self._tasks[-1] if self._tasks else None
        pieces, self._pieces, self._bytes = self._pieces, [], 0
        self._tasks.append(in_background(self._hash, before, pieces))

    def _hash(self, before: Future[None] | None, pieces: list[memoryview]) -> None:
        if before is not None:
            before.result()
        for piece in pieces:
            self._sha256.update(piece)


PART = ".part"  # suffix of the name of a file that is still being written
_CHUNK_BYTES = 2**22
_FLUSH_BYTES = 2**25  # bytes between flushes: enough to keep a disk busy


class HashedFile:
    """A new file with a running checksum, which Arrow writes to. Single-owner.

    With `behind`, another thread computes the checksum while the file is written.
    """

    def __init__(self, path: Path, *, behind: bool = False) -> None:
        self.path = path
        self.file_bytes = 0
        self._sha256 = BackgroundSha256() if behind else hashlib.sha256()
        self._part = path.with_name(path.name + PART)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._fd = os.open(self._part, flags, 0o644)
        self._flushing: Future[None] | None = None
        self._flushed_bytes = 0

    @property
    def closed(self) -> bool:
        """Whether the file is closed for writing."""
        return self._fd < 0

    def write(self, data: bytes) -> int:
        """Appends all of `data`, whose bytes must not change afterwards."""
        view = memoryview(data).cast("B")
        self._sha256.update(view)
        written = 0
        while written < len(view):
            try:
                written += os.write(self._fd, view[written:])
            except OSError as error:  # the system does not name the file
                raise OSError(error.errno, error.strerror, str(self.path)) from error
        self.file_bytes += written
        self._flush_ahead()
        return written

    def _flush_ahead(self) -> None:
        """Starts a flush while more rows are written, so that less remains for the final flush."""
        if self.file_bytes - self._flushed_bytes < _FLUSH_BYTES:
            return
        if self._flushing is not None and not self._flushing.done():
            return
        self._end_flush()
        self._flushed_bytes = self.file_bytes
        self._flushing = in_background(os.fsync, self._fd)

    def _end_flush(self) -> None:
        """Raises the error of the last flush; the system reports an error of the disk only once."""
        # Cleared first: Arrow holds this file out of the garbage collector's sight, so an error
        # kept here would keep the table alive forever.
        flushing, self._flushing = self._flushing, None
        if flushing is not None:
            flushing.result()

    def flush(self) -> None:
        """Does nothing: no data is buffered."""

    def publish(self) -> str:
        """Flushes the file to the disk and renames it to its final name; returns the checksum."""
        self._end_flush()
        os.fsync(self._fd)
        self.close()
        checksum = self._sha256.hexdigest()
        self._part.rename(self.path)
        return checksum

    def close(self) -> None:
        """Closes the file. It stays unfinished unless it was published."""
        if self._fd >= 0:
            if self._flushing is not None:
                self._flushing.exception()  # wait for the running flush; its error does not matter
            os.close(self._fd)
            self._fd = -1


def sync_folder(folder: Path) -> None:
    """Makes new names and renames in `folder` survive a power failure."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(folder: Path) -> bool:
    """Makes the folder and its parents durably; returns whether it was missing."""
    try:
        missing = [p for p in (folder, *folder.parents) if not p.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for made in missing:
            sync_folder(made.parent)
    except OSError as error:
        raise cannot_save(folder, error) from error
    return bool(missing)


def cannot_save(folder: Path, error: OSError) -> SaveError:
    """Returns the error for a folder that takes no files; nothing was written yet."""
    return SaveError(
        f"cannot save to {folder}: {error.strerror or error}. Nothing was written; save to a "
        f"folder that this process may make files in."
    )


@contextmanager
def sole_writer(folder: Path, *, make: bool = False) -> Iterator[bool]:
    """Locks the folder against other savers.

    The lock of a killed process is released by the system. With `make`, a missing folder is made
    first. Yields whether this call made it.
    """
    fd, made = _held(folder, make)
    try:
        yield made
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)  # a forked child has the descriptor, too
        os.close(fd)


def _held(folder: Path, make: bool) -> tuple[int, bool]:
    """Returns a descriptor that holds the lock of the folder that has this name now."""
    made = False
    while True:
        if make:
            made = make_folder(folder)
        try:
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            if make:  # another save made it, failed, and removed it
                continue
            raise cannot_save(folder, error) from error
        except OSError as error:
            raise cannot_save(folder, error) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_now(folder, fd):
                return fd, made
        except BlockingIOError as error:
            os.close(fd)
            raise SaveError(
                f"{folder} is being saved to by another save; wait for it, or use another folder."
            ) from error
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # the lock of a removed folder excludes no other saver
        if not make and not folder.exists():
            raise SaveError(f"cannot save to {folder}: it was removed meanwhile.")


def _is_now(folder: Path, fd: int) -> bool:
    """Returns whether the name still refers to the open folder."""
    try:
        return os.path.samestat(os.stat(folder), os.fstat(fd))
    except FileNotFoundError:
        return False


def remove(paths: list[Path]) -> None:
    """Removes files and folders; ignores those that are already gone."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def open_plain(path: Path) -> int:
    """Returns a descriptor for reading a plain file; raises for a link, a pipe or a device.

    Opening a pipe would wait for a writer, and a link may point outside the folder.
    """
    try:
        _check_kind(path, path.lstat())
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing; the manifest names it.") from error
    except OSError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error
    try:
        _check_kind(path, os.fstat(fd))
    except BaseException:
        os.close(fd)
        raise
    return fd


def check_plain(path: Path) -> None:
    """Raises unless `path` is a plain file; for readers that open the file by name."""
    os.close(open_plain(path))


def read_plain(path: Path, most: int = -1) -> bytes:
    """Returns the bytes of a plain file, or the first `most` bytes."""
    with os.fdopen(open_plain(path), "rb") as file:
        try:
            return file.read(most)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error


def chunks_of(path: Path) -> Iterator[bytes]:
    """Yields the bytes of a plain file in chunks."""
    with os.fdopen(open_plain(path), "rb", buffering=0) as file:
        try:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error


def _check_kind(path: Path, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    kinds = (
        (stat.S_ISLNK, "a link"),
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISSOCK, "a socket"),
    )
    kind = next((word for is_kind, word in kinds if is_kind(status.st_mode)), "a device")
    raise CheckpointError(
        f"{path} is no plain file but {kind}; a checkpoint consists of plain files. If you trust "
        f"what it refers to, put a copy of that in its place."
    )


def check_file(path: Path, file_bytes: int, sha256: str) -> None:
    """Raises unless the file has this size and checksum."""
    fd = open_plain(path)
    try:
        there = os.fstat(fd).st_size
    finally:
        os.close(fd)
    if there != file_bytes:
        raise CheckpointError(
            f"{path} is damaged: {there} bytes where the manifest says {file_bytes}. "
            f"Use an older checkpoint, or a copy of this one."
        )
    actual = sha256_of(chunks_of(path))
    if actual != sha256:
        raise CheckpointError(
            f"{path} is damaged: its SHA-256 is {actual} where the manifest says "
            f"{sha256}. Use an older checkpoint, or a copy of this one."
        )


def room_left(folder: Path, needed_bytes: int) -> str:
    """Returns a text on the space that a save needs and the disk has, for an error of a full disk.

    >>> room_left(Path("/"), 2**20).startswith("The save needs about 1.00 MiB; ")
    True
    """
    try:
        free = shutil.disk_usage(next(p for p in (folder, *folder.parents) if p.exists())).free
    except OSError:
        return f"The save needs about {format_bytes(needed_bytes)}."
    return f"The save needs about {format_bytes(needed_bytes)}; {format_bytes(free)} are free now."


def is_no_room(error: OSError) -> bool:
    """Returns whether the error means that a disk, quota or file size limit is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
