"""Makes the work: rows, ids and batches, the same bytes in every run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .peers.workfile import Work, write

_SEED = 20_240_105
_ZIPF = 1.05
_PATTERN_ROWS = 65_537  # prime, so that no batch size runs in step with it
_SAMPLE_ROWS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkPlan:
    """What a work is made of. `accesses` are halves, zipf, uniform or inserts."""

    name: str
    rows: int
    dim: int
    accesses: tuple[str, ...]
    batch_ids: int
    batches: int = 1
    random_ids: bool = True
    call_ids: int = 65_536

    def summary(self) -> dict[str, Any]:
        """For the report."""
        return {
            "rows": self.rows,
            "dim": self.dim,
            "ids": "random 64-bit" if self.random_ids else f"0..{self.rows - 1}",
            "batch_ids": self.batch_ids,
            "batches": self.batches,
        }


def make_work(plan: WorkPlan, folder: Path) -> Work:
    """Writes the work into a new folder.

    >>> import tempfile
    >>> plan = WorkPlan(name="W", rows=9, dim=2, accesses=("halves",), batch_ids=6)
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     work = make_work(plan, Path(parent) / "w")
    ...     print(work.batches("halves").tolist())
    [[0, 0, 1, 1, 2, 2]]
    """
    random = np.random.default_rng(_SEED)
    arrays: dict[str, NDArray[Any]] = {
        "ids": random_ids(plan.rows) if plan.random_ids else np.arange(plan.rows),
        "pattern": pattern(plan.dim, random),
        # Of one sign: a sum that nearly cancels would depend on the order of its terms.
        "gradients": random.uniform(0.5, 1.5, (plan.batch_ids, plan.dim)).astype(np.float32),
    }
    for access in plan.accesses:
        arrays |= accesses(plan, access, row_numbers(plan, access, random), random)
    return write_work(plan, folder, arrays)


def pattern(dim: int, random: np.random.Generator) -> NDArray[np.float32]:
    """What first rows repeat."""
    return random.uniform(-0.05, 0.05, (_PATTERN_ROWS, dim)).astype(np.float32)


def accesses(
    plan: WorkPlan, access: str, numbers: NDArray[np.int64], random: np.random.Generator
) -> dict[str, NDArray[np.int64]]:
    """Batches of these row numbers, and some of them to compare in the end."""
    touched = np.unique(numbers)
    few = min(_SAMPLE_ROWS, len(touched))
    return {
        f"batches-{access}": numbers.reshape(-1, plan.batch_ids),
        f"sample-{access}": random.choice(touched, few, replace=False),
    }


def write_work(plan: WorkPlan, folder: Path, arrays: dict[str, NDArray[Any]]) -> Work:
    """Puts arrays into a new folder, with the optimizer's settings that all works share."""
    work = Work(
        folder=folder,
        name=plan.name,
        rows=plan.rows,
        dim=plan.dim,
        call_ids=plan.call_ids,
        rate=0.01,
        accumulator=0.1,
        eps=1e-10,
    )
    write(work, arrays)
    return work


def random_ids(n: int) -> NDArray[np.int64]:
    """Different 64-bit ids that look random: splitmix64 of 0..n-1, which maps no two alike.

    >>> random_ids(2).tolist()
    [-2152535657050944081, 7960286522194355700]
    """
    x = (np.arange(1, n + 1, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))).view(np.int64)


def row_numbers(plan: WorkPlan, access: str, random: np.random.Generator) -> NDArray[np.int64]:
    """Rows in the order in which the batches touch them, batch after batch."""
    total = plan.batch_ids * plan.batches
    if access == "halves":
        return np.arange(total) // 2
    if access == "inserts":  # in order; batches only say which rows may be compared
        return np.arange(total)
    if access == "uniform":
        return random.integers(0, plan.rows, total)
    weights = np.arange(1, plan.rows + 1, dtype=np.float64) ** -_ZIPF
    shares = np.cumsum(weights) / weights.sum()
    ranks = np.searchsorted(shares, random.random(total)).clip(max=plan.rows - 1)
    return random.permutation(plan.rows)[ranks]  # a frequent id may lie anywhere in the table
