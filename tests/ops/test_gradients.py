from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.core.errors import ConfigError
from hedgerow.monolith import gradient_rules
from hedgerow.monolith.gradient_rules import delay_compensation

SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=4)


def _gradients(sizes: list[int], seed: int = 1) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(n, generator=random) * 5 for n in sizes]


@given(SIZES, SIZES, st.sampled_from([0.1, 1.0, 100.0]))
def test_the_global_norm_ends_at_the_limit_and_small_gradients_stay(
    dense: list[int], sparse: list[int], limit: float
) -> None:
    d, s = _gradients(dense), _gradients(sparse, 2)
    clipped = gradient_rules.clip_by_global_norm(d, s, limit)
    norm = float(gradient_rules.global_norm([*d, *s]))
    after = float(gradient_rules.global_norm([*clipped.dense, *clipped.sparse]))
    assert after == pytest.approx(min(norm, limit), rel=1e-5)


def test_torch_agrees_on_the_global_norm() -> None:
    gradients = _gradients([3, 4])
    weights = [torch.nn.Parameter(torch.zeros(len(g))) for g in gradients]
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient.clone()
    torch.nn.utils.clip_grad_norm_(weights, 1.0)
    ours = gradient_rules.clip_by_global_norm(gradients, [], 1.0).dense
    for weight, gradient in zip(weights, ours, strict=True):
        torch.testing.assert_close(weight.grad, gradient, rtol=1e-4, atol=1e-6)


def test_a_sparse_limit_of_its_own_is_held_against_the_common_norm() -> None:
    clipped = gradient_rules.clip_by_global_norm(
        [torch.tensor([3.0])], [torch.tensor([4.0])], 1.0, 0.5
    )
    assert clipped.dense[0].item() == pytest.approx(3 / 5)
    assert clipped.sparse[0].item() == pytest.approx(4 * 0.5 / 5)


def test_separate_limits_leave_sparse_alone_when_it_has_none() -> None:
    sparse = [torch.tensor([40.0])]
    clipped = gradient_rules.clip_separately([torch.tensor([3.0])], sparse, 1.0)
    assert clipped.dense[0].item() == pytest.approx(1.0)
    assert clipped.sparse[0].item() == 40.0


def test_nothing_to_clip_and_bad_limits() -> None:
    assert gradient_rules.clip_by_global_norm([], [], 1.0).dense == []
    for limit in (-1.0, float("nan")):
        with pytest.raises(ConfigError, match="clip"):
            gradient_rules.clip_by_norm([torch.ones(2)], limit)


def test_a_warm_up_starts_from_nothing() -> None:
    limit = gradient_rules.warmed_up_limit(1.0, 0, 10)
    clipped = gradient_rules.clip_by_global_norm([torch.ones(2)], [torch.ones(3)], 1.0, limit)
    assert clipped.sparse[0].tolist() == [0.0, 0.0, 0.0]
    assert gradient_rules.clip_by_norm([torch.zeros(2)], 0.0)[0].tolist() == [0.0, 0.0]


def test_inputs_are_left_alone() -> None:
    gradient = torch.tensor([3.0, 4.0])
    gradient_rules.clip_by_norm([gradient], 1.0)
    gradient_rules.clip_by_value([gradient], 1.0)
    delay_compensation(gradient, gradient, gradient, 0.1)
    assert gradient.tolist() == [3.0, 4.0]
