"""Fits time parameters to measured points: in log space, with a loss that forgives outliers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...core.errors import InputError
from .calibration import Point, Residuals
from .device_defaults import default_parameters
from .robust_fit import robust_fit
from .time_parameters import CPU, FULL_OVERLAP, LinkCost, ModeCost, TimeParameters

Floats = NDArray[np.float64]
_OVERLAPS = (1.2, 2.5, 10.0)  # where fits start; the best one counts
_START = {"launch": 0.02, "key": 1e-5, "hbm": 1e9, "host_read": 2e7, "host_write": 2e7, "ddr": 1e7}
_LEAST = {"launch": 1e-7, "key": 1e-9}  # of milliseconds: as good as nothing


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
    costs, predicted = _fit_steps(steps)
    links, measured = dict(default_parameters(device_name)[0].links), [p.ms for p in steps]
    for name in dict.fromkeys(point.mode for point in points if point.kind == "link"):
        exchanges = [point for point in points if (point.kind, point.mode) == ("link", name)]
        links[name], times = _fit_link(exchanges)
        predicted, measured = [*predicted, *times], [*measured, *(p.ms for p in exchanges)]
    parameters = TimeParameters(
        modes=costs.modes, memories=costs.memories, links=links, overlap=costs.overlap
    )
    return Fit(parameters, residuals(predicted, measured))


def residuals(predicted: Sequence[float], measured: Sequence[float]) -> Residuals:
    """Relative errors.

    >>> residuals([1.0, 1.5], [1.0, 1.0])
    Residuals(median=0.25, p90=0.45, worst=0.5)
    """
    off = np.abs(np.asarray(predicted) / np.asarray(measured) - 1)
    return Residuals(*(float(np.quantile(off, share)) for share in (0.5, 0.9, 1.0)))


def _fit_steps(steps: Sequence[Point]) -> tuple[TimeParameters, list[float]]:
    columns = _Columns(steps)
    best: tuple[float, Floats, tuple[str, ...]] | None = None
    for overlap in _OVERLAPS if columns.two_tiers else (FULL_OVERLAP,):
        names = columns.names()
        start = np.log([_start(name, overlap) for name in names])
        least = np.log([_LEAST.get(name.split(" ")[0], 1e-3) for name in names])
        found = robust_fit(columns.errors(names), start, least)
        if best is None or found.loss < best[0]:
            best = found.loss, found.values, names
    if best is None:
        raise InputError("no start for a fit.")
    values = dict(zip(best[2], np.exp(best[1]).tolist(), strict=True))
    return columns.parameters(values), columns.predicted(values).tolist()


def _start(name: str, overlap: float) -> float:
    return overlap - 1 if name == "overlap" else _START[name.split(" ")[0]]


class _Columns:
    """Points of steps as columns, and the model's time of each."""

    def __init__(self, steps: Sequence[Point]) -> None:
        self._modes = [point.mode for point in steps]
        self._keys = np.array([point.keys for point in steps], np.float64)
        self._read = np.array([point.read_bytes for point in steps], np.float64)
        self._write = np.array([point.write_bytes for point in steps], np.float64)
        self._far = np.array([point.host_share for point in steps], np.float64)
        self._measured = np.array([point.ms for point in steps], np.float64)
        self._cpu = np.array([mode == CPU for mode in self._modes])
        self.two_tiers = bool((self._far > 0).any())

    def names(self) -> tuple[str, ...]:
        """Of the parameters that these points say something of."""
        modes = dict.fromkeys(self._modes)
        found = [f"{kind} {mode}" for mode in modes for kind in ("launch", "key")]
        if self._cpu.any():
            found.append("ddr")
        if not self._cpu.all():
            found.append("hbm")
        if self.two_tiers:
            found += ["host_read", "host_write", "overlap"]
        return tuple(found)

    def errors(self, names: tuple[str, ...]) -> Callable[[Floats], Floats]:
        """ln(predicted / measured) of all points, as a function of the parameters' logarithms."""

        def of(logs: Floats) -> Floats:
            values = dict(zip(names, np.exp(logs).tolist(), strict=True))
            return np.log(self.predicted(values) / self._measured)

        return of

    def predicted(self, values: dict[str, float]) -> Floats:
        launch = np.array([values[f"launch {mode}"] for mode in self._modes])
        key = np.array([values[f"key {mode}"] for mode in self._modes])
        every = self._read + self._write
        near = np.where(
            self._cpu, every / values.get("ddr", 1.0), (1 - self._far) * every / _hbm(values)
        )
        near = self._keys * (key + near)
        if not self.two_tiers:
            return launch + near
        far = self._read / values["host_read"] + self._write / values["host_write"]
        far = self._keys * self._far * far
        most, least = np.maximum(near, far), np.minimum(near, far)
        overlap = _overlap(values)
        return launch + most * (1 + (least / most) ** overlap) ** (1 / overlap)

    def parameters(self, values: dict[str, float]) -> TimeParameters:
        modes = dict.fromkeys(self._modes)
        return TimeParameters(
            modes={m: ModeCost(values[f"launch {m}"], values[f"key {m}"]) for m in modes},
            memories={
                name: values[name]
                for name in ("hbm", "host_read", "host_write", "ddr")
                if name in values
            },
            overlap=_overlap(values) if self.two_tiers else FULL_OVERLAP,
        )


def _hbm(values: dict[str, float]) -> float:
    return values.get("hbm", 1.0)


def _overlap(values: dict[str, float]) -> float:
    return min(FULL_OVERLAP, 1 + values["overlap"])


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
