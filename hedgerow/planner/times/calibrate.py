"""Fits time parameters to measured points: in log space, with a loss that forgives outliers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...core.errors import InputError
from .calibration import Point, Residuals
from .device_defaults import default_parameters
from .fit_columns import CACHE, Columns
from .robust_fit import robust_fit
from .time_parameters import FULL_OVERLAP, LinkCost, TimeParameters

Floats = NDArray[np.float64]
_OVERLAPS, _SCALES = (1.2, 2.5, 10.0), (1.0, 0.1, 10.0)  # where fits start; the best one counts
_START = {
    "launch": 0.02,
    "key": 1e-5,
    "hbm": 1e9,
    "host_read": 2e7,
    "host_write": 2e7,
    "ddr": 1e7,
    "table": 0.02,
    "id": 1e-6,
    "id_byte": 1e-9,
    "host": 0.1,
    "host_table": 0.1,
    "look": 0.1,
    "move": 1.0,
    "alone": 1e-7,
    "alone_id": 1e-4,
    "pool": 0.1,
    "crowded": 1e-5,
    "host_key": 1e-4,
    "use": 1e-6,
    "host_speed": 1e7,
}
_SPEEDS = ("hbm", "ddr", "host_read", "host_write", "host_speed")
_COLD, _CACHES = 1e-7, (1e6, 1e7, 1e8)  # milliseconds a byte, and bytes, where fits start
_LARGEST_CACHE = 2.0**30
_AT_ONCE = 1e10  # bytes a millisecond: such rows cost as good as nothing
_WORTH_IT = 0.7  # of the loss: what a cache of the host explains
_MOST = 40.0  # of a logarithm: a speed of which the points tell nothing stays a number
_LEAST = {"launch": 1e-7, "table": 1e-7, "key": 1e-9, "id": 1e-9, "id_byte": 1e-13}
_LEAST |= {"alone": 1e-12, "alone_id": 1e-9, "pool": 1e-7, "cold": 1e-13, "cache": 1e4}
_LEAST |= {"host": 1e-7, "host_table": 1e-7, "look": 1e-7, "move": 1e-7}  # as good as nothing
_LEAST |= {"host_key": 1e-9, "use": 1e-9, "crowded": 1e-9}


@dataclass(frozen=True, slots=True)
class Fit:
    """Parameters, and how far measured points lie from them."""

    parameters: TimeParameters
    residuals: Residuals


def fit(points: Sequence[Point], device_name: str = "cpu") -> Fit:
    """The parameters that explain points of steps and links best; all others are left aside.

    Links that were not measured are those published for a device of that name.

    >>> def at(n: int, size: int) -> Point:
    ...     ms = 0.5 + n * (1e-4 + size / 1e7)
    ...     return Point(kind="step", mode="CPU", keys=n, read_bytes=size, write_bytes=0, ms=ms)
    >>> known = [at(n, size) for n in (10, 1000, 10**5) for size in (64, 4096)]
    >>> round(fit(known).parameters.modes["CPU"].key_ms, 6)
    0.0001
    """
    steps = [point for point in points if point.kind == "step"]
    if not steps:
        raise InputError("no points of steps; a fit needs measurements of at least one mode.")
    costs, predicted = _fit_steps(steps, _fastest(points, device_name))
    links, measured = dict(default_parameters(device_name)[0].links), [p.ms for p in steps]
    for name in dict.fromkeys(point.mode for point in points if point.kind == "link"):
        exchanges = [point for point in points if (point.kind, point.mode) == ("link", name)]
        links[name], times = _fit_link(exchanges)
        predicted, measured = [*predicted, *times], [*measured, *(p.ms for p in exchanges)]
    parameters = TimeParameters(
        modes=costs.modes,
        memories={**_copies(points), **costs.memories},
        links=links,
        overlap=costs.overlap,
        promotion=_promotion(points),
    )
    return Fit(parameters, residuals(predicted, measured))


def residuals(predicted: Sequence[float], measured: Sequence[float]) -> Residuals:
    """Relative errors.

    >>> residuals([1.0, 1.5], [1.0, 1.0])
    Residuals(median=0.25, p90=0.45, worst=0.5)
    """
    off = np.abs(np.asarray(predicted) / np.asarray(measured) - 1)
    return Residuals(*(float(np.quantile(off, share)) for share in (0.5, 0.9, 1.0)))


def _fit_steps(
    steps: Sequence[Point], fastest: dict[str, float]
) -> tuple[TimeParameters, list[float]]:
    columns, names = Columns(steps), Columns(steps).names()
    overlaps = _OVERLAPS if columns.has_overlap else (FULL_OVERLAP,)
    starts = [
        {name: _start(name, overlap, scale) for name in names}
        for overlap in overlaps
        for scale in _SCALES
    ]
    found = _best(columns, starts, fastest)
    more = [name for name in columns.names(cold=True) if name not in names]
    if more and len(steps) > 2 * (len(names) + len(more)):
        # From there on: other starts end where a cache is endless, or there is none.
        slower = dict.fromkeys(more, _COLD)
        starts = [{**found.values, **slower, CACHE: bytes_} for bytes_ in _CACHES]
        with_cold = _best(columns, starts, fastest)
        # Two numbers more always explain something more, and noise, too.
        if with_cold.loss < _WORTH_IT * found.loss:
            found = with_cold
    return columns.parameters(found.values), columns.predicted(found.values).tolist()


@dataclass(frozen=True, slots=True)
class _Best:
    """The values with the least loss, by name."""

    loss: float
    values: dict[str, float]


def _best(columns: Columns, starts: Sequence[dict[str, float]], fastest: dict[str, float]) -> _Best:
    """Of fits from several starts."""
    names = tuple(starts[0])
    least = np.log([_LEAST.get(name.split(" ")[0], 1e-3) for name in names])
    most = np.array([fastest.get(name, fastest.get(name.split(" ")[0], _MOST)) for name in names])
    errors = columns.errors(names)
    found = [robust_fit(errors, np.log([*start.values()]), least, most) for start in starts]
    best = min(found, key=lambda one: one.loss)
    return _Best(best.loss, dict(zip(names, np.exp(best.values).tolist(), strict=True)))


def _start(name: str, overlap: float, scale: float) -> float:
    """Costs by some scale; speeds are known better."""
    kind = name.split(" ")[0]
    if kind in ("overlap", "ahead"):
        return overlap - 1
    return _START[kind] if kind in _SPEEDS else scale * _START[kind]


def _copies(points: Sequence[Point]) -> dict[str, float]:
    """Speeds of copies between host and device: no row of a mode that was not measured is faster.

    The steps of a mode that was measured have their own.
    """
    named = {"host_read": "h2d", "host_write": "d2h"}
    found = {}
    for name, direction in named.items():
        speeds = [p.read_bytes / p.ms for p in points if (p.kind, p.mode) == ("copy", direction)]
        if speeds:
            found[name] = max(speeds)
    return found


def _fastest(points: Sequence[Point], device_name: str) -> dict[str, float]:
    """Logarithms of what no machine exceeds: speeds of plain copies, or as they are published.

    Of all parameters of a kind, or of one.

    Steps that are bound by launches say little of a speed, and a fit may take any.
    """
    copies = [p for p in points if (p.kind, p.mode) == ("copy", "hbm")]
    hbm = max(((p.read_bytes + p.write_bytes) / p.ms for p in copies), default=None)
    hbm = default_parameters(device_name)[0].memories.get("hbm") if hbm is None else hbm
    host = sum(_copies(points).values())  # both ways at the same time
    # Only rows of caches cross with all their bytes. Others stay on the host, and their vectors,
    # which cross, are counted by id.
    known = (("hbm", hbm), ("host_speed CACHING", host), ("host_speed", _AT_ONCE))
    return {name: math.log(x) for name, x in (*known, ("cache", _LARGEST_CACHE)) if x}


def _promotion(points: Sequence[Point]) -> float | None:
    """How near HYBRID's fast rows came to the hottest: of what those serve more than a split."""
    shares = [p.seen.promoted for p in points if p.kind == "hits"]
    return min(1.0, max(0.0, float(np.median(shares)))) if shares else None


def _fit_link(points: Sequence[Point]) -> tuple[LinkCost, list[float]]:
    sent = np.array([point.keys * point.read_bytes for point in points], np.float64)
    measured = np.array([point.ms for point in points], np.float64)

    def predicted(logs: Floats) -> Floats:
        return np.exp(logs[0]) + sent / np.exp(logs[1])

    found = robust_fit(
        lambda logs: np.log(predicted(logs) / measured),
        np.log([measured.min(), 1e6]),
        np.log([_LEAST["launch"], 1e-3]),
    )
    latency, speed = np.exp(found.values).tolist()
    return LinkCost(latency, speed), predicted(found.values).tolist()
