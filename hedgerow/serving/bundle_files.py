"""The files of a bundle: plain files in its own folder, each with the checksum of the manifest."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..core.errors import FileDamagedError, FileMissingError

_CHUNK_BYTES = 1 << 22


def check_plain(folder: Path) -> None:
    """Everything in a folder and below is a plain file or a folder: no link, FIFO or device.

    A link would make the server read other files, and a FIFO would make it wait for ever.
    """
    for path in _entries(folder):
        mode = path.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise FileDamagedError(
                f"{path} is no plain file; a bundle has no links, FIFOs or devices. Copy the "
                f"bundle with the contents of its files."
            )


def _entries(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _entries(path)


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """All bytes of a plain file, of at most `most`; a link, FIFO or device is not opened."""
    with os.fdopen(_open(path), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise FileDamagedError(f"{path} has {size} bytes; no file of its kind is so large.")
        return file.readall() or b""


def _open(path: Path) -> int:
    try:
        # NONBLOCK: opening a FIFO would wait for a writer.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise FileMissingError(f"{path} is missing; the manifest names it.") from error
    except OSError as error:
        raise FileDamagedError(f"{path} cannot be read: {error.strerror}.") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileDamagedError(f"{path} is no plain file; the manifest names one.")
    return fd


def file_entry(path: Path) -> dict[str, Any]:
    """Size and checksum of a file."""
    with os.fdopen(_open(path), "rb", buffering=0) as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": os.fstat(file.fileno()).st_size, "sha256": sha256}


def entries_below(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and checksum of every file below a folder, by its name from there."""
    files = [path for path in _entries(folder) if path.is_file()]
    return {path.relative_to(folder).as_posix(): file_entry(path) for path in files}


def _copied(path: Path, to: Path) -> dict[str, Any]:
    """As file_entry(), of the bytes that `to` has then."""
    to.parent.mkdir(exist_ok=True)
    sha256 = hashlib.sha256()
    with os.fdopen(_open(path), "rb", buffering=0) as file, to.open("xb") as copy:
        while chunk := file.read(_CHUNK_BYTES):
            sha256.update(chunk)
            copy.write(chunk)
        return {"bytes": copy.tell(), "sha256": sha256.hexdigest()}


def checked_bytes(
    folder: Path,
    files: Mapping[str, Mapping[str, Any]],
    wanted: Collection[str],
    copies: Path | None = None,
) -> dict[str, bytes]:
    """Every file that the manifest names is there, byte for byte; the bytes of some of them.

    What is given is what was checked: a file that is exchanged meanwhile changes nothing. Those
    that are not `wanted` are copied to the folder `copies` as they are checked, if there is one.
    """
    held: dict[str, bytes] = {}
    for name, entry in files.items():
        path = folder / name
        try:
            if name in wanted:
                held[name] = read_bytes(path, entry["bytes"])
                sha256 = hashlib.sha256(held[name]).hexdigest()
                found = {"bytes": len(held[name]), "sha256": sha256}
            else:
                found = file_entry(path) if copies is None else _copied(path, copies / name)
        except FileMissingError as error:
            raise FileDamagedError(str(error)) from error
        if found != dict(entry):
            raise FileDamagedError(
                f"{path} is damaged: {found['bytes']} bytes of SHA-256 {found['sha256']} where the "
                f"manifest says {entry.get('bytes')} of {entry.get('sha256')}. Export again, or "
                f"use an older version."
            )
    return held
