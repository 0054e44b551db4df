"""`hedgerow keys`: keys for parameter servers and their clients."""

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
    file: Annotated[Path, typer.Argument(help="The file to write; one that is there stays.")],
) -> None:
    """Make a key that signs bundles: `hedgerow export --sign FILE`, `hedgerow serve --trust FILE`.

    Whoever holds it can sign and check. Only its owner can read the file.
    """
    from ..serving.bundle_files import new_key

    new_key(file)
    typer.echo(str(file))


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(help="Where the keys go; made if it is not there.")],
) -> None:
    """Make a pair of keys for all servers and one for all clients.

    Servers need server.key and client.pub, clients need client.key, client.pub and server.pub.
    Secret keys are readable by their owner only; keys that are there are never replaced.
    """
    from ..ps.curve import new_keys

    for path in new_keys(folder):
        typer.echo(str(path))
