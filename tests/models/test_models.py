"""The three models learn, answer for their parts alone, and refuse what they cannot use."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import hedgerow as hr

TABLES = [hr.Table("user", 8), hr.Table("item", 8, features=["item", "history"])]
OPTIMIZER = hr.Adagrad(lr=0.1)
MAKERS: dict[str, Callable[[], nn.Module]] = {
    "dlrm": lambda: hr.models.DLRM(TABLES, dense=4, init=hr.Uniform(0.3), optimizer=OPTIMIZER),
    "deepfm": lambda: hr.models.DeepFM(TABLES, dense=4, optimizer=OPTIMIZER),
    "two-tower": lambda: hr.models.TwoTower(
        TABLES, items=["item"], dense=4, init=hr.Uniform(0.3), optimizer=OPTIMIZER
    ),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_model_learns_and_gives_one_logit_a_sample(name: str) -> None:
    torch.manual_seed(0)
    model = MAKERS[name]()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses = []
    for dense, ids, clicked in hr.data.clicks(batch_size=256, steps=200):
        logits = model(dense, ids)
        assert logits.shape == (256,)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, clicked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-20:]) / 20 < 0.96 * sum(losses[:10]) / 10


def test_deepfm_is_what_its_formula_says() -> None:
    torch.manual_seed(1)
    model = hr.models.DeepFM(TABLES, dense=4, hidden=(5,), init=hr.Uniform(1.0))
    dense, ids, _ = hr.data.clicks(batch_size=6, steps=1).batch(0)
    found = [v.detach() for v in model.bags(ids).values()]
    bias, vectors = [v[:, 0] for v in found], [v[:, 1:] for v in found]
    pairs = [(0, 1), (0, 2), (1, 2)]
    by_hand = sum(bias) + sum((vectors[i] * vectors[j]).sum(1) for i, j in pairs)
    assert model.over.linear is not None
    by_hand = by_hand + model.over.linear(dense).squeeze(1)
    by_hand = by_hand + model.over.deep(torch.cat([*vectors, dense], dim=1)).squeeze(1)
    torch.testing.assert_close(model(dense, ids), by_hand + model.over.offset)


def test_towers_alone_give_the_logit_of_both() -> None:
    model = hr.models.TwoTower(TABLES, items=["item"], dense=4, dim=5, init=hr.Uniform(1.0))
    dense, ids, _ = hr.data.clicks(batch_size=6, steps=1).batch(0)
    users = model.user_vectors(dense, ids.select(["user", "history"]))
    items = model.item_vectors(ids.select(["item"]))
    torch.testing.assert_close((users * items).sum(1) + model.offset, model(dense, ids))
    frozen = hr.freeze(model)
    assert torch.equal(frozen.item_vectors(ids.select(["item"])), model.eval().item_vectors(ids))


def test_a_model_without_dense_numbers() -> None:
    model = hr.models.DeepFM([hr.Table("user", 4), hr.Table("item", 4)])
    ids = hr.IdBatch.from_lists({"user": [[1], [2]], "item": [[3], []]})
    assert model(torch.empty(2, 0), ids).shape == (2,)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: hr.models.DLRM([hr.Table("a", 4), hr.Table("b", 8)], dense=4), "one dim"),
        (lambda: hr.models.DLRM(TABLES, dense=0), "dense is 0"),
        (lambda: hr.models.DLRM(TABLES, dense=4, top=(0,)), "width is 0"),
        (lambda: hr.models.DLRM([hr.Table("a", 4, pooling=("first", 2))], dense=4), "one vector"),
        (lambda: hr.models.TwoTower(TABLES, items=["itme"], dense=4), "Did you mean 'item'"),
        (lambda: hr.models.TwoTower(TABLES, items=[], dense=4), "each tower"),
        (
            lambda: hr.models.DeepFM(
                [hr.Table("a", 2, segments=(hr.Segment(2, hr.Zeros(), hr.Sgd()),))]
            ),
            "has segments",
        ),
    ],
)
def test_what_a_model_cannot_use_is_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(hr.HedgerowError, match=says):
        make()


def test_some_features_of_a_module() -> None:
    bags = hr.EmbeddingBags(TABLES, init=hr.Uniform(1.0), optimizer=hr.Sgd(lr=1.0))
    ids = hr.IdBatch.from_lists({"history": [[5, 6]], "user": [[1]], "item": [[5]]})
    every = bags(ids)
    some = bags(ids.select(["history"]), ["history"])
    assert list(some) == ["history"]
    assert torch.equal(some["history"], every["history"])
    some["history"].sum().backward()
    assert bags.table("item").size() == 2
    assert bags.table("user").size() == 0
    with pytest.raises(hr.HedgerowError, match="unknown feature 'histroy'"):
        bags(ids, ["histroy"])
    with pytest.raises(hr.HedgerowError, match="features is empty"):
        bags(ids, [])


def test_an_item_that_is_named_twice_counts_once() -> None:
    model = hr.models.TwoTower(TABLES, items=["item", "item"], dense=4)
    dense, ids, _ = next(iter(hr.data.clicks(batch_size=8, steps=1)))
    assert model(dense, ids).shape == (8,)
    assert model.item_vectors(ids.select(["item"])).shape == (8, 32)
