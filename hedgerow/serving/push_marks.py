"""The mark of the push at hand, for the signature that it runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..sync.protocol import PushMark

_mark: ContextVar[PushMark | None] = ContextVar("push", default=None)


@contextmanager
def marked(metadata: Iterable[tuple[str, str | bytes]]) -> Iterator[None]:
    """What is called inside belongs to a call with this metadata.

    >>> with marked(PushMark("s1", 7, 0, "p1").metadata()):
    ...     current_push().seq
    7
    >>> current_push() is None
    True
    """
    mark = PushMark.read(metadata)
    if mark is None:
        yield
        return
    token = _mark.set(mark)
    try:
        yield
    finally:
        _mark.reset(token)


def current_push() -> PushMark | None:
    """The mark of the push at hand; None in any other call."""
    return _mark.get()
