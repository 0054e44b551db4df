"""Rows that do not learn: `requires_grad_(False)`, a rate of 0, `no_grad`, in every placement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hedgerow as hr
from tests.dist.pool import Pool
from tests.dist.test_placements import on_servers

from . import standing_still_work as work
from .standing_still_work import Model, batch, sizes

pytestmark = pytest.mark.xdist_group("standing_still")


def test_a_parent_that_is_frozen_freezes_the_rows_below() -> None:
    model = Model()
    model(batch()).sum().backward()
    before, weight = sizes(model), model.top.weight.detach().clone()
    assert model.requires_grad_(False) is model
    out = model(batch(1))
    assert not out.requires_grad
    assert bool(out.any())  # in training unknown ids still have their first values
    assert sizes(model) == before == (3, 4)
    model.requires_grad_(True)
    model(batch(1)).sum().backward()
    assert sizes(model) == (6, 8)
    assert torch.equal(model.top.weight.detach(), weight)


def test_one_module_that_is_frozen_stands_still_and_the_others_learn() -> None:
    model = Model()
    model(batch()).sum().backward()
    model.bags.requires_grad_(False)
    kept = model.bags.table("user").entries(torch.arange(20)).rows.clone()
    words = model.words.table("word").entries(torch.arange(20)).rows.clone()
    model(batch()).sum().backward()
    model(batch(1)).sum().backward()
    assert sizes(model) == (3, 8)
    assert model.bags.updates.step == 1
    assert torch.equal(model.bags.table("user").entries(torch.arange(20)).rows, kept)
    assert not torch.equal(model.words.table("word").entries(torch.arange(20)).rows, words)


def test_rows_that_are_frozen_before_the_backward_get_no_gradient() -> None:
    model = Model()
    out = model(batch()).sum()
    model.bags.requires_grad_(False)
    out.backward()
    assert sizes(model) == (0, 4)


def test_every_way_to_hold_the_module_reaches_it() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleDict({"inner": Model()})

        def forward(self, ids: hr.IdBatch) -> Tensor:
            return self.parts["inner"](ids)

    outer = Outer()
    for held in (outer, outer.parts, outer.parts["inner"], outer.parts["inner"].bags):
        held.requires_grad_(False)
        outer(batch()).sum().backward() if held is outer.parts["inner"].bags else outer(batch())
        assert sizes(outer.parts["inner"])[0] == 0
        held.requires_grad_(True)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_no_row_is_born_without_gradients(context: Any) -> None:
    model = Model()
    with context():
        out = model(batch())
    assert (out.requires_grad, sizes(model)) == (False, (0, 0))


def test_held_updates_of_a_frozen_model_change_nothing() -> None:
    model = Model()
    model.bags.requires_grad_(False)
    with hr.hold_updates(model) as held:
        model(batch()).sum().backward()
        assert [len(one.ids) for one in held.row_gradients()] == [0, 0, 4]
        held.clip_grad_norm_(1.0)
    assert sizes(model) == (0, 4)


@pytest.mark.parametrize(
    "rule", [hr.Sgd(lr=0), hr.Adagrad(lr=0.0), hr.Adam(lr=0), hr.AdamW(lr=0), hr.Momentum(lr=0)]
)
def test_a_table_whose_rate_is_the_number_0_gets_no_rows(rule: Any) -> None:
    tables = [hr.Table("still", 2, optimizer=rule), hr.Table("moves", 2, optimizer=hr.Sgd(lr=1.0))]
    bags = hr.EmbeddingBags(tables, init=hr.Ones())
    ids = hr.IdBatch.from_lists({"still": [[1], [2]], "moves": [[3], []]})
    for _ in range(2):
        found = bags(ids)
        assert found["still"].tolist() == [[1, 1], [1, 1]]
        (found["still"] + found["moves"]).sum().backward()
    assert bags.row_counts() == {"moves": 1, "still": 0}
    bags.table("still").assign(torch.tensor([1]), torch.full((1, 2), 5.0))
    bags(ids)["still"].sum().backward()
    assert bags.row_counts()["still"] == 1
    assert bags(ids)["still"].tolist() == [[5, 5], [1, 1]]


def test_a_schedule_that_is_0_at_a_step_and_one_segment_that_learns_give_birth() -> None:
    warm = hr.Polynomial(0.0, 2, end=1.0)
    tables = [
        hr.Table("warm", 2, optimizer=hr.Sgd(lr=warm)),
        hr.Table("called", 2, optimizer=hr.Sgd(lr=lambda step: 0.0)),
        hr.Table("half", 2, segments=[hr.Segment(1, hr.Ones(), hr.Sgd(lr=0)),
                                      hr.Segment(1, hr.Ones(), hr.Sgd(lr=1.0))]),
    ]  # fmt: skip
    bags = hr.EmbeddingBags(tables)
    ids = hr.IdBatch.from_lists({"warm": [[1]], "called": [[1]], "half": [[1]]})
    torch.stack([v.sum() for v in bags(ids).values()]).sum().backward()
    assert bags.row_counts() == {"warm": 1, "called": 1, "half": 1}
    assert bags(ids)["half"].tolist() == [[1.0, 0.0]]


def test_rows_on_a_device_stand_still(device: torch.device) -> None:
    bags = hr.EmbeddingBags([hr.Table("user", 2)], init=hr.Zeros(), optimizer=hr.Sgd(lr=1.0))
    bags.place(device, capacity_rows={"user": 64})
    ids = hr.IdBatch.from_dict({"user": torch.tensor([1, 2], device=device)})
    bags(ids)["user"].sum().backward()
    bags.requires_grad_(False)
    other = hr.IdBatch.from_dict({"user": torch.tensor([1, 3], device=device)})
    assert not bags(other)["user"].requires_grad
    assert bags.row_counts() == {"user": 2}
    still = hr.EmbeddingBags([hr.Table("user", 2)], init=hr.Zeros(), optimizer=hr.Sgd(lr=0))
    still.place(device, capacity_rows={"user": 64})
    still(ids)["user"].sum().backward()
    assert still.row_counts() == {"user": 0}


def test_rows_on_servers_stand_still() -> None:
    model = Model(rate=0)
    with on_servers(model, 2) as spread:
        model.words.requires_grad_(False)
        spread(batch()).sum().backward()
        assert model.bags.row_counts() == {"item": 1, "user": 0}
        assert model.words.row_counts() == {"word": 0}
        spread.requires_grad_(False)
        spread(batch(1))
        assert model.bags.row_counts() == {"item": 1, "user": 0}


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    made = Pool(2, tmp_path_factory.mktemp("standing_still"))
    yield made
    made.close()


def test_rows_over_ranks_stand_still(pool: Pool) -> None:
    counts = pool.run(2, work.over_ranks)
    assert {name: sum(own[name] for own in counts) for name in counts[0]} == {
        "user": 0,
        "item": 1,
        "word": 0,
    }
