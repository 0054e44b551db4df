"""Measures how long steps of modules take on a device, and fits a calibration to the points.

On the CPU the table of an `EmbeddingBags` is filled with random ids. Training steps use parts of it
in turn, so that rows are read from memory and not from a cache.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.hashing import mix64
from ..planner.times.calibrate import fit
from ..planner.times.calibration import Calibration, Point
from ..planner.times.step_time import CPU
from ..tables.config import Segment, TableConfig
from ..tables.initializers import Zeros
from ..tables.multi.host_tables import HostTables
from ..tables.optimizers import Adagrad
from ..tables.store import TableKeys
from .machine import cpu_name, free_bytes
from .module_steps import ModuleSteps

DIMS = (16, 32, 64, 128, 256)
STEP_KEYS = (2**8, 2**10, 2**12, 2**14, 2**16, 2**18, 2**20)
"""Numbers of keys in a step. Below 4,096 keys the time is mostly the cost of a call."""
_WARM_UPS, _REPEATS = 3, 10
_FEWEST = 3  # least repeats of a point; a point with time for fewer is left out
_TABLE_BYTES = 2**30  # of rows and optimizer state, if `seconds` is 60 or more
_FILL_ROWS = 2**16
_MOST_SECONDS = 3600

Progress = Callable[[str, int, int], None]  # text, units done, units in total


@dataclass(frozen=True, slots=True)
class DeviceMeasurement:
    """Measured points, and the device, driver and library that they were measured with."""

    points: tuple[Point, ...]
    device: str
    memory_bytes: int
    driver: str
    library: str


def measure(device: str, seconds: float, progress: Progress) -> DeviceMeasurement:
    """Sweeps dims, steps and, on a GPU, modes for about `seconds` seconds."""
    if not 0 < seconds <= _MOST_SECONDS:
        raise InputError(f"seconds is {seconds!r}; give a number above 0, up to {_MOST_SECONDS}.")
    if _kind(device) == "cuda":
        return _measure_gpu(device, seconds, progress)
    points = [*_copies(), *_sweep(seconds, progress)]
    room = free_bytes()
    return DeviceMeasurement(
        points=tuple(points),
        device=cpu_name(),
        memory_bytes=0 if room is None else room,
        driver=f"torch {torch.__version__}, {torch.get_num_threads()} threads",
        library=_library(),
    )


def _measure_gpu(device: str, seconds: float, progress: Progress) -> DeviceMeasurement:
    from .gpu import card, points_of  # needs Triton

    where = card(device)
    with torch.cuda.device(where):
        points = tuple(points_of(where, seconds, progress))
    return DeviceMeasurement(
        points=points,
        device=torch.cuda.get_device_name(where),
        memory_bytes=torch.cuda.get_device_properties(where).total_memory,
        driver=f"torch {torch.__version__}, CUDA {torch.version.cuda}",
        library=_library(),
    )


def _kind(device: str) -> str:
    """Returns "cpu" or "cuda"; raises for other devices."""
    kind, colon, number = device.partition(":")
    if device == "cpu" or (kind == "cuda" and (number.isdecimal() or not colon)):
        return kind
    raise InputError(f"device is {device!r}; calibrate measures cpu, cuda or cuda:N.")


def _library() -> str:
    try:
        return metadata.version("hedgerow")
    except metadata.PackageNotFoundError:  # run from the source tree
        return "not installed"


def calibration_of(measured: DeviceMeasurement) -> Calibration:
    """Returns a calibration that is fitted to a measurement."""
    fitted = fit(measured.points, measured.device)
    return Calibration(
        device=measured.device,
        memory_bytes=measured.memory_bytes,
        driver=measured.driver,
        library=measured.library,
        parameters=fitted.parameters,
        residuals=fitted.residuals,
        points=measured.points,
    )


def refitted(path: Path | str) -> Calibration:
    """Returns a calibration that is fitted anew to the points of an earlier file."""
    known = Calibration.load(path)
    fitted = fit(known.points, known.device)
    return replace(known, parameters=fitted.parameters, residuals=fitted.residuals)


def _sweep(seconds: float, progress: Progress) -> Iterator[Point]:
    """Yields the points of all dims; each dim has the same share of the time, few keys first."""
    total, end = len(DIMS) * len(STEP_KEYS), time.perf_counter() + seconds
    for place, dim in enumerate(DIMS):
        progress(f"dim {dim}: filling", place * len(STEP_KEYS), total)
        now = time.perf_counter()
        deadline = now + max(0.0, end - now) / (len(DIMS) - place)
        with_rows = _Steps(dim, int(_TABLE_BYTES * min(1.0, seconds / 60)))
        for number, keys in enumerate(STEP_KEYS):
            progress(f"dim {dim}: {keys:,} keys", place * len(STEP_KEYS) + number, total)
            if 2 * keys <= with_rows.rows:
                left = len(STEP_KEYS) - number
                yield from with_rows.points(keys, (deadline - time.perf_counter()) / left)
        with_rows.close()
    progress("done", total, total)


class _Steps:
    """A module with a filled table, and steps on parts of it in turn; single-owner."""

    def __init__(self, dim: int, table_bytes: int) -> None:
        self._dim = dim
        self.rows = max(2 * STEP_KEYS[0], min(2 * STEP_KEYS[-1], table_bytes // (8 * dim)))
        rule = Adagrad(lr=0.01)
        config = TableConfig("calibrate", (Segment(dim, Zeros(), rule),))
        self._store = HostTables({config.name: config})
        self._module = ModuleSteps(self._store, rule)
        order = torch.randperm(self.rows, generator=torch.Generator().manual_seed(0))
        self._ids = mix64(order)
        self._next = 0
        for part in self._ids.split(_FILL_ROWS):
            self._store.assign(TableKeys.of_one(part), torch.ones(len(part), dim))

    def close(self) -> None:
        for table in self._store.tables:
            table.close()

    def points(self, keys: int, seconds: float) -> Iterator[Point]:
        """Yields a step of `keys` keys, its forward pass ("lookup"), and its backward ("update").

        Yields nothing if there is no time for it.
        """
        grads = torch.full((keys * self._dim,), 0.01)
        start = time.perf_counter()
        self._step(keys, grads)
        once = time.perf_counter() - start
        repeats = min(_REPEATS * 4, int(seconds / once) - _WARM_UPS)
        if repeats < _FEWEST and keys > STEP_KEYS[0]:  # the smallest is always measured
            return
        for _ in range(_WARM_UPS - 1):
            self._step(keys, grads)
        times = [self._step(keys, grads) for _ in range(max(_FEWEST, repeats))]
        forward, backward = ([one[k] for one in times] for k in range(2))
        values = 4.0 * self._dim
        yield self._point("lookup", keys, values, 0.0, median(forward))
        yield self._point("update", keys, 2 * values, 2 * values, median(backward))
        yield self._point("step", keys, 3 * values, 2 * values, median(map(sum, times)))

    def _point(self, kind: str, keys: int, read: float, write: float, ms: float) -> Point:
        return Point(
            kind=kind,
            mode=CPU,
            keys=keys,
            read_bytes=read,
            write_bytes=write,
            ms=ms,
            dim=self._dim,
            host_share=0.0,
        )

    def _part(self, keys: int) -> Tensor:
        if self._next + keys > self.rows:
            self._next = 0
        part = self._ids[self._next : self._next + keys]
        self._next += keys
        return part

    def _step(self, keys: int, grads: Tensor) -> tuple[float, float]:
        """Returns the milliseconds of the forward pass and of the backward pass."""
        part = TableKeys.of_one(self._part(keys))
        start = time.perf_counter()
        vectors = self._module.forward(part)
        middle = time.perf_counter()
        self._module.backward(vectors, grads)
        return 1000 * (middle - start), 1000 * (time.perf_counter() - middle)


def _copies() -> Iterator[Point]:
    """Yields plain copies in memory, a lower bound on the time of every table."""
    for size in (2**20, 2**24, 2**26):
        source, target = torch.ones(size // 4), torch.ones(size // 4)
        times = [_ms(lambda s=source, t=target: t.copy_(s)) for _ in range(_WARM_UPS + _REPEATS)]
        yield Point(
            kind="copy",
            mode="host",
            keys=1,
            read_bytes=float(size),
            write_bytes=float(size),
            ms=median(times[_WARM_UPS:]),
        )


def _ms(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - start)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `hedgerow calibrate` with argparse, for machines that have little more than torch."""
    parser = argparse.ArgumentParser(prog="python -m hedgerow.calibration.calibrate")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--points", help="fit the points of this file anew, and measure nothing")
    parser.add_argument("--out", default="calibration.json")
    given = parser.parse_args(arguments)
    if given.points is not None:
        calibration = refitted(given.points)
    else:
        calibration = calibration_of(measure(given.device, given.seconds, _tell))
    calibration.save(given.out)
    sys.stdout.write(calibration.text() + "\n")
    return 0


def _tell(text: str, done: int, total: int) -> None:
    sys.stderr.write(f"{time.perf_counter():.1f} s  {done}/{total} {text}\n")


if __name__ == "__main__":
    sys.exit(main())
