"""`Table.dist_type` is the only source of the owner rule: what it may be; saves keep it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import hedgerow as hr
from hedgerow.core.errors import ConfigError
from hedgerow.nn.model_tables import routers_of
from hedgerow.routing import SUPPORTED_DIST_TYPES
from hedgerow.routing.router import Router
from hedgerow.sharding.all_to_all_tables import AllToAllTables
from hedgerow.sharding.exchange import LocalExchange
from hedgerow.tables.multi.host_tables import HostTables
from hedgerow.tables.store import TableKeys
from tests.tables.checkpoint.common import content


def _model(rule: str = "roundrobin") -> hr.EmbeddingBags:
    return hr.EmbeddingBags(
        [
            hr.Table("ads", 2, dist_type=rule, rows=10),
            hr.Table("item", 2, dist_type="continuous", rows=10),
            hr.Table("user", 2),
        ],
        seed=1,
    )


@pytest.mark.parametrize("value", ["modulo", "", None, "Continuous", 1])
def test_other_values_are_refused_with_the_three_that_may_be(value: object) -> None:
    with pytest.raises(ValueError, match="continuous, roundrobin, hash_roundrobin") as caught:
        hr.Table("item", 2, dist_type=value, rows=9)  # pyright: ignore[reportArgumentType]
    assert repr(value) in str(caught.value)
    assert isinstance(caught.value, ConfigError)


@pytest.mark.parametrize("rows", [None, 0])
def test_continuous_needs_rows(rows: int | None) -> None:
    with pytest.raises(ValueError, match=f"'continuous' and rows is {rows}"):
        hr.Table("item", 2, dist_type="continuous", rows=rows)
    for rule in SUPPORTED_DIST_TYPES:
        assert hr.Table("item", 2, dist_type=rule, rows=7).dist_type == rule


def test_routers_follow_the_tables() -> None:
    assert routers_of(_model(), 3) == {
        "ads": Router("roundrobin", 3),
        "item": Router("continuous", 3, rows=10),
        "user": Router("hash_roundrobin", 3),
    }


def test_a_model_is_saved_with_the_rules_of_its_tables(tmp_path: Path) -> None:
    model, fresh = _model(), _model()
    for name in ("ads", "item", "user"):
        ids = torch.tensor([0, 5, 9, 77, -1])
        model.table(name).assign(ids, torch.randn(5, 2))
    manifest = hr.save(model, tmp_path)
    assert {name: manifest.router_of(name) for name in manifest.tables} == routers_of(model)
    hr.load(fresh, tmp_path)
    other = _model("hash_roundrobin")
    with pytest.raises(
        ValueError, match="routed by roundrobin, table 'ads' is now by hash_roundro"
    ):
        hr.load(other, tmp_path)
    hr.load(other, tmp_path, reroute=True)
    for name in ("ads", "item", "user"):
        assert content(fresh.table(name)) == content(model.table(name))
        assert content(other.table(name)) == content(model.table(name))


def test_tables_that_differ_in_dist_type_are_never_fused() -> None:
    """Alike in all else, with the same ids: each stays a table, spread by its own rule."""
    tables = [hr.Table(rule, 2, dist_type=rule, rows=10) for rule in SUPPORTED_DIST_TYPES]
    model = hr.EmbeddingBags(tables, seed=1)
    routers = routers_of(model, 2)
    assert len({routers[name] for name in model.store.names}) == 3
    assert len({id(model.table(name)) for name in model.store.names}) == 3
    ids = torch.tensor([0, 1, 4, 5, 9, 77, 1000, -1, -(2**63)])
    splits = (0, *(len(ids) * (k + 1) for k in range(3)))
    configs = {table.name: table.resolve(1) for table in tables}
    owners = {name: routers[name].owners(ids) for name in model.store.names}
    assert len({tuple(owner.tolist()) for owner in owners.values()}) == 3

    def work(exchange: LocalExchange) -> dict[str, set[int]]:
        own = HostTables(configs)
        over = AllToAllTables(own, [routers[name] for name in own.names], exchange)
        over.apply_gradients(TableKeys(ids.repeat(3), splits), torch.ones(len(ids) * 3 * 2))
        return {name: set(content(own.table(k))) for k, name in enumerate(own.names)}

    for rank, held in enumerate(LocalExchange.run(2, work)):
        for name, found in held.items():
            assert found == set(ids[owners[name] == rank].tolist()), (name, rank)
