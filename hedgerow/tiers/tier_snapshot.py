"""All rows of a table of two tiers at one instant."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from ..tables.store import Entries


class TierSnapshot:
    """The snapshots of `stores`, which hold the rows, read one after the other."""

    def __init__(self, stores: Sequence[Any], max_ts: int, resume: Callable[[], None]) -> None:
        with ExitStack() as opened:
            self._parts = [opened.enter_context(store.snapshot()) for store in stores]
            self._close = opened.pop_all()
        self.size = sum(part.size for part in self._parts)
        self.max_ts = max_ts
        self._resume = resume

    def __repr__(self) -> str:
        return f"TierSnapshot({', '.join(map(repr, self._parts))})"

    def __enter__(self) -> TierSnapshot:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def resume(self) -> None:
        """Lets writers go on that wait since the snapshot was opened `paused`."""
        resume, self._resume = self._resume, _nothing
        resume()

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """The rows, in slices, in no particular order; several scans share them."""
        for part in self._parts:
            for entries in part.scan(rows):
                yield entries.to("cpu")

    def close(self) -> None:
        """Gives memory back and lets waiting writers go on; a second call does nothing."""
        self.resume()
        self._close.close()


def _nothing() -> None:
    """Writers were let go already: a pause now would be another snapshot's."""
