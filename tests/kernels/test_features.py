"""All features of alike tables in one kernel: vectors and gradients are those of the twins."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hedgerow.kernels import find, lookup, pool_features, step
from hedgerow.kernels.layout import PIECE, Arrays, FirstValues, RowSegment, draws_of
from hedgerow.kernels.output_gradients import DENSE, STRIDED, OutputGradients
from hedgerow.kernels.pool_features import Features, Known
from tests.twins import kernels_features

from .cases import content, moved, same_bits, some_ids, values
from .test_step import _alone

CPU = torch.device("cpu")
FIRSTS = [FirstValues("uniform", -0.1 * k, 0.3, seed=2**63 + k) for k in range(1, 4)]


def test_twins_have_the_arguments_of_their_kernels() -> None:
    for name in kernels_features.__all__:
        owner: Any = next(x for x in (pool_features, pool_features, lookup) if hasattr(x, name))
        twin = getattr(kernels_features, name)
        assert inspect.signature(getattr(owner, name)) == inspect.signature(twin), name


def _tables(dim: int, ids: Tensor, cuts: Tensor) -> tuple[Arrays, RowSegment]:
    """Three alike tables that hold some of these ids, the odd ones among them."""
    several = Arrays.make_several([3, 5, 2], dim, CPU, dim)
    find.find_or_insert(several, ids, cuts)
    several.values.copy_(values(len(several.values), several.stride, 3))
    several.values[:, dim:].abs_()
    several.write(1, several.taken().nonzero()[:, 0], 0)
    numbers = RowSegment.numbers_of([0.01, 1e-3], [0.25], CPU)
    return several, RowSegment(0, dim, dim, FIRSTS[0], "adagrad", numbers, draws_of(FIRSTS, CPU))


def _there(table: Arrays, part: RowSegment, device: torch.device) -> tuple[Arrays, RowSegment]:
    assert table.spans is not None
    assert part.draws is not None
    moved_part = replace(part, numbers=part.numbers.to(device), draws=part.draws.to(device))
    return replace(moved(table, device), spans=table.spans.to(device)), moved_part


def _batch(samples: int, names: int, seed: int) -> tuple[Tensor, Tensor]:
    """Ids and offsets of bags of 0 to 10 ids."""
    random = torch.Generator().manual_seed(seed)
    sizes = torch.randint(0, 11, (samples * names,), generator=random)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    return some_ids(int(offsets[-1]), seed, 20), offsets


POOLINGS: list[list[Any]] = [
    ["sum", "sum", "sum"],
    ["mean", "sqrtn", "sum"],
    ["max", "sum", "max"],
    [("first", 3), "mean", "max"],
]


def _gradient(size: tuple[int, ...], seed: int, form: int) -> Tensor:
    """Of vectors that stand in wider rows, or whose columns lie apart."""
    wide = values(size[0], 2 * size[-1] * size[1], seed)
    if len(size) == 3:  # vectors of a sample one after the other
        return (
            wide[:, : size[1] * size[2]].reshape(size)
            if form == DENSE
            else torch.ones(1).expand(size)
        )
    if form == DENSE:
        return wide[:, size[-1] : 2 * size[-1]]
    return values(size[1], size[0], seed).T


def _same(ours: Any, model: Any) -> None:
    same_bits(ours.slots, model.slots)
    for name in ("rows", "divisors", "largest"):
        one, other = getattr(ours.at, name), getattr(model.at, name)
        assert (one is None) == (other is None)
        if other is not None:
            same_bits(one, other)
    assert ours.at.room == model.at.room


@pytest.mark.parametrize("weighs", [False, True])
@pytest.mark.parametrize("poolings", POOLINGS)
@pytest.mark.parametrize("dim", [4, 130])
def test_vectors_and_gradients_are_those_of_the_twins(
    device: torch.device, dim: int, poolings: list[Any], weighs: bool
) -> None:
    """Two features of one table; the second name of the batch is no feature."""
    samples, places, tables = 3, [0, 2, 3], [0, 2, 2]
    ids, offsets = _batch(samples, 4, dim)
    borders = offsets[::samples].tolist()
    cuts = [(borders[p], borders[p + 1]) for p in places]
    keys = torch.cat([ids[start:stop] for start, stop in cuts])
    shifts = torch.tensor([0, borders[1] - borders[2], borders[1] - borders[2]])
    held = torch.tensor([0, borders[1], borders[1], len(keys)])
    table, part = _tables(dim, torch.where(torch.arange(len(keys)) % 3 > 0, keys, keys + 1), held)
    weights = torch.linspace(-1.0, 2.0, len(keys)) if weighs else None
    there, own = _there(table, part, device)
    for parts in ([], [part]):
        features = Features.of(table, parts, tables, places, poolings)
        model = kernels_features.pool_features(
            table, features, keys, offsets, shifts, samples, weights, parts
        )
        ours = pool_features.pool_features(
            *(there, Features.of(there, parts and [own], tables, places, poolings)),
            *(keys.to(device), offsets.to(device), shifts.to(device), samples),
            None if weights is None else weights.to(device),
            parts and [own],
        )
        assert torch.equal(ours.vectors.cpu(), model.vectors)
        _same(ours, model)
    sizes = [(samples, p[1], dim) if isinstance(p, tuple) else (samples, dim) for p in poolings]
    firsts = [x * samples if x >= 0 else x for x in features.largest]
    for form in (STRIDED, DENSE):
        grads = [_gradient(size, f, form) for f, size in enumerate(sizes)]
        model_grads = OutputGradients.of(grads, model.at, len(keys), dim, firsts, torch.tensor)
        our_grads = OutputGradients.of(
            *([grad.to(device) for grad in grads], ours.at, len(keys), dim, firsts),
            lambda numbers: torch.tensor(numbers, device=device),
        )
        assert our_grads.form == (DENSE if dim % 4 == 0 and form == DENSE else STRIDED)
        wanted = kernels_features.spread(model_grads, 2, len(keys) - 1)
        found = pool_features.spread(our_grads, 2, len(keys) - 1)
        assert torch.equal(found.cpu(), wanted)
        some = torch.tensor([5, 0, 3, 5])
        assert torch.equal(
            pool_features.spread_at(our_grads, some.to(device)).cpu(),
            kernels_features.spread_at(model_grads, some),
        )


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("poolings", POOLINGS)
def test_rows_at_known_slots_are_pooled_without_a_search(
    device: torch.device, poolings: list[Any], others: bool
) -> None:
    """Ids without a slot have rows elsewhere, or count as zeros. The index is not read."""
    samples, dim, tables, n = 4, 4, [0, 2, 2], 60
    ids = some_ids(n, 3, 20)
    offsets = torch.arange(0, n + 1, 5)
    table, part = _tables(dim, ids, torch.tensor([0, 20, 20, 60]))
    there, _ = _there(table, part, device)
    there.index.fill_(-1)
    slots = torch.arange(n) % 9 - 1
    rows = values(n, dim, 5) if others else None
    rows_there = None if rows is None else rows.to(device)
    shifts = torch.zeros(3, dtype=torch.int64)
    features = Features.of(table, [], tables, [0, 1, 2], poolings)
    model = kernels_features.pool_features(
        *(table, features, ids, offsets, shifts, samples, None, []), Known(slots, rows)
    )
    ours = pool_features.pool_features(
        *(there, Features.of(there, [], tables, [0, 1, 2], poolings), ids.to(device)),
        *(offsets.to(device), shifts.to(device), samples, None, []),
        Known(slots.to(device), rows_there),
    )
    assert torch.equal(ours.vectors.cpu(), model.vectors)
    _same(ours, model)


@pytest.mark.parametrize("room", [None, 9])
def test_rows_of_features_are_those_of_the_twin(device: torch.device, room: int | None) -> None:
    """Ids without bags: two features of the last table, none of the second."""
    ids, borders = some_ids(20, 3, 12), torch.tensor([0, 8, 17, 20])
    owners = torch.tensor([0, 2, 2])
    table, part = _tables(4, ids, torch.tensor([0, 8, 8, 20]))
    assert table.spans is not None
    assert part.draws is not None
    missing = torch.cat([ids[:15], ids[15:] + 1])
    there, own = _there(table, part, device)
    assert there.spans is not None
    assert own.draws is not None
    wanted, found = torch.empty(20, 4), torch.empty(20, 4, device=device)
    feature_part = replace(part, draws=part.draws[owners])
    model = kernels_features.lookup_features(
        table, table.spans[owners], missing, wanted, [feature_part], borders, room
    )
    ours = lookup.lookup_features(
        *(there, there.spans[owners.to(device)], missing.to(device), found),
        *([replace(own, draws=own.draws[owners.to(device)])], borders.to(device), room),
    )
    same_bits(found, wanted)
    same_bits(ours[0], model[0])
    assert (ours[1] is None) == (model[1] is None) == (room is None)
    if ours[1] is not None and model[1] is not None:
        same_bits(ours[1], model[1])


@pytest.mark.parametrize("numbered", [False, True])
def test_a_step_reads_gradients_where_they_are(device: torch.device, numbered: bool) -> None:
    """Runs of several pieces, sums that are not finite, and new ids; counts in wider rows."""
    samples, dim = 40, 4
    offsets = torch.arange(0, 2 * samples * 10 + 1, 10)
    ids = some_ids(800, 5, 60)
    ids[200 : 500 + PIECE] = ids[200]
    cuts = torch.tensor([0, 400, 400, 800])
    table, part = _tables(dim, ids[:40], torch.tensor([0, 40, 40, 40]))
    there, own = _there(table, part, device)
    grads = [values(samples, dim, 1), values(samples, dim, 2)]
    grads[1][3, 1] = torch.inf
    there_ids, results = ids.to(device), []
    features = Features.of(there, [own], [0, 2], [0, 1], ["mean", "sum"])
    shifts = torch.zeros(2, dtype=torch.int64, device=device)
    pooled = pool_features.pool_features(
        there, features, there_ids, offsets.to(device), shifts, samples, None, [own]
    )
    where = OutputGradients.of(
        *([grad.to(device) for grad in grads], pooled.at, 800, dim, [-1, -1]),
        lambda numbers: torch.tensor(numbers, device=device),
    )
    flat = pool_features.spread(where, 0, 800)
    for given in (where, flat):
        here, mine = _there(table, part, device)
        wide = torch.zeros(3, 5, dtype=torch.int64, device=device)
        known = pooled.slots if numbered else None
        step.step(
            *(here, there_ids, given, wide[:, :3], [mine], [0.1], 7, known),
            splits=cuts.to(device),
        )
        results.append(([content(_alone(here, k)) for k in range(3)], wide.tolist()))
    assert results[0] == results[1]
    assert results[0][1][2][2] > 0  # dropped
    assert all(row[3:] == [0, 0] for row in results[0][1])
