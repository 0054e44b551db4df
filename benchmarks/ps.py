"""`hedgerow bench ps`: Monolith's benchmark, and the way to servers against other ways."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hedgerow.core.shapes import Float32, Int64
from hedgerow.monolith.tables.on_servers import DistributedTable
from hedgerow.monolith.test_utils import BENCHMARK_TABLE, benchmark_table, benchmark_table_config
from hedgerow.ps.remote_shard import RemoteShard
from hedgerow.ps.shard import Shard

from .cases import Case, Stage, choose
from .ps_peers.asked import started
from .ps_peers.ours import OurServers
from .rounds import Counter, Progress, Settings, machine
from .stages import run_stages
from .work import WorkPlan

OTHERS = ("grpcio stream", "grpcio unary", "torch.rpc", "Ray actors", "plain sockets")
OWN = ("with CURVE",)
PUSHED = ("with CURVE", "with the log")


def transport_stages(*, quick: bool) -> list[Stage]:
    """A large lookup, many small ones, and a push."""
    rows = 20_000 if quick else 1_000_000
    large = WorkPlan(
        name="servers", rows=rows, dim=16, accesses=("inserts",), batch_ids=rows, random_ids=False
    )
    small = WorkPlan(
        name="servers small",
        rows=rows,
        dim=16,
        accesses=("uniform",),
        batch_ids=1_000,
        batches=20 if quick else 300,
        random_ids=False,
    )
    return [
        _stage(large, f"lookup of {rows:,} ids", "lookup", OTHERS + OWN),
        _stage(small, "lookup of 1,000 ids", "lookup", OTHERS + OWN),
        _stage(large, f"push of {rows:,} ids", "update", PUSHED),
    ]


def _stage(plan: WorkPlan, name: str, operation: str, peers: tuple[str, ...]) -> Stage:
    (access,) = plan.accesses
    case = Case(name=name, operation=operation, access=access, output="reused", peers=peers)
    return Stage(plan=plan, optimizer="sgd", cases=(case,))


def measure_transports(
    settings: Settings, progress: Progress
) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Versions and results of all cases that were chosen."""
    stages, _ = choose(transport_stages(quick=settings.quick), settings.cases, settings.peers)
    counter = Counter(progress, stages, settings.rounds)
    return run_stages(settings, stages, counter, ours=OurServers)


SERVERS, IDS, DIM = 10, 1_000_000, 16
_CALL_IDS = 100_000  # ids of one preload call
_FACTOR, _EXPECTED, _TOLERANCE = 0.3, 0.4, 1e-6
_SMALL = (1_000, 10_000, 100_000)


def default_folder() -> Path:
    """Where traces go if no folder is named."""
    return Path(tempfile.gettempdir()) / "distributed_ps_benchmark"


@dataclass(frozen=True, slots=True)
class Run:
    """One run: how long the preload took, how long the rest, and whether every number is right."""

    preload_ms: float
    work_ms: float
    equal: bool


class DistributedPsBenchmark:
    """The two runs of Monolith's benchmark, each with its overhead mode (`real_run=False`).

    `shards` hold `benchmark_table_config(dim)`. Queries are x // 2 for x below `ids`, so that each
    of half of the ids comes twice. With a `profile` folder the work of each run is traced once.

    >>> from hedgerow.ps.shard import LocalShard
    >>> from hedgerow.tables.multi.host_tables import HostTables
    >>> tables = {BENCHMARK_TABLE: benchmark_table_config(4)}
    >>> benchmark = DistributedPsBenchmark([LocalShard(HostTables(tables))], ids=100, dim=4)
    >>> benchmark.lookup().equal, benchmark.apply_gradients(real_run=False).equal
    (True, True)
    """

    def __init__(
        self, shards: Sequence[Shard], *, ids: int, dim: int = DIM, profile: Path | None = None
    ) -> None:
        self._shards, self._dim, self._profile = shards, dim, profile
        self._ids = torch.arange(ids)
        self._query = self._ids // 2

    def lookup(self, *, enable_dedup: bool = False, real_run: bool = True) -> Run:
        """Row x is x; a lookup of x // 2 must give exactly that. Overhead mode: the preload."""
        table = benchmark_table(self._shards, self._dim, dedup=enable_dedup)
        preload_ms = self._preload(table, self._ids.float())
        if not real_run:
            return Run(preload_ms, 0.0, table.size() == len(self._ids))
        name = "lookup_dedup" if enable_dedup else "lookup"
        with _traced(self._profile, name):
            work_ms, found = _timed(lambda: table.lookup(self._query))
        wanted = self._query.float().unsqueeze(1).expand(-1, self._dim)
        return Run(preload_ms, work_ms, torch.equal(found.rows_of(), wanted))

    def apply_gradients(self, *, real_run: bool = True) -> Run:
        """The loss is 0.3 times the looked-up rows, which are ones; autograd gives the gradients.

        The worker sums the two occurrences of an id, so that each row becomes 1 - (0.3 + 0.3).
        Overhead mode applies nothing and checks that every gradient is 0.3.
        """
        table = benchmark_table(self._shards, self._dim)
        preload_ms = self._preload(table, torch.ones(len(self._ids)))
        if not real_run:
            work_ms, grads = _timed(lambda: self._gradients(table))
            return Run(preload_ms, work_ms, bool((grads == torch.tensor(_FACTOR)).all()))
        with _traced(self._profile, "apply_gradients"):
            work_ms, _ = _timed(lambda: table.apply_gradients(self._query, self._gradients(table)))
        after = table.lookup(self._query).rows
        return Run(preload_ms, work_ms, bool((after - _EXPECTED).abs().max() <= _TOLERANCE))

    def _gradients(self, table: DistributedTable) -> Float32[Tensor, "n dim"]:
        embeddings = table.lookup(self._query).rows_of().requires_grad_()
        loss = (_FACTOR * embeddings).sum()
        return torch.autograd.grad(loss, embeddings)[0]

    def _preload(self, table: DistributedTable, values: Float32[Tensor, "n"]) -> float:
        """Milliseconds to add `values` to rows of zeros; rows of an earlier run leave first."""
        for part in self._ids.split(_CALL_IDS):
            table.erase(part)
        return _timed(lambda: _add(table, self._ids, values, self._dim))[0]


def run_monolith(
    servers: int,
    ids: int,
    rounds: int,
    profile: Path | None,
    progress: Progress = lambda text, done, total: None,
) -> list[dict[str, Any]]:
    """Lookups with and without de-duplication, gradients, and the overhead mode of each."""
    with _shards(servers) as shards:
        benchmark = DistributedPsBenchmark(shards, ids=ids, profile=profile)
        cases: dict[str, Callable[[], Run]] = {
            "lookup": benchmark.lookup,
            "lookup_dedup": lambda: benchmark.lookup(enable_dedup=True),
            "lookup_overhead": lambda: benchmark.lookup(real_run=False),
            "apply_gradients": benchmark.apply_gradients,
            "apply_gradients_overhead": lambda: benchmark.apply_gradients(real_run=False),
        }
        results = []
        for number, (name, run) in enumerate(cases.items()):
            progress(f"Monolith's benchmark, {name}", number, len(cases))
            results.append(_result(name, servers, ids, [run() for _ in range(rounds)]))
        return results


def small_lookups(servers: int, calls: int) -> list[dict[str, Any]]:
    """The time of one lookup through the whole client: equal ids removed, rows put in order."""
    results = []
    with _shards(servers) as shards:
        table = benchmark_table(shards, DIM)
        every = torch.arange(max(_SMALL))
        _add(table, every, every.float(), DIM)
        random = np.random.default_rng(0)
        for ids in _SMALL:
            batches = [torch.from_numpy(random.integers(0, len(every), ids)) for _ in range(20)]
            for batch in batches:
                table.lookup(batch)
            times = [_timed(lambda b=batches[i % 20]: table.lookup(b))[0] for i in range(calls)]
            results.append(
                {
                    "case": f"lookup of {ids:,} ids, {servers} servers",
                    "p50_ms": round(statistics.median(times), 3),
                    "p99_ms": round(float(np.quantile(times, 0.99)), 3),
                }
            )
    return results


@contextmanager
def _shards(servers: int) -> Iterator[list[RemoteShard]]:
    commands = [["hedgerow", "ps", "--shard", f"{i}/{servers}"] for i in range(servers)]
    configs = {BENCHMARK_TABLE: benchmark_table_config(DIM)}
    with ExitStack() as stack:
        addresses = stack.enter_context(started(commands))
        shards = [RemoteShard(address, configs) for address in addresses]
        for shard in shards:
            stack.callback(shard.close)
        yield shards


def _add(
    table: DistributedTable, ids: Int64[Tensor, "n"], values: Float32[Tensor, "n"], dim: int
) -> None:
    for part, value in zip(ids.split(_CALL_IDS), values.split(_CALL_IDS), strict=True):
        table.assign_add(part, value.unsqueeze(1).expand(-1, dim).contiguous())


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    return 1e3 * (time.perf_counter() - start), result


@contextmanager
def _traced(folder: Path | None, name: str) -> Iterator[None]:
    """Traces what happens inside; a trace of an earlier run is replaced."""
    if folder is None:
        yield
        return
    place = folder / name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        yield
    profiler.export_chrome_trace(str(place / "trace.json"))


def _result(name: str, servers: int, ids: int, runs: Sequence[Run]) -> dict[str, Any]:
    return {
        "case": f"{name}, {servers} servers",
        "ids": ids,
        "ours_ms": round(statistics.median(run.work_ms for run in runs), 3),
        "preload_ms": round(statistics.median(run.preload_ms for run in runs), 3),
        "equal": all(run.equal for run in runs),
    }


_SMALL_SERVERS = 4
_QUICK_IDS = 20_000


def run(settings: Settings, progress: Progress, profile: Path | None) -> dict[str, Any]:
    """All parts; one report."""
    versions, results = measure_transports(settings, progress)
    if not settings.cases and not settings.peers:
        results = [*results, *_monolith(settings, progress, profile)]
        results += small_lookups(_SMALL_SERVERS, 50 if settings.quick else 500)
    return _report(settings, versions, results)


def run_monolith_alone(
    settings: Settings, progress: Progress, profile: Path | None
) -> dict[str, Any]:
    """Monolith's benchmark and nothing else."""
    return _report(settings, {}, _monolith(settings, progress, profile))


def _monolith(settings: Settings, progress: Progress, profile: Path | None) -> list[dict[str, Any]]:
    ids = _QUICK_IDS if settings.quick else IDS
    return run_monolith(SERVERS, ids, settings.rounds, profile, progress)


def _report(
    settings: Settings, versions: dict[str, Any], results: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "bench": "ps",
        "work": {
            **machine(),
            "threads": settings.threads,
            "rounds": settings.rounds,
            "quick": settings.quick,
        },
        "versions": versions,
        "results": results,
    }
