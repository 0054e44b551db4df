"""A step over sorted slots gives what its twin over sorted ids gives, for one table and for K."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest
import torch

from hedgerow.kernels import find, lookup, runs, step
from hedgerow.kernels import runs as running
from hedgerow.kernels.layout import (
    EMPTY,
    PIECE,
    SHORT,
    Arrays,
    FirstValues,
    RowSegment,
    draws_of,
    group,
)
from tests.twins import kernels_step, kernels_table

from .cases import content, filled, moved, same_bits, some_ids, values
from .test_kernels import _parts, _same_rows, _states

CPU = torch.device("cpu")


def test_twins_have_the_arguments_of_their_kernels() -> None:
    for file in (runs, running, runs, step):
        for name in kernels_step.__all__:
            if name in vars(file) and getattr(file, name).__module__ == file.__name__:
                twin = getattr(kernels_step, name)
                assert inspect.signature(getattr(file, name)) == inspect.signature(twin), name


@pytest.mark.parametrize(
    ("rule", "dim", "n", "distinct", "buckets"),
    [("adam", 7, 50, 35, 8), ("sgd", 4, 90, 70, 1), ("adagrad", 2, 700, 4, 8)],
)
def test_a_step_over_slots_gives_the_rows_of_one_over_ids(
    device: torch.device, rule: str, dim: int, n: int, distinct: int, buckets: int
) -> None:
    """With new ids, refused ids, sums that are not finite, room, and runs of several pieces."""
    ids, grads = some_ids(n, dim, distinct), values(n, dim, dim)
    grads[3, 0], grads[9, -1] = float("nan"), float("inf")
    if n > PIECE:
        grads.nan_to_num_(0.5, 0.5, 0.5)
        ids[: PIECE + 40] = ids[0]
    model = filled(buckets, dim, ids[:20], states=_states(dim, rule))
    counts, used = torch.zeros(3, dtype=torch.int64), torch.tensor([n - 5])
    ours, known = moved(model, device), kernels_table.find(model, ids, used)
    done, rates = counts.clone().to(device), [0.05, 0.02][: len(_parts(dim))]
    for slots in (known, None):
        there = None if slots is None else slots.to(device)
        step.step(
            *(ours, ids.to(device), grads.to(device), done, _parts(dim, rule, device), rates, 17),
            slots=there,
            used=used.to(device),
        )
        kernels_step.step(model, ids, grads, counts, _parts(dim, rule), rates, 17, slots, used)
    assert done.tolist() == counts.tolist()
    _same_rows(ours, model, all_fit=buckets > 1)


def test_a_new_id_whose_sum_is_not_finite_gets_no_row(device: torch.device) -> None:
    table = Arrays.make(1, 2, device)
    ids = torch.tensor([EMPTY, 5, 5, 8], device=device)
    grads = torch.tensor([[torch.nan, 0], [torch.inf, 0], [1, 0], [1, 1]], device=device)
    counts = torch.zeros(3, dtype=torch.int64, device=device)
    for _ in range(2):
        step.step(table, ids, grads, counts, _parts(2, device=device), [0.1], 3)
    assert list(content(moved(table, CPU))) == [8]
    assert counts.tolist() == [1, 0, 6]


def test_runs_and_their_pieces_are_those_of_the_twin(device: torch.device) -> None:
    lengths = [3, SHORT, SHORT + 1, PIECE, PIECE + 1, 2 * PIECE + 7]
    places = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)) * 5
    refused = -2 - torch.arange(6) // 4  # the ids 0 to 3 have one number, 4 and 5 another
    room = torch.tensor([-1, -1])
    places = torch.cat([places, refused, refused, room]).int()
    ids = torch.cat([torch.arange(len(places) - 14), *[torch.arange(6)] * 2, room])
    mixed = torch.randperm(len(places), generator=torch.Generator().manual_seed(1))
    places, ids, table = places[mixed], ids[mixed], Arrays.make(3, 1, CPU)
    counts = torch.zeros(3, dtype=torch.int64)
    done = counts.clone().to(device)
    model = kernels_step.runs(table, places, ids, counts)
    ours = running.runs(moved(table, device), places.to(device), ids.to(device), done)
    assert done.tolist() == counts.tolist() == [0, 6, 0]
    same_bits(ours.counts, model.counts)
    count, pieces = model.counts.tolist()
    for name, length in (("slots", None), ("order", None), ("starts", count + 1)):
        same_bits(getattr(ours, name)[:length], getattr(model, name)[:length])
    assert sorted(ours.pieces[:pieces].tolist()) == model.pieces.tolist()
    grads = values(len(places), 3, seed=2)
    sums, firsts = runs.sum_long_runs(ours, grads.to(device))
    wanted, places_of_firsts = kernels_step.sum_long_runs(model, grads)
    assert firsts == places_of_firsts
    written = wanted.any(dim=1)
    assert int(written.sum()) == pieces
    same_bits(sums[written.to(device)], wanted[written])


def _alone(several: Arrays, k: int) -> Arrays:
    """A copy of table k of several, with its keys."""
    assert several.spans is not None
    first, count = several.spans[k].tolist()
    rows = several.values[first * 16 : first * 16 + count * 16 + 2]
    return moved(Arrays(several.index[first : first + count + 1], rows, several.dim), CPU)


def test_several_tables_are_served_at_once(device: torch.device) -> None:
    """Ids that all of them have, each with its own first values; the last has no ids."""
    firsts = [FirstValues("uniform", -0.1 * k, 0.3, seed=2**63 + k) for k in range(1, 4)]
    several = Arrays.make_several([3, 5, 2], 4, device, 4)
    numbers = RowSegment.numbers_of([0.01, 1e-3], [0.25], device)
    part = RowSegment(0, 4, 4, firsts[0], "adagrad", numbers, draws_of(firsts, device))
    ids = torch.cat([some_ids(30, 1, 20), some_ids(40, 1, 20)])
    splits, used = torch.tensor([0, 30, 70, 70]), torch.tensor([28, 40, 0])
    at = {"used": used.to(device), "splits": splits.to(device)}
    grads, done = values(70, 4, seed=3), torch.zeros(3, 3, dtype=torch.int64, device=device)
    out, kept = torch.empty(70, 4, device=device), []
    for now in range(2):
        slots = lookup.lookup(several, ids.to(device), out, [part], **at)
        kept.append(out.clone())
        found = None if now else slots
        step.step(several, ids.to(device), grads.to(device), done, [part], [0.1], now, found, **at)
    counts = torch.zeros(3, 3, dtype=torch.int64)
    for k, (begin, end) in enumerate(((0, 30), (30, 70), (70, 70))):
        model = Arrays.make([3, 5, 2][k], 4, CPU, 4)
        own = replace(part, first=firsts[k], draws=None, numbers=numbers.cpu())
        limit, rows = used[k : k + 1], torch.empty(end - begin, 4)
        for now in range(2):
            kernels_table.lookup(model, ids[begin:end], rows, [own], limit)
            same_bits(kept[now][begin:end], rows)
            grouped = group(ids[begin:end])
            kernels_table.apply(
                *(model, grouped, grads[begin:end], counts[k], [own], [0.1], now, None, limit)
            )
        assert content(_alone(several, k)) == content(model)
    assert done.tolist() == counts.tolist()
    taken = several.taken().nonzero()[:, 0]
    assert set(several.ids(taken).tolist()) == set(ids[:28].tolist()) | set(ids[30:].tolist())
    again, new = find.find_or_insert(several, ids.to(device), splits.to(device))
    assert int(new.sum()) <= 2
    assert int((again >= 0).sum()) == 70
