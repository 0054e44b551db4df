"""`hedgerow bench checkpoint`: what saving and loading cost beside the least they could."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hedgerow import native
from hedgerow.core.errors import InputError
from hedgerow.core.shapes import Float32, Int64
from hedgerow.tables.checkpoint.chain import Chain
from hedgerow.tables.checkpoint.files import sync_folder
from hedgerow.tables.checkpoint.load import load_tables
from hedgerow.tables.checkpoint.save import rows_of, save_tables, save_tables_async
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.host import HostTable
from hedgerow.tables.initializers import Zeros
from hedgerow.tables.optimizers import Adagrad

from .ours import Ours
from .rounds import OnRound, Progress, Settings, compared, counted, in_turns, machine
from .work import random_ids

DIM = 16
CALL_IDS = 65_536
_SEED = 20_240_105


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much there is to do."""

    rows: int
    batch_ids: int = CALL_IDS
    batches: int = 16  # different ones, looked up in turn
    lookups: int = 200  # of a round at least, each way: a p99 needs them

    def summary(self) -> dict[str, Any]:
        """For the report."""
        return {
            "rows": self.rows,
            "dim": DIM,
            "optimizer": "Adagrad",
            "ids": "random 64-bit",
            "batch_ids": self.batch_ids,
            "lookups": self.lookups,
        }


FULL = Sizes(rows=2_000_000)
QUICK = Sizes(rows=50_000, batch_ids=4_096, lookups=50)


@dataclass(frozen=True, slots=True, eq=False)
class CheckpointWork:
    """A table, the rows it holds, and batches of its ids.

    >>> work = CheckpointWork.make(Sizes(rows=100, batch_ids=8, batches=2))
    >>> work.table.size(), work.assigned().size(), work.wrong_rows(work.table)
    (100, 100, 0)
    """

    table: HostTable
    ids: Int64[Tensor, "n"]
    rows: Float32[Tensor, "n dim"]
    batches: list[Tensor]  # numbers of rows
    sizes: Sizes

    @staticmethod
    def make(sizes: Sizes) -> CheckpointWork:
        """The same rows in every run, each trained for one step, so that states differ."""
        generator = torch.Generator().manual_seed(_SEED)
        ids = torch.from_numpy(random_ids(sizes.rows))
        table = empty_table()
        for part in ids.split(CALL_IDS):
            table.apply_gradients(part, torch.randn(len(part), DIM, generator=generator), ts=7)
        rows = table.lookup(ids).rows_of().clone()
        batches = [
            torch.randint(sizes.rows, (sizes.batch_ids,), generator=generator)
            for _ in range(sizes.batches)
        ]
        return CheckpointWork(table, ids, rows, batches, sizes)

    def assigned(self) -> HostTable:
        """A new table with the rows from memory: the peer of a load."""
        table = empty_table()
        for ids, rows in zip(self.ids.split(CALL_IDS), self.rows.split(CALL_IDS), strict=True):
            table.assign(ids, rows)
        return table

    def wrong_rows(self, other: HostTable) -> int:
        """Rows, states and times of `table` that `other` does not have, and rows it has too many.

        All are compared bit for bit.
        """
        wrong = abs(other.size() - self.table.size())
        for entries in self.table.scan():
            ours, theirs = rows_of(entries), rows_of(other.entries(entries.ids))
            same = torch.ones(len(entries), dtype=torch.bool)
            for name, column in ours.columns.items():
                equal = torch.from_numpy(column == theirs.columns[name])
                same &= equal if equal.ndim == 1 else equal.all(1)
            wrong += int((~same).sum())
        return wrong

    def wrong_rows_in(self, folder: Path) -> int:
        """Rows of the checkpoint in `folder` that the table does not have, and the other way."""
        chain, seen, wrong = Chain.read(folder), 0, 0
        chain.verify()
        for saved in chain.rows(self.table.config.name):
            live = rows_of(self.table.entries(torch.from_numpy(saved.ids)))
            for name, column in saved.columns.items():
                wrong += int((column != live.columns[name]).sum())
            seen += len(saved)
        return wrong + abs(seen - self.table.size())


def empty_table() -> HostTable:
    """A table of the benchmark without rows."""
    rule = Adagrad(lr=0.01, initial_accumulator_value=0.1)
    return HostTable(TableConfig("item", (Segment(DIM, Zeros(), rule),)))


def plain_write(folder: Path, files: Sequence[bytes]) -> None:
    """Writes and flushes new files, and their names: what a save must do at the very least.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plain_write(Path(folder) / "new", [b"ab", b"c"])
    ...     sorted(path.read_bytes() for path in (Path(folder) / "new").iterdir())
    [b'ab', b'c']
    """
    folder.mkdir()
    for number, data in enumerate(files):
        with (folder / f"{number:05d}").open("wb", buffering=0) as file:
            left = memoryview(data)
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
    sync_folder(folder)


CASES = ("save", "load", "lookups beside a save")


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


def run(settings: Settings, progress: Progress, folder: Path | None = None) -> dict[str, Any]:
    """Measures all cases, with files in a new folder in `folder` (that for temporary files if
    None), which is removed in the end; one report, in the form all our benchmarks have.
    """
    if folder is not None and not folder.is_dir():
        raise InputError(
            f"folder is {folder}, which is no folder; name one on the disk to measure."
        )
    sizes, rounds = QUICK if settings.quick else FULL, settings.rounds
    total = len(CASES) * (rounds + 1)  # one to warm up
    on_round = counted(progress, total)
    progress("making rows", 0, total)
    before = native.threads()
    native.set_threads(settings.threads)
    try:
        work = CheckpointWork.make(sizes)
        with tempfile.TemporaryDirectory(prefix="hedgerow-bench-", dir=folder) as made:
            here = Path(made)
            results = [
                save_case(work, here, rounds, on_round),
                load_case(work, here, rounds, on_round),
                *lookups_case(work, here, rounds, on_round),
            ]
    finally:
        native.set_threads(before)
    return {
        "bench": "checkpoint",
        "work": {
            **machine(),
            "threads": settings.threads,
            "rounds": rounds,
            "quick": settings.quick,
            **sizes.summary(),
        },
        "versions": {**Ours.versions(), "pyarrow": metadata.version("pyarrow")},
        "results": results,
    }
