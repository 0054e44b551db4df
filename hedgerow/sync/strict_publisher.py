"""A publisher by the original's rule, to compare with: what it could not send once is lost."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..core.units import parse_seconds
from ..discovery.targets import Targets, targets_of
from ..tables.followed import RowShard
from ..wire.client_config import config_bytes
from .push_metrics import PushMetrics
from .strict_client import StrictClient
from .strict_loop import EVERY_S, StrictLoop

if TYPE_CHECKING:
    from ..wire.messages.parameter_sync import PushResult


class StrictPublisher(StrictLoop):
    """Pushes the changed rows of shards to every replica, shard after shard, each of them once.

    There are no marks of deletions, no second attempts and no full resync; a shard that changes
    more keys than its set holds forgets them. `served_as` is the model's name at the replicas.
    """

    def __init__(
        self,
        shards: Sequence[RowShard],
        to: Targets | str | Sequence[str],
        *,
        served_as: str,
        every: str | float = EVERY_S,
    ) -> None:
        self._targets, self._served_as = targets_of(to), served_as
        self.metrics = PushMetrics()
        name = f"strict-{secrets.token_hex(8)}"  # two publishers of one model share no marks
        self._clients = [StrictClient(name, metrics=self.metrics) for _ in shards]
        for shard, client in zip(shards, self._clients, strict=True):
            for table, rows in shard.tables.items():
                client.attach(table, rows)
        super().__init__(self.push, parse_seconds(every))

    def push(self) -> list[PushResult]:
        """One step of every shard, now; how it went."""
        config = config_bytes(self._served_as, self._targets.current())
        return [client.step(config) for client in self._clients]

    def stop(self) -> None:
        """Ends after the step under way; what changed since then is not sent."""
        super().stop()
        for client in self._clients:
            client.close()
