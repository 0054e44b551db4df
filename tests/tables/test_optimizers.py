"""User-level optimizers against torch's own, and the properties of each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.tables import initializers, monolith_rules, optimizers

from ..support import make_table

Params = list[torch.nn.Parameter]
DECAY = st.sampled_from([0.0, 0.01, 0.3])
RATE = st.sampled_from([1e-3, 0.05, 0.5])


def _pairs() -> dict[str, st.SearchStrategy[tuple[optimizers.Optimizer, Callable[..., object]]]]:
    o = torch.optim

    @st.composite
    def momentum(draw: st.DrawFn) -> tuple[optimizers.Optimizer, Callable[..., object]]:
        lr, decay, mu = draw(RATE), draw(DECAY), draw(st.sampled_from([0.5, 0.9]))
        nesterov = draw(st.booleans())
        ours = optimizers.Momentum(lr, mu, nesterov, decay)
        return ours, lambda p: o.SGD(p, lr, mu, weight_decay=decay, nesterov=nesterov)

    @st.composite
    def adagrad(draw: st.DrawFn) -> tuple[optimizers.Optimizer, Callable[..., object]]:
        lr, decay, start = draw(RATE), draw(DECAY), draw(st.sampled_from([0.0, 0.1]))
        ours = optimizers.Adagrad(lr, start, weight_decay=decay)
        return ours, lambda p: o.Adagrad(p, lr, weight_decay=decay, initial_accumulator_value=start)

    @st.composite
    def adam(draw: st.DrawFn) -> tuple[optimizers.Optimizer, Callable[..., object]]:
        lr, decay = draw(RATE), draw(DECAY)
        betas = draw(st.sampled_from([(0.9, 0.999), (0.5, 0.9)]))
        form = draw(st.sampled_from(["Adam", "AmsGrad", "AdamW"]))
        ours = getattr(optimizers, form)(lr, betas, weight_decay=decay)
        if form == "AdamW":
            return ours, lambda p: o.AdamW(p, lr, betas, weight_decay=decay)
        ams = form == "AmsGrad"
        return ours, lambda p: o.Adam(p, lr, betas, weight_decay=decay, amsgrad=ams)

    @st.composite
    def rmsprop(draw: st.DrawFn) -> tuple[optimizers.Optimizer, Callable[..., object]]:
        lr, decay, mu = draw(RATE), draw(DECAY), draw(st.sampled_from([0.0, 0.5]))
        ours = optimizers.RmsProp(lr, momentum=mu, weight_decay=decay)
        return ours, lambda p: o.RMSprop(p, lr, momentum=mu, weight_decay=decay)

    @st.composite
    def sgd(draw: st.DrawFn) -> tuple[optimizers.Optimizer, Callable[..., object]]:
        lr, decay = draw(RATE), draw(DECAY)
        return optimizers.Sgd(lr, decay), lambda p: o.SGD(p, lr, weight_decay=decay)

    makers = (sgd, momentum, adagrad, adam, rmsprop)
    return {maker.__name__: maker() for maker in makers}


@pytest.mark.parametrize("name", ["sgd", "momentum", "adagrad", "adam", "rmsprop"])
@settings(max_examples=15)
@given(data=st.data(), seed=st.integers(0, 1000), dim=st.sampled_from([1, 7, 16, 33]))
def test_a_row_follows_torchs_own_optimizer(
    name: str, data: st.DataObject, seed: int, dim: int
) -> None:
    ours, theirs = data.draw(_pairs()[name])
    random = torch.Generator().manual_seed(seed)
    start = torch.randn(1, dim, generator=random)
    weight = torch.nn.Parameter(start[0].double())
    optimizer = theirs([weight])
    assert isinstance(optimizer, torch.optim.Optimizer)
    table, key = make_table(ours, dim=dim), torch.tensor([-1])
    table.assign(key, start)
    for _ in range(20):
        grad = torch.randn(1, dim, generator=random)
        weight.grad = grad[0].double()
        optimizer.step()
        table.apply_gradients(key, grad)
    torch.testing.assert_close(
        table.lookup(key).rows.double(), weight.detach(), atol=2e-5, rtol=2e-5
    )


def test_bias_corrections_count_a_rows_own_updates() -> None:
    by_row = optimizers.Adam(lr=0.1, bias_correction="row")
    table = make_table(by_row, init=initializers.Zeros(), dim=1)
    one = torch.ones(1, 1)
    for _ in range(10):
        table.apply_gradients(torch.tensor([1]), one)
    table.apply_gradients(torch.tensor([2]), one, step=10)
    assert table.lookup(torch.tensor([2])).rows.item() == pytest.approx(-0.1)


def test_adam_goes_on_past_its_tabulated_corrections() -> None:
    table = make_table(optimizers.Adam(lr=1e-4, betas=(0.9, 0.9999)), dim=2)
    key = torch.tensor([1])
    table.assign(key, torch.zeros(1, 2))
    saved = table.entries(key)
    states = {name: value.clone() for name, value in saved.states[0].items()}
    states["step"] += 16382
    states["exp_avg_sq"] += 1.0
    object.__setattr__(saved, "states", [states])
    table.restore(saved)
    weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    adam = torch.optim.Adam([weight], lr=1e-4, betas=(0.9, 0.9999))
    adam.state[weight] = {
        "step": torch.tensor(16382.0),
        "exp_avg": torch.zeros(2, dtype=torch.float64),
        "exp_avg_sq": torch.ones(2, dtype=torch.float64),
    }
    for _ in range(5):  # 16,384 is the last one in the table
        table.apply_gradients(key, torch.ones(1, 2))
        weight.grad = torch.ones(2, dtype=torch.float64)
        adam.step()
    torch.testing.assert_close(table.lookup(key).rows.double(), weight.detach(), rtol=1e-5, atol=0)


def test_batch_softmax_learns_the_interval_of_an_id() -> None:
    init = initializers.BatchSoftmaxInitializer(1.0)
    table = make_table(monolith_rules.BatchSoftmax(), init=init, dim=1)
    grad = torch.zeros(1, 1)
    for step in range(1, 1001):
        for interval in (5, 10):
            if step % interval == 0:
                table.apply_gradients(torch.tensor([interval]), grad, step=step, rates=[0.1])
    rows = table.lookup(torch.tensor([5, 10])).rows
    torch.testing.assert_close(rows, torch.tensor([5.0, 10.0]), atol=0.05, rtol=0.01)


def test_ftrl_gives_exact_zeros_where_l1_wins() -> None:
    table = make_table(optimizers.Ftrl(lr=0.1, l1=5.0), dim=3)
    table.apply_gradients(torch.tensor([1]), torch.tensor([[0.1, 1.0, 20.0]]))
    row = table.lookup(torch.tensor([1])).rows.tolist()
    assert row[:2] == [0.0, 0.0]
    assert row[2] < 0
