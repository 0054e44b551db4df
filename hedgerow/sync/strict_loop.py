"""A thread that performs a step every so often, as the original's sync does."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from ..core import checks
from ..core.errors import HedgerowError, StateError

EVERY_S = 10.0  # as the original
_log = logging.getLogger("hedgerow")


class StrictLoop:
    """Steps, one begun every `every_s`, until `stop`; use it in a `with`. Owns a thread.

    A step that fails is logged and counted, and the next one comes at its time.

    >>> with StrictLoop(lambda: None, 0.01) as loop:
    ...     loop.wait_for_step()
    >>> loop.failures
    0
    """

    def __init__(self, step: Callable[[], object], every_s: float = EVERY_S) -> None:
        checks.setting(type(self).__name__, "every_s", every_s, above=0)
        self._step, self.every_s = step, every_s
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self.steps = self.failures = 0
        self._thread = threading.Thread(target=self._run, name="parameter sync", daemon=True)

    def start(self) -> Self:
        """Begins with a step at once."""
        if self._thread.ident is not None:
            raise StateError("this loop was started before; make a new one.")
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ends after the step under way; a second call does nothing."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def wait_for_step(self) -> None:
        """Waits for the end of a step that begins from now on."""
        with self._changed:
            wanted = self.steps + 2  # the one under way may have looked before
            while self.steps < wanted and self._thread.is_alive():
                self._changed.wait(0.1)

    def _run(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self._step()
            except (HedgerowError, OSError) as error:
                self.failures += 1
                _log.warning("parameter sync: %s", error)
            except Exception:  # of a backend of others: as the original, log it and go on
                self.failures += 1
                _log.exception("parameter sync")
            with self._changed:
                self.steps += 1
                self._changed.notify_all()
            self._stopping.wait(max(0.0, self.every_s - (time.monotonic() - began)))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()
