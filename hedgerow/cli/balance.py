"""`hedgerow balance`: measures how evenly keys spread over ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .options import AsJson


def balance(
    keys: Annotated[Path, typer.Argument(help="A sample of keys: a .parquet, .npy or .txt file.")],
    ranks: Annotated[int, typer.Option(help="Ranks to spread them over.")],
    column: Annotated[str, typer.Option(help="The column of a Parquet file.")] = "",
    rows: Annotated[
        int | None, typer.Option(help="Rows of the table; also measures `continuous`.")
    ] = None,
    step_keys: Annotated[
        int, typer.Option(help="Keys that a source sends per step; duplicates are sent once.")
    ] = 32_768,
    png: Annotated[Path | None, typer.Option(help="Write a plot to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show how a sample of keys spreads over ranks under each routing rule, and recommend one.

    Keys are used in the order of the file. "Raw" counts every occurrence, "de-duplicated" counts
    each key once per step (the keys that are sent), and "rows" counts each key once.
    """
    from ..routing.balance import balance as measure
    from ..routing.balance import draw_balance
    from .key_file import read_keys

    found = measure(read_keys(keys, column), ranks, rows=rows, step_keys=step_keys)
    if png is not None:
        draw_balance(found, png, title=keys.name)
    typer.echo(json.dumps(found.to_dict(), indent=1) if as_json else found.text())
