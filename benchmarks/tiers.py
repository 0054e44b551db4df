"""`hedgerow bench tiers`: training with rows in a file, four times what may be in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hedgerow import native
from hedgerow.core.errors import InputError
from hedgerow.nn.tier_stores import on_disk, stored_bytes
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.host import HostTable
from hedgerow.tables.host_core import RowFile
from hedgerow.tables.initializers import Uniform
from hedgerow.tables.optimizers import Adagrad
from hedgerow.tables.store import Entries
from hedgerow.tiers.tier_tables import TierTable

from .ours import Ours
from .rounds import OnRound, Progress, Settings, compared, counted, in_turns, machine
from .work import WorkPlan, random_ids, row_numbers

_TIMES_THE_BUDGET = 4
_MODES = ("pages", "HYBRID", "CACHING")
_WARM_ROUNDS = {"zipf": 10, "uniform": 3}  # until the hot rows of a hybrid are full
_FULL = WorkPlan(
    name="rows in a file",
    rows=1_000_000,
    dim=64,
    accesses=tuple(_WARM_ROUNDS),
    batch_ids=8192,
    batches=8,
)
_QUICK = WorkPlan(
    name="rows in a file",
    rows=10_000,
    dim=64,
    accesses=tuple(_WARM_ROUNDS),
    batch_ids=512,
    batches=2,
)


@dataclass(frozen=True, slots=True)
class _Pair:
    """One table with rows in a file, one with all in memory; both get the same calls."""

    plan: WorkPlan
    ids: Tensor
    mode: str
    in_file: HostTable | TierTable
    in_memory: HostTable
    budget_bytes: int

    @classmethod
    def make(cls, plan: WorkPlan, folder: Path, mode: str) -> _Pair:
        """Both filled with all ids."""
        config = TableConfig("item", (Segment(plan.dim, Uniform(0.1), Adagrad(lr=0.05)),), seed=3)
        ids, in_memory = torch.from_numpy(random_ids(plan.rows)), HostTable(config)
        _fill(in_memory, ids, plan)
        use = in_memory.memory()
        budget = (use.row_bytes + use.slack_bytes) // _TIMES_THE_BUDGET
        in_file = on_disk(config, RowFile(folder, budget), mode)
        for part in ids.split(plan.call_ids):
            in_file.restore(in_memory.entries(part))
        return cls(plan, ids, mode, in_file, in_memory, budget)

    def equal(self) -> bool:
        """Every row, state and time, bit for bit."""
        sizes = {table.size() for table in (self.in_file, self.in_memory)}
        return sizes == {self.plan.rows} and all(
            _same(self.in_file.entries(part), self.in_memory.entries(part))
            for part in self.ids.split(self.plan.call_ids)
        )

    def file_of(self) -> HostTable:
        """What has rows in a file."""
        return self.in_file if isinstance(self.in_file, HostTable) else self.in_file.slow

    def measured_bytes(self) -> int:
        """Rows in memory: pages of the file, as the system says, and hot rows."""
        hot = 0 if isinstance(self.in_file, HostTable) else len(self.in_file.resident)
        return self.file_of().measured_bytes() + hot * stored_bytes(self.in_file.config)


def _same(a: Entries, b: Entries) -> bool:
    (state,), (expected,) = a.states, b.states
    pairs = [(a.rows, b.rows), *((values, expected[name]) for name, values in state.items())]
    return (
        bool(a.found.all())
        and torch.equal(a.ts, b.ts)
        and all(torch.equal(x.view(torch.int32), y.view(torch.int32)) for x, y in pairs)
    )


def _fill(table: HostTable, ids: Tensor, plan: WorkPlan) -> None:
    for part in ids.split(plan.call_ids):
        table.apply_gradients(part, torch.ones(len(part), plan.dim))


def _train(table: HostTable | TierTable, batches: Sequence[Tensor]) -> None:
    for ids in batches:
        found = table.lookup(ids, missing="training")
        table.apply_gradients(found, found.rows_of())


def _case(
    pair: _Pair, access: str, batches: Sequence[Tensor], rounds: int, on_round: OnRound
) -> dict[str, Any]:
    """Steps of a lookup and an update of what it gave, the two tables in turns.

    No round has the batches of another: what repeats would be hot.
    """
    most_bytes, each = 0, pair.plan.batches
    case = f"{pair.mode} {access}"

    def one(number: int) -> tuple[float, float]:
        nonlocal most_bytes
        own = batches[number * each : (number + 1) * each]
        times = in_turns(
            lambda: _train(pair.in_file, own),
            lambda: _train(pair.in_memory, own),
            ours_first=number % 2 == 0,
        )
        most_bytes = max(most_bytes, pair.measured_bytes())
        on_round(case)
        return times

    times = [one(number) for number in range(_WARM_ROUNDS[access] + rounds)]
    result = compared(case, "all in memory", times[-rounds:])
    for who in ("ours", "peer"):
        trained = pair.plan.batch_ids * each
        result[f"{who}_ids_per_s"] = round(1e3 * trained / result[f"{who}_ms"])
    return {
        **result,
        "file_bytes": int(pair.file_of().stats()["file_bytes"]),
        "budget_bytes": pair.budget_bytes,
        "measured_bytes": most_bytes,
        "equal": pair.equal(),
    }


def _cases(
    plan: WorkPlan, folder: Path, rounds: int, on_round: OnRound
) -> Iterator[dict[str, Any]]:
    """Every mode with the same batches, and new tables for each: one use warms no other."""
    for mode in _MODES:
        pair, random = _Pair.make(plan, folder, mode), np.random.default_rng(5)
        for access in plan.accesses:
            many = replace(plan, batches=plan.batches * (_WARM_ROUNDS[access] + rounds))
            numbers = torch.from_numpy(row_numbers(many, access, random))
            batches = pair.ids[numbers].split(plan.batch_ids)
            yield _case(pair, access, batches, rounds, on_round)


def run(settings: Settings, progress: Progress, folder: Path | None = None) -> dict[str, Any]:
    """Measures all cases, with a file in `folder` (that for temporary files if None), which has no
    name and leaves nothing; one report, in the form all our benchmarks have.
    """
    folder = Path(tempfile.gettempdir()) if folder is None else folder
    if not folder.is_dir():
        raise InputError(f"folder is {folder}, which is no folder; name one on a disk.")
    plan, rounds = _QUICK if settings.quick else _FULL, settings.rounds
    total = len(_MODES) * sum(warm + rounds for warm in _WARM_ROUNDS.values())
    on_round = counted(progress, total)
    progress("making rows", 0, total)
    before = native.threads()
    native.set_threads(settings.threads)
    try:
        results = list(_cases(plan, folder, rounds, on_round))
    finally:
        native.set_threads(before)
    return {
        "bench": "tiers",
        "work": {
            **machine(),
            "threads": settings.threads,
            "rounds": rounds,
            "quick": settings.quick,
            **plan.summary(),
        },
        "versions": Ours.versions(),
        "results": results,
    }
