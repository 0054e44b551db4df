"""A module over alike tables on a device: one kernel forward, one update, the numbers of before."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

import hedgerow as hr
from hedgerow.core.id_batch import Cut, IdBatch
from hedgerow.tables.multi.device_bags import GroupFeatures

from ..launches import launches

Vectors = dict[str, Tensor]
POOLINGS: list[Any] = ["sum", "mean", "sqrtn", "max", ("first", 2), ("first", 3)]
FEATURES = {"a": ["a0", "a1"], "b": ["b0"], "c": ["c0", "c1"]}
NAMES = [name for own in FEATURES.values() for name in own]


def _module(
    poolings: list[Any], device: torch.device | None, *, pools: bool = True, **settings: Any
) -> hr.EmbeddingBags | hr.Embeddings:
    tables = [
        hr.Table(name, 4, features=own, **({"pooling": poolings[k]} if pools else {}))
        for k, (name, own) in enumerate(FEATURES.items())
    ]
    settings = {"init": hr.Uniform(0.5), "optimizer": hr.Adagrad(lr=0.1), **settings}
    kind = hr.EmbeddingBags if pools else hr.Embeddings
    made = kind(tables, seed=7, slot_key=5, **settings)
    if device is not None:
        made.place(device, capacity_rows=dict.fromkeys(FEATURES, 60))
    return made


def _batch(
    seed: int, device: torch.device, names: list[str], *, weighs: bool, one: bool = False
) -> IdBatch:
    chance = random.Random(seed)
    lists = {
        name: [
            [chance.randrange(9) for _ in range(1 if one else chance.choice([0, 1, 2, 5]))]
            for _ in range(5)
        ]
        for name in names
    }
    weights = {
        name: [[chance.choice([-1.5, 0.0, 0.25, 2.0]) for _ in bag] for bag in bags]
        for name, bags in lists.items()
    }
    made = IdBatch.from_lists(lists, weights if weighs else None)
    return IdBatch(
        *(made.names, made.values.to(device), made.offsets.to(device)),
        None if made.weights is None else made.weights.to(device),
        Cut(tuple(made.borders()), made.has_one_id_each()),
    )


def _values(outputs: Any) -> Vectors:
    return {k: v.values if isinstance(v, hr.Ragged) else v for k, v in outputs.items()}


def _loss(vectors: Vectors) -> Tensor:
    """With gradients of many strides: whole ones, transposed ones, and expanded ones."""
    parts = []
    for i, vector in enumerate(vectors.values()):
        numbers = torch.sin(torch.arange(vector.numel(), device=vector.device) * 1.7 + i)
        if i % 3 == 0:
            parts.append((vector.flatten() * numbers).sum())
        elif i % 3 == 1:
            swapped = vector.transpose(0, -1)
            parts.append((swapped * numbers.view(swapped.shape)).sum())
        else:
            parts.append(vector.sum() * 0.3)
    return torch.stack(parts).sum()


def _trained(model: Any, batches: list[IdBatch], how: str = "all") -> list[Tensor]:
    told: list[Tensor] = []
    for number, batch in enumerate(batches):
        with hr.hold_updates(model) if how == "held" else torch.enable_grad():
            vectors = _values(model(batch))
            if how == "some":
                vectors = dict(list(vectors.items())[number % 2 :: 2])
            _loss(vectors).backward()
        told += [vector.detach().cpu() for vector in vectors.values()]
    ids = torch.arange(9)
    for name in FEATURES:
        table = model.table(name)
        rows = table.entries(ids.to(model.store.device))
        states = [state for one in rows.states for state in one.values()]
        told += [x.cpu() for x in (rows.found, rows.rows, *states)]
    model.eval()
    return [*told, *(vector.cpu() for vector in _values(model(batches[0])).values())]


def _same_bits(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)


EVERY = list(product(range(len(POOLINGS)), [1, -1], [False, True], ["all", "some", "held"]))


@pytest.mark.parametrize(
    ("first", "order", "weighs", "how"),
    [pytest.param(*one, marks=pytest.mark.long if i % 7 else ()) for i, one in enumerate(EVERY)],
)
def test_it_is_what_torch_makes_of_rows(
    monkeypatch: pytest.MonkeyPatch,
    device: torch.device,
    first: int,
    order: int,
    weighs: bool,
    how: str,
) -> None:
    """Every pooling beside others; names of a batch in the order of the tables, or in another."""
    poolings = [POOLINGS[(first + k) % len(POOLINGS)] for k in range(3)]
    names = [*NAMES, "unknown"][::order]
    batches = [_batch(seed, device, names, weighs=weighs) for seed in (first, first + 9)]
    ours = _trained(_module(poolings, device), batches, how)
    monkeypatch.setattr(GroupFeatures, "takes", lambda self, bags: False)
    _same_bits(ours, _trained(_module(poolings, device), batches, how))


@pytest.mark.parametrize("weighs", [False, True])
def test_rows_without_bags_are_what_they_were(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, weighs: bool
) -> None:
    batches = [_batch(seed, device, NAMES, weighs=weighs, one=seed == 2) for seed in (1, 2)]
    ours = _trained(_module([], device, pools=False), batches)
    monkeypatch.setattr(GroupFeatures, "takes", lambda self, bags: False)
    _same_bits(ours, _trained(_module([], device, pools=False), batches))


def test_one_id_per_bag_is_its_row(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    poolings = ["sum", "max", "mean"]
    batches = [_batch(seed, device, NAMES, weighs=False, one=True) for seed in (1, 2)]
    ours = _trained(_module(poolings, device), batches)
    monkeypatch.setattr(GroupFeatures, "takes", lambda self, bags: False)
    _same_bits(ours, _trained(_module(poolings, device), batches))


SETTINGS: list[dict[str, Any]] = [
    {"optimizer": hr.Adam(lr=0.1)},
    {"clip": hr.ClipRow(0.3)},
    {"admit": hr.Within(300, 2)},
    {"evict": hr.Lru(6)},
    {"optimizer": hr.Sgd(lr=lambda step: 0.5 / (step + 1))},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda one: next(iter(one)))
def test_it_gives_the_rows_of_host_tables(device: torch.device, settings: dict[str, Any]) -> None:
    poolings = ["mean", ("first", 2), "max"]
    here, there = _module(poolings, None, **settings), _module(poolings, device, **settings)
    on_host = [_batch(seed, torch.device("cpu"), NAMES, weighs=True) for seed in (1, 2)]
    on_device = [_batch(seed, device, NAMES, weighs=True) for seed in (1, 2)]
    for one, other in zip(_trained(there, on_device), _trained(here, on_host), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_gradient_that_is_not_finite_changes_no_row(device: torch.device) -> None:
    model = _module(["sum", "max", "mean"], device, optimizer=hr.Sgd(lr=1.0), init=hr.Zeros())
    lists = {name: [[1, 2], [2, 3]] for name in NAMES}
    made = IdBatch.from_lists(lists)
    cut = Cut(tuple(made.borders()), False)
    batch = IdBatch(made.names, made.values.to(device), made.offsets.to(device), None, cut)
    vectors = model(batch)
    grads = [torch.ones_like(vector) for vector in vectors.values()]
    grads[2][1, 3] = torch.nan  # of feature b0, whose bag has the ids 2 and 3
    torch.autograd.backward(list(vectors.values()), grads)
    assert [model.table(name).size() for name in FEATURES] == [3, 2, 3]
    assert model.table("b").stats()["dropped"] == 2  # both occurrences of the first largest, id 2
    assert model.table("c").stats()["inserted"] == 3


def _direct(device: torch.device, kind: str) -> tuple[Any, IdBatch]:
    model = _module(["sum", "mean", ("first", 2)], device, pools=kind != "rows")
    return model, _batch(3, device, NAMES, weighs=False, one=kind == "single")


@pytest.mark.parametrize("kind", ["bags", "single", "rows"])
def test_outputs_may_be_changed_viewed_and_kept_alone(device: torch.device, kind: str) -> None:
    """Each output is a tensor of its own for autograd, in one piece, at its own version."""
    model, batch = _direct(device, kind)
    vectors = _values(model(batch))
    first, second, third, fourth, fifth = vectors.values()
    assert all(vector.is_contiguous() and not vector._is_view() for vector in vectors.values())
    squares = (second**2).sum()
    first.mul_(2.0)
    first.view(-1)[0] = 0.0
    third.relu_()
    kept = fourth.detach().clone()
    fourth += 1.0
    torch.testing.assert_close(fourth.detach(), kept + 1.0)
    (first.view(-1).sum() + squares + third.sum() + fourth.sum() + fifth.sum()).backward()
    assert model.updates.step == 1
    assert first._version > second._version


@pytest.mark.parametrize("kind", ["bags", "single", "rows"])
def test_a_step_launches_little(device: torch.device, kind: str) -> None:
    """One kernel forward, five and a sort of an update; nothing for each table or feature."""
    model = _module(["sum", "mean", "max"], device, pools=kind != "rows")
    batch = _batch(3, device, NAMES, weighs=False, one=kind == "single")
    for _ in range(2):  # what is kept from step to step is there then
        with launches() as forward:
            outputs = list(_values(model(batch)).values())
        grads = [torch.ones_like(output) for output in outputs]
        with launches() as backward:
            torch.autograd.backward(outputs, grads)
    assert forward.kernels == {"_pool_features" if kind == "bags" else "_lookup": 1}
    splits = len(NAMES) if kind == "rows" else 0  # where the bags of each feature begin
    assert forward.operations.total() == splits
    assert backward.kernels.total() == 5
    assert set(backward.operations) <= {"sort", "lift_fresh"}  # addresses go to the device
    assert backward.total <= 8
