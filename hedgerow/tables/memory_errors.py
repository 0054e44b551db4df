"""Lack of memory, or of room in a file, as the core tells it and as users read it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..core.errors import OutOfMemoryError


@contextmanager
def memory_errors() -> Iterator[None]:
    """The core's errors for lack of memory as ours."""
    try:
        yield
    except MemoryError as error:
        raise OutOfMemoryError(
            f"{error or 'the operating system gave no more memory'}. The table stays usable: erase "
            f"rows, raise the limit, or spread the table over more processes."
        ) from error
