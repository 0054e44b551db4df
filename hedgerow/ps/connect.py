"""Connections to the servers of a job, one a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from ..core.errors import ConfigError
from ..tables.config import TableConfig
from .connection import Patience
from .curve import ClientKeys
from .remote_shard import Away, RemoteShard


def connect(
    addresses: Sequence[str],
    configs: Mapping[str, TableConfig] | None = None,
    *,
    wire: torch.dtype = torch.float32,
    deadline_s: float | None = None,
    keys: ClientKeys | Path | str | None = None,
    away: Away = "fail",
) -> list[RemoteShard]:
    """One shard for each address, in their order: shard i of n is `addresses[i]`.

    Requests have the deadline of training, or `deadline_s`; to meet a server the first time has
    that of training in any case.
    """
    if isinstance(addresses, str) or not addresses:
        raise ConfigError(f"servers is {addresses!r}; give a list of at least one address.")
    made: list[RemoteShard] = []
    try:
        for i, address in enumerate(addresses):
            full = address if "://" in address else f"tcp://{address}"
            name = f"{i}/{len(addresses)}"
            made.append(RemoteShard(full, configs, name=name, keys=keys, wire=wire, away=away))
    except BaseException:
        for shard in made:
            shard.close()
        raise
    if deadline_s is not None:
        for shard in made:
            shard.connection.patience = Patience(deadline_s, shard.connection.patience.retry_s)
    return made
