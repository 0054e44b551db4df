"""The checksum of bytes that are written meanwhile."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future

from .workers import in_background

_TASK_BYTES = 2**20  # takes much longer to hash than a thread to start
_TASKS = 8  # that may wait: what is not hashed yet stays in memory


def sha256_of(pieces: Iterable[bytes]) -> str:
    """The checksum of pieces, one after the other.

    >>> sha256_of([b"a", b"b"]) == hashlib.sha256(b"ab").hexdigest()
    True
    """
    checksum = hashlib.sha256()
    for piece in pieces:
        checksum.update(piece)
    return checksum.hexdigest()


class Sha256Behind:
    """SHA-256 of pieces in their order, a bounded way behind whoever adds them. Single-owner.

    >>> checksum = Sha256Behind()
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
        """Adds a piece, which must not change any more."""
        self._pieces.append(piece)
        self._bytes += len(piece)
        if self._bytes >= _TASK_BYTES:
            self._start()
        if len(self._tasks) > _TASKS:
            self._tasks.popleft().result()

    def hexdigest(self) -> str:
        """The checksum of all pieces."""
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
