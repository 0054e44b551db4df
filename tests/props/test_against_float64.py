"""Monolith's formulas, written once more in float64 as its specification states them.

The vectors give a few traces an optimizer; this runs many, inside the vectors' own tolerance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hedgerow.tables.optimizers import Optimizer

from ..support import make_table

Array = NDArray[np.float64]
State = dict[str, Any]
# (row, state, gradient, rate, config) -> row; the state is changed in place
Formula = Callable[[Array, State, Array, float, Any], Array]


def _adagrad(w: Array, s: State, g: Array, rate: float, c: Any) -> Array:
    x = g + c.weight_decay_factor * w
    s["norm"] = s["norm"] + x**2
    return w - rate / np.sqrt(s["norm"]) * x


def _dynamic_wd_adagrad(w: Array, s: State, g: Array, rate: float, c: Any) -> Array:
    if not c.decouple_weight_decay:
        return _adagrad(w, s, g, rate, c)
    s["norm"] = s["norm"] + g**2
    return w - (rate / np.sqrt(s["norm"]) * g + rate * c.weight_decay_factor * w)


def _adadelta(w: Array, s: State, g: Array, rate: float, c: Any) -> Array:
    x, rho = g + c.weight_decay_factor * w, c.averaging_ratio
    s["accum"] = rho * s["accum"] + (1 - rho) * x**2
    u = np.sqrt(s["accum_update"] + c.epsilon) / np.sqrt(s["accum"] + c.epsilon) * x
    s["accum_update"] = rho * s["accum_update"] + (1 - rho) * u**2
    return w - rate * u


def _adam(w: Array, s: State, g: Array, rate: float, c: Any) -> Array:
    x = g + c.weight_decay_factor * w
    alpha = rate * np.sqrt(1 - s["beta2_power"]) / (1 - s["beta1_power"])
    s["m"] = s["m"] + (x - s["m"]) * (1 - c.beta1)
    s["v"] = s["v"] + (x**2 - s["v"]) * (1 - c.beta2)
    second = s["v"]
    if c.kind == "amsgrad":
        s["vhat"] = second = np.maximum(s["vhat"], s["v"])
    first = (1 - c.beta1) * x + c.beta1 * s["m"] if c.use_nesterov else s["m"]
    s["beta1_power"] *= c.beta1
    s["beta2_power"] *= c.beta2
    return w - alpha * first / (np.sqrt(second) + c.epsilon)


def _ftrl(w: Array, s: State, g: Array, rate: float, c: Any) -> Array:
    l1, l2 = c.l1_regularization_strength, c.l2_regularization_strength
    grown = s["norm"] + g**2
    s["zero"] = s["zero"] + g - (np.sqrt(grown) - np.sqrt(s["norm"])) / rate * w
    s["norm"] = grown
    z = s["zero"]
    if c.kind == "group_ftrl":
        size = np.linalg.norm(z)
        if size < l1 or size == 0:
            return np.zeros_like(w)
        return rate * z * (l1 - size) / size / (c.beta + np.sqrt(grown) + l2 * rate)
    moved = rate * (np.sign(z) * l1 - z) / (np.sqrt(grown) + c.beta + l2 * rate)
    return np.where(np.abs(z) <= l1, 0.0, moved)


def _group_adagrad(w: Array, s: State, g: Array, rate: float, c: Any) -> Array:
    x = g + c.weight_decay_factor * w
    s["grad_square_sum"] += np.max(x**2)
    alpha = rate / (c.beta + np.sqrt(s["grad_square_sum"]))
    z = x - w / alpha
    size, l2 = np.linalg.norm(z), c.l2_regularization_strength
    return np.zeros_like(w) if size < l2 or size == 0 else -alpha * (size - l2) / size * z


def _momentum(w: Array, s: State, g: Array, rate: float, c: Any) -> Array:
    old = s["n"]
    s["n"] = c.momentum * old - rate * (g + c.weight_decay_factor * w)
    if c.use_nesterov:
        return w - c.momentum * old + (1 + c.momentum) * s["n"]
    return w + s["n"]


def _rmsprop(w: Array, s: State, g: Array, rate: float, c: Any) -> Array:
    x = g + c.weight_decay_factor * w
    share = 1 - c.momentum if c.kind == "rmsprop" else 1.0
    s["n"] = c.momentum * s["n"] + share * x**2
    return w - rate / (np.sqrt(s["n"]) + 1) * x


FORMULAS: dict[str, Formula] = {
    "sgd": lambda w, s, g, rate, c: w - rate * g,
    "adagrad": _adagrad,
    "dynamic_wd_adagrad": _dynamic_wd_adagrad,
    "adadelta": _adadelta,
    "adam": _adam,
    "amsgrad": _adam,
    "ftrl": _ftrl,
    "group_ftrl": _ftrl,
    "group_adagrad": _group_adagrad,
    "momentum": _momentum,
    "moving_average": lambda w, s, g, rate, c: c.momentum * w + (1 - c.momentum) * g,
    "rmsprop": _rmsprop,
    "rmspropv2": _rmsprop,
}
CHOICES: dict[str, list[Any]] = {
    "weight_decay_factor": [0.0, 0.02, 0.5],
    "initial_accumulator_value": [0.1, 1.0, 1e-6],
    "decouple_weight_decay": [False, True],
    "averaging_ratio": [0.8, 0.9],
    "epsilon": [0.01, 1e-3],
    "beta1": [0.7, 0.9],
    "beta2": [0.9, 0.99],
    "use_nesterov": [False, True],
    "beta": [0.2, 1.0],
    "l1_regularization_strength": [0.0, 0.4, 1.2],
    "l2_regularization_strength": [0.0, 0.3],
    "momentum": [0.6, 0.9],
}


def _random_config(kind: str, random: np.random.Generator) -> Optimizer:
    plain = Optimizer.from_dict({"kind": kind}).to_dict()
    drawn = {k: CHOICES[k][random.integers(len(CHOICES[k]))] for k in plain if k in CHOICES}
    return Optimizer.from_dict({**plain, **drawn})


@pytest.mark.parametrize("kind", FORMULAS)
def test_rows_and_states_follow_the_formula_in_float64(kind: str) -> None:
    random = np.random.default_rng(len(kind))
    for _ in range(60):
        config = _random_config(kind, random)
        dim = int(random.integers(1, 20))
        row = (random.normal(size=dim) * random.integers(0, 2)).round(3)
        table, key = make_table(config, dim=dim), torch.tensor([4])
        table.assign(key, torch.tensor(row[None], dtype=torch.float32))
        start = table.entries(key).states[0]
        state = {name: value[0].double().numpy().copy() for name, value in start.items()}
        state |= {s.name: s.initial for s in config.rule().states if s.per == "row"}
        for rate in (0.1, 0.05, 0.2, 0.01):
            grad = (random.normal(size=dim) * 2).round(3)
            row = FORMULAS[kind](row, state, grad, rate, config)
            grads = torch.tensor(grad[None], dtype=torch.float32)
            table.apply_gradients(key, grads, rates=[rate])
        found = table.entries(key)
        np.testing.assert_allclose(found.rows[0], row, atol=2e-6, rtol=2e-5, err_msg=str(config))
        for name, value in state.items():
            actual = found.states[0][name][0]
            np.testing.assert_allclose(
                actual, value, atol=2e-6, rtol=2e-5, err_msg=f"{name} {config}"
            )
