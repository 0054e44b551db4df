"""When the original's sync steps run: every ten seconds beside a server, or with every step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from torch import nn

from ..core import checks
from ..sync.strict_loop import EVERY_S, StrictLoop

REFRESH_S = 100.0


class Syncs(Protocol):
    """What can perform a step: `ParameterSyncClient`."""

    def create_sync_op(self, config_str: bytes) -> list[str]:
        """One step, at once."""
        ...


class ParameterSyncLoop(StrictLoop):
    """Steps of a client in a thread, each to where `refresh` says at its time.

    `refresh` is for example `lambda: refresh_sync_config(backend, index)`.

    >>> from hedgerow.monolith.distributed_serving_ops import parameter_sync_client_from_config
    >>> with ParameterSyncLoop(parameter_sync_client_from_config(), lambda: b"", 0.01) as loop:
    ...     loop.wait_for_step()
    >>> loop.failures
    0
    """

    def __init__(
        self, client: Syncs, refresh: Callable[[], bytes], every_s: float = EVERY_S
    ) -> None:
        super().__init__(lambda: client.create_sync_op(refresh()), every_s)


class ParameterSyncHook:
    """A sync step after every training step of a rank, with a config that is refreshed in time.

    `hedgerow.train.loop.Trainer` calls it: `Trainer(..., hooks=[ParameterSyncHook(...)])`.

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

    def on_start(self, model: nn.Module, optimizer: object, step: int) -> None:
        """Does nothing: the first config is asked for after the first step."""

    def after_step(self, step: int = 0, samples: int = 0) -> list[str]:
        """Pushes what changed; the result says how each push went."""
        if self._now_s() - self._at_s >= self._refresh_s:
            self._config, self._at_s = self._refresh(), self._now_s()
        return self._client.create_sync_op(self._config)
