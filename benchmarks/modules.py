"""`hedgerow bench modules`: steps of modules, small and large, as users write them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hedgerow import native
from hedgerow.core.id_batch import IdBatch
from hedgerow.nn.embedding_modules import EmbeddingBags
from hedgerow.tables.config import Table
from hedgerow.tables.optimizers import Sgd
from hedgerow.tables.store import TableKeys

from .ours import Ours
from .rounds import OnRound, Progress, Settings, compared, counted, in_turns, machine

PEER = "nn.EmbeddingBag(sparse)"
_ROWS, _DIM, _RATE, _BATCHES = 1_000, 16, 0.1, 4
_IDS = 100_000  # looked up in a round, about: small steps are repeated


@dataclass(frozen=True, slots=True)
class Size:
    """How many tables of one feature, and how many samples of one id."""

    tables: int
    samples: int

    @property
    def case(self) -> str:
        """What reports call it."""
        return f"module, {self.tables} tables x {self.samples} samples"


SIZES = (Size(26, 512), Size(26, 1), Size(26, 8192), Size(1, 1))


@dataclass(frozen=True, slots=True, eq=False)
class _Pair:
    """Our module and one `nn.EmbeddingBag` a table, with the same rows and batches."""

    ours: EmbeddingBags
    theirs: list[nn.EmbeddingBag]
    optimizer: torch.optim.Optimizer
    batches: list[IdBatch]
    columns: list[list[Tensor]]
    borders: Tensor

    @classmethod
    def make(cls, size: Size) -> _Pair:
        """Alike before the first step."""
        draw = torch.Generator().manual_seed(7)
        names = [f"t{k:02}" for k in range(size.tables)]
        ours = EmbeddingBags([Table(name, _DIM) for name in names], optimizer=Sgd(lr=_RATE))
        theirs = [nn.EmbeddingBag(_ROWS, _DIM, mode="sum", sparse=True) for _ in names]
        for name, bag in zip(names, theirs, strict=True):
            ours.table(name).assign(TableKeys.of_one(torch.arange(_ROWS)), bag.weight.detach())
        columns = [
            [torch.randint(_ROWS, (size.samples,), generator=draw) for _ in names]
            for _ in range(_BATCHES)
        ]
        offsets = torch.arange(size.tables * size.samples + 1)
        batches = [IdBatch(tuple(names), torch.cat(one), offsets) for one in columns]
        optimizer = torch.optim.SGD([bag.weight for bag in theirs], lr=_RATE)
        return cls(ours, theirs, optimizer, batches, columns, torch.arange(size.samples))

    def our_step(self, number: int) -> None:
        """Forward, sum, backward with the update."""
        batch = self.batches[number % _BATCHES]
        torch.stack([v.sum() for v in self.ours(batch).values()]).sum().backward()

    def their_step(self, number: int) -> None:
        """The same, with torch's optimizer."""
        self.optimizer.zero_grad()
        columns = self.columns[number % _BATCHES]
        vectors = [bag(ids, self.borders) for bag, ids in zip(self.theirs, columns, strict=True)]
        torch.stack([v.sum() for v in vectors]).sum().backward()
        self.optimizer.step()

    def equal(self) -> bool:
        """Whether all rows are the same but for rounding."""
        ids = torch.arange(_ROWS)
        return all(
            torch.allclose(table.lookup(ids).rows_of(), bag.weight.detach(), rtol=1e-4, atol=1e-4)
            for table, bag in zip(self.ours.store.tables, self.theirs, strict=True)
        )


def _steps(step: Callable[[int], None], many: int) -> None:
    for number in range(many):
        step(number)


def measure(size: Size, rounds: int, on_round: OnRound, ids: int = _IDS) -> dict[str, Any]:
    """Time both modules in turns; a round has enough steps for about `ids` ids."""
    pair = _Pair.make(size)
    many = max(_BATCHES, min(1_000, ids // (size.tables * size.samples)))
    times = []
    for number in range(rounds + 1):  # the first warms up
        spent = in_turns(
            lambda: _steps(pair.our_step, many),
            lambda: _steps(pair.their_step, many),
            ours_first=number % 2 == 0,
        )
        times.append((spent[0] / many, spent[1] / many))
        on_round(size.case)
    return {**compared(size.case, PEER, times[1:]), "steps": many, "equal": pair.equal()}


def run(settings: Settings, progress: Progress) -> dict[str, Any]:
    """Measures all sizes; one report, in the form all our benchmarks have."""
    on_round = counted(progress, len(SIZES) * (settings.rounds + 1))
    before = native.threads(), torch.get_num_threads()
    native.set_threads(settings.threads)
    torch.set_num_threads(settings.threads)
    ids = _IDS // 100 if settings.quick else _IDS
    try:
        results = [measure(size, settings.rounds, on_round, ids) for size in SIZES]
    finally:
        native.set_threads(before[0])
        torch.set_num_threads(before[1])
    return {
        "bench": "modules",
        "work": {
            **machine(),
            "threads": settings.threads,
            "rounds": settings.rounds,
            "quick": settings.quick,
            "rows_a_table": _ROWS,
            "dim": _DIM,
        },
        "versions": Ours.versions(),
        "results": results,
    }
