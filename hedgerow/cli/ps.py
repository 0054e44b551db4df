"""`hedgerow ps`: one parameter server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def ps(
    shard: Annotated[str, typer.Option(help="Which of how many servers this is: i/n, from 0.")],
    listen: Annotated[
        str, typer.Option(help="Address as HOST:PORT; with port 0 the system chooses one.")
    ] = "127.0.0.1:0",
    tables: Annotated[
        Path | None,
        typer.Option(help="JSON list of table configs; without it the first client brings them."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Folder for this server's rows, saved on SIGTERM; it starts from there."),
    ] = None,
    durability: Annotated[
        str,
        typer.Option(
            help="What a crash may cost: `checkpoint` (the writes since then; clients are told) or "
            "`log` (nothing: writes are on the disk before they are answered)."
        ),
    ] = "checkpoint",
    keys: Annotated[
        Path | None, typer.Option(help="Folder of keys (`hedgerow keys new`); needed off loopback.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen off loopback without keys.")
    ] = False,
) -> None:
    """Serve one shard of the tables until SIGTERM.

    Prints the address it listens on as one line.
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
