"""A training step over ten tables on a GPU: 1,048,570 ids, about 350,000 distinct, dim 128."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hedgerow.kernels import find, lookup, runs, step
from hedgerow.kernels.layout import LANES, SHORT, Arrays, FirstValues, RowSegment, draws_of
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.initializers import Uniform
from hedgerow.tables.multi.device_tables import DeviceTables
from hedgerow.tables.optimizers import Adam, Sgd
from hedgerow.tables.store import TableKeys

from .gpu_timer import Case

TABLES, DIM, SKEW = 10, 128, 1.05
_ROW, _ID = 4 * DIM, 8


def _sizes(quick: bool) -> tuple[int, int]:
    """Rows of a table, ids of a table in a batch."""
    return (60, 20) if quick else (1_677_721, 104_857)


def _law(rows: int, device: torch.device) -> Tensor:
    """Shares of the rows by Zipf's law, added up."""
    ranks = torch.arange(1, rows + 1, dtype=torch.float64, device=device)
    return (ranks**-SKEW).cumsum(0)


@dataclass(frozen=True, slots=True, eq=False)
class _World:
    """Tables that have all their rows, batches of ids in turn, and gradients."""

    table: Arrays
    splits: Tensor
    batches: list[Tensor]
    grads: Tensor
    counts: Tensor

    @staticmethod
    def make(device: torch.device, quick: bool, states: int) -> _World:
        """Every table holds its ids; 0.6 full."""
        rows, n = _sizes(quick)
        table = Arrays.make_several([rows * 5 // 3 // LANES] * TABLES, DIM, device, states)
        ids = torch.randint(-(2**63), 2**63 - 1, (TABLES, rows), device=device)
        whole = torch.arange(TABLES + 1, device=device) * rows
        find.find_or_insert(table, ids.view(-1), whole)
        table.write(1, table.taken().nonzero()[:, 0], 0)
        edges = _law(rows, device)
        batches = []
        for _ in range(6):
            draws = torch.rand(TABLES, n, dtype=torch.float64, device=device) * edges[-1]
            which = torch.searchsorted(edges, draws).clamp(max=rows - 1)
            batches.append(ids.gather(1, which).view(-1))
        return _World(
            table,
            torch.arange(TABLES + 1, device=device) * n,
            batches,
            torch.randn(TABLES * n, DIM, device=device) * 0.01,
            torch.zeros(TABLES, 3, dtype=torch.int64, device=device),
        )

    def distinct(self) -> int:
        """Rows that one batch touches."""
        n = len(self.batches[0]) // TABLES
        return sum(len(ids.unique()) for ids in self.batches[0].split(n))


def _part(rule: str, device: torch.device) -> tuple[RowSegment, int]:
    firsts = [FirstValues("uniform", -0.05, 0.05, seed) for seed in range(TABLES)]
    settings = {"sgd": [0.0], "adam": [0.9, 0.1, 0.999, 0.001, 1e-8, 0.0, 0.0]}[rule]
    starts = {"sgd": [], "adam": [0.0, 0.0, 0.9, 0.999]}[rule]
    numbers = RowSegment.numbers_of(settings, starts, device)
    part = RowSegment(0, DIM, DIM, firsts[0], rule, numbers, draws_of(firsts, device))
    return part, {"sgd": 0, "adam": 2 * DIM + 2}[rule]


def _floors(world: _World, state_floats: int) -> dict[str, int]:
    """Bytes that each part cannot avoid: everything it touches, once."""
    n, distinct = len(world.batches[0]), world.distinct()
    row = _ROW + 4 * state_floats
    return {
        "lookup": n * (2 * _ID + _ROW) + distinct * (128 + _ROW),
        "seats": n * (_ID + 4),
        "sort and runs": n * (4 + 4 + 8) + distinct * 4,
        "update": n * (8 + _ROW) + distinct * (2 * row + 2 * 32),
    }


def step_cases(device: torch.device, quick: bool) -> Iterator[Case]:
    """The whole step with SGD and with Adam, and its parts."""
    for rule in ("sgd", "adam"):
        part, states = _part(rule, device)
        world = _World.make(device, quick, states)
        floors = _floors(world, states)
        yield from _cases(world, rule, part, floors)
        yield _through_tables(world, rule, sum(floors.values()))
        del world


def _long_bytes(grouped: runs.Runs) -> int:
    """What runs longer than SHORT make one read: their sources and gradients."""
    lengths = grouped.starts[: int(grouped.counts[0]) + 1].diff()
    return int(lengths[lengths > SHORT].sum()) * (_ID + _ROW)


def _through_tables(world: _World, rule: str, moved_bytes: int) -> Case:
    """The same step as a model takes it: through a store of ten tables."""
    device, n = world.splits.device, len(world.batches[0])
    rows = world.table.values.shape[0] // TABLES * 3 // 5
    learns = {"sgd": Sgd(lr=0.01), "adam": Adam(lr=0.01)}[rule]
    segments = (Segment(DIM, Uniform(0.05), learns),)
    names = [f"table_{k}" for k in range(TABLES)]
    store = DeviceTables(
        {name: TableConfig(name, segments, not_finite="drop") for name in names},
        device=device,
        capacity_rows=dict.fromkeys(names, rows),
    )
    splits, grads, turn = tuple(world.splits.tolist()), world.grads.view(-1), [0]
    keys = [TableKeys(ids, splits) for ids in world.batches]

    def whole() -> None:
        turn[0] += 1
        found = store.lookup(keys[turn[0] % len(keys)], missing="training")
        store.apply_gradients(found, grads, ts=turn[0])

    for _ in keys:  # their rows are there from then on
        whole()
    return Case(f"step through DeviceTables, {rule}, {TABLES} tables", moved_bytes, whole, items=n)


def _cases(world: _World, rule: str, part: RowSegment, floors: dict[str, int]) -> Iterator[Case]:
    table, splits, n = world.table, world.splits, len(world.batches[0])
    out, turn = torch.empty(n, DIM, device=splits.device), [0]

    def ids() -> Tensor:
        turn[0] += 1
        return world.batches[turn[0] % len(world.batches)]

    def whole() -> None:
        batch = ids()
        slots = lookup.lookup(table, batch, out, [part], None, splits)
        step.step(
            *(table, batch, world.grads, world.counts, [part], [0.01], turn[0], slots),
            splits=splits,
        )

    yield Case(f"step, {rule}, {TABLES} tables", sum(floors.values()), whole, items=n)
    batch = world.batches[0]
    slots = lookup.lookup(table, batch, out, [part], None, splits)
    places = runs.seat(table, batch, slots, None, splits)
    grouped = runs.runs(table, places, batch, world.counts, splits)
    yield Case(
        f"  lookup ({rule})",
        floors["lookup"],
        lambda: lookup.lookup(table, ids(), out, [part], None, splits),
        items=n,
    )
    yield Case("  seats", floors["seats"], lambda: runs.seat(table, batch, slots, None, splits))
    yield Case(
        "  sort and runs",
        floors["sort and runs"],
        lambda: runs.runs(table, places, batch, world.counts, splits),
    )
    yield Case("  sort alone", n * 16, lambda: torch.sort(places, stable=True))
    yield Case(
        "  sums of long runs",
        _long_bytes(grouped),
        lambda: runs.sum_long_runs(grouped, world.grads),
    )
    yield Case(
        f"  sums and update ({rule})",
        floors["update"],
        lambda: step.update(
            *(table, batch, grouped, world.grads, world.counts, [part], [0.01], 1), splits
        ),
    )
