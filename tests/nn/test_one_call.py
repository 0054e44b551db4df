"""Bags that the core reads and learns in one call are those that torch pools from rows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hedgerow as hr
from hedgerow.core.errors import NotFiniteError
from hedgerow.tables.multi.host_tables import HostTables

POOLINGS: list[Any] = ["sum", "mean", "sqrtn", "max", ("first", 2), ("first", 5)]
RULES: list[Any] = [
    {"optimizer": hr.Sgd(lr=0.5)},
    {"optimizer": hr.Adagrad(lr=0.1)},
    {"optimizer": hr.Adam(lr=0.1)},
    {"optimizer": hr.Sgd(lr=0.5), "admit": hr.Count(3)},
    {"optimizer": hr.Adagrad(lr=0.1), "evict": hr.Lru(9)},
]


def module(
    seed: int, unpooled: bool, clip: hr.ClipRow | None = None
) -> hr.EmbeddingBags | hr.Embeddings:
    chance = random.Random(seed)
    tables = []
    for k in range(chance.randint(1, 3)):
        features = [f"f{k}{i}" for i in range(chance.randint(1, 3))]
        own = chance.choice(RULES)
        pooling = chance.choice(POOLINGS)
        tables.append(
            hr.Table(f"t{k}", chance.choice([1, 3, 8]), features=features, pooling=pooling, **own)
        )
    made = hr.Embeddings if unpooled else hr.EmbeddingBags
    return made(tables, seed=7, slot_key=5, clip=clip)


def batches(names: Sequence[str], seed: int) -> list[hr.IdBatch]:
    chance = random.Random(seed)
    weighs, single = chance.random() < 0.4, chance.random() < 0.2
    made = []
    for samples in (3, 3, 0, 40):
        lists = {
            name: [
                [chance.randrange(25) for _ in range(1 if single else chance.choice([0, 1, 2, 7]))]
                for _ in range(samples)
            ]
            for name in (*names, "unknown")
        }
        weights = {
            name: [[chance.choice([-1.5, 0.0, 0.25, 2.0]) for _ in bag] for bag in bags]
            for name, bags in lists.items()
        }
        made.append(hr.IdBatch.from_lists(lists, weights if weighs else None))
    return made


def plain(value: Tensor | hr.Ragged) -> Tensor:
    return value.values if isinstance(value, hr.Ragged) else value


def loss_of(out: dict[str, Any], seed: int) -> Tensor:
    chance = random.Random(seed)
    parts = [plain(value) for value in out.values()]
    kept = [part for part in parts if chance.random() < 0.9] or parts
    if chance.random() < 0.3:
        return sum((part.sum() for part in kept), torch.zeros(()))
    flat = torch.cat([part.reshape(-1) for part in kept])
    numbers = torch.sin(torch.arange(len(flat)) * 1.7)
    return (flat * numbers).sum() + (flat[::2] ** 2).sum()


def trained(seed: int, unpooled: bool, how: str, clip: hr.ClipRow | None = None) -> list[Tensor]:
    model = module(seed, unpooled, clip)
    names = [feature for table in model.tables for feature in table.features]
    told = []
    for number, batch in enumerate(batches(names, seed)):
        chosen = names[: 1 + number] if how == "some" else None
        for turn in range(2):
            with hr.hold_updates(model) if how == "held" and turn == 0 else torch.enable_grad():
                out = model(batch, chosen)
                loss_of(out, seed + number).backward()
        told += [plain(value).detach() for value in out.values()]
    for name in model.store.names:
        rows = model.table(name).entries(torch.arange(25))
        told += [rows.found, rows.rows, *(x for s in rows.states for x in s.values())]
    return told


@pytest.mark.parametrize("how", ["all", "some", "held"])
@pytest.mark.parametrize("unpooled", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_it_is_what_torch_makes_of_rows(
    monkeypatch: pytest.MonkeyPatch, seed: int, unpooled: bool, how: str
) -> None:
    ours = trained(seed, unpooled, how)
    monkeypatch.setattr(HostTables, "bags_reader", lambda self, bags: None)
    theirs = trained(seed, unpooled, how)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("learnt", [False, True])
def test_a_backward_may_make_a_graph(learnt: bool) -> None:
    tables = [hr.Table("a", 1), hr.Table("b", 1)]  # rows that torch pools, and others
    model = hr.EmbeddingBags(tables, optimizer=hr.Sgd(lr=1.0), init=hr.Constant(3.0))
    batch = hr.IdBatch.from_lists({"a": [[1]], "b": [[2]]}, {"a": [[2.0]], "b": [[1.0]]})
    assert batch.weights is not None
    batch.weights.requires_grad_(learnt)
    (model(batch)["a"] ** 2 + model(batch)["b"] ** 2).sum().backward(create_graph=True)
    assert model.table("a").lookup(torch.tensor([1])).rows_of().item() == 3 - 2 * 6 * 2
    assert model.table("b").lookup(torch.tensor([2])).rows_of().item() == 3 - 2 * 3


START = 0.25


@pytest.mark.parametrize("how", ["all", "held"])
@pytest.mark.parametrize("seed", range(10))
def test_clipped_rows_are_those_that_torch_clips(
    monkeypatch: pytest.MonkeyPatch, seed: int, how: str
) -> None:
    ours = trained(seed, False, how, hr.ClipRow(0.8))
    monkeypatch.setattr(HostTables, "bags_reader", lambda self, bags: None)
    theirs = trained(seed, False, how, hr.ClipRow(0.8))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def pair() -> tuple[hr.EmbeddingBags, hr.IdBatch]:
    tables = [hr.Table("a", 2, init=hr.Constant(START)), hr.Table("b", 2, features=["c", "d"])]
    batch = hr.IdBatch.from_lists({"a": [[1], [2]], "c": [[3, 4], []], "d": [[3], [5]]})
    return hr.EmbeddingBags(tables, optimizer=hr.Sgd(lr=1.0), init=hr.Zeros()), batch


def searched(model: hr.EmbeddingBags) -> int:
    return sum(table.core.reader(0).searched() for table in model.store.tables)


def test_a_step_searches_each_id_once() -> None:
    model, batch = pair()
    for _ in range(2):  # ids without rows are not searched for again either
        before = searched(model)
        sum(v.sum() for v in model(batch).values()).backward()
        assert searched(model) - before == len(batch.values)


def test_so_do_accumulated_held_and_clipped_steps_of_several_modules() -> None:
    first, batch = pair()
    second = hr.EmbeddingBags(
        [hr.Table("b", 2, features=["c", "d"])], optimizer=hr.Sgd(lr=1.0), clip=hr.ClipRow(1.0)
    )
    model, other = nn.ModuleList([first, second]), hr.IdBatch.from_lists({"c": [[3]], "d": [[3]]})
    for _ in range(2):
        before = searched(first), searched(second)
        with hr.hold_updates(model):
            for _ in range(2):
                sum(v.sum() for v in first(batch).values()).backward()
            out = [*second(batch).values(), second(other)["c"], second(batch, ["d"])["d"]]
            sum(v.sum() for v in out).backward()
        assert searched(first) - before[0] == 2 * len(batch.values)
        assert searched(second) - before[1] == 4 + 2 + 2
        assert (first.updates.step, second.updates.step) in ((1, 1), (2, 2))


def test_rows_that_moved_between_lookup_and_update_are_searched_again() -> None:
    model, batch = pair()
    sum(v.sum() for v in model(batch).values()).backward()
    out = model(batch)
    table = model.table("b")
    table.erase(torch.tensor([3]))
    table.assign(torch.tensor([99]), torch.full((1, 2), 7.0))  # in the room of the row that left
    sum(v.sum() for v in out.values()).backward()
    assert table.lookup(torch.tensor([3, 99])).rows_of().tolist() == [[-2.0, -2.0], [7.0, 7.0]]


def test_outputs_can_be_changed_in_place_and_kept_alone() -> None:
    model, batch = pair()
    out = model(batch)
    assert all(v.is_contiguous() and not v._is_view() for v in out.values())
    kept = out["c"]
    out["a"].mul_(2)
    (out["a"].view(-1).sum() + kept.view(4)[:2].sum()).backward()
    rows = model.table("b").lookup(torch.arange(6)).rows_of()
    assert rows[3:].tolist() == [[-1, -1], [-1, -1], [0, 0]]
    assert (model.table("a").size(), model.table("b").size()) == (2, 2)


def test_a_gradient_that_is_not_finite_is_named_and_changes_nothing() -> None:
    model, batch = pair()
    out = model(batch)
    with pytest.raises(NotFiniteError, match=r"'c' at \[0, 1\] is nan; table 'b' rejects"):
        (out["a"].sum() + (out["c"] * torch.tensor([1.0, float("nan")]))[0].sum()).backward()
    assert model.store.size() == 0


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_weight_that_makes_a_gradient_not_finite_is_found_anywhere(
    weight: float, place: int
) -> None:
    model, weights = pair()[0], [1.0, 1.0, 1.0]
    weights[place] = weight
    batch = hr.IdBatch.from_lists({"a": [[1, 2, 3]]}, {"a": [weights]})
    with pytest.raises(NotFiniteError, match=r"'a' at \[0, 0\] is 10+\.0 times a weight"):
        (model(batch, ["a"])["a"] * 1e10).sum().backward()
    assert model.store.size() == 0


def test_rows_are_in_host_memory_whatever_the_default_device_is() -> None:
    model, batch = pair()
    with torch.device("meta"), hr.hold_updates(model):
        out = model(batch)
        torch.cat([v.sum(0) for v in out.values()]).sum().backward()
    assert out["a"].device.type == "cpu"
    table, ids = model.table("b"), torch.tensor([3, 5])
    assert table.lookup(ids).rows_of().tolist() == [[-2, -2], [-1, -1]]
    with torch.device("meta"):
        assert table.contains(ids).tolist() == [True, True]
        assert table.entries(ids).rows.tolist() == [[-2, -2], [-1, -1]]
        assert sum(len(part.ids) for part in table.scan()) == 3
        assert table.erase(ids).tolist() == [True, True]


def test_a_gradient_of_an_empty_bag_is_nobodys() -> None:
    model, batch = pair()
    out = model(batch)
    (out["c"][1] * float("nan")).sum().backward()
    assert model.table("b").lookup(torch.tensor([3, 4])).rows_of().abs().sum() == 0


def test_a_sparse_gradient_is_taken() -> None:
    model, batch = pair()
    picked = torch.nn.functional.embedding(torch.tensor([1, 1]), model(batch)["a"], sparse=True)
    picked.sum().backward()
    rows = model.table("a").lookup(torch.tensor([1, 2])).rows_of()
    assert (model.table("a").size(), model.table("b").size()) == (2, 0)
    assert rows.tolist() == (START + torch.tensor([[0.0, 0.0], [-2.0, -2.0]])).tolist()


def test_a_batch_that_changed_since_is_learnt_as_it_was_read() -> None:
    ids, weights = {"a": [[1, 2], [3]]}, {"a": [[1.0, 2.0], [3.0]]}
    for pooling, wanted in ("sum", [-1.0, -2.0, -3.0]), ("mean", [-0.5, -1.0, -3.0]):
        table = hr.Table("a", 1, pooling=pooling)
        model = hr.EmbeddingBags([table], optimizer=hr.Sgd(lr=1.0), init=hr.Zeros())
        model.table("a").assign(torch.tensor([1, 2, 3, 9]), torch.zeros(4, 1))
        batch = hr.IdBatch.from_lists(ids, weights)
        assert batch.weights is not None
        with hr.hold_updates(model):
            model(batch)["a"].sum().backward()
            batch.values.fill_(9)  # that has a row: its key stood in the index twice
            batch.offsets[1] = 1
            batch.weights.fill_(7.0)
        found = model.table("a").lookup(torch.tensor([1, 2, 3, 9])).rows_of()
        assert found.flatten().tolist() == [*wanted, 0.0]
        rows = [key for part in model.table("a").scan() for key in part.ids.tolist()]
        assert sorted(rows) == [1, 2, 3, 9]
