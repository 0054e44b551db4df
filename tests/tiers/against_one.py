"""A table of two tiers and a plain one that see the same calls and must say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hedgerow.core.clock import ManualClock
from hedgerow.core.errors import CacheTooSmallError
from hedgerow.tables.checkpoint.increments import save_increment
from hedgerow.tables.checkpoint.load import load_tables
from hedgerow.tables.checkpoint.save import save_tables
from hedgerow.tables.config import TableConfig
from hedgerow.tables.host import HostTable
from hedgerow.tables.store import Entries

from ..support import EXTREME_IDS, everything

START_S = 10**6


class Against:
    """Random calls on both; `make` gives the tiered one from a config and a clock."""

    def __init__(
        self, config: TableConfig, make: Any, seed: int, *, ids: int = 60, most: int = 40
    ) -> None:
        self.most = most
        self.random = np.random.default_rng(seed)
        self.clock = ManualClock(START_S)
        self.make = make
        self.config = config
        self.ours = make(config, self.clock)
        self.model = HostTable(config, clock=self.clock)
        pool = self.random.integers(-(2**63), 2**63, ids, dtype=np.int64)
        pool[: len(EXTREME_IDS)] = EXTREME_IDS
        self.pool = torch.from_numpy(pool)
        self.step = 0
        for table in (self.ours, self.model):
            table.touched("all", capacity=1000, all_changes=True)
            table.touched("learned", capacity=1000)

    # ---- what calls are made of

    def ids(self, most: int = 40) -> Tensor:
        """Some ids, hot ones often; which are hot drifts with the steps."""
        n = int(self.random.integers(0, min(most, self.most)))
        ranks = np.minimum(self.random.zipf(1.3, n) - 1 + self.step // 10, 10**6)
        return self.pool[torch.from_numpy(ranks % len(self.pool))]

    def rows(self, n: int) -> Tensor:
        rows = self.random.normal(size=(n, self.config.dim)).astype(np.float32)
        if self.config.not_finite == "drop" and n and self.random.random() < 0.2:
            rows[self.random.integers(n), 0] = self.random.choice([np.nan, np.inf, 3e38])
        return torch.from_numpy(rows)

    def both(self, call: Any) -> None:
        ours, model = call(self.ours), call(self.model)
        assert ours == model, f"step {self.step}"

    # ---- calls

    def lookup(self) -> None:
        ids = self.ids()
        missing = self.random.choice(["zeros", "initializer", "training"])
        self.both(lambda t: _bits(t.lookup(ids, missing=missing, step=self.step).rows))

    def apply(self) -> None:
        ids = self.ids()
        rows, each = self.rows(len(ids)), bool(self.random.random() < 0.3)
        counts = torch.from_numpy(self.random.integers(1, 4, len(ids)))
        more = {"counts": counts} if self.random.random() < 0.5 else {}
        ts = START_S + self.step
        self.both(
            lambda t: repr(
                t.apply_gradients(ids, rows, step=self.step, ts=ts, per_occurrence=each, **more)
            )
        )

    def assign(self) -> None:
        ids = self.ids(12)
        rows, ts = self.rows(len(ids)), START_S + self.step
        verb = self.random.choice(["assign", "assign_add"])
        self.both(lambda t: repr(getattr(t, verb)(ids, rows, ts=ts)))

    def small(self) -> None:
        ids = self.ids(8)
        verb = self.random.choice(["erase", "reinitialize", "contains"])
        self.both(lambda t: getattr(t, verb)(ids).tolist())

    def entries(self) -> None:
        ids = self.ids()
        self.both(lambda t: _of_entries(t.entries(ids)))

    def restore(self) -> None:
        """Rows of the past come back, over what is there now."""
        ids = self.ids(12).unique()
        old = self.model.entries(ids)
        there = old.found
        self.apply()
        states = [{n: x[there] for n, x in one.items()} for one in old.states]
        entries = Entries(old.ids[there], there[there], old.rows[there], states, old.ts[there])
        self.both(lambda t: repr(t.restore(entries)))

    def evict(self) -> None:
        if self.config.evict is None:
            return
        rows = int(self.random.integers(1, 40)) if self.config.evict.kind == "lru" else None
        more = {} if rows is None else {"rows": rows}
        self.both(lambda t: _evicted(t.evict(capture=True, **more)))

    def scan(self) -> None:
        self.both(everything)

    def broken_off_scan(self) -> None:
        """Writes during a scan: a row that is there all the time is given once."""
        before = set(everything(self.model))
        slices = self.ours.scan(3)
        found = next(slices, None)
        seen = [] if found is None else found.ids.tolist()
        self.apply()
        for part in slices:
            seen += part.ids.tolist()
        stayed = before & set(everything(self.model))
        assert len(seen) == len(set(seen))
        assert stayed <= set(seen)

    def snapshot(self) -> None:
        """Held rows stay as they were, whatever is written and moved."""
        then = everything(self.model)
        with self.ours.snapshot() as held:
            assert (held.size, held.max_ts) == (len(then), self.model.max_ts())
            for _ in range(3):
                self.apply()
                self.small()
            assert everything(held) == then

    def taken(self) -> None:
        for name in ("all", "learned"):
            self.both(lambda t, name=name: _taken(t.consumer(name)))
        if self.random.random() < 0.2:  # closed, and opened anew
            for table in (self.ours, self.model):
                table.consumer("learned").close()
                assert table.consumer("learned") is None
                table.touched("learned", capacity=1000)

    def size(self) -> None:
        self.both(lambda t: (t.size(), len(t), t.max_ts()))

    def clear(self) -> None:
        self.both(lambda t: t.clear())

    def mode(self) -> None:
        """What a cache has beside the verbs of a table."""
        if not hasattr(self.ours, "flush"):
            return
        if self.random.random() < 0.4:
            self.ours.flush()
            assert everything(self.ours.slow) == everything(self.model)
            return
        ids = self.ids()
        if len(ids.unique()) > self.ours.resident.rows:
            with pytest.raises(CacheTooSmallError, match="distinct keys"):
                self.ours.prefetch(ids)
            return
        with self.ours.prefetch(ids):
            if self.random.random() < 0.5:
                self.apply()
            else:
                self.lookup()

    # ---- runs

    def run(self, calls: int) -> None:
        verbs = [self.lookup, self.apply, self.apply, self.apply, self.assign, self.small]
        verbs += [self.entries, self.restore, self.evict, self.scan, self.broken_off_scan]
        verbs += [self.snapshot, self.taken, self.size, self.mode, self.mode]
        for _ in range(calls):
            self.step += 1
            self.clock.advance(int(self.random.integers(0, 3)))
            if self.random.random() < 0.01:
                self.clear()
            verbs[self.random.integers(len(verbs))]()
        self.same()

    def same(self) -> None:
        """All rows with states and times, and everything counted of a table."""
        self.both(everything)
        self.size()
        self.taken()
        names = ("inserted", "refused", "dropped", "erased", "evicted", "clamped_ts")
        self.both(lambda t: [t.stats()[name] for name in names])

    def save_and_load(self, folder: Path) -> None:
        """Both are saved with an increment behind; loaded into tables of other sizes."""
        kinds = {"ours": self.ours, "model": self.model}
        for name, table in kinds.items():
            save_tables([table], folder / name, step=1, consumer="saves", overwrite=True)
        for _ in range(5):
            self.apply()
            self.small()
        for name, table in kinds.items():
            save_increment(folder / name, [table], consumer="saves")
        alone = HostTable(self.config, clock=self.clock)  # without what had expired
        load_tables(folder / "model", [alone])
        there = everything(alone)
        for name in kinds:
            fresh = self.make(self.config, self.clock)
            load_tables(folder / name, [fresh])
            assert everything(fresh) == there
        load_tables(folder / "model", [self.ours])  # over what is there
        load_tables(folder / "ours", [self.model])
        self.both(everything)
        self.both(lambda t: _taken(t.consumer("all")))


def _bits(rows: Tensor) -> list[int]:
    return rows.contiguous().view(torch.int32).flatten().tolist()


def _of_entries(entries: Entries) -> list[Any]:
    states = [(name, x.tolist()) for one in entries.states for name, x in one.items()]
    found = [x.tolist() for x in (entries.ids, entries.found, entries.ts)]
    return [found, _bits(entries.rows), repr(states)]


def _evicted(found: Any) -> Any:
    return found.rows, sorted(zip(found.ids.tolist(), found.ts.tolist(), strict=True))


def _taken(consumer: Any) -> Any:
    taken = consumer.take()
    return sorted(taken.ids.tolist()), taken.whole_table, taken.forgotten
