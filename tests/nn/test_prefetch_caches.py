"""Batches whose rows caches on a device bring before they are asked for: the same numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pytest
import torch

import hedgerow as hr
from hedgerow.core.clock import ManualClock
from hedgerow.nn.embedding_modules import collections_of
from hedgerow.nn.prefetch import PrefetchedBatches
from hedgerow.tiers.tier_tables import Tiers, TierTables, device_tier_tables
from tests.support import everything

STEPS = 12


def _bags() -> hr.EmbeddingBags:
    tables = [hr.Table("item", 4, features=["item", "seen"]), hr.Table("user", 4)]
    return hr.EmbeddingBags(
        tables,
        optimizer=hr.Adagrad(lr=0.1),
        init=hr.Uniform(0.3),
        seed=3,
        clock=ManualClock(10**6),
    )


def _in_tiers(mode: str, device: torch.device) -> hr.EmbeddingBags:
    model = _bags()
    (one,) = collections_of(model)
    tiers = Tiers(mode=mode, fast_rows=24, slots=32, allow_small=True)
    configs = one.store.configs_to_move(device).values()
    tables, groups = device_tier_tables([(config, tiers) for config in configs], device, one.clock)
    one.set_store(TierTables(tables, device=device, together=groups))
    return model


def _batches(device: torch.device) -> Iterator[hr.IdBatch]:
    random = np.random.default_rng(4)
    for step in range(STEPS):
        names = ("user", "seen", "item")  # in another order than the tables have them
        ids = {name: (random.zipf(1.3, (6, 2)) % 40 + step).tolist() for name in names}
        yield hr.IdBatch.from_lists(ids).to(device)


def _train(model: hr.EmbeddingBags, batches: Iterable[hr.IdBatch]) -> list[float]:
    losses = []
    for batch in batches:
        loss = torch.stack([vector.square().sum() for vector in model(batch).values()]).sum()
        loss.backward()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("depth", [0, 2])
def test_rows_that_are_brought_ahead_lack_nothing(depth: int, device: torch.device) -> None:
    plain, cached = _bags(), _in_tiers("CACHING", device)
    wanted = _train(plain, _batches(torch.device("cpu")))
    reader = hr.prefetch(cached, _batches(device), depth=depth)
    ready = _WaitsFor(reader)
    assert _train(cached, ready) == pytest.approx(wanted, rel=1e-6)
    for name in ("item", "user"):
        ours, model = (everything(one.table(name)) for one in (cached, plain))
        assert ours == model
    brought = reader.counters.read("brought")
    assert brought == (STEPS - depth - 1 if depth else 0)
    assert reader.counters.read("read_now") == STEPS - brought
    assert reader.counters.read("read_ahead") == 0
    prefetched = sum(hr.stats(cached)[name]["prefetches"] for name in ("item", "user"))
    assert (prefetched > 0) == (depth > 0)


class _WaitsFor:
    """Batches, each with those behind it ready: else what is told to caches is left to luck."""

    def __init__(self, reader: PrefetchedBatches[hr.IdBatch]) -> None:
        self._reader = reader

    def __iter__(self) -> Iterator[hr.IdBatch]:
        for batch in self._reader:
            for _, future in tuple(self._reader._queue._queue):
                future.exception()
            yield batch


def test_a_hybrid_is_read_ahead_as_other_tables_are(device: torch.device) -> None:
    model = _in_tiers("HYBRID", device)
    reader = hr.prefetch(model, _batches(device))
    assert len(_train(model, reader)) == STEPS
    assert reader.counters.read("brought") == 0
    assert reader.counters.read("read_ahead") == STEPS - 2
