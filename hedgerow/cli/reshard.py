"""`hedgerow reshard`: copies a checkpoint to another number of shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .options import AsJson, Overwrite, checkpoint_line


def reshard(
    source: Annotated[Path, typer.Argument(help="The folder of a checkpoint.")],
    target: Annotated[Path, typer.Argument(help="The folder of the new checkpoint.")],
    shards: Annotated[int, typer.Option(help="Shards of the new checkpoint.")],
    dist_type: Annotated[
        str,
        typer.Option(
            help="The new routing rule: continuous, roundrobin or hash_roundrobin; default: every "
            "table keeps its rule."
        ),
    ] = "",
    rows: Annotated[
        int | None,
        typer.Option(help="Number of ids from 0 that `continuous` divides, for all tables."),
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Copy a checkpoint to any number of shards; merges its increments.

    Every checksum is verified first. Every row goes to its new owner. Rows are streamed, so the
    memory needed does not depend on the size of the tables.
    """
    from ..tables.checkpoint.increments import reshard as copy
    from ..tables.checkpoint.workers import CheckpointProgress
    from .show import progress_bar

    with progress_bar() as bar:

        def tell(now: CheckpointProgress) -> None:
            bar("rows", now.rows, now.rows_total)

        rule = dist_type or None
        done = copy(
            source, target, shards, dist_type=rule, rows=rows, overwrite=overwrite, report=tell
        )
    result = {
        "path": str(target),
        "dist_type": ", ".join(done.dist_types()),
        "shards": done.routing.shards,
        "rows": done.rows,
        "bytes": done.data_bytes,
    }
    if as_json:
        typer.echo(json.dumps(result, indent=1))
    else:
        typer.echo(checkpoint_line(target, done))
