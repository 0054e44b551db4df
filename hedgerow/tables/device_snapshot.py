"""All rows of a table on a device at one instant, read while training goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from threading import Lock
from types import TracebackType

from ..core.errors import StateError
from .store import Entries


class DeviceSnapshot:
    """All rows of a table at one instant (`DeviceTable.snapshot`), in slices in host memory.

    They are read off the device as they are asked for. The first write after the snapshot copies
    the rest to host memory before it changes anything; so a save that nobody trains beside copies
    no more than a slice at a time. Several scans, also of several threads, share the rows: each is
    given once.
    """

    def __init__(self, name: str, slices: Iterator[Entries], size: int, max_ts: int) -> None:
        self._name, self.size, self.max_ts = name, size, max_ts
        self._slices = slices
        self._aside: deque[Entries] = deque()
        self._reading = Lock()
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"DeviceSnapshot({self._name!r}, {self.size} rows, {state})"

    def __enter__(self) -> DeviceSnapshot:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def resume(self) -> None:
        """Nobody waits."""

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """The rows, in the slices of the table's own scan."""
        del rows
        while (part := self._next()) is not None:
            yield part

    def _next(self) -> Entries | None:
        with self._reading:
            if self._closed:
                raise StateError(
                    f"the snapshot of table {self._name!r} is closed; open another with snapshot()."
                )
            if self._aside:
                return self._aside.popleft()
            part = next(self._slices, None)
            return None if part is None else part.to("cpu")

    def keep(self) -> None:
        """Copies what was not read yet: the table is about to change."""
        with self._reading:
            self._aside.extend(part.to("cpu") for part in self._slices)

    def close(self) -> None:
        """Gives memory back; a second call does nothing."""
        with self._reading:
            self._closed = True
            self._slices = iter(())
            self._aside.clear()
