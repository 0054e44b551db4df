"""A save of a model on servers: each writes its rows, this process the rest, one manifest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import nn

from ..ps.saving import load_servers, save_servers
from ..tables.checkpoint.chain import Chain
from ..tables.checkpoint.load_job import Loaded
from ..tables.checkpoint.manifest import Manifest
from .routers import routers_of
from .server_group import ServerGroup
from .shared_saving import Rest


def save_on_servers(
    model: nn.Module,
    folder: Path,
    servers: ServerGroup,
    rest: Callable[[], Rest],
    *,
    step: int,
    overwrite: bool,
) -> Manifest:
    """Saves the rows of all servers and the rest of the model; returns the manifest of this save.

    The checkpoint is complete or not there.
    """
    found = rest()
    return save_servers(
        servers.shards,
        folder,
        router=routers_of(model, servers.count),
        step=step,
        metadata=found.metadata,
        overwrite=overwrite,
        dense=found.dense,
    )


def load_on_servers(
    model: nn.Module, folder: Path, servers: ServerGroup, *, reroute: bool
) -> Loaded:
    """Every server takes the rows it owns, however many saved them, or whatever ranks did."""
    load_servers(servers.shards, folder, router=routers_of(model, servers.count), reroute=reroute)
    live = {table.name: table.also for table in servers.config.configs}
    chain = Chain.read(folder).as_live(live)
    sizes = dict(zip(servers.config.names, _sizes(servers), strict=True))
    return Loaded(
        rows={name: rows for name, rows in sizes.items() if name in chain.tables},
        added=tuple(name for name in live if name not in chain.tables),
        removed=tuple(name for name in chain.tables if name not in live),
        reset=(),
        step=chain.last.step,
        metadata=chain.last.metadata,
        blobs={},
    )


def _sizes(servers: ServerGroup) -> list[int]:
    asked = [shard.start_sizes() for shard in servers.shards]
    return [sum(of_table) for of_table in zip(*(one.wait() for one in asked), strict=True)]
