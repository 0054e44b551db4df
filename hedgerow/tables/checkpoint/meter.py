"""How far a save, a load or a check has come, and whether it shall stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from ...core.errors import SaveCancelledError

Report = Callable[["Progress"], None]


@dataclass(frozen=True, slots=True)
class Progress:
    """What has been done; `rows_total` is what was there at the start."""

    rows: int
    file_bytes: int
    rows_total: int


class Meter:
    """Counts from many threads, under its own lock."""

    def __init__(self, rows_total: int = 0, report: Report | None = None) -> None:
        self._lock = threading.Lock()
        self._rows, self._bytes, self._total = 0, 0, rows_total
        self._report = report
        self._cancelled = threading.Event()

    def add(self, rows: int, file_bytes: int) -> None:
        """Counts what was done; raises if the work shall stop."""
        with self._lock:
            self._rows += rows
            self._bytes += file_bytes
            now = Progress(self._rows, self._bytes, self._total)
            if self._report is not None:
                self._report(now)  # inside the lock: reports come in order
        self.go_on()

    def go_on(self) -> None:
        """Raises if the work shall stop."""
        if self._cancelled.is_set():
            raise SaveCancelledError("the save was cancelled; what was there before is untouched.")

    def progress(self) -> Progress:
        """What has been done."""
        with self._lock:
            return Progress(self._rows, self._bytes, self._total)

    def cancel(self) -> None:
        """Asks the work to stop."""
        self._cancelled.set()
