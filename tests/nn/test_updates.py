"""When rows change, by how much, and when not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hedgerow as hr
from hedgerow.core.errors import (
    ConfigError,
    InputError,
    NotFiniteError,
    UnknownNameError,
)


def _bags(**options: object) -> hr.EmbeddingBags:
    tables = [hr.Table("user", 2), hr.Table("item", 2, features=["item", "history"])]
    defaults = {"init": hr.Zeros(), "optimizer": hr.Sgd(lr=1.0), **options}
    return hr.EmbeddingBags(tables, **defaults)


BATCH = hr.IdBatch.from_lists(
    {"history": [[1, 2], [], [1]], "user": [[7], [8], [7]], "item": [[1], [3], [-1]]}
)


def _rows(bags: hr.EmbeddingBags, table: str, ids: list[int]) -> list[list[float]]:
    number = bags.store.names.index(table)
    return bags.store.table(number).lookup(torch.tensor(ids)).rows_of().tolist()


def test_rows_of_shared_tables_change_once_at_the_end_of_backward() -> None:
    bags = _bags()
    found = bags(BATCH)
    assert list(found) == ["user", "item", "history"]
    assert bags.store.size() == 0
    (found["user"].sum() + 2 * found["item"].sum() + found["history"].sum()).backward()
    assert _rows(bags, "user", [7, 8, 9]) == [[-2, -2], [-1, -1], [0, 0]]
    assert _rows(bags, "item", [1, 2, 3, -1]) == [[-4, -4], [-1, -1], [-2, -2], [-2, -2]]
    assert bags.updates.step == 1
    assert not list(bags.parameters())
    assert list(bags.state_dict()) == ["_extra_state"]  # the rows, as bytes


def test_a_feature_without_part_in_the_loss_changes_no_row() -> None:
    bags = _bags()
    bags(BATCH)["user"].sum().backward()
    assert bags.store.table(0).size() == 0
    assert bags.store.table(1).size() == 2


def test_eval_and_no_grad_insert_nothing_and_give_zeros_to_the_unknown() -> None:
    bags = _bags(init=hr.Ones())
    with torch.no_grad():
        assert bags(BATCH)["user"].tolist() == [[1, 1]] * 3
    found = bags.eval()(BATCH)["user"]
    assert not found.requires_grad
    assert found.tolist() == [[0, 0]] * 3
    assert bags.store.size() == 0


def test_an_id_that_is_not_admitted_yet_gives_zeros_in_training() -> None:
    bags = _bags(init=hr.Ones(), admit=hr.Count(2))
    batch = hr.IdBatch.from_lists({"user": [[7]], "item": [[1]], "history": [[]]})
    seen = []
    for _ in range(3):
        user = bags(batch)["user"]
        seen.append(user.tolist())
        user.sum().backward()
    assert seen == [[[0, 0]], [[0, 0]], [[0, 0]]]  # born at 1, moved by -1 in the second step
    assert bags.store.table(1).size() == 1
    assert bags(batch)["user"].tolist() == [[-1, -1]]


def test_a_backward_that_fails_leaves_nothing_for_the_next() -> None:
    bags = _bags()

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no gradient today")

    once = bags(BATCH)
    weight = nn.Parameter(torch.ones(()))
    loss = once["user"].sum() + Fails.apply(weight * 1) * bags(BATCH)["item"].sum()
    with pytest.raises(RuntimeError, match="no gradient today"):
        loss.backward()
    assert bags.store.size() == 0
    bags(BATCH)["user"].sum().backward()
    assert _rows(bags, "user", [7]) == [[-2, -2]]


def test_a_graph_that_is_kept_updates_again() -> None:
    bags = _bags()
    loss = bags(BATCH)["user"].sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert (_rows(bags, "user", [8]), bags.updates.step) == ([[-2, -2]], 2)


def test_two_modules_in_one_loss_are_both_updated() -> None:
    first, second = _bags(), _bags()
    (first(BATCH)["user"].sum() + second(BATCH)["user"].sum()).backward()
    assert _rows(first, "user", [8]) == _rows(second, "user", [8]) == [[-1, -1]]


def test_held_updates_add_up_and_are_applied_once() -> None:
    one, two = _bags(optimizer=hr.Adagrad(lr=1.0)), _bags(optimizer=hr.Adagrad(lr=1.0))
    with hr.hold_updates(one):
        for _ in range(3):
            one(BATCH)["history"].sum().backward()
        assert one.store.size() == 0
    (3 * two(BATCH)["history"].sum()).backward()
    assert _rows(one, "item", [1, 2]) == _rows(two, "item", [1, 2])
    assert one.updates.step == 1


def test_an_error_in_the_block_drops_what_was_held() -> None:
    bags = _bags()

    def interrupted() -> None:
        with hr.hold_updates(bags):
            bags(BATCH)["user"].sum().backward()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert bags.store.size() == 0
    bags(BATCH)["user"].sum().backward()
    assert _rows(bags, "user", [8]) == [[-1, -1]]


def _grad(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad.flatten()


def test_the_norm_of_all_gradients_counts_a_row_once() -> None:
    bags = _bags()
    dense = nn.Linear(2, 1, bias=False)
    nn.init.ones_(dense.weight)
    model = nn.ModuleList([bags, dense])
    with hr.hold_updates(model) as held:
        dense(bags(BATCH)["user"]).sum().backward()
        rows = torch.cat([one.grads for one in held.row_gradients()])
        wanted = torch.cat([rows.flatten(), _grad(dense.weight)]).norm()
        assert torch.isclose(held.clip_grad_norm_(0.5), wanted)
    step = torch.tensor(_rows(bags, "user", [7, 8]))
    clipped = torch.cat([step.flatten(), _grad(dense.weight)]).norm()
    assert torch.isclose(clipped, torch.tensor(0.5))


@pytest.mark.parametrize("finite", [True, False])
def test_a_scaler_is_unscaled_and_its_skip_is_ours(finite: bool) -> None:
    bags = _bags()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with hr.hold_updates(bags, scaler):
        factor = 1.0 if finite else float("inf")
        scaler.scale(factor * bags(BATCH)["user"].sum()).backward()
    assert _rows(bags, "user", [7]) == ([[-2, -2]] if finite else [[0, 0]])


def test_a_scaled_gradient_is_unscaled_once_whoever_asks() -> None:
    bags = _bags()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with hr.hold_updates(bags, scaler) as held:
        scaler.scale(bags(BATCH)["user"].sum()).backward()
        assert held.unscale_(scaler)
        held.clip_grad_norm_(1e6)
    assert _rows(bags, "user", [7, 8]) == [[-2, -2], [-1, -1]]


def test_gradients_that_were_looked_at_and_later_ones_are_one_update() -> None:
    one, two = _bags(optimizer=hr.Adagrad(lr=1.0)), _bags(optimizer=hr.Adagrad(lr=1.0))
    with hr.hold_updates(one) as held:
        one(BATCH)["history"].sum().backward()
        held.row_gradients()
        one(BATCH)["user"].sum().backward()
        one(BATCH)["history"].sum().backward()
    (2 * two(BATCH)["history"].sum() + two(BATCH)["user"].sum()).backward()
    for table, ids in (("item", [1, 2]), ("user", [7, 8])):
        assert _rows(one, table, ids) == _rows(two, table, ids)


@pytest.mark.parametrize(
    ("pooling", "wanted"),
    [
        ("sum", [[3.0], [0.0], [-1.0]]),
        ("mean", [[1.5], [0.0], [-1.0]]),
        ("sqrtn", [[3 / 2**0.5], [0.0], [-1.0]]),
        ("max", [[2.0], [0.0], [-1.0]]),
        (("first", 2), [[[1.0], [2.0]], [[0.0], [0.0]], [[-1.0], [0.0]]]),
    ],
)
def test_every_pooling_and_its_gradient(pooling: str, wanted: list) -> None:
    bags = hr.EmbeddingBags(
        [hr.Table("t", 1, pooling=pooling)], init=hr.Zeros(), optimizer=hr.Sgd(lr=1.0)
    )
    bags.table("t").assign(torch.tensor([5, 6, 7]), torch.tensor([[1.0], [2.0], [-1.0]]))
    found = bags(hr.IdBatch.from_lists({"t": [[5, 6], [], [7]]}))["t"]
    torch.testing.assert_close(found, torch.tensor(wanted))
    found.sum().backward()
    moved = 1 - torch.tensor(_rows(bags, "t", [5])).item()
    share = {"mean": 0.5, "sqrtn": 0.5**0.5, "max": 0.0}.get(str(pooling), 1.0)
    assert moved == pytest.approx(share)


def test_a_row_s_gradient_is_clipped_after_it_was_summed() -> None:
    bags = _bags(clip=hr.ClipRow(2.0**0.5))
    (3 * bags(BATCH)["user"].sum()).backward()
    torch.testing.assert_close(_rows(bags, "user", [7, 8]), [[-1.0, -1.0]] * 2)


def test_what_cannot_be_is_refused() -> None:
    bags = _bags()
    with pytest.raises(UnknownNameError, match="history"):
        bags(hr.IdBatch.from_lists({"user": [[1]], "item": [[1]]}))
    with pytest.raises(ConfigError, match="two tables are named 'a'"):
        hr.EmbeddingBags([hr.Table("a", 1), hr.Table("a", 1, features=["b"])])
    with pytest.raises(ConfigError, match="two features are named 'b'"):
        hr.EmbeddingBags([hr.Table("a", 1, features=["b"]), hr.Table("b", 1)])
    with pytest.raises(ConfigError, match="without tables"):
        hr.EmbeddingBags([])
    with pytest.raises(ConfigError, match=r"use hr\.Embeddings"):
        hr.EmbeddingBags([hr.Table("a", 1, pooling="none")])
    with pytest.raises(InputError, match="without EmbeddingBags"), hr.hold_updates(nn.Linear(1, 1)):
        pass


class _Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("in the middle of a backward")


@pytest.mark.parametrize("later", [True, False])
def test_a_backward_that_fails_inside_a_hold_leaves_nothing_of_its_own(later: bool) -> None:
    bags = _bags()
    user = hr.IdBatch.from_lists({"user": [[7]], "item": [[]], "history": [[]]})
    weight = torch.ones(1, 2, requires_grad=True)
    with hr.hold_updates(bags):
        bags(user)["user"].sum().backward()
        # The rows' gradients come first: their node is the youngest of the graph.
        failing = _Fails.apply(weight)
        with pytest.raises(ArithmeticError):
            (100 * bags(user)["user"] + failing).sum().backward()
        if later:
            bags(user)["user"].sum().backward()
    assert _rows(bags, "user", [7]) == ([[-2, -2]] if later else [[-1, -1]])
    assert bags.updates.step == 1


def test_a_backward_inside_a_backward_loses_no_gradient() -> None:
    bags = _bags()
    user = hr.IdBatch.from_lists({"user": [[7]], "item": [[]], "history": [[]]})
    item = hr.IdBatch.from_lists({"user": [[]], "item": [[3]], "history": [[]]})

    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                bags(item)["item"].sum().backward()
            return grad

    inner: Any = Inner.apply(torch.ones(1, 2, requires_grad=True))
    (bags(user)["user"] + inner).sum().backward()
    assert _rows(bags, "user", [7]) == [[-1, -1]]
    assert _rows(bags, "item", [3]) == [[-1, -1]]


def test_row_gradients_name_their_table_and_ids() -> None:
    model = nn.ModuleList([_bags(), _bags()])
    with hr.hold_updates(model) as held:
        (model[0](BATCH)["user"].sum() + 2 * model[1](BATCH)["history"].sum()).backward()
        found = held.row_gradients()
        assert [one.table for one in found] == ["item", "user"] * 2
        item, user, other, unused = found
        assert (item.ids.tolist(), unused.ids.tolist()) == ([], [])
        assert dict(zip(user.ids.tolist(), user.grads.tolist(), strict=True)) == {
            7: [2, 2],
            8: [1, 1],
        }
        assert dict(zip(other.ids.tolist(), other.counts.tolist(), strict=True)) == {1: 2, 2: 1}
        user.grads[user.ids == 8] = 5.0  # changes the update
    assert _rows(model[0], "user", [7, 8]) == [[-2, -2], [-5, -5]]
    assert _rows(model[1], "item", [1, 2]) == [[-4, -4], [-2, -2]]


def test_an_update_that_fails_when_a_hold_ends_leaves_none_of_other_modules() -> None:
    model = nn.ModuleList([_bags(), _bags()])

    def held() -> None:
        with hr.hold_updates(model):
            (model[0](BATCH)["user"].sum() + model[1](BATCH)["user"].sum()).backward()

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(model[0].updates, "_step", _refuse)
        with pytest.raises(NotFiniteError):
            held()
    held()  # the step once more
    assert _rows(model[0], "user", [7]) == _rows(model[1], "user", [7]) == [[-2, -2]]


def _refuse(*args: object) -> None:
    raise NotFiniteError("refused")
