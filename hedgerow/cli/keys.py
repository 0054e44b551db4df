"""`hedgerow keys`: makes keys for parameter servers and their clients, and for bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Verbs

app = Verbs(
    help="Keys for parameter servers and their clients, and for bundles.", no_args_is_help=True
)


@app.callback()
def _keys() -> None:
    """Keys for parameter servers and their clients, and for bundles."""


@app.command()
def bundle(
    file: Annotated[Path, typer.Argument(help="The file to write; must not exist.")],
) -> None:
    """Make a key that signs bundles: `hedgerow export --sign FILE`, `hedgerow serve --trust FILE`.

    The same key signs bundles and verifies them. Only the file's owner can read it.
    """
    from ..serving.bundle_files import new_key

    new_key(file)
    typer.echo(str(file))


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(help="The folder for the keys; created if missing.")],
) -> None:
    """Make a pair of keys for all servers, and one for all clients.

    Servers need server.key and client.pub. Clients need client.key, client.pub and server.pub.
    Secret keys are readable only by their owner. Existing keys are never replaced.
    """
    from ..ps.curve import new_keys

    for path in new_keys(folder):
        typer.echo(str(path))
