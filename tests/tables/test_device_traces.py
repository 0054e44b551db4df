"""Random traces over all verbs: a table on a device says and holds what the host table does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hedgerow.kernels.layout import EMPTY, ERASED, TAKEN
from hedgerow.tables import admission, initializers, optimizers
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.eviction import Lfu, Lru, Ttl

from ..support import EXTREME_IDS
from .device_pair import Pair

POOL = torch.tensor([*EXTREME_IDS, EMPTY, ERASED, TAKEN, *range(2, 14), *(k << 48 for k in (1, 2))])
RULES = (
    optimizers.Sgd(lr=0.1, weight_decay=0.01),
    optimizers.Momentum(lr=0.1),
    optimizers.Adagrad(lr=0.1),
    optimizers.Adam(lr=0.1),
    optimizers.Ftrl(lr=0.1, l1=0.05),
    optimizers.RmsProp(lr=0.1, momentum=0.5),
)
VERBS = ("apply", "each", "counts", "assign", "add", "erase", "new", "restore", "evict", "lookup")


@dataclass(frozen=True)
class Call:
    verb: str
    size: int
    seed: int
    alike: bool  # one id, as often as there are keys


CALLS = st.builds(
    Call,
    verb=st.sampled_from(VERBS),
    size=st.integers(0, 40),
    seed=st.integers(0, 2**20),
    alike=st.booleans(),
)


@st.composite
def _configs(draw: st.DrawFn) -> TableConfig:
    segments = tuple(
        Segment(draw(st.integers(1, 5)), initializers.Uniform(0.3), draw(st.sampled_from(RULES)))
        for _ in range(draw(st.integers(1, 2)))
    )
    return TableConfig(
        "traced",
        segments,
        not_finite="drop",
        evict=draw(st.sampled_from([None, Lru(6), Lfu(6), Ttl("2s")])),
        admit=draw(st.sampled_from([None, admission.Within(1000, 3)])),
    )


def _do(pair: Pair, call: Call, ts: int) -> None:
    random = np.random.default_rng(call.seed)
    n, dim = call.size, pair.host.config.dim
    ids = POOL[random.integers(0, 1 if call.alike else len(POOL), n)]
    rows = torch.from_numpy(random.normal(size=(n, dim)).astype(np.float32))
    if n and random.random() < 0.4:
        rows[random.integers(n), random.integers(dim)] = random.choice([np.nan, np.inf])
    match call.verb:
        case "apply" | "each":
            first = bool(random.random() < 0.5)
            pair.apply(ids, rows, ts, probe_first=first, per_occurrence=call.verb == "each")
        case "counts":
            pair.apply(ids, rows, ts, counts=torch.from_numpy(random.integers(1, 3, n)))
        case "assign" | "add":
            pair.assign(ids, rows, ts, add=call.verb == "add")
        case "erase":
            pair.erase(ids[:5])
        case "new":
            pair.reinitialize(ids[:5])
        case "restore":
            there = ids[pair.host.contains(ids)]
            pair.restore(pair.host.entries(there))
        case "evict" if pair.host.config.evict is not None:
            pair.evict(now_s=ts) if isinstance(pair.host.config.evict, Ttl) else pair.evict()
        case _:
            pair.lookup(ids, "initializer")


def _run(device: torch.device, config: TableConfig, calls: list[Call]) -> None:
    pair = Pair(config, 128, device)
    tables: tuple[Any, Any] = (pair.device, pair.host)
    seen = [table.touched("all", all_changes=True, capacity=100) for table in tables]
    for ts, call in enumerate(calls, 1):
        _do(pair, call, ts)
    pair.same()
    ours, model = (set(one.take().ids.tolist()) for one in seen)
    assert ours == model


@pytest.mark.long
@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(config=_configs(), calls=st.lists(CALLS, min_size=3, max_size=9))
def test_any_trace_gives_the_rows_and_counts_of_the_host_table(
    device: torch.device, config: TableConfig, calls: list[Call]
) -> None:
    _run(device, config, calls)
