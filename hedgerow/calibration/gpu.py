"""Measures how long steps of modules take on a GPU in every mode, and copies."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import median

import torch

from ..core.errors import ConfigError, InputError
from ..core.units import format_bytes
from ..planner.times.calibration import Point, PointCounts
from ..planner.times.key_model import EXPONENT, touched, zipf
from ..tables.store import TableKeys
from .calibrate import Progress
from .machine import free_bytes
from .power_law import Batches, in_tiers, module_steps
from .quiet import Yardstick
from .rounds import Pace, Round, StepTimer, What, is_doubtful, rounds_of, spread, summed_up
from .sweeps import ROTATED, Filled, Size, Sweep

_CALLS = 10  # of what is timed call by call
_POINTS = 300  # `seconds` is divided by about this number of points
_MORE_PASSES = 2  # at most, for points whose passes differ
_LONGEST = 5.0  # calls may take this multiple of a point's share of the time
_MOSTLY_NEAR = 0.5  # repeated ids belong to frequent rows, which are mostly in HBM
_NEEDS_BYTES = {"HBM": 12 * 2**30, "host memory": 9 * 2**30}


def card(device: str) -> torch.device:
    """Returns the device of a name; raises if it is missing or has too little free memory."""
    where = torch.device(device)
    if where.type == "cpu":  # to test this tool: the kernels are interpreted
        return where
    if not torch.cuda.is_available():
        raise ConfigError(
            f"device is {device!r}, and torch sees no GPU here; use device='cpu', or calibrate on "
            f"the machine that will train."
        )
    if where.index is not None and where.index >= torch.cuda.device_count():
        raise ConfigError(
            f"device is {device!r}; the last of this machine is "
            f"cuda:{torch.cuda.device_count() - 1}."
        )
    where = torch.device("cuda", where.index or 0)
    rooms = {"HBM": torch.cuda.mem_get_info(where)[0], "host memory": free_bytes()}
    for name, room in rooms.items():
        if room is not None and room < _NEEDS_BYTES[name]:
            raise InputError(
                f"{format_bytes(room)} of {name} are free; to calibrate {device!r} needs "
                f"{format_bytes(_NEEDS_BYTES[name])}: end other programs first."
            )
    return where


def points_of(
    device: torch.device, seconds: float, progress: Progress, size: Size | None = None
) -> Iterator[Point]:
    """Yields all points, in about `seconds` seconds plus the time to compile kernels."""
    size = size or Size.whole()
    yardstick = Yardstick(size.listens * seconds, seconds / 4)
    total = len(size.sweeps) + 3
    progress("copies", 0, total)
    yield from _copies(device, size)
    swept: list[_Swept] = []
    for done, sweep in enumerate(size.sweeps, start=1):
        progress(sweep.name, done, total)
        swept.append(_Swept(sweep, size, device, seconds / _POINTS, yardstick))
        swept[-1].begin()
        if done > 1:  # after a pause: other programs disturb a host for seconds at a time
            swept[-2].go_on()
        _free(device)
    progress("HYBRID, rows that are hot", total - 2, total)
    yield _hits(device, size)
    if swept:
        swept[-1].go_on()
    _try_again(swept, seconds, yardstick, lambda name: progress(name, total - 1, total))
    for one in swept:
        yield from one.points
    progress("done", total, total)


def _try_again(
    swept: Sequence[_Swept], seconds: float, yardstick: Yardstick, tell: Callable[[str], object]
) -> None:
    """Measures steps that were disturbed in every pass again, for at most about `seconds`."""
    yardstick.patience_s = seconds / 4
    end = time.perf_counter() + seconds
    for one in swept:
        if one.is_disturbed() and time.perf_counter() < end:
            tell(f"{one.sweep.name}, once more")
            one.try_again()


class _Swept:
    """The points of one set of tables, measured in passes some time apart; single-owner."""

    def __init__(
        self, sweep: Sweep, size: Size, device: torch.device, seconds: float, yardstick: Yardstick
    ) -> None:
        self.sweep, self._size, self._device = sweep, size, device
        self._seconds, self._yardstick = seconds, yardstick
        self._filled = self._fill()
        self._taken: dict[What, list[list[Round]]] = {what: [] for what in _wanted(self._filled)}
        self._told: dict[What, Point] = {}
        self._parts: list[Point] = []

    @property
    def points(self) -> list[Point]:
        """The measured points."""
        return [*self._told.values(), *self._parts]

    def begin(self) -> None:
        """Measures the first pass."""
        self._go_through(list(self._taken))

    def go_on(self) -> None:
        """Measures the other passes, then frees the tables."""
        for number in range(1, self._size.passes + _MORE_PASSES):
            due = list(self._taken)
            if number >= self._size.passes:
                due = [what for what, passes in self._taken.items() if is_doubtful(passes)]
            if due and self.sweep.tiered:
                self._filled.refresh()
            self._go_through(due)
        if self.sweep.mode == "HBM_ONLY" and self.sweep.tables == 1:
            for keys in filter(self._filled.fits, self.sweep.keys):
                self._parts += _parts(self._filled, keys, self._size, self._seconds)
        self._sum_up()

    def is_disturbed(self) -> bool:
        """Returns whether some step was never measured on a quiet host."""
        return any(not point.seen.quiet for point in self._told.values())

    def try_again(self) -> None:
        """Measures the disturbed steps again, on new tables."""
        self._filled = self._fill()
        self._go_through([what for what, point in self._told.items() if not point.seen.quiet])
        self._sum_up()

    def _fill(self) -> Filled:
        return Filled(self.sweep, self._size.rows_of(self.sweep), self._device, self._size.tries)

    def _go_through(self, due: Sequence[What]) -> None:
        size = self._size
        pace = Pace(size.warm_ups, size.steps, size.tries, self._seconds / size.passes)
        for what in due:
            rounds = rounds_of(self._filled, what, pace, self._yardstick)
            if rounds:
                self._taken[what].append(rounds)
            elif not self._taken[what]:  # it takes too long: leave it out
                del self._taken[what]

    def _sum_up(self) -> None:
        for what, passes in self._taken.items():
            self._told[what] = _step_point(self._filled, what, passes)
        del self._filled
        _free(self._device)


def _wanted(filled: Filled) -> list[What]:
    """Returns all combinations of a sweep, first those in which hot rows stay in place."""
    sweep = filled.sweep
    found = [
        What(keys, far, repeat)
        for keys in filter(filled.fits, sweep.keys)
        for far in sweep.shares
        if filled.stays(keys, far)
        for repeat in (sweep.repeats if far <= _MOSTLY_NEAR else (1,))
    ]
    return sorted(found, key=lambda what: what.far > ROTATED)


def _step_point(filled: Filled, what: What, passes: list[list[Round]]) -> Point:
    sweep, found = filled.sweep, summed_up(passes)
    share = min(1.0, found.missed / what.keys) if sweep.tiered else sweep.mode == "HOST_ONLY"
    each = what.keys // sweep.tables * sweep.tables
    point = _point(filled, "step", what.keys, found.ms, float(share), what.repeat * each)
    moved = found.moved if sweep.mode == "HYBRID" else None
    seen = PointCounts(moved_rows=moved, spread=spread(passes), quiet=found.quiet)
    return replace(point, seen=seen)


def _parts(filled: Filled, keys: int, size: Size, seconds: float) -> Iterator[Point]:
    """Yields calls of the store alone, without the module, in HBM.

    "find" looks up places, "lookup" reads rows, and "update" includes its own search.
    """
    store, clock = filled.store, StepTimer(filled.device, events=True)
    grads = filled.grads(filled.batch(keys, 0.0, 1))
    calls: dict[str, Callable[[TableKeys], object]] = {
        "find": store.find,  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        "lookup": store.lookup,
        "update": lambda batch: store.apply_gradients(batch, grads),
    }
    for kind, call in calls.items():
        spent = []
        begun = time.perf_counter()
        for place in range(size.warm_ups + _CALLS):
            batch = filled.batch(keys, 0.0, 1)
            took = clock.ms(lambda c=call, b=batch: c(b))
            if place == size.warm_ups - 1:
                begun = time.perf_counter()
            if place >= size.warm_ups:
                spent.append(took)
            if spent and time.perf_counter() - begun > _LONGEST * seconds:
                break
        yield _point(filled, kind, keys, median(spent), 0.0, keys)


def _point(filled: Filled, kind: str, keys: int, ms: float, far: float, ids: int) -> Point:
    sweep = filled.sweep
    values = 4.0 * sweep.dim
    row = 2 * values if sweep.adagrad else values
    reads = {"find": 0.0, "lookup": values, "update": row, "step": values + row}
    return Point(
        kind=kind,
        mode=sweep.mode,
        keys=keys // sweep.tables * sweep.tables,
        read_bytes=reads[kind],
        write_bytes=row if kind in ("update", "step") else 0.0,
        ms=ms,
        dim=sweep.dim,
        host_share=far,
        tables=sweep.tables,
        ids=ids,
        fast_rows=filled.fast if sweep.tiered else 0,
    )


def _hits(device: torch.device, size: Size) -> Point:
    """Measures the share of a power law's keys that a hybrid's fast rows serve after warm-up."""
    work, share = size.stream, 0.1
    batches = Batches(work, device)
    batches.start()
    store = in_tiers(batches, "HYBRID", share)
    steps = module_steps(store)
    clock, missed, keys, spent = StepTimer(device, events=False), 0, 0, []
    for place in range(work.warm_up + work.steps):
        # Each key once, because the planner's model and a hybrid's usage counts count keys so.
        ids = torch.unique(batches.next().ids)
        batch = TableKeys(ids, (0, len(ids)))
        grads = batches.grads[: len(ids) * work.dim]
        before = store.tables[0].stats()["slow_hits"] if place == work.warm_up else 0.0
        missed -= int(before)

        def step(keys: TableKeys = batch, grads: torch.Tensor = grads) -> None:
            steps.step(keys, grads)

        took = clock.ms(step)
        if place >= work.warm_up:
            keys += len(ids)
            spent.append(took)
    missed += int(store.tables[0].stats()["slow_hits"])
    known = touched(zipf(work.rows, EXPONENT), work.keys)
    hottest = known.frequency_hit(share * work.rows)
    return Point(
        kind="hits",
        mode="HYBRID",
        keys=max(1, keys // work.steps),
        ids=work.keys,
        read_bytes=8.0 * work.dim,
        write_bytes=4.0 * work.dim,
        ms=median(spent),
        dim=work.dim,
        host_share=missed / keys,
        fast_rows=int(share * work.rows),
        seen=PointCounts(promoted=(1 - missed / keys - share) / (hottest - share)),
    )


def _copies(device: torch.device, size: Size) -> Iterator[Point]:
    """Yields copies between pinned memory and the device, and in it: lower bounds for rows."""
    clock = StepTimer(device, events=True)
    for count in size.copies:
        here = torch.ones(count // 4, pin_memory=device.type == "cuda")
        there = torch.ones(count // 4, device=device)
        ways = {"h2d": (there, here), "d2h": (here, there), "hbm": (torch.empty_like(there), there)}
        for name, (target, source) in ways.items():
            spent = [
                clock.ms(lambda t=target, s=source: t.copy_(s, non_blocking=True))
                for _ in range(size.warm_ups + _CALLS)
            ]
            bytes_ = float(count)
            ms = median(spent[size.warm_ups :])
            yield Point(
                kind="copy", mode=name, keys=1, read_bytes=bytes_, write_bytes=bytes_, ms=ms
            )


def _free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
