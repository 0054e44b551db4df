"""Checked local paths, atomic file writes, and matplotlib figures saved as PNG files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeAlias

from .errors import HedgerowError, InputError, MissingExtraError, SaveError

# pathlib turns the two slashes of a URL into one. A single letter before the colon is a drive.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def local_path(path: str | PathLike[str]) -> Path:
    """Returns `path` as a `Path`. Raises `InputError` if it is a URL or contains a null character.

    >>> local_path("runs/first").as_posix()
    'runs/first'
    >>> local_path("s3://bucket/run")
    Traceback (most recent call last):
    hedgerow.core.errors.InputError: 's3://bucket/run' is a URL; only paths of this \
machine's file system are supported: mount the storage or copy the files here, and give that path.
    """
    text = fspath(path)
    if "\0" in os.fsdecode(text):
        raise InputError(f"{text!r} has a null character, which no path may have; remove it.")
    if isinstance(text, str) and _URL.match(text):
        raise InputError(
            f"{text!r} is a URL; only paths of this machine's file system are supported: mount the "
            f"storage or copy the files here, and give that path."
        )
    return Path(path)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turns an `OSError` in the block into a `SaveError` that names `path`.

    The system's own message does not name the file, for example when the disk is full.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, HedgerowError):
            raise
        raise SaveError(
            f"{path} could not be written: {error.strerror or error}. Make room, or choose a "
            f"place that this process may write to."
        ) from error


def write_whole(path: Path, text: str) -> None:
    """Writes `text` to a temporary file, then renames it to `path`.

    A reader sees either the old file or the new one. A link or a special file such as `/dev/stdout`
    is written in place.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(Path(folder) / "new" / "a", "text")
    ...     (Path(folder) / "new" / "a").read_text()
    'text'
    """
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink() or (path.exists() and not path.is_file()):
            path.write_text(text, encoding="utf-8")
            return
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            with part.open("w", encoding="utf-8") as out:
                out.write(text)
                out.flush()
                os.fsync(out.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


Axes: TypeAlias = Any  # matplotlib's types; matplotlib may not be installed
Figure: TypeAlias = Any


def new_figure(width: float, height: float) -> Figure:
    """Returns an empty figure of `width` by `height` inches that belongs to no window."""
    try:
        from matplotlib import figure
    except ImportError as error:
        raise MissingExtraError(
            f"pictures need matplotlib ({error}); pip install hedgerow[plan]."
        ) from error
    return figure.Figure((width, height), dpi=120, layout="constrained")


def save_figure(figure: Figure, path: Path) -> None:
    """Saves `figure` as a PNG file at `path`: writes a temporary file, then renames it."""
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            figure.savefig(part, format="png")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
