"""`hedgerow zk`: operator commands for a tree in ZooKeeper."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Verbs

if TYPE_CHECKING:
    from ..discovery.control import Control

app = Verbs(help="Declare models, add them to layouts, and show a tree in ZooKeeper.")

_Zk = Annotated[str, typer.Option(help="Addresses of ZooKeeper: HOST:PORT, comma-separated.")]
_Bzid = Annotated[str, typer.Option(help="The tree in ZooKeeper: letters, digits, - and _.")]
_Layout = Annotated[str, typer.Argument(help="The layout's name.")]
_Models = Annotated[str, typer.Argument(help="MODEL:PATTERN, as in 'ctr:ps_*'.")]
_HOSTS = "127.0.0.1:2181"


@contextmanager
def _control(zk: str, bzid: str) -> Iterator[Control]:
    from ..discovery.control import Control
    from ..discovery.zookeeper import Session

    with Session.connect(zk) as session:
        yield Control(session, bzid)


@app.command()
def decl(
    model: Annotated[str, typer.Argument(help="The model's name.")],
    folder: Annotated[Path, typer.Argument(help="The export's folder, as the servers see it.")],
    bzid: _Bzid,
    zk: _Zk = _HOSTS,
) -> None:
    """Declare every sub graph of an export: its folder, and which versions to serve."""
    with _control(zk, bzid) as control:
        for one in control.declare(model, folder.absolute()):
            typer.echo(f"declared {one}")


@app.command()
def pub(layout: _Layout, models: _Models, bzid: _Bzid, zk: _Zk = _HOSTS) -> None:
    """Add declared sub graphs to a layout."""
    with _control(zk, bzid) as control:
        for one in control.publish(layout, models):
            typer.echo(f"published {one}")


@app.command()
def unpub(layout: _Layout, models: _Models, bzid: _Bzid, zk: _Zk = _HOSTS) -> None:
    """Remove sub graphs from a layout."""
    with _control(zk, bzid) as control:
        for one in control.unpublish(layout, models):
            typer.echo(f"unpublished {one}")


@app.command("bzid_info")
def bzid_info(bzid: _Bzid, zk: _Zk = _HOSTS) -> None:
    """Print all nodes below a bzid as JSON."""
    with _control(zk, bzid) as control:
        typer.echo(json.dumps(control.info(), indent=2))
