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
    configs: Mapping[str, TableConfig] | Sequence[Mapping[str, TableConfig]] | None = None,
    *,
    wire: torch.dtype = torch.float32,
    deadline_s: float | None = None,
    keys: ClientKeys | Path | str | None = None,
    away: Away = "fail",
) -> list[RemoteShard]:
    """One shard for each address, in their order: shard i of n is `addresses[i]`.

    `configs` are the tables of every server, or a list with the tables of each server: the same
    names and dims, where admission rules may differ. Requests have the deadline of training, or
    `deadline_s`; the first request to a server has the deadline of training in any case.
    """
    if isinstance(addresses, str) or not addresses:
        raise ConfigError(f"servers is {addresses!r}; give a list of at least one address.")
    each = configs if isinstance(configs, Sequence) else [configs] * len(addresses)
    if len(each) != len(addresses):
        raise ConfigError(
            f"{len(each)} sets of tables for {len(addresses)} servers; give one for all of them, "
            f"or one for each."
        )
    made: list[RemoteShard] = []
    try:
        for i, (address, own) in enumerate(zip(addresses, each, strict=True)):
            full = address if "://" in address else f"tcp://{address}"
            name = f"{i}/{len(addresses)}"
            made.append(RemoteShard(full, own, name=name, keys=keys, wire=wire, away=away))
    except BaseException:
        for shard in made:
            shard.close()
        raise
    if deadline_s is not None:
        for shard in made:
            shard.connection.patience = Patience(deadline_s, shard.connection.patience.retry_s)
    return made
