"""A save of a distributed model: every rank its rows, rank 0 the dense part and the manifest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ..sharding.agreement import Ranks
from ..tables.checkpoint.manifest import Manifest
from ..tables.checkpoint.save import checked_header
from ..tables.checkpoint.shared_save import SharedSave
from ..tables.checkpoint.writer import Dense, Written
from .routers import routers_of
from .summary import tables_of

_DOING = "the save"


@dataclass(frozen=True, slots=True)
class Rest:
    """All of a model but its rows: what the manifest says of it, and its tensors."""

    metadata: dict[str, Any]
    dense: Dense


def save_over_ranks(
    model: nn.Module,
    folder: Path,
    ranks: Ranks,
    rest: Callable[[], Rest],
    *,
    step: int,
    overwrite: bool,
) -> Manifest:
    """Complete on all ranks, or an error on all; `rest` is asked for on rank 0, which writes it."""
    job = SharedSave(
        tables_of(model).values(),
        folder,
        router=routers_of(model, ranks.count),
        shard=ranks.rank,
        overwrite=overwrite,
    )
    about: dict[str, Any] = {}
    first = ranks.rank == 0

    def write(mark: str, newest_s: Mapping[str, int]) -> Written:
        if not first:
            return job.write(mark, newest_s)
        found = rest()
        about.update(found.metadata)
        return job.write(mark, newest_s, dense=found.dense)

    def finish(mark: str, written: list[Written]) -> Manifest | None:
        header = checked_header(step, about, None)
        return job.finish(mark, written, header) if first else None

    try:
        told = ranks.together(_DOING, lambda: (job.open() if first else "", job.newest_s()))
        mark = told[0][0]
        newest_s = {name: max(times[name] for _, times in told) for name in told[0][1]}
        try:
            written = ranks.together(_DOING, lambda: write(mark, newest_s))
            manifest = ranks.together(_DOING, lambda: finish(mark, written))[0]
        except BaseException:
            job.abandon(mark)
            raise
    finally:
        job.close()
    if manifest is None:
        raise AssertionError("rank 0 gives a manifest")
    return manifest
