"""Every kernel gives what its plain twin gives, to the bit."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

from hedgerow.kernels import (
    admission,
    apply,
    assign,
    find,
    first_values,
    layout,
    lookup,
    placement,
    pool_features,
    rules,
    sum_gradients,
    toolchain,
)
from hedgerow.kernels.layout import (
    EMPTY,
    KEYS,
    LANES,
    Arrays,
    FirstValues,
    Grouped,
    RowSegment,
    group,
)
from tests.twins import kernels_features, kernels_table
from tests.twins.kernels_table import RULES
from tests.twins.native_values import first_row

from .cases import (
    FIRST_VALUES,
    ODD_IDS,
    UNIFORM,
    check_placed,
    content,
    filled,
    moved,
    same_bits,
    some_ids,
    values,
)

CPU = torch.device("cpu")
FILES = (
    *(apply, assign, assign, find, find, first_values, lookup, placement, sum_gradients),
    *(apply, assign, admission, admission, pool_features, pool_features),
)
TWINS = {
    name: getattr(file, name)
    for file in (kernels_table, kernels_table, kernels_features, kernels_table)
    for name in file.__all__
}


def test_every_kernel_has_a_twin_with_its_arguments() -> None:
    launchers = {
        name: function
        for file in FILES
        for name, function in inspect.getmembers(file, inspect.isfunction)
        if function.__module__ == file.__name__ and not name.startswith("_")
    }
    assert set(launchers) == set(TWINS)
    for name, launcher in launchers.items():
        ours, twin = inspect.signature(launcher), inspect.signature(TWINS[name])
        if "splits" in ours.parameters:
            assert _arguments(launcher) == _arguments(TWINS[name]), name
        else:
            assert ours == twin, name


def _arguments(function: Callable[..., object]) -> list[tuple[str, object, object]]:
    """Without what several tables need: a twin serves one, and other tests compare several."""
    arguments = inspect.signature(function).parameters.values()
    return [(a.name, a.kind, a.default) for a in arguments if a.name != "splits"]


def test_every_thread_of_a_writing_kernel_has_a_key_of_its_own() -> None:
    for dim in range(1, 1025):
        tile = toolchain.writer_tile(dim)
        assert tile["ROWS"] * LANES >= 32 * tile["num_warps"] >= 32
        assert tile["COLUMNS"] >= dim


@pytest.mark.parametrize("buckets", [1, 2, 3, 1000, 2**27 - 1])
def test_ids_are_placed_in_two_different_buckets(device: torch.device, buckets: int) -> None:
    ids = some_ids(150, seed=buckets)
    ours, model = placement.place(ids.to(device), buckets), kernels_table.place(ids, buckets)
    for got, wanted in zip(ours, model, strict=True):
        same_bits(got, wanted)
        assert 0 <= int(got.min()) <= int(got.max()) < buckets
    assert buckets == 1 or bool((ours[0] != ours[1]).all())


def test_placement_spreads_arithmetic_progressions() -> None:
    for stride in (1, 2, 16, 4096, 2**20, 2**33, 2**52):
        first, second = kernels_table.place(torch.arange(4096) * stride, 256)
        for bucket in (first, second):
            assert int(bucket.bincount(minlength=256).max()) < 45  # 16 expected


@pytest.mark.parametrize("buckets", [1, 2, 6])
def test_find_gives_the_slots_of_the_twin(device: torch.device, buckets: int) -> None:
    ids = some_ids(40, seed=buckets)
    table = filled(buckets, 2, ids[:30])
    for used in (None, torch.tensor([0]), torch.tensor([17])):
        there = None if used is None else used.to(device)
        same_bits(
            find.find(moved(table, device), ids.to(device), there),
            kernels_table.find(table, ids, used),
        )


def test_nothing_is_found_in_an_empty_table(device: torch.device) -> None:
    ids = torch.tensor(ODD_IDS, device=device)
    assert find.find(Arrays.make(1, 1, device), ids).tolist() == [-1] * len(ids)
    assert len(find.find(Arrays.make(1, 1, device), ids[:0])) == 0


@pytest.mark.parametrize(("buckets", "distinct"), [(1, 5), (1, 40), (3, 60)])
def test_ids_inserted_together_get_one_slot_each(
    device: torch.device, buckets: int, distinct: int
) -> None:
    table = Arrays.make(buckets, 1, device)
    taken = 0
    for seed in range(2):
        ids = some_ids(100, seed, distinct)
        slots, new = find.find_or_insert(table, ids.to(device))
        check_placed(table, ids, slots, new)
        taken += int(new.sum())
        same_bits(find.find(table, ids.to(device)), slots.cpu())
    assert int((table.line(KEYS) != EMPTY).sum()) == taken


def test_ids_inserted_one_by_one_get_the_slots_of_the_twin(device: torch.device) -> None:
    ids = some_ids(44, seed=4)
    model = filled(2, 1, ids[:22])  # two home lanes are left, then both buckets in turn
    ours = moved(model, device)
    for id_ in ids[20:]:
        slots, new = find.find_or_insert(ours, id_.view(1).to(device))
        wanted, is_new = kernels_table.find_or_insert(model, id_.view(1))
        assert (slots.tolist(), new.tolist()) == (wanted.tolist(), is_new.tolist())
    same_bits(ours.line(KEYS), model.line(KEYS))


def test_rows_are_exchanged_with_those_of_ids_that_were_there(device: torch.device) -> None:
    ids, rows = some_ids(40, seed=6), values(40, 5, seed=6)
    model = filled(2, 5, ids[:20])  # not all others find room
    ours, mine = moved(model, device), rows.to(device)
    for at in range(0, 40, 8):  # call by call: which of several ids gets the last place is open
        part = slice(at, at + 1) if at >= 24 else slice(at, at + 8)
        slots, new = find.exchange(ours, ids[part].to(device), mine[part])
        wanted, is_new = kernels_table.exchange(model, ids[part], rows[part])
        assert new.tolist() == is_new.tolist()
        assert (slots >= 0).tolist() == (wanted >= 0).tolist()
        same_bits(mine[part], rows[part])
    assert content(ours) == content(model)


def test_erased_places_are_taken_again_and_do_not_end_a_search(device: torch.device) -> None:
    """Few buckets and every id that fits: some stand in their second bucket."""
    ids = some_ids(44, seed=9)
    model = filled(2, 1, ids)
    ours = moved(model, device)
    random = torch.Generator().manual_seed(5)
    for _ in range(3):
        gone = ids[torch.randint(len(ids), (12,), generator=random)]
        grouped, on_cpu = _grouped(gone, device)
        erased = assign.erase(ours, grouped, torch.tensor([11], device=device))
        same_bits(erased, kernels_table.erase(model, on_cpu, torch.tensor([11])))
        assert bool(erased.any())
        same_bits(ours.line(KEYS), model.line(KEYS))
        same_bits(find.find(ours, ids.to(device)), kernels_table.find(model, ids))
        for id_ in ids[torch.randint(len(ids), (4,), generator=random)]:
            slots, new = find.find_or_insert(ours, id_.view(1).to(device))
            taken, is_new = kernels_table.find_or_insert(model, id_.view(1))
            assert (slots.tolist(), new.tolist()) == (taken.tolist(), is_new.tolist())
    content(ours)


def test_the_swap_compares_all_64_bits(device: torch.device) -> None:
    """A bare literal as its operand would be taken as 32 bits."""
    table = Arrays.make(1, 1, device)
    table.index[0, KEYS, 0] = EMPTY ^ (1 << 40)
    slots, new = find.find_or_insert(table, torch.tensor([9], device=device))
    assert (slots.tolist(), new.tolist()) == ([1], [True])
    assert table.line(KEYS)[:2].tolist() == [EMPTY ^ (1 << 40), 9]


@pytest.mark.parametrize("first", FIRST_VALUES, ids=lambda f: f"{f.kind}-{f.seed}")
@pytest.mark.parametrize("dim", [1, 7])
def test_first_values_are_those_of_the_core(
    device: torch.device, first: FirstValues, dim: int
) -> None:
    ids = some_ids(20, seed=dim)
    ours = first_values.first_values(ids.to(device), dim, first)
    same_bits(ours, kernels_table.first_values(ids, dim, first))
    for id_, row in zip(ids[:3].tolist(), ours[:3], strict=True):
        core = first_row(first.kind, first.a, first.b, first.seed, id_, 0, dim)
        same_bits(row, torch.from_numpy(core))


def test_a_truncated_draw_is_repeated_where_it_lies_beyond_two_deviations() -> None:
    ids = torch.arange(200)
    first = FirstValues("normal", 0.0, 1.0, seed=3)
    plain = kernels_table.first_values(ids, 8, first)
    cut = kernels_table.first_values(ids, 8, FirstValues("truncated_normal", 0.0, 1.0, seed=3))
    assert int((plain.abs() > 2).sum()) > 20
    assert torch.equal((plain != cut), plain.abs() > 2)
    assert float(cut.abs().max()) <= 2


@pytest.mark.parametrize("dim", [1, 3, 64, 200])
def test_rows_are_gathered_and_looked_up(device: torch.device, dim: int) -> None:
    ids = some_ids(37, seed=dim)
    table = filled(4, dim, ids[:20])
    ours = moved(table, device)
    slots = kernels_table.find(table, ids)
    same_bits(lookup.gather(ours, slots.to(device)), kernels_table.gather(table, slots))
    for parts in ((), _parts(dim)):
        for used in (None, torch.tensor([30])):
            there = None if used is None else used.to(device)
            out, wanted = torch.full((37, dim), 9.0, device=device), torch.empty(37, dim)
            got = lookup.lookup(ours, ids.to(device), out, parts, there)
            same_bits(got, kernels_table.lookup(table, ids, wanted, parts, used))
            same_bits(out, wanted)


def _grouped(ids: torch.Tensor, device: torch.device) -> tuple[Grouped, Grouped]:
    grouped = group(ids)
    return Grouped(grouped.ids.to(device), grouped.order.to(device)), grouped


@pytest.mark.parametrize("distinct", [1, 9, 40])
@pytest.mark.parametrize("used", [None, 0, 33])
def test_gradients_of_equal_ids_are_added_in_input_order(
    device: torch.device, distinct: int, used: int | None
) -> None:
    ids, grads = some_ids(50, distinct, distinct), values(50, 5, seed=distinct)
    ours, model = _grouped(ids, device)
    limit = None if used is None else torch.tensor([used])
    there = None if limit is None else limit.to(device)
    sums, counts = sum_gradients.sum_gradients(ours, grads.to(device), there)
    wanted, occurrences = kernels_table.sum_gradients(model, grads, limit)
    same_bits(counts, occurrences)
    same_bits(sums, wanted)
    if used is None:
        id_ = model.ids[0]
        total = torch.zeros(5) - 0.0
        for i in (ids == id_).nonzero()[:, 0]:
            total = grads[i] if i == (ids == id_).nonzero()[0, 0] else total + grads[i]
        same_bits(sums[0], total)


def test_ids_with_many_occurrences_are_added_in_pieces(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    piece = layout.PIECE
    if toolchain.interpreted():  # adds them one by one: of shorter pieces there is less to add
        piece = 16
        monkeypatch.setattr(sum_gradients, "PIECE", toolchain.tl.constexpr(piece))
        for file in (layout, kernels_table):
            monkeypatch.setattr(file, "PIECE", piece)
    sizes = [3, piece + 1, piece, 2 * piece + 5]
    ids = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    ids = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(1))]
    ids = torch.cat([ids, torch.full((piece,), 3)])  # room that looks like one more piece
    used = torch.tensor([len(ids) - piece])
    grads = values(len(ids), 2, seed=1)
    ours, model = _grouped(ids, device)
    pieces = sum_gradients.sum_pieces(ours, grads.to(device), used.to(device))
    whole = sum_gradients.sum_gradients(ours, grads.to(device), used.to(device))
    assert whole[1][whole[1] > 0].tolist() == sizes
    for got, wanted in (
        *zip(pieces, kernels_table.sum_pieces(model, grads, used), strict=True),
        *zip(whole, kernels_table.sum_gradients(model, grads, used), strict=True),
    ):
        same_bits(got, wanted)


def test_the_device_groups_equal_ids_as_the_cpu_does(device: torch.device) -> None:
    ids = some_ids(3000, seed=3, distinct=500)
    ours, model = group(ids.to(device)), group(ids)
    same_bits(ours.ids, model.ids)
    same_bits(ours.order, model.order)


def _parts(
    dim: int, rule: str = "sgd", device: torch.device | None = None, counted: int = 0
) -> list[RowSegment]:
    """Two segments of different kinds if there is room for them; settings between 0 and 1.

    `counted`: what Adam's bias corrections count, the last of its settings.
    """
    counts = rule in ("torch_adam", "dense_adam")  # its third state counts steps
    starts = [0.25, 0.0, 0.0 if counts else 0.5, 0.0 if counts else 0.75]
    settings = [0.9, 0.1, 0.99, 0.01, 1e-3, 0.02, 0.0, float(counted)]
    table = layout.drifts(0.9, 0.99) if rule == "dense_adam" else ()
    numbers = RowSegment.numbers_of(settings, starts, device or CPU, table)
    bell = FirstValues("normal", 0.1, 0.5, UNIFORM.seed)
    cuts = [0, dim // 3, dim] if dim > 2 else [0, dim]
    _, by_value, by_row = RULES[rule]
    made, state = [], dim
    for first, (start, stop) in zip((UNIFORM, bell), pairwise(cuts), strict=False):
        made.append(RowSegment(start, stop - start, state, first, rule, numbers))
        state += by_value * (stop - start) + by_row
    return made


def _states(dim: int, rule: str) -> int:
    _, by_value, by_row = RULES[rule]
    return by_value * dim + by_row * len(_parts(dim))


def test_the_rules_of_the_kernels_are_those_of_the_twins() -> None:
    assert set(RULES) == rules.RULES


@pytest.mark.parametrize(
    ("rule", "dim", "with_slots", "buckets", "used"),
    [
        # The interpreter adds up the values of a row one by one, so row_adagrad has fewer of them.
        *(
            (rule, 4 if rule == "row_adagrad" else 7, False, 8, 21)
            for rule in sorted(set(RULES) - {"dense_adam"})  # see below
        ),
        *(("adagrad", 1, True, 8, None), ("sgd", 6, True, 1, None), ("sgd", 130, True, 8, 21)),
    ],
)
def test_a_step_gives_the_rows_of_the_twin(
    device: torch.device, rule: str, dim: int, with_slots: bool, buckets: int, used: int | None
) -> None:
    n = 34 if (rule, dim) == ("sgd", 6) else 24
    ids, grads = some_ids(n, seed=dim, distinct=n * 3 // 4), values(n, dim, seed=dim)
    grads[3, 0], grads[9, -1] = float("nan"), float("inf")
    model = filled(buckets, dim, ids[:20], states=_states(dim, rule))
    for part in _parts(dim, rule) if rule == "torch_adam" else ():
        model.values[:, part.state + 2 * part.dim] = torch.arange(len(model.values)) % 9  # steps
    ours = moved(model, device)
    grouped, on_cpu = _grouped(ids, device)
    slots = kernels_table.find(model, ids) if with_slots else None
    limit = None if used is None else torch.tensor([used])
    counts = torch.zeros(3, dtype=torch.int64)
    done = counts.clone().to(device)
    rates = [0.05, 0.02][: len(_parts(dim))]
    for _ in range(2):
        apply.apply(
            *(ours, grouped, grads.to(device), done, _parts(dim, rule, device), rates, 17),
            slots=None if slots is None else slots.to(device),
            used=None if limit is None else limit.to(device),
        )
        parts = _parts(dim, rule)
        kernels_table.apply(model, on_cpu, grads, counts, parts, rates, 17, slots, limit)
    assert done.tolist() == counts.tolist()
    if rule == "row_adagrad" and dim > 1:
        _close_rows(ours, model)
    else:
        _same_rows(ours, model, all_fit=buckets > 1)


@pytest.mark.parametrize(
    ("rule", "counted", "at_step"),
    [("torch_adam", 1, 4), ("torch_adam", 2, 20_000), ("torch_adam", 2, layout.NO_STEP)],
)
def test_adams_corrections_follow_the_step_as_in_the_twin(
    device: torch.device, rule: str, counted: int, at_step: int
) -> None:
    ids, grads = some_ids(24, seed=5, distinct=18), values(24, 7, seed=5)
    model = filled(8, 7, ids[:20], states=_states(7, rule))
    for part in _parts(7, rule):
        model.values[:, part.state + 2 * part.dim] = torch.arange(len(model.values)) % 9  # steps
    ours, (grouped, on_cpu) = moved(model, device), _grouped(ids, device)
    counts = torch.zeros(3, dtype=torch.int64)
    done, rates = counts.clone().to(device), [0.05, 0.02]
    parts, there = _parts(7, rule, None, counted), _parts(7, rule, device, counted)
    apply.apply(ours, grouped, grads.to(device), done, there, rates, 17, at_step=at_step)
    kernels_table.apply(model, on_cpu, grads, counts, parts, rates, 17, at_step=at_step)
    assert done.tolist() == counts.tolist()
    _same_rows(ours, model, all_fit=True)


@pytest.mark.parametrize("at_step", [3, 40, 4200])
def test_dense_adam_makes_up_for_missed_updates_as_one_by_one(
    device: torch.device, at_step: int
) -> None:
    """The kernel sums in closed form, beyond 4096 updates by its formula for large numbers.

    It takes epsilon, which is 0.001 here, as it is in the middle of the updates that were missed:
    hence the bound. The roots of the second moments are 0.3 and more.
    """
    ids, grads = some_ids(24, seed=5, distinct=18), values(24, 7, seed=5)
    model = filled(8, 7, ids[:20], states=_states(7, "dense_adam"))
    for part in _parts(7, "dense_adam", None, 1):
        at = part.state + 2 * part.dim
        last = at_step + 1 - torch.arange(len(model.values)) % (at_step + 1)
        model.values[:, at : at + 2] = last.view(-1, 1).view(torch.float32)
        model.values[:, part.state + part.dim : at].abs_().add_(0.1)
    ours, (grouped, on_cpu) = moved(model, device), _grouped(ids, device)
    counts = torch.zeros(3, dtype=torch.int64)
    done, rates = counts.clone().to(device), [0.05, 0.02]
    parts, there = (_parts(7, "dense_adam", where, 1) for where in (None, device))
    for step in (at_step, at_step + 1):
        apply.apply(ours, grouped, grads.to(device), done, there, rates, 17, at_step=step)
        kernels_table.apply(model, on_cpu, grads, counts, parts, rates, 17, at_step=step)
    assert done.tolist() == counts.tolist()
    got, wanted = content(ours), content(model)
    assert got.keys() == wanted.keys()
    for id_, (bits, *_) in wanted.items():
        a, b = (torch.tensor(x, dtype=torch.int32) for x in (got[id_][0], bits))
        for part in parts:
            at = part.state + 2 * part.dim
            assert a[at : at + 2].tolist() == b[at : at + 2].tolist() == [at_step + 2, 0]
            a[at : at + 2] = b[at : at + 2] = 0
        torch.testing.assert_close(
            a.view(torch.float32), b.view(torch.float32), rtol=2e-3, atol=1e-3
        )


@pytest.mark.parametrize("stamp", [True, False])
def test_ids_that_all_differ_need_no_order(device: torch.device, stamp: bool) -> None:
    ids, grads = some_ids(40, seed=2), values(40, 5, seed=2)
    model = filled(8, 5, ids[:20], states=_states(5, "adagrad"))
    ours, counts = moved(model, device), torch.zeros(3, dtype=torch.int64)
    done, used = counts.clone().to(device), torch.tensor([33])
    apply.apply(
        *(ours, Grouped(ids.to(device), None), grads.to(device), done),
        *(_parts(5, "adagrad", device), [0.1, 0.1], 4, None, used.to(device)),
        stamp=stamp,
    )
    kernels_table.apply(
        *(model, Grouped(ids, None), grads, counts, _parts(5, "adagrad"), [0.1, 0.1], 4, None),
        used,
        stamp=stamp,
    )
    assert done.tolist() == counts.tolist()
    _same_rows(ours, model, all_fit=True)


def _close_rows(ours: Arrays, model: Arrays) -> None:
    """Sums over a row are added in another order."""
    got, wanted = content(ours), content(model)
    both = sorted(got.keys() & wanted.keys())
    assert len(got) == len(wanted)
    assert len(both) > len(got) // 2
    for id_ in both:
        bits = [torch.tensor(table[id_][0], dtype=torch.int32) for table in (got, wanted)]
        a, b = (x.view(torch.float32) for x in bits)
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def _same_rows(ours: Arrays, model: Arrays, *, all_fit: bool) -> None:
    """Which ids found no room depends on who came first; the rows of the others do not."""
    got, wanted = content(ours), content(model)
    if all_fit:
        assert got == wanted
    assert len(got) == len(wanted)
    both = got.keys() & wanted.keys()
    assert len(both) > len(got) // 2
    assert {id_: got[id_] for id_ in both} == {id_: wanted[id_] for id_ in both}


@pytest.mark.parametrize(
    ("dim", "buckets", "used"), [(1, 8, None), (6, 8, 40), (6, 1, None), (130, 8, 40)]
)
def test_the_last_usable_row_of_equal_ids_is_assigned(
    device: torch.device, dim: int, buckets: int, used: int | None
) -> None:
    ids, rows = some_ids(60, seed=dim, distinct=45), values(60, dim, seed=dim)
    usable = torch.arange(60) % 5 != 0
    model = filled(buckets, dim, ids[:20], states=3)
    ours = moved(model, device)
    grouped, on_cpu = _grouped(ids, device)
    limit = None if used is None else torch.tensor([used])
    counts = torch.zeros(3, dtype=torch.int64)
    done = counts.clone().to(device)
    there = None if limit is None else limit.to(device)
    starts = torch.arange(1.0, 4.0)
    assign.assign(
        *(ours, grouped, rows.to(device), usable.to(device), starts.to(device), done, 4, there)
    )
    kernels_table.assign(model, on_cpu, rows, usable, starts, counts, 4, limit)
    assert done.tolist() == counts.tolist()
    _same_rows(ours, model, all_fit=buckets > 1)
