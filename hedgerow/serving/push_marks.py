"""The mark of the push at hand, for the signature that it runs."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar, Token
from types import TracebackType

from ..sync.protocol import PushMark

_mark: ContextVar[PushMark | None] = ContextVar("push", default=None)


class marked:  # noqa: N801  (it reads as a word of a with statement)
    """What is called inside belongs to a call with this metadata.

    >>> with marked(PushMark("s1", 7, 0, "p1").metadata()):
    ...     current_push().seq
    7
    >>> current_push() is None
    True
    """

    __slots__ = ("_found", "_token")

    def __init__(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        self._found = PushMark.read(metadata)
        self._token: Token[PushMark | None] | None = None

    def __enter__(self) -> None:
        if self._found is not None:
            self._token = _mark.set(self._found)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._token is not None:
            _mark.reset(self._token)


def current_push() -> PushMark | None:
    """The mark of the push at hand; None in any other call."""
    return _mark.get()
