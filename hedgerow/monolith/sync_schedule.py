"""When the original's sync steps run: every ten seconds beside a server, or with every step."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from ..core import checks
from ..core.errors import HedgerowError, StateError

EVERY_S = 10.0
REFRESH_S = 100.0
_log = logging.getLogger("hedgerow")


class Syncs(Protocol):
    """What can perform a step: `ParameterSyncClient`."""

    def create_sync_op(self, config_str: bytes) -> list[str]:
        """One step, at once."""
        ...


class ParameterSyncLoop:
    """Steps in a thread, one begun every `every_s`, until `stop`; use it in a `with`.

    Each asks `refresh` where to push to: `lambda: refresh_sync_config(backend, index)`. A step that
    fails is logged and counted, and the next one comes at its time.

    >>> from hedgerow.monolith.distributed_serving_ops import parameter_sync_client_from_config
    >>> with ParameterSyncLoop(parameter_sync_client_from_config(), lambda: b"", 0.01) as loop:
    ...     loop.wait_for_step()
    >>> loop.failures
    0
    """

    def __init__(
        self, client: Syncs, refresh: Callable[[], bytes], every_s: float = EVERY_S
    ) -> None:
        checks.setting("ParameterSyncLoop", "every_s", every_s, above=0)
        self._client, self._refresh, self._every_s = client, refresh, every_s
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
            # the one under way may have taken its keys before
            wanted = self.steps + 2
            while self.steps < wanted and self._thread.is_alive():
                self._changed.wait(0.1)

    def _run(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self._client.create_sync_op(self._refresh())
            except (HedgerowError, OSError) as error:
                self.failures += 1
                _log.warning("parameter sync: %s", error)
            with self._changed:
                self.steps += 1
                self._changed.notify_all()
            self._stopping.wait(max(0.0, self._every_s - (time.monotonic() - began)))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()


class ParameterSyncHook:
    """A step after every training step of a rank, with a config that is at most so old.

    >>> from hedgerow.monolith.distributed_serving_ops import parameter_sync_client_from_config
    >>> hook = ParameterSyncHook(parameter_sync_client_from_config(), lambda: b"")
    >>> hook.after_step()
    ['{}']
    """

    def __init__(
        self,
        client: Syncs,
        refresh: Callable[[], bytes],
        refresh_s: float = REFRESH_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        checks.setting("ParameterSyncHook", "refresh_s", refresh_s, above=0)
        self._client, self._refresh = client, refresh
        self._refresh_s, self._now_s = refresh_s, now_s
        self._config, self._at_s = b"", -float("inf")

    def after_step(self) -> list[str]:
        """Pushes what changed."""
        if self._now_s() - self._at_s >= self._refresh_s:
            self._config, self._at_s = self._refresh(), self._now_s()
        return self._client.create_sync_op(self._config)
