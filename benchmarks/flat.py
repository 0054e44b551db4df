"""`hedgerow bench flat`: how the cost of an id grows from a large host table to a larger one."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from hedgerow import native
from hedgerow.calibration.machine import free_bytes
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.host import HostTable
from hedgerow.tables.initializers import Zeros
from hedgerow.tables.optimizers import Sgd

from .gather import on_huge_pages
from .rounds import Progress, Settings, counted, machine

SLOPES = "slopes"
FULL_ROWS, QUICK_ROWS = (10_000_000, 100_000_000), (1_000, 10_000)
_DIM, _CALL_IDS, _FILL_IDS = 8, 1_000_000, 2_000_000
_ROW_BYTES = 2 * 4 * _DIM + 70  # rows of two plain tensors; row, stamp and index of the table
_ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # row number times this: ids that look random, none twice


def run(settings: Settings, progress: Progress) -> dict[str, Any]:
    """Nanoseconds per id of calls on a smaller and a larger table, and the slopes between them."""
    sizes = QUICK_ROWS if settings.quick else FULL_ROWS
    call_ids = min(_CALL_IDS, sizes[0])
    before, torch_before = native.threads(), torch.get_num_threads()
    native.set_threads(settings.threads)
    torch.set_num_threads(settings.threads)
    told = counted(progress, len(sizes) * (settings.rounds + 1))
    try:
        results = [_at(rows, call_ids, settings.rounds, told) for rows in sizes]
    finally:
        native.set_threads(before)
        torch.set_num_threads(torch_before)
    if not any("missing" in result for result in results):
        results.append({"case": SLOPES, **slopes(results[0], results[1])})
    return {
        "bench": "flat",
        "work": {
            **machine(),
            "threads": settings.threads,
            "rounds": settings.rounds,
            "quick": settings.quick,
            "dim": _DIM,
            "call_ids": call_ids,
        },
        "versions": {"torch": torch.__version__},
        "results": results,
    }


def slopes(small: dict[str, Any], large: dict[str, Any]) -> dict[str, float]:
    """How the nanoseconds grow with the rows, on logarithmic scales: 1 is in proportion, 0 flat.

    >>> slopes({"rows": 10, "lookup_ns": 2.0}, {"rows": 1000, "lookup_ns": 20.0})
    {'lookup': 0.5}
    """
    decades = math.log(large["rows"] / small["rows"])
    return {
        name.removesuffix("_ns"): round(math.log(large[name] / small[name]) / decades, 3)
        for name in small
        if name.endswith("_ns")
    }


def _at(rows: int, call_ids: int, rounds: int, told: Callable[[str], None]) -> dict[str, Any]:
    """One table size: the median of each call's nanoseconds per id."""
    free, needed = free_bytes(), rows * _ROW_BYTES
    case = f"{rows:,} rows"
    if free is not None and free < needed:
        why = f"needs {needed / 1e9:.0f} GB of memory, {free / 1e9:.0f} are free"
        return {"case": case, "rows": rows, "missing": why}
    calls = _Calls(rows, call_ids)
    told(f"{case}, filled")
    spent: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, seconds in calls.round():
            spent.setdefault(name, []).append(1e9 * seconds / call_ids)
        told(case)
    medians = {f"{name}_ns": round(statistics.median(times), 1) for name, times in spent.items()}
    return {"case": case, "rows": rows, **medians}


class _Calls:
    """A table and plain tensors of the same rows; each round reads and updates random rows."""

    def __init__(self, rows: int, call_ids: int) -> None:
        self._rows, self._random = rows, torch.Generator().manual_seed(1)
        self._table = HostTable(TableConfig("flat", (Segment(_DIM, Zeros(), Sgd()),)))
        zeros = torch.zeros(min(rows, _FILL_IDS), _DIM)
        for start in range(0, rows, _FILL_IDS):
            numbers = torch.arange(start, min(rows, start + _FILL_IDS))
            self._table.assign(numbers * _ODD, zeros[: len(numbers)])
        self._small_pages = torch.zeros(rows, _DIM)
        self._huge_pages = on_huge_pages(rows, _DIM).fill_(0)
        self._out, self._grads = torch.zeros(call_ids, _DIM), torch.ones(call_ids, _DIM)

    def round(self) -> Iterator[tuple[str, float]]:
        """Seconds of processor time of this thread for each call, by name."""
        numbers = torch.randint(self._rows, (len(self._out),), generator=self._random)
        ids = numbers * _ODD
        yield "index_select", _seconds(lambda: self._select(self._small_pages, numbers))
        yield "index_select_huge_pages", _seconds(lambda: self._select(self._huge_pages, numbers))
        yield "gather_huge_pages", _seconds(lambda: self._gather(numbers))
        yield "lookup", _seconds(lambda: self._table.lookup(ids))
        yield "update", _seconds(lambda: self._table.apply_gradients(ids, self._grads, step=0))

    def _select(self, rows: Tensor, numbers: Tensor) -> None:
        torch.index_select(rows, 0, numbers, out=self._out)

    def _gather(self, numbers: Tensor) -> None:
        addresses = (self._huge_pages.data_ptr(), numbers.data_ptr())
        native.gather(*addresses, len(numbers), _DIM, self._out.data_ptr())


def _seconds(call: Callable[[], object]) -> float:
    start = time.thread_time()
    call()
    return time.thread_time() - start
