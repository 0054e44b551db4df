"""`hedgerow bench table`: the host table against every peer, stage by stage."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import torch

from hedgerow import native
from hedgerow.calibration.machine import free_bytes
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.host import HostTable
from hedgerow.tables.initializers import Zeros
from hedgerow.tables.optimizers import Sgd

from .cases import FULL, GROWTH, INSERT_CALLS, MEMORY, QUICK, all_stages, choose
from .contestants import no_room, table_bytes
from .rounds import Counter, Progress, Settings, machine
from .stages import run_stages
from .work import random_ids

_TIME_STAMP_BYTES = 8
_MEMORY_DIM, _INSERT_DIM = 16, 64


def grow(rows: int, dim: int, call_ids: int) -> tuple[HostTable, list[float]]:
    """A table grown to `rows`, and the milliseconds of each full call.

    >>> table, times = grow(1000, 4, 300)
    >>> table.size(), len(times)
    (1000, 3)
    """
    table = HostTable(TableConfig("growing", (Segment(dim, Zeros(), Sgd()),)))
    ids = torch.from_numpy(random_ids(rows))
    values = torch.from_numpy(np.random.default_rng(1).random((call_ids, dim), dtype=np.float32))
    times = []
    for part in ids.split(call_ids):
        start = time.perf_counter()
        table.assign(part, values[: len(part)])
        if len(part) == call_ids:
            times.append(1000 * (time.perf_counter() - start))
    return table, times


def memory(rows: int, call_ids: int) -> dict[str, Any]:
    """Bytes a row beyond its values: index and time stamp, and with everything kept in reserve.

    >>> sorted(memory(1000, 500))[:3]
    ['bytes_a_row', 'bytes_a_row_with_slack', 'case']
    """
    why = no_room(table_bytes(rows, _MEMORY_DIM), free_bytes())
    if why is not None:
        return {"case": MEMORY, "rows": rows, "missing": why}
    table, _ = grow(rows, _MEMORY_DIM, call_ids)
    use = table.memory()
    payload = 4 * _MEMORY_DIM * rows
    return {
        "case": MEMORY,
        "rows": rows,
        "dim": _MEMORY_DIM,
        "index_bytes": use.index_bytes,
        "row_bytes": use.row_bytes,
        "slack_bytes": use.slack_bytes,
        "bytes_a_row": round(use.index_bytes / rows + _TIME_STAMP_BYTES, 2),
        "bytes_a_row_with_slack": round((use.total_bytes - payload) / rows, 2),
    }


def insert_calls(rows: int, call_ids: int, rounds: int) -> dict[str, Any]:
    """The slowest of all calls against the median call while a table grows; median of rounds.

    >>> insert_calls(2000, 500, rounds=1)["rows"]
    2000
    """
    why = no_room(table_bytes(rows, _INSERT_DIM), free_bytes())
    if why is not None:
        return {"case": INSERT_CALLS, "rows": rows, "missing": why}
    calls = [grow(rows, _INSERT_DIM, call_ids)[1] for _ in range(rounds)]
    slowest = [max(times) / statistics.median(times) for times in calls]
    return {
        "case": INSERT_CALLS,
        "rows": rows,
        "dim": _INSERT_DIM,
        "call_ids": call_ids,
        "median_ms": round(statistics.median(statistics.median(times) for times in calls), 4),
        "slowest_ms": round(statistics.median(max(times) for times in calls), 4),
        "slowest_over_median": round(statistics.median(slowest), 2),
        "slowest_over_median_rounds": [round(value, 2) for value in slowest],
    }


def growth_factors(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Adds the cost of an id to the growth cases, and how much dearer it is than in the smallest.

    >>> rows = [{"case": "growth", "ids": 10, "ours_ms": t, "peer_ms": 2.0} for t in (1.0, 3.0)]
    >>> [row["ours_growth"] for row in growth_factors(rows)]
    [1.0, 3.0]
    """
    measured = [r for r in results if r["case"] == GROWTH and "ours_ms" in r]
    for result in measured:
        for who in ("ours", "peer"):
            spent_ms = result[f"{who}_ms"]
            result[f"{who}_ns_per_id"] = round(1e6 * spent_ms / result["ids"], 2)
            result[f"{who}_growth"] = round(spent_ms / measured[0][f"{who}_ms"], 3)
    return results


def run(settings: Settings, progress: Progress) -> dict[str, Any]:
    """Measures everything that was chosen; one report, in the form all our benchmarks have."""
    sizes = QUICK if settings.quick else FULL
    stages, alone = choose(all_stages(sizes), settings.cases, settings.peers)
    counter = Counter(progress, stages, settings.rounds)
    versions, results = run_stages(settings, stages, counter)
    before = native.threads()
    native.set_threads(settings.threads)
    try:
        if MEMORY in alone:
            counter.say(MEMORY)
            results += [memory(rows, sizes.batch_ids) for rows in sizes.memory_rows()]
        if INSERT_CALLS in alone:
            counter.say(INSERT_CALLS)
            results.append(insert_calls(sizes.w2_rows, sizes.batch_ids, settings.rounds))
    finally:
        native.set_threads(before)
    return {
        "bench": "table",
        "work": {
            **machine(),
            "threads": settings.threads,
            "rounds": settings.rounds,
            "quick": settings.quick,
            **{stage.plan.name: stage.plan.summary() for stage in stages},
        },
        "versions": versions,
        "results": growth_factors(results),
    }
