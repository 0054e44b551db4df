"""The kernels of the rarer verbs and of admission give what their plain twins give, to the bit."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch

from hedgerow.kernels import admission, apply, assign, find
from hedgerow.kernels.layout import TIMES, Cells
from tests.twins import kernels_table
from tests.twins.kernels_table import RULES

from .cases import content, filled, moved, same_bits, some_ids, values
from .test_kernels import _grouped, _parts, _same_rows, _states


def _both(x: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    return x.clone().to(device), x


@pytest.mark.filterwarnings("ignore:overflow")  # a sum beyond what float32 holds
@pytest.mark.parametrize(("dim", "used"), [(1, None), (6, 30)])
def test_rows_are_added_in_input_order(device: torch.device, dim: int, used: int | None) -> None:
    ids, rows = some_ids(45, seed=dim, distinct=30), values(45, dim, seed=dim)
    rows[4, 0], rows[8, -1] = float("nan"), float("inf")
    rows[ids == 5] = 3e38  # finite, but not their sum
    model = filled(8, dim, ids[:20], states=3)
    ours = moved(model, device)
    grouped, on_cpu = _grouped(ids, device)
    begun = torch.empty(45, dim)
    kernels_table.lookup(model, on_cpu.ids, begun, _parts(dim))
    limit = None if used is None else torch.tensor([used])
    there = None if limit is None else limit.to(device)
    counts, placed = torch.zeros(3, dtype=torch.int64), torch.empty_like(ids)
    done, told = counts.clone().to(device), placed.clone().to(device)
    usable, starts = rows.isfinite().all(dim=1), torch.tensor([0.5, 1.0, 2.0])
    assign.assign_add(
        *(ours, grouped, rows.to(device), usable.to(device), begun.to(device)),
        *(starts.to(device), done, 9, there, told),
    )
    kernels_table.assign_add(model, on_cpu, rows, usable, begun, starts, counts, 9, limit, placed)
    assert done.tolist() == counts.tolist()
    assert counts[2] >= 2
    same_bits(told >= 0, placed >= 0)
    _same_rows(ours, model, all_fit=True)


def test_whole_rows_are_put_with_states_and_times(device: torch.device) -> None:
    ids, rows = some_ids(40, seed=3, distinct=25), values(40, 5, seed=3)
    states, stamps = values(40, 2, seed=4), torch.arange(40)
    model = filled(8, 5, ids[:12], states=2)
    ours, grouped = moved(model, device), _grouped(ids, device)
    usable, counts = torch.arange(40) % 7 != 0, torch.zeros(3, dtype=torch.int64)
    placed, done = torch.empty_like(ids), counts.clone().to(device)
    told = placed.clone().to(device)
    given = (rows, usable, torch.zeros(2))
    there = [x.to(device) for x in given]
    assign.assign(
        *(ours, grouped[0], *there, done, 0, None, states.to(device), stamps.to(device), told)
    )
    kernels_table.assign(model, grouped[1], *given, counts, 0, None, states, stamps, placed)
    assert done.tolist() == counts.tolist()
    same_bits(told >= 0, placed >= 0)
    _same_rows(ours, model, all_fit=True)
    assert set(ours.line(TIMES).tolist()) > {39}


def _sampled(names: Iterable[str], always: set[str]) -> list[object]:
    """All of them, but in a short run the chosen ones alone."""
    marks = {name: () if name in always else (pytest.mark.long,) for name in names}
    return [pytest.param(name, marks=marks[name]) for name in marks]


@pytest.mark.parametrize(
    "rule",
    _sampled(sorted(set(RULES) - {"row_adagrad", "dense_adam"}), {"ftrl", "torch_adam"}),
)
def test_every_occurrence_is_a_step(device: torch.device, rule: str) -> None:
    dim, n = 5, 30
    ids, grads = some_ids(n, seed=2, distinct=14), values(n, dim, seed=2)
    model = filled(8, dim, ids[:8], states=_states(dim, rule))
    for part in _parts(dim, rule) if rule == "torch_adam" else ():
        model.values[:, part.state + 2 * part.dim] = torch.arange(len(model.values)) % 9  # steps
    grouped, on_cpu = _grouped(ids, device)
    head = torch.ones(n, dtype=torch.bool)
    head[1:] = on_cpu.ids[1:] != on_cpu.ids[:-1]
    taking = head | (torch.arange(n) % 3 > 0)
    slots, born = kernels_table.find_or_insert(model, on_cpu.ids, wanted=head)
    ours, rates = moved(model, device), [0.05, 0.02]
    apply.apply_each(
        *(ours, grouped, taking.to(device), grads.to(device), slots.to(device), born.to(device)),
        *(_parts(dim, rule, device), rates, 6),
    )
    kernels_table.apply_each(model, on_cpu, taking, grads, slots, born, _parts(dim, rule), rates, 6)
    assert content(ours) == content(model)


def test_only_wanted_ids_are_inserted(device: torch.device) -> None:
    ids = some_ids(40, seed=6)
    model = filled(4, 1, ids[:10])
    ours, wanted = moved(model, device), torch.arange(40) % 3 == 0
    slots, new = find.find_or_insert(ours, ids.to(device), wanted=wanted.to(device))
    placed, is_new = kernels_table.find_or_insert(model, ids, wanted=wanted)
    same_bits(slots >= 0, placed >= 0)
    same_bits(new, is_new)
    assert set(content(ours)) == set(content(model))


def test_draws_are_those_of_the_core(device: torch.device) -> None:
    ids, numbers = some_ids(40, seed=7), torch.arange(40) % 5
    for seed, step in ((7, 0), (2**64 - 3, 123_456_789)):
        got = admission.draws(ids.to(device), numbers.to(device), seed, step)
        same_bits(got, kernels_table.draws(ids, numbers, seed, step))
        assert len(set(got.tolist())) > 35


def _alive(filter_: Cells) -> list[int]:
    """What stands in the cells that still count, wherever that is."""
    turn = int(filter_.state[0])
    cells = [cell for cell in filter_.cells.tolist() if cell & 0xFF]
    return sorted(cell for cell in cells if (turn - (cell >> 8)) & 0xFFFF <= filter_.kept)


def test_ids_are_counted_as_the_twin_counts_them(device: torch.device) -> None:
    """Also when the window has moved on, and when its turns pass 16 bits."""
    model = Cells.make(60, kept=2, most=15, device=torch.device("cpu"))
    model.state[0] = 2**16 - 2
    ours = Cells(*(x.clone().to(device) for x in (model.cells, model.state)), 2, 15)
    pool = some_ids(60, seed=8)
    random = torch.Generator().manual_seed(9)
    counted = torch.zeros(20, dtype=torch.int64)
    for turn in range(8):
        ids = pool[torch.randperm(60, generator=random)[:20]]
        asked = torch.arange(20) % 5 != turn % 5
        added = torch.randint(1, 9, (20,), generator=random)
        seen = admission.counts_of(ours, ids.to(device), asked.to(device), -5)
        same_bits(seen, kernels_table.counts_of(model, ids, asked, -5))
        counted = seen.cpu().maximum(counted)
        given = (ids.to(device), asked.to(device), added.to(device))
        same_bits(
            admission.add_counts(ours, *given, -5),
            kernels_table.add_counts(model, ids, asked, added, -5),
        )
        same_bits(ours.state, model.state)
        assert _alive(ours) == _alive(model)
        if turn % 2:
            for filter_ in (ours, model):
                filter_.state[:2] += torch.tensor(
                    [1, -filter_.state[1]], device=filter_.state.device
                )
    assert int(counted.max()) > 8


def test_ids_without_a_cell_are_told(device: torch.device) -> None:
    filter_ = Cells.make(1, kept=3, most=255, device=device)
    ids, asked = some_ids(50, seed=1).to(device), torch.ones(50, dtype=torch.bool, device=device)
    stored = admission.add_counts(filter_, ids, asked, torch.ones_like(ids), 0)
    assert int(stored.sum()) == len(filter_.cells) == 32
    assert filter_.state[:3].tolist() == [0, 32, 18]  # the other words are the key's
    assert admission.counts_of(filter_, ids, asked, 0).tolist() == stored.long().tolist()


def test_counts_stop_and_tables_do_not_mix(device: torch.device) -> None:
    filter_ = Cells.make(100, kept=5, most=255, device=device)
    ids, yes = torch.tensor([1, -1, 0], device=device), torch.ones(3, dtype=torch.bool)
    asked = yes.to(device)
    for _ in range(2):
        admission.add_counts(filter_, ids, asked, torch.full_like(ids, 200), 1)
    assert admission.counts_of(filter_, ids, asked, 1).tolist() == [255] * 3
    assert admission.counts_of(filter_, ids, asked, 2).tolist() == [0] * 3
    assert filter_.state[:3].tolist() == [0, 3, 0]
