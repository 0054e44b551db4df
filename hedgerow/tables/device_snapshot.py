"""A copy of all rows of a table on a device, to be read while training goes on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType

from ..core.errors import StateError
from .store import Entries


class DeviceSnapshot:
    """All rows of a table at one instant (`DeviceTable.snapshot`), in host memory.

    Several scans, also of several threads, share the rows: each is given once.
    """

    aside_rows = 0  # nobody copies aside, and nobody waits
    waited_s = 0.0

    def __init__(self, name: str, rows: Iterable[Entries], max_ts: int) -> None:
        self._name, self.max_ts = name, max_ts
        self._left: list[Entries] | None = [part.to("cpu") for part in rows]
        self.size = sum(map(len, self._left))

    def __repr__(self) -> str:
        state = "closed" if self._left is None else "open"
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
        while True:
            if self._left is None:
                raise StateError(
                    f"the snapshot of table {self._name!r} is closed; open another with snapshot()."
                )
            try:
                part = self._left.pop()  # one step, so that threads need no lock
            except IndexError:
                return
            yield part

    def close(self) -> None:
        """Gives memory back; a second call does nothing."""
        self._left = None
