"""Fits the parameters of the time model to measured steps, robust to outliers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...core.errors import InputError
from .calibration import Point, Residuals, default_parameters
from .step_time import (
    CPU,
    FULL_OVERLAP,
    HostCost,
    HostIds,
    LinkCost,
    ModeCost,
    RowMoves,
    Speeds,
    Step,
    TimeParameters,
    host_ids,
    row_moves,
    steps_ms,
)

Floats = NDArray[np.float64]
_FLOAT_BYTES = 4.0
_ON_DEVICE = ("HBM_ONLY", "CACHING", "HYBRID")
"""Modes that run the same kernels on rows in HBM, so that a key costs the same in all of them."""
_SHARED = ("key", "id", "id_byte", "ahead")
CACHE = "cache host"
"""One parameter for all modes, because they share the host processor."""


class _Mode:
    """The measured steps of one mode as columns, and the parameters that they determine."""

    def __init__(self, name: str, steps: Sequence[Point]) -> None:
        self.name = name
        self.steps = Step(
            keys=_column(p.keys for p in steps),
            ids=_column(p.ids or p.keys for p in steps),
            read=_column(p.read_bytes for p in steps),
            write=_column(p.write_bytes for p in steps),
            id_bytes=_column(_FLOAT_BYTES * p.dim for p in steps),
            far=_column(p.host_share for p in steps),
            tables=_column(p.tables for p in steps),
            moving=_moving(steps),
            handled=_column(_host_ids(p).handled for p in steps),
            alone=_column(_host_ids(p).alone for p in steps),
            pools=_column(_host_ids(p).pools for p in steps),
        )
        # Steps of several tables use the mode's own path, which determines more parameters.
        self.together = bool((self.steps.tables > 1).any())
        self.repeats = bool((self.steps.ids > self.steps.keys).any())
        self.two_tiers = bool((self.steps.far > 0).any())
        self.one_share = bool((self.steps.far == self.steps.far[0]).all())
        self._near = self.together and name in _ON_DEVICE

    def names(self, cold: bool) -> list[str]:
        """Returns the names of the mode's parameters.

        With `cold` includes those of vectors that do not fit the host's caches.
        """
        found = ["launch", "key"]
        if self.together:
            found += ["table", "ahead"] if self._near else ["table"]
        if self.repeats:
            found += ["id", "id_byte"]
        if self.together and self.two_tiers:
            found += ["host_speed"]
            found += [] if self.one_share else ["host_key", "host", "host_table"]
            moving = self.steps.moving
            found += ["move"] if bool((moving.moves > 0).any()) else []
            found += ["look"] if bool((moving.looks > moving.moves).any()) else []
            found += ["crowded"] if bool((moving.crowded > 0).any()) else []
        if self.together and bool((self.steps.alone > 0).any() and (self.steps.pools > 0).any()):
            found += ["alone_id", "alone", "pool"]
        if self.together and self.name == "HYBRID":
            found += ["use"]  # per key, in addition: uses are counted
        names = [self._named(kind) for kind in found]
        if cold and (self.together or self.name == CPU) and bool((self.steps.handled > 0).any()):
            names += [self._named("cold"), CACHE]
        return names

    def _named(self, kind: str) -> str:
        return f"{kind} device" if self._near and kind in _SHARED else f"{kind} {self.name}"

    def cost(self, values: dict[str, float]) -> ModeCost:
        def of(kind: str, usual: float = 0.0) -> float:
            return values.get(self._named(kind), usual)

        return ModeCost(
            launch_ms=of("launch"),
            key_ms=of("key") + of("use"),
            table_ms=of("table") if self.together else None,
            id_ms=of("id"),
            id_byte_ms=of("id_byte"),
            ahead=min(FULL_OVERLAP, 1 + of("ahead")),
            host=HostCost(
                host_ms=of("host"),
                host_table_ms=of("host_table"),
                host_key_ms=of("host_key"),
                host_bytes_per_ms=values.get(f"host_speed {self.name}"),
                look_ms=of("look"),
                move_ms=of("move"),
                alone_id_ms=of("alone_id"),
                alone_byte_ms=of("alone"),
                pool_ms=of("pool"),
                crowded_key_ms=of("crowded"),
                cold_byte_ms=of("cold"),
                cache_bytes=values.get(CACHE, 1.0) if of("cold") else 1.0,
            ),
        )


class MeasuredColumns:
    """Measured steps grouped by mode, and the model's time of each."""

    def __init__(self, steps: Sequence[Point]) -> None:
        self._modes: list[_Mode] = []
        self._at: list[NDArray[np.int64]] = []
        for name in dict.fromkeys(point.mode for point in steps):
            at = [place for place, point in enumerate(steps) if point.mode == name]
            self._modes.append(_Mode(name, [steps[place] for place in at]))
            self._at.append(np.array(at, np.int64))
        self._measured = _column(point.ms for point in steps)
        self._plain_tiers = any(m.two_tiers and not m.together for m in self._modes)
        # Two tiers overlap, or launches overlap with the work they launch.
        self.has_overlap = self._plain_tiers or any(m.together for m in self._modes)

    def names(self, *, cold: bool = False) -> tuple[str, ...]:
        """Returns the names of the parameters that these points determine.

        With `cold` includes those of vectors that do not fit the host's caches, which not all
        points show.
        """
        found = list(dict.fromkeys(name for mode in self._modes for name in mode.names(cold)))
        names = {mode.name for mode in self._modes}
        found += ["ddr"] if CPU in names else []
        found += ["hbm"] if names - {CPU} else []
        found += ["host_read", "host_write"] if self._plain_tiers else []
        return (*found, *(["overlap"] if self._plain_tiers else []))

    def errors(self, names: tuple[str, ...]) -> Callable[[Floats], Floats]:
        """Returns a function from log parameters to ln(predicted / measured) of all points."""

        def of(logs: Floats) -> Floats:
            values = dict(zip(names, np.exp(logs).tolist(), strict=True))
            return np.log(self.predicted(values) / self._measured)

        return of

    def predicted(self, values: dict[str, float]) -> Floats:
        """Returns the predicted milliseconds of all points, in order."""
        found = np.empty(len(self._measured))
        for mode, at in zip(self._modes, self._at, strict=True):
            speeds = Speeds(
                near=values["ddr" if mode.name == CPU else "hbm"],
                host_read=values.get("host_read", 1.0),
                host_write=values.get("host_write", 1.0),
                overlap=_overlap(values),
            )
            found[at] = steps_ms(mode.steps, mode.cost(values), speeds)
        return found

    def parameters(self, values: dict[str, float]) -> TimeParameters:
        """Returns the parameters in the form of a calibration."""
        return TimeParameters(
            modes={mode.name: mode.cost(values) for mode in self._modes},
            memories={
                name: values[name]
                for name in ("hbm", "host_read", "host_write", "ddr")
                if name in values
            },
            overlap=_overlap(values),
        )


def _moving(steps: Sequence[Point]) -> RowMoves[Floats]:
    """Returns the row moves of each step. Measured steps know how many rows moved; plans do not."""
    found = [
        row_moves(
            *(p.mode, p.host_share * p.keys, float(p.ids or p.keys), float(p.tables)),
            *(float(p.fast_rows or math.inf), p.seen.moved_rows),
        )
        for p in steps
    ]
    return RowMoves(
        _column(one.looks for one in found),
        _column(one.moves for one in found),
        _column(one.crowded for one in found),
    )


def _host_ids(point: Point) -> HostIds:
    ids, missed = float(point.ids or point.keys), point.host_share * point.keys
    return host_ids(point.mode, ids, missed, float(point.tables))


def _overlap(values: dict[str, float]) -> float:
    return min(FULL_OVERLAP, 1 + values["overlap"]) if "overlap" in values else FULL_OVERLAP


def _column(values: Iterable[float]) -> Floats:
    return np.fromiter(values, np.float64)


_OUTLIER = 0.1  # larger errors count linearly, smaller ones by their square
_ROUNDS, _NUDGE = 200, 1e-6
_MOST_DAMPED = 1e12


@dataclass(frozen=True, slots=True)
class FittedValues:
    """The values with the least loss."""

    values: Floats
    loss: float


def robust_fit(
    errors: Callable[[Floats], Floats],
    start: Floats,
    least: Floats,
    most: Floats | float = float("inf"),
) -> FittedValues:
    """Returns the values between `least` and `most` that minimize the errors, robustly.

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
        # Values at a bound that the gradient pulls beyond it stay fixed. The others step without
        # them.
        free = ~((values <= least) & (pull > 0) | (values >= most) & (pull < 0))
        own = bend[np.ix_(free, free)]
        damped = own + damping * np.diag(np.maximum(np.diag(own), 1e-12))
        tried = values.copy()
        # With fewer points than values many steps are equally good. Take the shortest.
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
    return FittedValues(values, best)


def _loss(errors: Floats) -> float:
    return float((2 * _OUTLIER**2 * (np.sqrt(1 + (errors / _OUTLIER) ** 2) - 1)).sum())


def _around(
    errors: Callable[[Floats], Floats], values: Floats, now: Floats
) -> tuple[Floats, Floats]:
    """Returns the curvature and the gradient of the loss at these values."""
    weight, slopes = 1 / np.sqrt(1 + (now / _OUTLIER) ** 2), _slopes(errors, values, now)
    return slopes.T @ (weight[:, None] * slopes), slopes.T @ (weight * now)


def _slopes(errors: Callable[[Floats], Floats], values: Floats, now: Floats) -> Floats:
    columns = []
    for place in range(len(values)):
        nudged = values.copy()
        nudged[place] += _NUDGE
        columns.append((errors(nudged) - now) / _NUDGE)
    return np.stack(columns, axis=1)


_OVERLAPS, _SCALES = (1.2, 2.5, 10.0), (1.0, 0.1, 10.0)  # where fits start; the best result is used
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
_COLD, _CACHES = 1e-7, (1e6, 1e7, 1e8)  # milliseconds per byte, and bytes, where fits start
_LARGEST_CACHE = 2.0**30
_AT_ONCE = 1e10  # bytes per millisecond: the rows cost almost nothing
_WORTH_IT = 0.7  # largest share of the loss that may remain for host caches to be modeled
_MOST = 40.0  # limit of a logarithm: a speed that no point determines stays finite
_LEAST = {"launch": 1e-7, "table": 1e-7, "key": 1e-9, "id": 1e-9, "id_byte": 1e-13}
_LEAST |= {"alone": 1e-12, "alone_id": 1e-9, "pool": 1e-7, "cold": 1e-13, "cache": 1e4}
_LEAST |= {"host": 1e-7, "host_table": 1e-7, "look": 1e-7, "move": 1e-7}  # almost nothing
_LEAST |= {"host_key": 1e-9, "use": 1e-9, "crowded": 1e-9}


@dataclass(frozen=True, slots=True)
class CalibrationFit:
    """Fitted parameters, and the relative errors of the measured points."""

    parameters: TimeParameters
    residuals: Residuals


def fit(points: Sequence[Point], device_name: str = "cpu") -> CalibrationFit:
    """Returns the parameters that fit the points of steps and links best. Other points are ignored.

    Links without measurements take the published values of the device.

    >>> def at(n: int, size: int) -> Point:
    ...     ms = 0.5 + n * (1e-4 + size / 1e7)
    ...     return Point(kind="step", mode="CPU", keys=n, read_bytes=size, write_bytes=0, ms=ms)
    >>> known = [at(n, size) for n in (10, 1000, 10**5) for size in (64, 4096)]
    >>> round(fit(known).parameters.modes["CPU"].key_ms, 6)
    0.0001
    """
    steps = [point for point in points if point.kind == "step"]
    if not steps:
        raise InputError('no points of kind "step"; a fit needs measurements of some mode.')
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
    return CalibrationFit(parameters, residuals(predicted, measured))


def residuals(predicted: Sequence[float], measured: Sequence[float]) -> Residuals:
    """Returns the median, 90th percentile and maximum of the relative errors.

    >>> residuals([1.0, 1.5], [1.0, 1.0])
    Residuals(median=0.25, p90=0.45, worst=0.5)
    """
    off = np.abs(np.asarray(predicted) / np.asarray(measured) - 1)
    return Residuals(*(float(np.quantile(off, share)) for share in (0.5, 0.9, 1.0)))


def _fit_steps(
    steps: Sequence[Point], fastest: dict[str, float]
) -> tuple[TimeParameters, list[float]]:
    columns, names = MeasuredColumns(steps), MeasuredColumns(steps).names()
    overlaps = _OVERLAPS if columns.has_overlap else (FULL_OVERLAP,)
    starts = [
        {name: _start(name, overlap, scale) for name in names}
        for overlap in overlaps
        for scale in _SCALES
    ]
    found = _best(columns, starts, fastest)
    more = [name for name in columns.names(cold=True) if name not in names]
    if more and len(steps) > 2 * (len(names) + len(more)):
        # Start from the previous result: other starts end with an unlimited cache or none.
        slower = dict.fromkeys(more, _COLD)
        starts = [{**found.values, **slower, CACHE: bytes_} for bytes_ in _CACHES]
        with_cold = _best(columns, starts, fastest)
        # Two more parameters always reduce the loss, if only by fitting noise.
        if with_cold.loss < _WORTH_IT * found.loss:
            found = with_cold
    return columns.parameters(found.values), columns.predicted(found.values).tolist()


@dataclass(frozen=True, slots=True)
class _Best:
    """The values with the least loss, by name."""

    loss: float
    values: dict[str, float]


def _best(
    columns: MeasuredColumns, starts: Sequence[dict[str, float]], fastest: dict[str, float]
) -> _Best:
    """Returns the best of the fits from several starts."""
    names = tuple(starts[0])
    least = np.log([_LEAST.get(name.split(" ")[0], 1e-3) for name in names])
    most = np.array([fastest.get(name, fastest.get(name.split(" ")[0], _MOST)) for name in names])
    errors = columns.errors(names)
    found = [robust_fit(errors, np.log([*start.values()]), least, most) for start in starts]
    best = min(found, key=lambda one: one.loss)
    return _Best(best.loss, dict(zip(names, np.exp(best.values).tolist(), strict=True)))


def _start(name: str, overlap: float, scale: float) -> float:
    """Returns the start value of a parameter. Costs are scaled; speeds are known better."""
    kind = name.split(" ")[0]
    if kind in ("overlap", "ahead"):
        return overlap - 1
    return _START[kind] if kind in _SPEEDS else scale * _START[kind]


def _copies(points: Sequence[Point]) -> dict[str, float]:
    """Returns the speeds of copies between host and device, for modes without measurements.

    Modes with measured steps have their own speeds.
    """
    named = {"host_read": "h2d", "host_write": "d2h"}
    found = {}
    for name, direction in named.items():
        speeds = [p.read_bytes / p.ms for p in points if (p.kind, p.mode) == ("copy", direction)]
        if speeds:
            found[name] = max(speeds)
    return found


def _fastest(points: Sequence[Point], device_name: str) -> dict[str, float]:
    """Returns the logarithms of speeds that no machine exceeds, by parameter or kind of parameter.

    They come from plain copies or published figures. Steps that are bound by launches say little
    about a speed, so the fit needs these limits.
    """
    copies = [p for p in points if (p.kind, p.mode) == ("copy", "hbm")]
    hbm = max(((p.read_bytes + p.write_bytes) / p.ms for p in copies), default=None)
    hbm = default_parameters(device_name)[0].memories.get("hbm") if hbm is None else hbm
    host = sum(_copies(points).values())  # both directions at the same time
    # Only rows of caches cross with all their bytes. Other rows stay on the host; their vectors
    # cross and are counted by id.
    known = (("hbm", hbm), ("host_speed CACHING", host), ("host_speed", _AT_ONCE))
    return {name: math.log(x) for name, x in (*known, ("cache", _LARGEST_CACHE)) if x}


def _promotion(points: Sequence[Point]) -> float | None:
    """Returns how close HYBRID's fast rows come to the most frequent ones (0 to 1), or None."""
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
