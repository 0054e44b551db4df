"""The servers of a model: their connections, and what their tables are."""

from __future__ import annotations

from dataclasses import dataclass

from ..ps.remote_shard import RemoteShard
from ..sharding.agreement import Ranks
from ..tables.multi.multi_config import MultiConfig


@dataclass(slots=True, eq=False)
class ServerGroup:
    """One connection a server, and the tables of the whole model, which each of them holds.

    `workers` are the processes that train the model in step; None before they were asked for.
    """

    shards: tuple[RemoteShard, ...]
    config: MultiConfig
    workers: Ranks | None = None

    @property
    def count(self) -> int:
        """How many servers there are."""
        return len(self.shards)

    def close(self) -> None:
        """Ends the connections; the servers stay."""
        for shard in self.shards:
            shard.close()
