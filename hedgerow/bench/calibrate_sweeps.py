"""Which tables and steps a calibration of a GPU measures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from .calibrate_stores import Sweep
from .gpu_tiers import Work

DIMS = (16, 32, 64, 128, 256)
SHARES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0)
_ASKED = {"HYBRID": (0.0, 0.1, 0.25, 0.5, 0.75, 1.0), "CACHING": SHARES[:6]}
"""Shares that plans ask for: more than half of the keys is not what a cache is chosen for."""


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
        return rows * sweep.larger // sweep.tables


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
        # Of most keys with all shares steps take up to 40 ms, and tell nothing else.
        few = dim == 16 and mode == "CACHING"
        shares = SHARES if dim == 16 else _ASKED[mode]
        yield Sweep(mode=mode, dim=dim, keys=keys[: 3 if few else 4], factor=factor, shares=shares)
    # A hybrid of half its rows, all used alike, moves rows all the time: none is hotter. Caches
    # that are large for what they miss tell apart what a missed key costs, and what room does.
    factor, larger = (0.1, 1) if mode == "HYBRID" else (0.5, 4)
    yield Sweep(
        mode=mode,
        dim=128,
        keys=(2**14, 2**16, 2**18),
        tables=10,
        factor=factor,
        shares=_ASKED[mode],
        repeats=(1, 3),
        larger=larger,
    )
