"""The measured cases of the checkpoint benchmark: save, load, lookups beside a save."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..tables.checkpoint.load import load_tables
from ..tables.checkpoint.save import save_tables, save_tables_async
from ..tables.host import HostTable
from .checkpoint_work import DIM, CheckpointWork, empty_table, plain_write

CASES = ("save", "load", "lookups beside a save")

OnRound = Callable[[str], None]


def save_case(work: CheckpointWork, folder: Path, rounds: int, on_round: OnRound) -> dict[str, Any]:
    """`save_tables` against a plain write and fsync of the same bytes in the same folder."""
    ours, plain = folder / "save", folder / "plain"
    save_tables([work.table], ours)
    equal = work.wrong_rows_in(ours) == 0
    files = [path.read_bytes() for path in ours.iterdir()]
    shutil.rmtree(ours)

    def one(number: int) -> tuple[float, float]:
        times = in_turns(
            lambda: save_tables([work.table], ours),
            lambda: plain_write(plain, files),
            ours_first=number % 2 == 0,
        )
        shutil.rmtree(ours)
        shutil.rmtree(plain)
        on_round("save")
        return times

    one(0)  # to warm up
    result = compared("save", "write + fsync", [one(number) for number in range(rounds)])
    file_bytes = sum(map(len, files))
    for who in ("ours", "peer"):
        result[f"{who}_mb_per_s"] = round(file_bytes / 1e3 / result[f"{who}_ms"], 1)
    return {**result, "file_bytes": file_bytes, "equal": equal}


def load_case(work: CheckpointWork, folder: Path, rounds: int, on_round: OnRound) -> dict[str, Any]:
    """`load_tables` into a new table against `assign` of the same rows from memory into another."""
    path, wrong = folder / "load", 0
    save_tables([work.table], path)

    def one(number: int) -> tuple[float, float]:
        nonlocal wrong
        loaded: list[HostTable] = [empty_table()]
        assigned: list[HostTable] = []
        times = in_turns(
            lambda: load_tables(path, loaded),
            lambda: assigned.append(work.assigned()),
            ours_first=number % 2 == 0,
        )
        wrong += work.wrong_rows(loaded[0])
        wrong += not torch.equal(assigned[0].lookup(work.ids).rows_of(), work.rows)
        on_round("load")
        return times

    one(0)
    result = compared("load", "assign", [one(number) for number in range(rounds)])
    for who in ("ours", "peer"):
        result[f"{who}_rows_per_s"] = round(1e3 * work.sizes.rows / result[f"{who}_ms"])
    shutil.rmtree(path)
    return {**result, "equal": wrong == 0}


def lookups_case(
    work: CheckpointWork, folder: Path, rounds: int, on_round: OnRound
) -> list[dict[str, Any]]:
    """Lookup batches while a save runs against the same without: their median and their p99."""
    lookups = _Lookups(work, folder / "beside")
    found: list[tuple[list[float], list[float]]] = []
    for number in range(rounds + 1):
        if number % 2 == 0:
            beside, alone = lookups.beside(), lookups.alone()
        else:
            alone, beside = lookups.alone(), lookups.beside()
        found.append((beside, alone))
        on_round(CASES[2])
    equal = lookups.wrong == 0 and work.wrong_rows_in(lookups.folder) == 0
    shutil.rmtree(lookups.folder)
    results = []
    for case, share in ((CASES[2], 50), (f"{CASES[2]} p99", 99)):
        times = [
            (float(np.percentile(beside, share)), float(np.percentile(alone, share)))
            for beside, alone in found[1:]  # the first was to warm up
        ]
        results.append({**compared(case, "without a save", times), "equal": equal})
    results[0]["start_ms"] = round(statistics.median(lookups.starts_ms), 4)
    results[0]["batches"] = sum(len(beside) for beside, _ in found[1:])
    return results


class _Lookups:
    """Times lookups into one output, with and without a save. Single-owner."""

    def __init__(self, work: CheckpointWork, folder: Path) -> None:
        self.folder = folder
        self.wrong = 0  # lookups with another result than the rows in memory
        self.starts_ms: list[float] = []  # how long training stands still for a save to begin
        self._work = work
        self._ids = [work.ids[numbers] for numbers in work.batches]
        self._out = torch.zeros(work.sizes.batch_ids, DIM)
        self._count = 0

    def alone(self) -> list[float]:
        """Milliseconds of each."""
        times = [self._one() for _ in range(self._work.sizes.lookups)]
        self._check()
        return times

    def beside(self) -> list[float]:
        """Milliseconds of each that began while a save ran; as many saves as it takes."""
        times: list[float] = []
        while len(times) < self._work.sizes.lookups:
            start = time.perf_counter()
            handle = save_tables_async([self._work.table], self.folder, overwrite=True)
            self.starts_ms.append(1e3 * (time.perf_counter() - start))
            try:
                while not handle.done():
                    times.append(self._one())
            finally:
                handle.wait()
            self._check()
        return times

    def _one(self) -> float:
        self._count += 1
        ids = self._ids[self._count % len(self._ids)]
        start = time.perf_counter()
        self._work.table.lookup(ids, out=self._out)
        return 1e3 * (time.perf_counter() - start)

    def _check(self) -> None:
        """Whether the last lookup was right."""
        numbers = self._work.batches[self._count % len(self._ids)]
        self.wrong += not torch.equal(self._out, self._work.rows[numbers])


def in_turns(
    ours: Callable[[], object], peer: Callable[[], object], *, ours_first: bool
) -> tuple[float, float]:
    """Milliseconds of both.

    >>> order = []
    >>> _ = in_turns(lambda: order.append("a"), lambda: order.append("b"), ours_first=False)
    >>> order
    ['b', 'a']
    """
    spent: dict[bool, float] = {}
    for is_ours in (ours_first, not ours_first):
        start = time.perf_counter()
        (ours if is_ours else peer)()
        spent[is_ours] = 1e3 * (time.perf_counter() - start)
    return spent[True], spent[False]


def compared(case: str, peer: str, times: list[tuple[float, float]]) -> dict[str, Any]:
    """Medians of the rounds, and how far their ratios lie apart."""
    ours_ms, peer_ms = (statistics.median(side) for side in zip(*times, strict=True))
    ratios = sorted(theirs / own for own, theirs in times)
    return {
        "case": case,
        "ours_ms": round(ours_ms, 4),
        "peer": peer,
        "peer_ms": round(peer_ms, 4),
        "ratio": round(peer_ms / ours_ms, 3),
        "ratio_range": [round(ratios[0], 3), round(ratios[-1], 3)],
    }
