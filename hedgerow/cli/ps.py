"""`hedgerow ps`: runs one parameter server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def ps(
    shard: Annotated[str, typer.Option(help="This server's shard i of n, as i/n; i is from 0.")],
    listen: Annotated[
        str, typer.Option(help="Address as HOST:PORT; port 0 selects a free one.")
    ] = "127.0.0.1:0",
    tables: Annotated[
        Path | None,
        typer.Option(help="JSON list of table configs; default: those of the first client."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Folder for this server's rows: loaded at start, saved on SIGTERM."),
    ] = None,
    durability: Annotated[
        str,
        typer.Option(
            help="What a crash may lose: `checkpoint`: writes since the last checkpoint, which "
            "clients are told; `log`: nothing, since a write is on disk before its answer."
        ),
    ] = "checkpoint",
    keys: Annotated[
        Path | None, typer.Option(help="Folder of keys (`hedgerow keys new`), if not on loopback.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond loopback without keys.")
    ] = False,
) -> None:
    """Serve one shard of the tables until SIGTERM.

    Prints its address as one line.
    """
    from ..ps.server import ServerPlan, serve
    from .table_files import read_configs

    plan = ServerPlan.of(
        shard,
        listen,
        tables=None if tables is None else read_configs(tables),
        keys=keys,
        insecure=insecure,
        checkpoint=checkpoint,
        durability=durability,
    )
    serve(plan, lambda address: typer.echo(address))
