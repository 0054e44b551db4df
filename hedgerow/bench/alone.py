"""Our table alone: bytes a row, and the slowest call while it grows."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import torch

from ..tables.config import Segment, TableConfig
from ..tables.host import HostTable
from ..tables.initializers import Zeros
from ..tables.optimizers import Sgd
from .cases import INSERT_CALLS, MEMORY
from .contestants import no_room, table_bytes
from .room import free_bytes
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
