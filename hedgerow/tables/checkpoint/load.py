"""Loads tables from a checkpoint: all is proved before a live row changes."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike

from ...core import checks
from ..own_rows import OwnRows
from .fit import OnStateMismatch
from .load_job import Loaded, LoadJob
from .meter import Report
from .routers import Routers


def load_tables(
    path: str | PathLike[str],
    tables: Iterable[OwnRows],
    *,
    router: Routers | None = None,
    shard: int = 0,
    reroute: bool = False,
    merge: bool = False,
    on_state_mismatch: OnStateMismatch = "error",
    increments: int | None = None,
    report: Report | None = None,
) -> Loaded:
    """Loads tables from the folder `path`: base and increments, every checksum proved first.

    With a `router`, or one for each table by name, only the rows that `shard` owns are loaded,
    whatever the number of shards in the files; without one, all rows. A table whose files were
    routed by another rule needs `reroute`. Rows go to a table beside the live one, which takes them
    over at the end, and admission filters count on from where they were; with `merge` rows are
    added to what is there, and filters stay as they are. `increments` loads only the first so many.

    >>> import tempfile, torch, hedgerow as hr
    >>> config = hr.TableConfig("item", (hr.Segment(2, hr.Zeros(), hr.Sgd(lr=1.0)),))
    >>> table, fresh = hr.HostTable(config), hr.HostTable(config)
    >>> _ = table.assign(torch.tensor([7, -1]), torch.ones(2, 2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = hr.save_tables([table], folder + "/step-1", step=1)
    ...     hr.load_tables(folder + "/step-1", [fresh]).rows
    {'item': 2}
    """
    checks.flag("merge", merge)
    job = LoadJob(
        path,
        tables,
        router=router,
        shard=shard,
        reroute=reroute,
        on_state_mismatch=on_state_mismatch,
        increments=increments,
        report=report,
    )
    rows = job.bring()
    if job.shards == 1:
        job.prove([rows])
    return job.finish(merge=merge)
