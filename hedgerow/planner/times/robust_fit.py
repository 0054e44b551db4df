"""Least squares that forgive outliers: Levenberg and Marquardt's steps under a soft-L1 loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_OUTLIER = 0.1  # errors above count by their size, below by their square
_ROUNDS, _NUDGE = 200, 1e-6
_MOST_DAMPED = 1e12


@dataclass(frozen=True, slots=True)
class Found:
    """The values with the least loss."""

    values: Floats
    loss: float


def robust_fit(
    errors: Callable[[Floats], Floats],
    start: Floats,
    least: Floats,
    most: Floats | float = float("inf"),
) -> Found:
    """Values, none below its `least` or above `most`, from which `errors` are small.

    >>> def errors(line: Floats) -> Floats:
    ...     return line[0] * np.arange(5.0) - np.array([0, 2, 4, 60, 8])
    >>> float(robust_fit(errors, np.array([1.0]), np.array([0.0])).values[0].round(2))
    2.02
    """
    values = np.minimum(np.maximum(np.asarray(start, np.float64), least), most)
    now, damping = errors(values), 1e-3
    best = _loss(now)
    bend, pull = _around(errors, values, now)
    for _ in range(_ROUNDS):
        # Values that stand at a bound and are pulled beyond it stay: others step without them.
        free = ~((values <= least) & (pull > 0) | (values >= most) & (pull < 0))
        own = bend[np.ix_(free, free)]
        damped = own + damping * np.diag(np.maximum(np.diag(own), 1e-12))
        tried = values.copy()
        # Of fewer points than values many steps are as good: the shortest of them.
        tried[free] -= np.linalg.lstsq(damped, pull[free], rcond=None)[0]
        tried = np.minimum(np.maximum(tried, least), most)
        after = errors(tried)
        loss = _loss(after)
        if np.isfinite(loss) and loss < best:
            done = best - loss < 1e-12 * best
            values, now, best, damping = tried, after, loss, damping / 4
            if done:
                break
            bend, pull = _around(errors, values, now)
        else:
            damping *= 5
            if damping > _MOST_DAMPED:
                break
    return Found(values, best)


def _loss(errors: Floats) -> float:
    return float((2 * _OUTLIER**2 * (np.sqrt(1 + (errors / _OUTLIER) ** 2) - 1)).sum())


def _around(
    errors: Callable[[Floats], Floats], values: Floats, now: Floats
) -> tuple[Floats, Floats]:
    """How the loss bends around these values, and where it pulls them."""
    weight, slopes = 1 / np.sqrt(1 + (now / _OUTLIER) ** 2), _slopes(errors, values, now)
    return slopes.T @ (weight[:, None] * slopes), slopes.T @ (weight * now)


def _slopes(errors: Callable[[Floats], Floats], values: Floats, now: Floats) -> Floats:
    columns = []
    for place in range(len(values)):
        nudged = values.copy()
        nudged[place] += _NUDGE
        columns.append((errors(nudged) - now) / _NUDGE)
    return np.stack(columns, axis=1)
