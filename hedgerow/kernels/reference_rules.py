"""Plain torch twins of the update rules: one row, float32, in the order of the kernels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from .layout import SETTINGS, Part

LEAST_RATE = torch.finfo(torch.float32).tiny

Rule = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]
"""Changes a row and its states in place: (row, states, gradient, rate, settings as float64)."""


def _root(x: Tensor) -> Tensor:
    """Rounded to the nearest, which `torch.sqrt` is not on every processor."""
    return torch.from_numpy(np.sqrt(np.atleast_1d(x.numpy()))).reshape(x.shape)


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(b == 0, 0.0, a / torch.where(b == 0, 1.0, b))


def _sgd(w: Tensor, s: Tensor, g: Tensor, rate: Tensor, p: Tensor) -> None:
    w -= rate * (g + p.float()[0] * w)


def _momentum(w: Tensor, s: Tensor, g: Tensor, rate: Tensor, p: Tensor) -> None:
    decay, mu, nesterov = p.float()[:3]
    old = s.clone()
    s.copy_(mu * old - rate * (g + decay * w))
    if rate != 0:
        w += (1 + mu) * s - mu * old if nesterov else s


def _torch_momentum(w: Tensor, s: Tensor, g: Tensor, rate: Tensor, p: Tensor) -> None:
    decay, mu, nesterov = p.float()[:3]
    x = g + decay * w
    s.copy_(mu * s + x)
    w -= rate * (x + mu * s if nesterov else s)


def _adagrad(w: Tensor, s: Tensor, g: Tensor, rate: Tensor, p: Tensor) -> None:
    decay, epsilon = p.float()[:2]
    x = g + decay * w
    s += x * x
    w -= _ratio(rate * x, _root(s) + epsilon)


def _row_adagrad(w: Tensor, s: Tensor, g: Tensor, rate: Tensor, p: Tensor) -> None:
    decay, epsilon = p.float()[:2]
    x = g + decay * w
    s += (x * x).sum() / len(w)
    w -= _ratio(rate, _root(s) + epsilon) * x


def _adam(w: Tensor, s: Tensor, g: Tensor, rate: Tensor, p: Tensor) -> None:
    beta1, rest1, beta2, rest2, epsilon, decay, nesterov = p.float()[:7]
    m, v, powers = s[: len(w)], s[len(w) : -2], s[-2:]
    alpha = rate * _root(1 - powers[1]) / (1 - powers[0])
    x = g + decay * w
    m += (x - m) * rest1
    v += (x * x - v) * rest2
    w -= _ratio(alpha * (rest1 * x + beta1 * m if nesterov else m), _root(v) + epsilon)
    powers *= torch.stack([beta1, beta2])


def _torch_adam(w: Tensor, s: Tensor, g: Tensor, rate: Tensor, p: Tensor) -> None:
    _, rest1, beta2, rest2, epsilon, decay, decoupled = p.float()[:7]
    m, v, count = s[: len(w)], s[len(w) : -1], s[-1:]
    count += 1
    first = (1 / (1 - p[0] ** count.double())).float()
    second = (1 / _root(1 - p[2] ** count.double())).float()
    x = g + (0.0 if decoupled else decay) * w
    m += (x - m) * rest1
    v.copy_(v * beta2 + rest2 * (x * x))
    shrink = 1 - rate * decay if decoupled else 1.0
    w.copy_(w * shrink - _ratio((rate * first) * m, _root(v) * second + epsilon))


def _ftrl(w: Tensor, s: Tensor, g: Tensor, rate: Tensor, p: Tensor) -> None:
    if rate < LEAST_RATE:
        return
    beta, l1, l2 = p.float()[:3]
    norm, zero = s[: len(w)], s[len(w) :]
    grown = norm + g * g
    zero += g - (_root(grown) - _root(norm)) / rate * w
    norm.copy_(grown)
    moved = _ratio(rate * (torch.where(zero < 0, -l1, l1) - zero), _root(grown) + beta + l2 * rate)
    w.copy_(torch.where(zero.abs() <= l1, 0.0, moved))


def _rmsprop(w: Tensor, s: Tensor, g: Tensor, rate: Tensor, p: Tensor) -> None:
    wide = w.double()
    x = g + p[0] * wide
    s.copy_(p[1] * s.double() + p[2] * (x * x))
    w.copy_(wide - rate.double() / (_root(s.double()) + 1.0) * x)


def _torch_rmsprop(w: Tensor, s: Tensor, g: Tensor, rate: Tensor, p: Tensor) -> None:
    alpha, rest, epsilon, decay, mu = p.float()[:5]
    square, buffer = s[: len(w)], s[len(w) :]
    x = g + decay * w
    square.copy_(square * alpha + rest * (x * x))
    move = _ratio(x, _root(square) + epsilon)
    if len(buffer):
        move = mu * buffer + move
        buffer.copy_(move)
    w -= rate * move


# The rule, its states a value, its states a row.
RULES: dict[str, tuple[Rule, int, int]] = {
    "sgd": (_sgd, 0, 0),
    "momentum": (_momentum, 1, 0),
    "torch_momentum": (_torch_momentum, 1, 0),
    "adagrad": (_adagrad, 1, 0),
    "row_adagrad": (_row_adagrad, 0, 1),
    "adam": (_adam, 2, 2),
    "torch_adam": (_torch_adam, 2, 1),
    "ftrl": (_ftrl, 2, 0),
    "rmsprop": (_rmsprop, 1, 0),
    "torch_rmsprop": (_torch_rmsprop, 1, 0),
    "torch_rmsprop_momentum": (_torch_rmsprop, 2, 0),
}


def step(row: Tensor, grad: Tensor, part: Part, rate: float, *, new: bool) -> None:
    """One step on a part of a whole row, in place; the states of a new one start."""
    rule, by_value, by_row = RULES[part.rule]
    states = row[part.state : part.state + by_value * part.dim + by_row]
    numbers = part.numbers.cpu()
    if new:
        starts = numbers[SETTINGS:].float()
        states[: by_value * part.dim] = starts[:by_value].repeat_interleave(part.dim)
        states[by_value * part.dim :] = starts[by_value : by_value + by_row]
    w = row[part.start : part.start + part.dim]
    rule(w, states, grad, torch.tensor(rate), numbers)
