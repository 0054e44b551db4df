"""The steps that a GPU calibration measures, and modules with filled tables that run them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..core.hashing import mix64
from ..tables.config import Segment, TableConfig
from ..tables.initializers import Zeros
from ..tables.multi.device_tables import DeviceTables
from ..tables.optimizers import Adagrad, Optimizer, Sgd
from ..tables.store import TableKeys
from ..tiers.tier_tables import Tiers, TierTables, device_tier_tables
from .module_steps import ModuleSteps
from .power_law import PowerLawWork, fill_table

_CHUNK = 1 << 16  # rows that a cache fetches at once
_PARTS = 16  # parts in which a hybrid's fast rows are promoted
_BACK_STEPS = 20  # a hybrid looks for hot rows at least once in this number of steps
_ALL_BACK = 0.01  # a part is complete if at most this fraction of its rows is missing
ROTATED = 0.25
"""Up to this share of misses all hot rows of a cache stay, even if they are not used for long."""
# Above it, and in a hybrid, hot rows are used again after this number of steps. If a hybrid's hot
# rows were used as rarely as others, it would move rows all the time.
_BUSY_STEPS = 4
_CROWDED = 1.1  # if the used rows are more than this multiple of a cache's places, some never fit
_SELDOM_STEPS = 48  # a row that is used once in this number of steps does not become hot


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """One set of tables, and its measurements: all numbers of keys, shares and repeats."""

    mode: str
    dim: int
    keys: tuple[int, ...]  # distinct keys of a step, in all tables
    tables: int = 1
    factor: float = 1.0  # share of the rows that fits into the fast tier
    adagrad: bool = False
    shares: tuple[float, ...] = (0.0,)  # shares of keys whose rows are on the host
    repeats: tuple[int, ...] = (1,)  # ids per key
    larger: int = 1  # multiple of the usual number of rows

    @property
    def tiered(self) -> bool:
        """Whether there are two tiers."""
        return self.mode in ("HYBRID", "CACHING")

    @property
    def name(self) -> str:
        """The sweep's description for people."""
        more = f", {self.tables} tables" if self.tables > 1 else ""
        return f"{self.mode}, dim {self.dim}" + (f" at {self.factor}" * self.tiered) + more

    def configs(self) -> dict[str, TableConfig]:
        """Returns the configs of its tables, in order."""
        segments = (Segment(self.dim, Zeros(), self.optimizer()),)
        names = [f"t{k:02d}" for k in range(self.tables)]
        return {name: TableConfig(name, segments) for name in names}

    def optimizer(self) -> Optimizer:
        """Returns the optimizer of all tables."""
        return Adagrad(lr=0.01) if self.adagrad else Sgd(lr=0.01)


class Filled:
    """A module over tables with all their rows, and batches of chosen keys; single-owner.

    With two tiers, the first `hot` rows of each table are in the fast tier and stay there. All
    others take turns: a row is used again only after all others, when a cache has evicted it.
    """

    def __init__(self, sweep: Sweep, rows: int, device: torch.device, tries: int) -> None:
        self.sweep, self.device = sweep, device
        self.rows, self._tries = rows, tries  # tries: steps for a hybrid to promote rows
        self.fast = max(1, int(sweep.factor * rows)) if sweep.tiered else rows
        self.hot = self.fast // 2 if sweep.mode == "CACHING" else self.fast
        self._ids = [_ids(k, rows).to(device) for k in range(sweep.tables)]
        self._hot_next, self._cold_next = 0, 0
        self._random = torch.Generator(device).manual_seed(7)
        self.store: DeviceTables | TierTables = self._in_tiers() if sweep.tiered else self._in_one()
        self._steps = ModuleSteps(self.store, sweep.optimizer())
        if isinstance(self.store, TierTables):
            self._fill_fast(self.store)

    def fits(self, keys: int) -> bool:
        """Returns whether the tables have enough hot and cold rows for steps of `keys` keys."""
        most = self.fast // 6 if self.sweep.mode == "CACHING" else self.hot // 2
        if self.sweep.mode == "HYBRID":
            most = min(most, (self.rows - self.hot) // 2)
        return self.sweep.tables <= keys <= most * self.sweep.tables

    def stays(self, keys: int, far: float) -> bool:
        """Returns whether a share `far` of a step's keys is on the host, and stays there."""
        each, others = keys / self.sweep.tables, self.rows - self.hot
        if self.sweep.mode == "CACHING" and far > ROTATED:
            # Few hot rows are used then: all cold rows may fit into the cache next to them.
            return others + self._hot_turn(round((1 - far) * each), far) > _CROWDED * self.fast
        return self.sweep.mode != "HYBRID" or _SELDOM_STEPS * far * each <= others

    def batch(self, keys: int, far: float, repeat: int) -> TableKeys:
        """Returns `keys` distinct keys, a share `far` of them cold; hot keys have `repeat` ids."""
        each = keys // self.sweep.tables
        cold = round(far * each) if self.sweep.tiered else 0
        hot, rest = self._hot(each - cold, far), self._cold(cold)
        rows = torch.cat([hot, rest])
        often = hot if len(hot) else rest
        # As in a power law: few keys have most of the ids.
        drawn = torch.rand((repeat - 1) * each, generator=self._random, device=self.device)
        rows = torch.cat([rows, often[(len(often) ** drawn).long() - 1]])
        rows = rows[torch.randperm(len(rows), generator=self._random, device=self.device)]
        ids = torch.cat([ids[rows] for ids in self._ids])
        return TableKeys(ids, tuple(len(rows) * k for k in range(self.sweep.tables + 1)))

    def step(self, keys: TableKeys, grads: Tensor) -> None:
        """Runs one training step: the module's forward pass, and its backward with the update."""
        self._steps.step(keys, grads)

    def grads(self, keys: TableKeys) -> Tensor:
        """Returns gradients of the size of a batch."""
        return torch.full((len(keys.ids) * self.sweep.dim,), 1e-3, device=self.device)

    def counted(self) -> tuple[int, int]:
        """Returns totals: keys whose rows were on the host, and rows that a hybrid promoted."""
        if not self.sweep.tiered:
            return 0, 0
        name = {"HYBRID": "slow_hits", "CACHING": "fetches"}[self.sweep.mode]
        stats = [table.stats() for table in self.store.tables]
        moved = sum(int(one.get("promotions", 0)) for one in stats)
        return sum(int(one[name]) for one in stats), moved

    def refresh(self) -> None:
        """Brings hot rows back that were evicted from the fast tier."""
        parts, tries = max(1, _CHUNK // self.sweep.tables), 1
        if self.sweep.mode == "HYBRID":
            parts, tries = -(-self.fast // _PARTS), min(_BACK_STEPS, self._tries)
        for keys in self._chunks(0, self.hot, parts):
            grads = self.grads(keys)
            for _ in range(tries):
                before = self.counted()[0]
                self.step(keys, grads)
                if self.counted()[0] - before <= _ALL_BACK * len(keys.ids):
                    break

    # ---- rows

    def _in_one(self) -> DeviceTables:
        configs = self.sweep.configs()
        if self.sweep.mode == "HOST_ONLY":
            store = DeviceTables(configs, device=self.device, on_host=list(configs))
            self._fill_hosts(list(store.tables))
            return store
        room = dict.fromkeys(configs, self.rows)
        store = DeviceTables(configs, device=self.device, capacity_rows=room)
        for keys in self._chunks(0, self.rows, max(1, (1 << 20) // self.sweep.tables)):
            store.apply_gradients(keys, 0 * self.grads(keys))
        return store

    def _in_tiers(self) -> TierTables:
        # A cache is at most 80 % full, as in the planner.
        tiers = Tiers(
            mode=self.sweep.mode,
            fast_rows=self.fast,
            slots=max(64, int(self.fast / 0.8)),
            allow_small=True,
        )
        made = [(config, tiers) for config in self.sweep.configs().values()]
        tables, groups = device_tier_tables(made, self.device)
        self._fill_hosts([table.slow for table in tables])
        return TierTables(tables, device=self.device, together=groups)

    def _fill_fast(self, store: TierTables) -> None:
        """Uses rows until they are in the fast tier; a hybrid's part by part."""
        if self.sweep.mode == "CACHING":
            for keys in self._chunks(0, self.fast, max(1, _CHUNK // self.sweep.tables)):
                self.step(keys, self.grads(keys))
            self._cold_next = self.fast - self.hot
            return
        for keys in self._chunks(0, self.fast, -(-self.fast // _PARTS)):
            grads, before = self.grads(keys), _fast_rows(store)
            for _ in range(self._tries):
                self.step(keys, grads)
                if _fast_rows(store) - before >= 0.99 * len(keys.ids):
                    break

    def _fill_hosts(self, tables: list[object]) -> None:
        for table, ids in zip(tables, self._ids, strict=True):
            fill_table(table, ids, self.sweep.dim)  # pyright: ignore[reportArgumentType]

    def _chunks(self, start: int, stop: int, size: int) -> Iterator[TableKeys]:
        for at in range(start, stop, size):
            parts = [ids[at : min(stop, at + size)] for ids in self._ids]
            splits = tuple(len(parts[0]) * k for k in range(len(parts) + 1))
            yield TableKeys(torch.cat(parts), splits)

    # ---- order of use

    def _hot(self, count: int, far: float) -> Tensor:
        turn = self._hot_turn(count, far)
        found = (self._hot_next + torch.arange(count, device=self.device)) % max(1, turn)
        self._hot_next += count
        return found

    def _hot_turn(self, count: int, far: float) -> int:
        """Returns the number of hot rows that take turns if a step uses `count` of them."""
        busy = self.sweep.mode == "HYBRID" or far > ROTATED
        return min(self.hot, _BUSY_STEPS * count) if busy else self.hot

    def _cold(self, count: int) -> Tensor:
        turn = self._cold_next + torch.arange(count, device=self.device)
        self._cold_next += count
        return self.hot + turn % max(1, self.rows - self.hot)


def _ids(k: int, rows: int) -> Tensor:
    """Returns random ids of a table; consecutive ones of a batch lie far apart in memory."""
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(k))
    return mix64(order + k * rows)


def _fast_rows(store: TierTables) -> int:
    return sum(table.fast.size() for table in store.tables)  # pyright: ignore


DIMS = (16, 32, 64, 128, 256)
SHARES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0)
_ASKED = {"HYBRID": (0.0, 0.1, 0.25, 0.5, 0.75, 1.0), "CACHING": SHARES[:6]}
"""Shares that plans need: a cache is not chosen if it misses more than half of the keys."""


def _stream() -> PowerLawWork:
    """Returns a power-law work for a hybrid, a tenth of the tables of `gpu_tiers`."""
    return PowerLawWork(tables=1, rows=400_000, keys=10_485, steps=64, warm_up=384)


@dataclass(frozen=True, slots=True)
class Size:
    """The amount of measurement: a whole sweep, or a test of the tool."""

    sweeps: tuple[Sweep, ...]
    rows: int = 1 << 22  # of a table in HBM; half of it in host memory
    table_bytes: int = 1 << 31  # of all tables of a sweep in HBM; half of it in host memory
    hybrid_rows: int = 1 << 19  # in HBM: a hybrid would need many steps to promote more
    cache_rows: int = 1 << 20
    copies: tuple[int, ...] = (1 << 20, 1 << 24, 1 << 28)
    stream: PowerLawWork = field(default_factory=_stream)
    warm_ups: int = 3
    steps: int = 16  # of a round: every 16 steps a hybrid looks for hot rows and a cache evicts
    tries: int = 64  # steps in which a hybrid may promote its rows
    listens: float = 1 / 15  # share of the time to learn the speed of a quiet host
    passes: int = 2  # over all points of a sweep

    @staticmethod
    def whole() -> Size:
        """Returns the size of a real calibration."""
        return Size((*_in_hbm(), *_on_host(), *_tiers("HYBRID"), *_tiers("CACHING")))

    @staticmethod
    def quick() -> Size:
        """Returns a size to test the tool: up to two tables, and few keys."""
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
        stream = PowerLawWork(tables=1, rows=64, dim=4, keys=16, steps=1, warm_up=1)
        return Size(
            *(tuple(sweeps), 1024, 1 << 20, 256, 512, (1 << 10,), stream),
            warm_ups=1,
            steps=2,
            tries=0,
            listens=0.0,
            passes=1,
        )

    def rows_of(self, sweep: Sweep) -> int:
        """Returns the number of rows of each table of a sweep."""
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
        keys = (*_powers(12, 18, 2), 2**19, 2**20)  # steps of few keys are bound by launches
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
        # With most keys and all shares steps take up to 40 ms and add no information.
        few = dim == 16 and mode == "CACHING"
        shares = SHARES if dim == 16 else _ASKED[mode]
        yield Sweep(mode=mode, dim=dim, keys=keys[: 3 if few else 4], factor=factor, shares=shares)
    # A hybrid with half its rows used alike would move rows all the time: none is hotter. A large
    # cache with few misses separates the cost of a missed key from the cost of the cache's size.
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
