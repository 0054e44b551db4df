"""Warnings where torch's utilities for parameters leave rows out; none where they do not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hedgerow as hr
from hedgerow.core.errors import RowsLeftOutWarning

BATCH = hr.IdBatch.from_lists({"user": [[1], [2, 3]], "item": [[4], []]})
STEPS = 12
Step = Callable[[Any, torch.optim.Optimizer], None]


class Model(nn.Module):
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        tables = [
            hr.Table("user", 4),
            hr.Table("item", 4, optimizer=hr.Adagrad(lr=0.1, weight_decay=0.1)),
        ]
        self.bags = hr.EmbeddingBags(tables, **settings)
        self.top = nn.Linear(4, 1)

    def forward(self, ids: hr.IdBatch) -> Tensor:
        found = self.bags(ids)
        return self.top(found["user"] + found["item"]).squeeze(1)


def _plain(model: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(BATCH).square().sum().backward()
    optimizer.step()


def _clipped(model: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(BATCH).square().sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def _divided(model: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(BATCH).square().sum().backward()
    for parameter in model.parameters():
        parameter.grad /= 4
    optimizer.step()


def _held(model: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    with hr.hold_updates(model) as held:
        model(BATCH).square().sum().backward()
        held.clip_grad_norm_(1.0)
        optimizer.step()


def _accumulated(model: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    for _ in range(2):
        model(BATCH).square().sum().backward()
    model.top.weight.square().sum().backward()  # a backward without rows adds to the gradients
    optimizer.step()


def _warned(model: Any, optimizer: torch.optim.Optimizer, step: Step) -> list[Any]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(STEPS):
            step(model, optimizer)
    return found


def _sgd(model: nn.Module, **settings: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, **settings)


@pytest.mark.parametrize("step", [_clipped, _divided])
def test_gradients_that_are_changed_without_the_rows_are_told_of_once(step: Step) -> None:
    model = Model()
    (one,) = _warned(model, _sgd(model), step)
    assert one.category is RowsLeftOutWarning
    text = str(one.message)
    assert "the rows of user, item were updated at the end of backward()" in text
    assert "hr.hold_updates(model)" in text
    assert "hr.ClipRow" in text


def test_a_weight_decay_that_leaves_rows_out_is_told_of_once_where_the_step_is() -> None:
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    (one,) = _warned(model, optimizer, _plain)
    assert one.category is RowsLeftOutWarning
    assert one.filename == __file__
    assert "weight_decay=0.01 of torch.optim.AdamW leaves out the rows of user:" in str(one.message)
    assert "hr.Adagrad(lr=0.1, weight_decay=1e-5)" in str(one.message)


@pytest.mark.parametrize("step", [_plain, _held, _accumulated])
def test_nothing_is_told_where_rows_have_part_or_nothing_is_left_out(step: Step) -> None:
    model = Model()
    assert not _warned(model, _sgd(model), step)


def test_rows_that_limit_or_decay_themselves_are_left_alone() -> None:
    model = Model(clip=hr.ClipRow(1.0), optimizer=hr.Adam(weight_decay=0.1))
    assert not _warned(model, _sgd(model, weight_decay=0.1), _clipped)


def test_another_model_beside_one_with_rows_is_left_alone() -> None:
    model, other = Model(), nn.Linear(4, 1)
    own, its = _sgd(model), _sgd(other, weight_decay=0.1)

    def both(model: Any, optimizer: torch.optim.Optimizer) -> None:
        its.zero_grad()
        optimizer.zero_grad()
        other(torch.ones(2, 4)).sum().backward()
        model(BATCH).square().sum().backward()
        nn.utils.clip_grad_norm_(other.parameters(), 1.0)
        optimizer.step()
        its.step()

    assert not _warned(model, own, both)


def test_frozen_rows_are_left_alone() -> None:
    model = Model()
    model.bags.requires_grad_(False)
    assert not _warned(model, _sgd(model, weight_decay=0.1), _clipped)


def test_after_some_steps_an_optimizer_is_not_watched_any_more() -> None:
    model = Model()
    _warned(model, _sgd(model), _plain)
    for parameter in model.parameters():
        assert not parameter._post_accumulate_grad_hooks  # pyright: ignore[reportAttributeAccessIssue]


def _penalty(model: Any) -> Tensor:
    return sum(p.square().sum() for p in model.parameters())  # pyright: ignore[reportReturnType]


def _penalized(model: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    (model(BATCH).square().sum() + 1e-3 * _penalty(model)).backward()
    optimizer.step()


def _penalized_by_name(model: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    loss = model(BATCH).square().sum()
    for name, parameter in model.named_parameters():
        if name.endswith("weight"):
            loss = loss + 1e-3 * parameter.abs().sum()
    loss.backward()
    optimizer.step()


@pytest.mark.parametrize("step", [_penalized, _penalized_by_name])
def test_a_penalty_over_parameters_in_the_loss_is_told_of_once_where_it_is(step: Step) -> None:
    model = Model()
    (one,) = _warned(model, _sgd(model), step)
    assert one.category is RowsLeftOutWarning
    assert one.filename == __file__
    assert "the rows of user are not part of it" in str(one.message)
    assert "weight_decay" in str(one.message)


def test_parameters_that_are_read_for_no_penalty_are_left_alone() -> None:
    model = Model()
    first = model(BATCH)  # before the first backward, as by those who make an optimizer
    assert [p for p in model.parameters() if p.requires_grad]
    optimizer = _sgd(model)
    first.sum().backward()

    def read(model: Any, optimizer: torch.optim.Optimizer) -> None:
        model.zero_grad()
        loss = model(BATCH).square().sum()
        model.zero_grad()
        model.requires_grad_(True)
        dict(model.state_dict()), list(model.modules())
        with torch.no_grad():
            assert _penalty(model) > 0
        torch.nn.utils.parameters_to_vector(model.parameters())
        loss.backward()
        assert len(list(model.parameters())) == 2
        optimizer.step()

    assert not _warned(model, optimizer, read)


def test_rows_with_a_decay_of_their_own_need_no_penalty() -> None:
    model = Model(optimizer=hr.Adagrad(lr=0.1, weight_decay=0.1))
    assert not _warned(model, _sgd(model), _penalized)
