"""The original's `distributed_ps_benchmark`: one table over many servers, its numbers checked."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..monolith.test_utils import BENCHMARK_TABLE, benchmark_table, benchmark_table_config
from ..ps.distributed import DistributedTable
from ..ps.remote_shard import RemoteShard
from .ps_peers.processes import started

_DIM = 16
_CALL_IDS = 100_000  # of one preload
_GRADIENT = 0.3
_EXPECTED, _TOLERANCE = 0.4, 1e-6
_SMALL = (1_000, 10_000, 100_000)
CASES = ("lookup", "lookup_dedup", "apply_gradients")


def default_folder() -> Path:
    """Where traces go if no folder is named."""
    return Path(tempfile.gettempdir()) / "distributed_ps_benchmark"


@contextmanager
def _shards(servers: int) -> Iterator[list[RemoteShard]]:
    commands = [["hedgerow", "ps", "--shard", f"{i}/{servers}"] for i in range(servers)]
    configs = {BENCHMARK_TABLE: benchmark_table_config(_DIM)}
    with ExitStack() as stack:
        addresses = stack.enter_context(started(commands))
        shards = [RemoteShard(address, configs) for address in addresses]
        for shard in shards:
            stack.callback(shard.close)
        yield shards


def run_original(servers: int, ids: int, rounds: int, profile: Path | None) -> list[dict[str, Any]]:
    """Lookups of x // 2 with and without de-duplication, then gradients of 0.3."""
    every = torch.arange(ids)
    query, wanted = every // 2, (every // 2).float().unsqueeze(1).expand(-1, _DIM)
    with _shards(servers) as shards:
        plain = benchmark_table(shards, _DIM, dedup=False)
        deduped = benchmark_table(shards, _DIM)
        overhead_ms = _timed(lambda: _preload(plain, every, every.float()))
        results = []
        for name, table in (("lookup", plain), ("lookup_dedup", deduped)):
            times = [_timed(lambda t=table: t.lookup(query)) for _ in range(rounds)]
            equal = torch.equal(table.lookup(query).rows_of(), wanted)
            _trace(profile, name, lambda t=table: t.lookup(query))
            results.append(_result(name, servers, ids, times, overhead_ms, equal))
        results.append(_apply_gradients(deduped, every, query, servers, rounds, profile))
    return results


def _apply_gradients(
    table: DistributedTable,
    every: Tensor,
    query: Tensor,
    servers: int,
    rounds: int,
    profile: Path | None,
) -> dict[str, Any]:
    """Each of half of the ids comes twice, and the worker sums: 1 - (0.3 + 0.3)."""
    grads = torch.full((len(query), _DIM), _GRADIENT)
    times: list[float] = []
    equal, overhead_ms = True, 0.0
    for _ in range(rounds):
        overhead_ms = _timed(lambda: _set(table, every, torch.ones(len(every))))
        times.append(_timed(lambda: table.apply_gradients(query, grads)))
        after = table.lookup(query).rows
        equal &= bool((after - _EXPECTED).abs().max() <= _TOLERANCE)
    _trace(profile, "apply_gradients", lambda: table.apply_gradients(query, grads))
    name = "apply_gradients"
    return _result(name, servers, len(every), times, overhead_ms, equal)


def small_lookups(servers: int, calls: int) -> list[dict[str, Any]]:
    """The time of one lookup through the whole client: equal ids removed, rows put in order."""
    results = []
    with _shards(servers) as shards:
        table = benchmark_table(shards, _DIM)
        every = torch.arange(max(_SMALL))
        _preload(table, every, every.float())
        random = np.random.default_rng(0)
        for ids in _SMALL:
            batches = [torch.from_numpy(random.integers(0, len(every), ids)) for _ in range(20)]
            for batch in batches:
                table.lookup(batch)
            times = [_timed(lambda b=batches[i % 20]: table.lookup(b)) for i in range(calls)]
            results.append(
                {
                    "case": f"lookup of {ids:,} ids, {servers} servers",
                    "p50_ms": round(statistics.median(times), 3),
                    "p99_ms": round(float(np.quantile(times, 0.99)), 3),
                }
            )
    return results


def _preload(table: DistributedTable, ids: Tensor, values: Tensor) -> None:
    for part, value in zip(ids.split(_CALL_IDS), values.split(_CALL_IDS), strict=True):
        table.assign_add(part, value.unsqueeze(1).expand(-1, _DIM).contiguous())


def _set(table: DistributedTable, ids: Tensor, values: Tensor) -> None:
    for part, value in zip(ids.split(_CALL_IDS), values.split(_CALL_IDS), strict=True):
        table.assign(part, value.unsqueeze(1).expand(-1, _DIM).contiguous())


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)


def _trace(folder: Path | None, name: str, work: Callable[[], object]) -> None:
    """One call and nothing else; a trace of an earlier run is replaced."""
    if folder is None:
        return
    place = folder / name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        work()
    profiler.export_chrome_trace(str(place / "trace.json"))


def _result(
    name: str, servers: int, ids: int, times: list[float], overhead_ms: float, equal: bool
) -> dict[str, Any]:
    return {
        "case": f"{name}, {servers} servers",
        "ids": ids,
        "ours_ms": round(statistics.median(times), 3),
        "preload_ms": round(overhead_ms, 3),
        "equal": equal,
    }
