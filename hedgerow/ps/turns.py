"""Whose turn it is to use a socket that only one thread may use at a time."""

from __future__ import annotations

import os
import threading
from typing import Protocol


class Awaited(Protocol):
    """What a reader waits for; another reader may find it for him."""

    done: bool


class Turns:
    """Senders go first: one who reads, and so waits long, stands aside for them. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = False
        self.senders = 0  # that wait for their turn
        self._waiting = 0  # threads that wait for a change
        self.reader_waits = False  # in a poll, which `wake_fd` ends; the reader takes it back
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def take(self) -> None:
        """The turn of a sender, as soon as nobody has it."""
        with self._changed:
            self.senders += 1
            if self.reader_waits:
                os.eventfd_write(self.wake_fd, 1)
            while self._taken:
                self._wait()
            self.senders -= 1
            self._taken = True

    def take_to_read(self, awaited: Awaited) -> bool:
        """The turn of a reader; False if another one has found what he waits for."""
        with self._changed:
            while not awaited.done and (self._taken or self.senders):
                self._wait()
            if awaited.done:
                return False
            self._taken = True
            return True

    def end(self) -> None:
        """Gives the turn to another."""
        with self._changed:
            self._taken = False
            if self._waiting:  # most of the time none does, and to ask takes less than to notify
                self._changed.notify_all()

    def close(self) -> None:
        """Nobody will wait any more."""
        os.close(self.wake_fd)

    def tell(self) -> None:
        """Something was found that others may wait for."""
        with self._changed:
            self._changed.notify_all()

    def _wait(self) -> None:
        self._waiting += 1
        try:
            self._changed.wait()
        finally:
            self._waiting -= 1
