"""`hedgerow bench flat`: the cost of an id in tables of 10 and 100 million rows."""

from __future__ import annotations

from .bench_report import finish
from .options import AsJson, Quick, Rounds


def flat(as_json: AsJson = False, rounds: Rounds = 7, quick: Quick = False) -> None:
    """Measure how the cost of an id grows from 10,000,000 to 100,000,000 rows of dim 8.

    Calls of 1,000,000 random ids in turns, one thread, processor time: a lookup and an update (SGD)
    of the host table, and three gathers by row number from a plain tensor, which have no index:
    `torch.index_select` on small and on huge pages, and a prefetching loop on huge pages. A slope
    is that of the time over the rows on logarithmic scales: 0 is flat, 1 is in proportion. A run
    takes some minutes and 13 GB of memory.
    """
    from ..bench.flat import run
    from ..bench.settings import Settings
    from .show import progress_bar

    with progress_bar() as progress:
        report = run(Settings(threads=1, rounds=rounds, quick=quick), progress)
    finish(report, as_json)
