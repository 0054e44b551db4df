"""Lack of memory, or of room in a file, as the core tells it and as users read it."""

from __future__ import annotations

from types import TracebackType

from ..core.errors import OutOfMemoryError


class memory_errors:  # noqa: N801 - it reads as a function; contextlib's form takes 1.5 us a call
    """The core's errors for lack of memory as ours."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, MemoryError):
            raise OutOfMemoryError(
                f"{error or 'the operating system gave no more memory'}. The table stays usable: "
                f"erase rows, raise the limit, or spread the table over more processes."
            ) from error
