"""What a verb says of the checkpoint it has written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..tables.checkpoint.manifest import Manifest


def written(target: Path, done: Manifest) -> str:
    """One line: where, over how many shards by which rule, how many rows."""
    rows = f"{done.rows:,}".replace(",", " ")
    rules = ", ".join(done.dist_types())
    return f"wrote {target}   {done.routing.shards} shards ({rules})   {rows} rows"
