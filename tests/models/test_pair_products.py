"""Products of pairs against a plain computation, and their gradients."""

from __future__ import annotations

import torch

from hedgerow.models.layers import PairProducts


def test_products_and_gradients_are_those_of_plain_autograd() -> None:
    v = torch.randn(7, 5, 3, requires_grad=True)
    products = PairProducts(5)(v)
    plain = torch.stack([(v[:, i] * v[:, j]).sum(1) for i in range(5) for j in range(i + 1, 5)], 1)
    torch.testing.assert_close(products, plain)
    weights = torch.randn_like(plain)
    (ours,) = torch.autograd.grad((products * weights).sum(), v)
    (theirs,) = torch.autograd.grad((plain * weights).sum(), v)
    torch.testing.assert_close(ours, theirs)


def test_gradients_of_gradients_are_right_too() -> None:
    v = torch.randn(2, 3, 4, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(PairProducts(3), v)
    assert torch.autograd.gradgradcheck(PairProducts(3), v)


def test_a_batch_of_another_size_and_none_at_all() -> None:
    products = PairProducts(4)
    assert products(torch.randn(9, 4, 2)).shape == (9, 6)
    empty = torch.randn(0, 4, 2, requires_grad=True)
    products(empty).sum().backward()
    assert empty.grad is not None
    assert empty.grad.shape == (0, 4, 2)
