"""`hedgerow bench modules`: steps of modules against torch's own."""

from __future__ import annotations

from .bench_report import finish
from .options import AsJson, Quick, Rounds, Threads


def modules(
    as_json: AsJson = False, threads: Threads = 1, rounds: Rounds = 5, quick: Quick = False
) -> None:
    """Measure steps of `EmbeddingBags`, small and large, as users write them.

    A step is forward, the sum of all vectors, and backward with the update of the rows by SGD: 26
    tables with 512, 1 and 8,192 samples, and one table with one sample; 1,000 rows a table, dim 16,
    one id a bag. The peer is one `nn.EmbeddingBag(sparse=True)` a table with `optim.SGD`, in turns
    with ours, by the wall clock. `ratio` is the time of the peer over ours: above 1 we are faster.
    Batches are made beforehand. All rows are compared; the exit status is 1 if they differ.
    """
    from ..bench.modules import run
    from ..bench.settings import Settings
    from .show import progress_bar

    settings = Settings(threads=threads, rounds=rounds, quick=quick)
    with progress_bar() as progress:
        report = run(settings, progress)
    finish(report, as_json)
