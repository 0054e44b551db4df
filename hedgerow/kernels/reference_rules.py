"""Plain torch twins of the update rules: one row, float32, in the order of the kernels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from .layout import NO_STEP, SETTINGS, Part

LEAST_RATE = torch.finfo(torch.float32).tiny

Rule = Callable[..., None]
"""Changes a row and its states in place: (row, states, gradient, rate, settings as float64), and
for the rules in `FOLLOW_STEP` the step."""


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


def _corrections(p: Tensor, count: Tensor, *, by_row: bool) -> tuple[Tensor, Tensor]:
    first, root = 1 - p[0] ** count.double(), _root(1 - p[2] ** count.double())
    sparse = (p[7] == 2) & (not by_row)
    of_rate, of_root = torch.where(sparse, root, 1.0) / first, torch.where(sparse, 1.0, 1 / root)
    return of_rate.float(), of_root.float()


def _torch_adam(w: Tensor, s: Tensor, g: Tensor, rate: Tensor, p: Tensor, step: int) -> None:
    _, rest1, beta2, rest2, epsilon, decay, decoupled, counted = p.float()[:8]
    m, v, count = s[: len(w)], s[len(w) : -1], s[-1:]
    count += 1
    by_row = bool(counted == 0) or step == NO_STEP
    number = count if by_row else torch.tensor([step + 1])
    first, second = _corrections(p, number, by_row=by_row)
    x = g + (0.0 if decoupled else decay) * w
    m += (x - m) * rest1
    v.copy_(v * beta2 + rest2 * (x * x))
    shrink = 1 - rate * decay if decoupled else 1.0
    w.copy_(w * shrink - _ratio((rate * first) * m, _root(v) * second + epsilon))


def _dense_adam(w: Tensor, s: Tensor, g: Tensor, rate: Tensor, p: Tensor, step: int) -> None:
    """The updates without a gradient one after the other, in float64."""
    beta1, beta2, epsilon, decay = (float(p[k]) for k in (0, 2, 4, 5))
    m, v, count = s[: len(w)], s[len(w) : -2], torch.zeros(1)
    number = s[-2:].numpy().view(np.int64)
    last = int(number[0])
    pace, shrink = float(rate), 1 - float(rate) * decay
    if 0 < last < step:
        wide, first, root = w.double(), m.double(), v.double().sqrt()
        for t in range(last + 1, step + 1):
            first, root = first * beta1, root * beta2**0.5
            under = root / (1 - beta2**t) ** 0.5 + epsilon
            wide = wide * shrink - pace / (1 - beta1**t) * torch.where(under == 0, 0, first / under)
        w.copy_(wide)
        m *= beta1 ** (step - last)
        v *= beta2 ** (step - last)
    number[0] = max(last, step + 1)
    moments = torch.cat([m, v, count])
    p = p[:8].clone()
    p[6] = 1.0  # its decay is apart from the gradient
    _torch_adam(w, moments, g, rate, p, step)
    s[:-2] = moments[:-1]


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
    "dense_adam": (_dense_adam, 2, 2),
    "ftrl": (_ftrl, 2, 0),
    "rmsprop": (_rmsprop, 1, 0),
    "torch_rmsprop": (_torch_rmsprop, 1, 0),
    "torch_rmsprop_momentum": (_torch_rmsprop, 2, 0),
}


FOLLOW_STEP = {"torch_adam", "dense_adam"}


def step(
    row: Tensor, grad: Tensor, part: Part, rate: float, *, new: bool, at_step: int = NO_STEP
) -> None:
    """One step on a part of a whole row, in place; the states of a new one start."""
    rule, by_value, by_row = RULES[part.rule]
    states = row[part.state : part.state + by_value * part.dim + by_row]
    numbers = part.numbers.cpu()
    if new:
        starts = numbers[SETTINGS:].float()
        states[: by_value * part.dim] = starts[:by_value].repeat_interleave(part.dim)
        states[by_value * part.dim :] = starts[by_value : by_value + by_row]
    w = row[part.start : part.start + part.dim]
    more = (at_step,) if part.rule in FOLLOW_STEP else ()
    rule(w, states, grad, torch.tensor(rate), numbers, *more)
