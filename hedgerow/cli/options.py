"""Options that several verbs share."""

from __future__ import annotations

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a checkpoint that is there.")]
Trusted = Annotated[
    bool,
    typer.Option(
        "--trusted",
        help="Load a checkpoint of version 0.1, which can run code: only one of yours.",
    ),
]
Threads = Annotated[int, typer.Option(help="Threads of every contestant, ours and peers.")]
Rounds = Annotated[
    int,
    typer.Option(help="Rounds of every case. In each, we and the peer take turns; medians count."),
]
Quick = Annotated[
    bool, typer.Option("--quick", help="Small works: a check of the tool, not a measurement.")
]
