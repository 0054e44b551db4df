"""Measures what a GPU takes for steps of our tables in every mode, and for copies."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import torch

from ..core.errors import ConfigError, InputError
from ..core.units import format_bytes
from ..planner.times.calibration import Point, Seen
from ..planner.times.hit_rate import touched
from ..planner.times.key_model import EXPONENT, zipf
from ..tables.store import TableKeys
from .calibrate_rounds import (
    Clock,
    Pace,
    Round,
    What,
    is_doubtful,
    rounds_of,
    spread,
    summed_up,
)
from .calibrate_stores import ROTATED, Filled, Sweep
from .gpu_tiers import Batches, Work, _in_tiers
from .progress import Progress
from .quiet import Yardstick
from .room import free_bytes

DIMS = (16, 32, 64, 128, 256)
SHARES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0)
_ASKED = {"HYBRID": (0.0, 0.1, 0.25, 0.5, 0.75, 1.0), "CACHING": SHARES[:6]}
"""Shares that plans ask for: more than half of the keys is not what a cache is chosen for."""
_CALLS = 10  # of what is timed call by call
_POINTS = 300  # about so many share the time
_MORE_PASSES = 2  # at most, for points whose passes differ
_LONGEST = 5.0  # calls may take so many times the share of a point
_MOSTLY_NEAR = 0.5  # ids that repeat are of rows that are used much, which lie in HBM
_NEEDS_BYTES = {"HBM": 12 * 2**30, "host memory": 6 * 2**30}


def _stream() -> Work:
    """Keys of a power law for a hybrid: a tenth of the tables that `gpu_tiers` has."""
    return Work(tables=1, rows=400_000, keys=10_485, steps=64, warm_up=384)


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: of a whole sweep, or of a check of the tool."""

    sweeps: tuple[Sweep, ...]
    rows: int = 1 << 22  # of a table in HBM; in host memory half
    table_bytes: int = 1 << 31  # likewise, of all tables of a sweep
    hybrid_rows: int = 1 << 19  # in HBM: a hybrid takes many steps to promote more
    cache_rows: int = 1 << 20
    copies: tuple[int, ...] = (1 << 20, 1 << 24, 1 << 28)
    stream: Work = field(default_factory=_stream)
    warm_ups: int = 3
    steps: int = 16  # of a round: a hybrid looks for hot rows every 16th, a cache makes way then
    tries: int = 64  # steps in which a hybrid's rows may come to its fast tier
    listens: float = 1 / 15  # share of the time to learn what a quiet host is
    passes: int = 2  # over all points of a sweep

    @staticmethod
    def whole() -> Size:
        """What a calibration needs."""
        return Size((*_in_hbm(), *_on_host(), *_tiers("HYBRID"), *_tiers("CACHING")))

    @staticmethod
    def quick() -> Size:
        """A check of the tool: up to two tables, and few keys."""
        modes = (("HBM_ONLY", 1.0), ("HOST_ONLY", 1.0), ("HYBRID", 0.5), ("CACHING", 0.5))
        sweeps = [
            Sweep(
                mode=mode,
                dim=4,
                keys=(16, 32) if tables == 1 else (16,),
                tables=tables,
                factor=factor,
                shares=(0.0, 0.5) if factor < 1 else (0.0,),
                repeats=(1,) if tables == 1 else (2,),
            )
            for mode, factor in modes
            for tables in (1, 2)
        ]
        stream = Work(tables=1, rows=64, dim=4, keys=16, steps=1, warm_up=1)
        return Size(
            *(tuple(sweeps), 1024, 1 << 20, 256, 512, (1 << 10,), stream),
            warm_ups=1,
            steps=2,
            tries=0,
            listens=0.0,
            passes=1,
        )

    def rows_of(self, sweep: Sweep) -> int:
        """Of each table of a sweep."""
        near = sweep.mode == "HBM_ONLY"
        rows = min(self.rows, self.table_bytes // (4 * sweep.dim)) // (1 if near else 2)
        most = {"HYBRID": self.hybrid_rows, "CACHING": self.cache_rows}.get(sweep.mode)
        if most is not None:
            rows = min(rows, int(most / sweep.factor))
        return rows // sweep.tables


def _powers(first: int, last: int, by: int = 1) -> tuple[int, ...]:
    return tuple(2**power for power in range(first, last + 1, by))


def _in_hbm() -> Iterator[Sweep]:
    for dim in DIMS:
        repeats = (1, 3) if dim in (16, 128) else (1,)
        keys = (*_powers(12, 18, 2), 2**19, 2**20)  # the fewer are all as long as their launches
        yield Sweep(mode="HBM_ONLY", dim=dim, keys=keys, repeats=repeats)
    for dim in (16, 128):
        keys = _powers(12, 20, 2)
        yield Sweep(mode="HBM_ONLY", dim=dim, keys=keys, adagrad=True)
        yield Sweep(mode="HBM_ONLY", dim=dim, keys=keys, tables=10, repeats=(1, 3))


def _on_host() -> Iterator[Sweep]:
    for dim in (16, 128, 256):
        yield Sweep(mode="HOST_ONLY", dim=dim, keys=_powers(12, 18, 2), repeats=(1, 3))
    yield Sweep(mode="HOST_ONLY", dim=128, keys=_powers(14, 18, 2), tables=10, repeats=(1, 3))


def _tiers(mode: str) -> Iterator[Sweep]:
    keys = (2**12, 2**14, 2**16, 2**17)
    for dim, factor in ((16, 0.5), (128, 0.1), (128, 0.8), (256, 0.5)):
        shares = SHARES if dim == 16 else _ASKED[mode]
        yield Sweep(mode=mode, dim=dim, keys=keys, factor=factor, shares=shares)
    # A hybrid of half its rows, all used alike, moves rows all the time: none is hotter.
    factor = 0.1 if mode == "HYBRID" else 0.5
    yield Sweep(
        mode=mode,
        dim=128,
        keys=(2**14, 2**16, 2**18),
        tables=10,
        factor=factor,
        shares=_ASKED[mode],
        repeats=(1, 3),
    )


def card(device: str) -> torch.device:
    """The device of that name, if it is there and has room."""
    where = torch.device(device)
    if where.type == "cpu":  # kernels are interpreted: to test the tool
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
    """All points, in about so many seconds beside what compiling kernels takes."""
    size = size or Size.whole()
    yardstick = Yardstick(size.listens * seconds, seconds / 2)
    total = len(size.sweeps) + 2
    progress("copies", 0, total)
    yield from _copies(device, size)
    before: _Swept | None = None
    for done, sweep in enumerate(size.sweeps, start=1):
        progress(sweep.name, done, total)
        now = _Swept(sweep, size, device, seconds / _POINTS, yardstick)
        now.begin()
        # Only now: others disturb a host for seconds, and seldom twice alike.
        yield from before.go_on() if before is not None else ()
        before = now
        _free(device)
    progress("HYBRID, rows that are hot", total - 1, total)
    yield _hits(device, size)
    yield from before.go_on() if before is not None else ()
    del before
    _free(device)
    progress("done", total, total)


class _Swept:
    """The points of one set of tables, measured in passes some time apart; single-owner."""

    def __init__(
        self, sweep: Sweep, size: Size, device: torch.device, seconds: float, yardstick: Yardstick
    ) -> None:
        self._size, self._seconds, self._yardstick = size, seconds, yardstick
        self._filled = Filled(sweep, size.rows_of(sweep), device, size.tries)
        self._pace = Pace(size.warm_ups, size.steps, size.tries, seconds / size.passes)
        self._taken: dict[What, list[list[Round]]] = {what: [] for what in _wanted(self._filled)}

    def begin(self) -> None:
        """The first pass."""
        self._go_through(list(self._taken))

    def go_on(self) -> Iterator[Point]:
        """The others, and what they say."""
        sweep = self._filled.sweep
        for number in range(1, self._size.passes + _MORE_PASSES):
            due = list(self._taken)
            if number >= self._size.passes:
                due = [what for what, passes in self._taken.items() if is_doubtful(passes)]
            if due and sweep.tiered:
                self._filled.refresh()
            self._go_through(due)
        for what, passes in self._taken.items():
            yield _step_point(self._filled, what, passes)
        if sweep.mode == "HBM_ONLY" and sweep.tables == 1:
            for keys in filter(self._filled.fits, sweep.keys):
                yield from _parts(self._filled, keys, self._size, self._seconds)

    def _go_through(self, due: Sequence[What]) -> None:
        for what in due:
            rounds = rounds_of(self._filled, what, self._pace, self._yardstick)
            if rounds:
                self._taken[what].append(rounds)
            elif not self._taken[what]:  # it takes too long
                del self._taken[what]


def _wanted(filled: Filled) -> list[What]:
    """All set-ups of a sweep, first those in which hot rows stay where they are."""
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
    return replace(point, seen=Seen(moved_rows=moved, spread=spread(passes)))


def _parts(filled: Filled, keys: int, size: Size, seconds: float) -> Iterator[Point]:
    """What a step in HBM is made of: where rows are, rows, and the update with its own search."""
    store, clock = filled.store, Clock(filled.device, events=True)
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
    """How many keys of a power law a hybrid's fast rows serve, after some hundred steps."""
    work, share = size.stream, 0.1
    batches = Batches(work, device)
    batches.start()
    store = _in_tiers(batches, "HYBRID", share)
    clock, missed, keys, spent = Clock(device, events=False), 0, 0, []
    for place in range(work.warm_up + work.steps):
        # Each key once, as the model counts them: uses of a hybrid are counted so, too.
        ids = torch.unique(batches.next().ids)
        batch = TableKeys(ids, (0, len(ids)))
        grads = batches.grads[: len(ids) * work.dim]
        before = store.tables[0].stats()["slow_hits"] if place == work.warm_up else 0.0
        missed -= int(before)

        def step(keys: TableKeys = batch, grads: torch.Tensor = grads) -> None:
            store.apply_gradients(store.lookup(keys, missing="training"), grads)

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
        seen=Seen(promoted=(1 - missed / keys - share) / (hottest - share)),
    )


def _copies(device: torch.device, size: Size) -> Iterator[Point]:
    """Between pinned memory and the device, and within it: what no row that lies there can beat."""
    clock = Clock(device, events=True)
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
