"""Small files that are written whole or not at all, and errors of the disk that name the file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import HedgerowError, SaveError


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An error of the disk in the block becomes a `SaveError` that names the file.

    The system does not say which file had no room.
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
    """Beside first, then renamed: a reader finds the old file or the new one.

    What is no plain file, as `/dev/stdout` or a link, is written to as it is.

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
