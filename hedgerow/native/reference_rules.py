"""Plain numpy twins of the update rules: the formulas, in float32 and in the core's order.

Each takes a row segment `w`, its state floats `s`, a gradient `g`, the rate, the step (`NO_STEP` if
there is none) and the settings `p`, and changes `w` and `s` in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
_AnyFloats = NDArray[np.floating[Any]]  # what numpy's types make of float32 arithmetic
RuleFunction = Callable[[Floats, Floats, Floats, np.float32, int, list[float]], None]
_f32 = np.float32
NO_STEP = -1
_BY_ROW, _BY_STEP_SPARSE = 0, 2
_LEAST_RATE = np.finfo(np.float32).smallest_normal


def _ratio(numerator: _AnyFloats, denominator: _AnyFloats) -> Floats:
    safe = np.where(denominator == 0, _f32(1), denominator)
    return np.where(denominator == 0, _f32(0), numerator / safe).astype(np.float32)


def _sum_of_squares(x: _AnyFloats) -> np.float32:
    lanes = np.zeros(16, np.float32)
    for i in range(0, len(x), 16):
        part = x[i : i + 16]
        lanes[: len(part)] += part * part
    for width in (8, 4, 2, 1):
        lanes[:width] += lanes[width : 2 * width]
    return lanes[0]


def _sgd(w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]) -> None:
    w -= rate * (g + _f32(p[0]) * w)


def _adagrad(w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]) -> None:
    x = g + _f32(p[0]) * w
    s += x * x
    w -= _ratio(rate * x, np.sqrt(s) + _f32(p[1]))


def _row_adagrad(
    w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]
) -> None:
    x = g + _f32(p[0]) * w
    if p[0] == 0:
        squares = _sum_of_squares(g)
    else:
        squares = _f32(0)
        for i in range(0, len(x), 64):
            squares += _sum_of_squares(x[i : i + 64])
    s[0] += squares / _f32(len(w))
    w -= _ratio(np.array([rate]), np.sqrt(s[:1]) + _f32(p[1]))[0] * x


def _momentum(w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]) -> None:
    decay, mu, nesterov = _f32(p[0]), _f32(p[1]), p[2] != 0
    old = s.copy()
    s[:] = mu * old - rate * (g + decay * w)
    if rate != 0:
        w += (_f32(1) + mu) * s - mu * old if nesterov else s


def _torch_momentum(
    w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]
) -> None:
    decay, mu, nesterov = _f32(p[0]), _f32(p[1]), p[2] != 0
    x = g + decay * w
    s[:] = mu * s + x
    w -= rate * (x + mu * s if nesterov else s)


def _adam_with(maximum: bool) -> RuleFunction:
    def rule(w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]) -> None:
        beta1, rest1, beta2, rest2, epsilon, decay = (_f32(v) for v in p[:6])
        d = len(w)
        m, v, powers = s[:d], s[d : 2 * d], s[-2:]
        alpha = rate * np.sqrt(_f32(1) - powers[1]) / (_f32(1) - powers[0])
        x = g + decay * w
        m += (x - m) * rest1
        v += (x * x - v) * rest2
        second = v
        if maximum:
            second = s[2 * d : 3 * d]
            second[:] = np.maximum(second, v)
        first = rest1 * x + beta1 * m if p[6] != 0 else m
        w -= _ratio(alpha * first, np.sqrt(second) + epsilon)
        powers *= np.array([beta1, beta2])

    return rule


def _adam_corrections(
    p: list[float], count: float, *, by_row: bool
) -> tuple[np.float32, np.float32]:
    first, root = 1 - p[0] ** count, np.sqrt(1 - p[2] ** count)
    if p[7] == _BY_STEP_SPARSE and not by_row:
        return _f32(root / first), _f32(1)
    return _f32(1 / first), _f32(1 / root)


def _moments(d: int, s: Floats, maximum: bool) -> tuple[Floats, Floats, Floats]:
    """First, second, and the one that stands under the fraction."""
    return s[:d], s[d : 2 * d], s[2 * d : 3 * d] if maximum else s[d : 2 * d]


def _torch_adam_with(maximum: bool) -> RuleFunction:
    def rule(w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]) -> None:
        _, rest1, beta2, rest2, epsilon, weight_decay = (_f32(v) for v in p[:6])
        decoupled = p[6] != 0
        m, v, square = _moments(len(w), s, maximum)
        count = s[-1:]
        count += _f32(1)
        by_row = p[7] == _BY_ROW or step == NO_STEP
        first, second = _adam_corrections(p, float(count[0]) if by_row else step + 1, by_row=by_row)
        x = g + (_f32(0) if decoupled else weight_decay) * w
        m += (x - m) * rest1
        v[:] = v * beta2 + rest2 * (x * x)
        square[:] = np.maximum(square, v)
        shrink = _f32(1) - rate * weight_decay if decoupled else _f32(1)
        w[:] = w * shrink - _ratio((rate * first) * m, np.sqrt(square) * second + epsilon)

    return rule


def _drift(p: list[float], last: int, missed: int, maximum: bool) -> float:
    """What updates `last` + 1 to `last` + `missed` of dense Adam move a row without gradients by,
    in units of rate * m / root of v: the sum itself."""
    number = last + np.arange(1, missed + 1, dtype=np.float64)
    shrinks = p[0] if maximum else p[0] / np.sqrt(p[2])
    paces = np.sqrt(1 - p[2] ** number) / (1 - p[0] ** number)
    return float((shrinks ** (number - last) * paces).sum())


def _pieces(last: int, step: int) -> list[tuple[int, int]]:
    """The updates from `last` to `step` in pieces of 1, 2, 4, 8, 16 and the rest.

    Each is the number of the update before it and its length.
    """
    found: list[tuple[int, int]] = []
    for length in (1, 2, 4, 8, 16, step):
        if last < step:
            found.append((last, min(length, step - last)))
            last += length
    return found


def _dense_adam_with(maximum: bool) -> RuleFunction:
    plain = _torch_adam_with(maximum)

    def rule(w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]) -> None:
        m, v, square = _moments(len(w), s, maximum)
        number = s[-2:].view(np.int64)
        last = int(number[0])
        for first, missed in _pieces(last, step) if last > 0 else ():
            shrinks = p[0] if maximum else p[0] / np.sqrt(p[2])
            middle = min((missed + 1) / 2, 1 / (1 - shrinks))
            root = 1 if maximum else np.sqrt(p[2])
            epsilon = _f32(p[4] * np.sqrt(1 - p[2] ** (first + middle)) / root**middle)
            fade = 1 - float(rate) * p[5]
            drift = float(rate) * _drift(p, first, missed, maximum)
            moved, shrink = _f32(drift * fade ** (missed - middle)), _f32(fade**missed)
            w[:] = w * shrink - _ratio(moved * m, np.sqrt(square) + epsilon)
            m *= _f32(p[0] ** missed)
            v *= _f32(p[2] ** missed)
        number[0] = max(last, step + 1)
        moments = np.append(s[:-2], _f32(0))
        plain(w, moments, g, rate, step, p)
        s[:-2] = moments[:-1]

    return rule


def _ftrl(w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]) -> None:
    if rate < _LEAST_RATE:
        return
    beta, l1, l2 = (_f32(v) for v in p)
    d = len(w)
    norm, zero = s[:d], s[d:]
    grown = norm + g * g
    root = np.sqrt(grown)
    zero += g - (root - np.sqrt(norm)) / rate * w
    norm[:] = grown
    shrunk = np.where(zero < 0, -l1, l1) - zero
    moved = _ratio(rate * shrunk, root + beta + l2 * rate)
    w[:] = np.where(np.abs(zero) <= l1, _f32(0), moved)


def _rmsprop_with(mean: bool) -> RuleFunction:
    def rule(w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]) -> None:
        wide = w.astype(np.float64)
        x = g + p[0] * wide
        s[:] = p[1] * s.astype(np.float64) + (p[2] if mean else 1.0) * (x * x)
        w[:] = wide - float(rate) / (np.sqrt(s.astype(np.float64)) + 1.0) * x

    return rule


def _torch_rmsprop_with(buffered: bool) -> RuleFunction:
    def rule(w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]) -> None:
        alpha, rest, epsilon, decay, mu = (_f32(v) for v in p)
        d = len(w)
        x = g + decay * w
        s[:d] = s[:d] * alpha + rest * (x * x)
        move = _ratio(x, np.sqrt(s[:d]) + epsilon)
        if buffered:
            s[d:] = move = mu * s[d:] + move
        w -= rate * move

    return rule


def _decoupled_adagrad(
    w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]
) -> None:
    s += g * g
    w -= _ratio(rate * g, np.sqrt(s)) + rate * _f32(p[0]) * w


def _adadelta(w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]) -> None:
    decay, rho, rest, epsilon = (_f32(v) for v in p)
    accum, update = s[: len(w)], s[len(w) :]
    x = g + decay * w
    accum[:] = rho * accum + rest * (x * x)
    u = _ratio(np.sqrt(update + epsilon) * x, np.sqrt(accum + epsilon))
    w -= rate * u
    update[:] = rho * update + rest * (u * u)


def _norm(x: Floats) -> float:
    total = 0.0
    for value in x:
        total += float(value) * float(value)
    return float(np.sqrt(total))


def _group_ftrl(
    w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]
) -> None:
    if rate < _LEAST_RATE:
        return
    beta, l1, l2 = (_f32(v) for v in p)
    norm, zero = s[: len(w)], s[len(w) :]
    grown = norm + g * g
    zero += g - (np.sqrt(grown) - np.sqrt(norm)) / rate * w
    norm[:] = grown
    group = _norm(zero)
    shrink = _f32(0) if group < l1 or group == 0 else _f32((float(l1) - group) / group)
    w[:] = _ratio(rate * zero * shrink, beta + np.sqrt(norm) + l2 * rate)


def _group_adagrad(
    w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]
) -> None:
    if rate < _LEAST_RATE:
        return
    beta, l2, decay = (_f32(v) for v in p)
    x = g + decay * w
    s[0] += max(_f32(0), *(x * x))
    divisor = beta + np.sqrt(s[0])
    if divisor == 0:
        return
    alpha = rate / divisor
    z = x - w / alpha
    group = _norm(z)
    shrink = _f32(0) if group < l2 or group == 0 else _f32((group - float(l2)) / group)
    w[:] = -alpha * shrink * z


def _moving_average(
    w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]
) -> None:
    w[:] = _f32(p[0]) * w + _f32(p[1]) * g


def _batch_softmax(
    w: Floats, s: Floats, g: Floats, rate: np.float32, step: int, p: list[float]
) -> None:
    last, now = s.view(np.int64), 0 if step == NO_STEP else step
    w[0] = (_f32(1) - rate) * w[0] + rate * _f32(now - int(last[0]))
    last[0] = now


RULES: dict[str, RuleFunction] = {
    "sgd": _sgd,
    "adagrad": _adagrad,
    "row_adagrad": _row_adagrad,
    "momentum": _momentum,
    "torch_momentum": _torch_momentum,
    "adam": _adam_with(maximum=False),
    "amsgrad": _adam_with(maximum=True),
    "torch_adam": _torch_adam_with(maximum=False),
    "torch_amsgrad": _torch_adam_with(maximum=True),
    "dense_adam": _dense_adam_with(maximum=False),
    "dense_amsgrad": _dense_adam_with(maximum=True),
    "ftrl": _ftrl,
    "rmsprop": _rmsprop_with(mean=True),
    "torch_rmsprop": _torch_rmsprop_with(buffered=False),
    "torch_rmsprop_momentum": _torch_rmsprop_with(buffered=True),
    "decoupled_adagrad": _decoupled_adagrad,
    "adadelta": _adadelta,
    "group_ftrl": _group_ftrl,
    "group_adagrad": _group_adagrad,
    "moving_average": _moving_average,
    "rmspropv2": _rmsprop_with(mean=False),
    "batch_softmax": _batch_softmax,
}
