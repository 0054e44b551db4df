"""`hedgerow doctor`: what is installed, what is missing, and how to get it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from .options import AsJson


def doctor(
    online: Annotated[
        bool, typer.Option("--online", help="Ask whether a package index can be reached.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Look at libraries and system; say what is missing and how to get it.

    The exit status is 1 if something required is missing or broken; what is optional may be absent.
    """
    from .doctor_checks import findings

    found = findings(online=online)
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found], indent=1))
    else:
        width = max(len(one.part) for one in found) + 2
        for one in found:
            fix = f"   -> {one.fix}" if one.fix else ""
            typer.echo(f"{one.part:<{width}}{one.status:<8}{one.detail}{fix}".rstrip())
    if any(one.stops for one in found):
        raise typer.Exit(1)
