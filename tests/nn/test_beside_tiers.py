"""What users combine with tables of two tiers: it works as with one tier, or says why not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import hedgerow as hr
from hedgerow.core.clock import ManualClock
from hedgerow.core.errors import DtypeError, NotSupportedError, StateError
from hedgerow.monolith.tables.evictor import Evictor
from hedgerow.nn.freeze import _readable
from hedgerow.nn.model_tables import tables_of
from hedgerow.serving.bundle import load_bundle
from hedgerow.tiers.hybrid import HybridTable
from hedgerow.tiers.tier_tables import Tiers, TierTables, tier_table

from ..serving.trained import request
from ..support import everything
from ..sync.replicas import DIMS, rows_of, served

# Without these the whole table would be fast, and nothing would move.
TIERS = {"item": Tiers(mode="CACHING", fast_rows=8), "user": Tiers(mode="HYBRID", fast_rows=5)}


def _plain() -> hr.EmbeddingBags:
    tables = [hr.Table(name, dim, evict=hr.Lru(1000)) for name, dim in DIMS.items()]
    return hr.EmbeddingBags(tables, optimizer=hr.Adagrad(lr=0.5), seed=4, clock=ManualClock(10**6))


def _tiered() -> hr.EmbeddingBags:
    model = _plain()
    configs = model.store.configs_to_move("tiers").values()
    model.set_store(TierTables([tier_table(config, TIERS[config.name]) for config in configs]))
    return model


def _batch(first: int) -> hr.IdBatch:
    ids = [[first + k, first + 2 * k] for k in range(4)]
    return hr.IdBatch.from_lists(dict.fromkeys(DIMS, ids))


def _learn(*models: hr.EmbeddingBags) -> None:
    for model in models:
        for first in (0, 0, 3, 20, 3, 40, 0):
            loss = sum(rows.square().sum() for rows in model(_batch(first)).values())
            assert isinstance(loss, torch.Tensor)
            loss.backward()


def test_a_frozen_form_reads_both_tiers_and_is_exported() -> None:
    plain, tiered = _plain(), _tiered()
    _learn(plain, tiered)
    frozen, ids = hr.freeze(tiered), _batch(3)
    program = torch.export.export(frozen, (ids,), dynamic_shapes=hr.dynamic_shapes(ids))
    expected = plain.eval()(ids)
    for read in (frozen(ids), program.module()(ids)):
        assert {name: rows.tolist() for name, rows in read.items()} == {
            name: rows.tolist() for name, rows in expected.items()
        }


def test_tiers_on_a_device_are_not_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    tiered = _tiered()
    monkeypatch.setattr(tiered.store, "device", torch.device("cuda"))
    with pytest.raises(NotSupportedError, match=r"hr\.load it into one on the CPU"):
        _readable(tiered)


def test_a_bundle_has_the_rows_of_both_tiers(tmp_path: Path) -> None:
    tiered, plain = _tiered(), _plain()
    _learn(tiered, plain)
    asked, told = request(None, _batch(3)), []
    for name, model in (("tiered", tiered), ("plain", plain)):
        bundle = hr.serving.export(model, tmp_path / name, example=_batch(0), version=1)
        loaded = load_bundle(bundle, name)
        told.append(loaded.signatures["serving_default"].run(asked))
    assert {name: rows.tolist() for name, rows in told[0].items()} == {
        name: rows.tolist() for name, rows in told[1].items()
    }
    assert any(bool(rows.any()) for rows in told[0].values())


def test_changes_of_both_tiers_reach_a_replica() -> None:
    tiered, plain = _tiered(), _plain()
    _learn(tiered, plain)
    with served() as (one, address), hr.publish(tiered, address, every="20ms") as publisher:
        assert publisher.flush()
        assert rows_of(one.store.tables) == rows_of(list(tables_of(plain).values()))
        _learn(tiered, plain)
        for model in (tiered, plain):
            model.table("user").erase(torch.arange(0, 5))
        assert publisher.flush()
        assert rows_of(one.store.tables) == rows_of(list(tables_of(plain).values()))


def test_servers_and_background_eviction_refuse_tiers() -> None:
    tiered = _tiered()
    with pytest.raises(StateError, match="on a device or in two tiers, but servers hold rows"):
        hr.distribute(tiered, servers=["127.0.0.1:1"])
    with pytest.raises(DtypeError, match=r"a HybridTable; pass HostTables. Call evict\(\)"):
        Evictor([tiered.table("user")])
    _learn(tiered)
    assert tiered.table("user").evict(rows=3).rows > 0
    assert tiered.table("user").size() == 3


def test_a_plan_for_host_memory_leaves_tables_where_they_are(tmp_path: Path) -> None:
    plain, ours = _plain(), _plain()
    rows = dict.fromkeys(DIMS, 20_000)
    hr.keep_on_disk(ours, tmp_path, memory="256KiB", rows=rows)
    _learn(plain, ours)  # "auto" asks for rows
    hr.distribute(ours, plan="auto")
    assert {type(table) for table in tables_of(ours).values()} == {HybridTable}
    _learn(plain, ours)
    for name, table in tables_of(plain).items():
        assert everything(tables_of(ours)[name]) == everything(table)
