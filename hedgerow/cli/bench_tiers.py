"""`hedgerow bench tiers`: rows in a file against rows in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .bench_report import finish
from .options import AsJson, Quick, Rounds, Threads


def tiers(
    as_json: AsJson = False,
    threads: Threads = 2,
    rounds: Rounds = 5,
    folder: Annotated[
        Path | None,
        typer.Option(help="Where the file goes: the disk to measure. A temporary folder."),
    ] = None,
    quick: Quick = False,
) -> None:
    """Measure training with rows in a file, four times what may be in memory.

    The table has 1,000,000 rows of dim 64 with Adagrad state, 520 MB; a quarter of it is the memory
    for rows: all of it for pages of the file ("pages"), or half for pages and half for hot rows
    (HYBRID, CACHING), as `hr.keep_on_disk` has it. A step is a lookup of 8,192 ids and their
    update, Zipf 1.05 and uniform; often used rows lie anywhere in the file. The peer is the same
    table with all rows in memory, in turns with ours. `ratio` is the time of the peer over ours, so
    below 1 unless the disk costs nothing. `measured_bytes` is what is in memory at most, as the
    system says it of the file. All rows, states and times are compared bit for bit; the exit status
    is 1 if one differs.
    """
    from ..bench.settings import Settings
    from ..bench.tiers import run
    from .show import progress_bar

    settings = Settings(threads=threads, rounds=rounds, quick=quick)
    with progress_bar() as progress:
        report = run(settings, progress, folder)
    finish(report, as_json)
