"""Measured steps as columns, with the parameters that they say something of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from .calibration import Point
from .few_ids import HostIds, host_ids
from .mode_cost import HostCost, ModeCost
from .row_moves import RowMoves, row_moves
from .step_time import Speeds, Step, steps_ms
from .time_parameters import CPU, FULL_OVERLAP, TimeParameters

Floats = NDArray[np.float64]
_FLOAT_BYTES = 4.0
_ON_DEVICE = ("HBM_ONLY", "CACHING", "HYBRID")
"""Modes that run the same kernels on rows of the device: a key costs the same in all of them."""
_SHARED = ("key", "id", "id_byte", "ahead")
CACHE = "cache host"
"""One for all modes: they share the processor."""


class _Mode:
    """Steps of one mode."""

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
        # Steps of several tables are of a mode's own path, of which more can be told.
        self.together = bool((self.steps.tables > 1).any())
        self.repeats = bool((self.steps.ids > self.steps.keys).any())
        self.two_tiers = bool((self.steps.far > 0).any())
        self.one_share = bool((self.steps.far == self.steps.far[0]).all())
        self._near = self.together and name in _ON_DEVICE

    def names(self, cold: bool) -> list[str]:
        """Of its parameters; with those of vectors that do not fit a cache."""
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
            found += ["use"]  # of a key, beside what others pay: uses are counted
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


class Columns:
    """Points of steps by mode, and the model's time of each."""

    def __init__(self, steps: Sequence[Point]) -> None:
        self._modes: list[_Mode] = []
        self._at: list[NDArray[np.int64]] = []
        for name in dict.fromkeys(point.mode for point in steps):
            at = [place for place, point in enumerate(steps) if point.mode == name]
            self._modes.append(_Mode(name, [steps[place] for place in at]))
            self._at.append(np.array(at, np.int64))
        self._measured = _column(point.ms for point in steps)
        self._plain_tiers = any(m.two_tiers and not m.together for m in self._modes)
        # Of two tiers, or of launches with what they launch.
        self.has_overlap = self._plain_tiers or any(m.together for m in self._modes)

    def names(self, *, cold: bool = False) -> tuple[str, ...]:
        """Of the parameters that these points say something of.

        With `cold` also of vectors that do not fit the host's caches, which not all points show.
        """
        found = list(dict.fromkeys(name for mode in self._modes for name in mode.names(cold)))
        names = {mode.name for mode in self._modes}
        found += ["ddr"] if CPU in names else []
        found += ["hbm"] if names - {CPU} else []
        found += ["host_read", "host_write"] if self._plain_tiers else []
        return (*found, *(["overlap"] if self._plain_tiers else []))

    def errors(self, names: tuple[str, ...]) -> Callable[[Floats], Floats]:
        """ln(predicted / measured) of all points, as a function of the parameters' logarithms."""

        def of(logs: Floats) -> Floats:
            values = dict(zip(names, np.exp(logs).tolist(), strict=True))
            return np.log(self.predicted(values) / self._measured)

        return of

    def predicted(self, values: dict[str, float]) -> Floats:
        """Milliseconds of all points, in their order."""
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
        """As a calibration keeps them."""
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
    """Of a plan's number of rows that come nothing is known; of a step that was measured it is."""
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
