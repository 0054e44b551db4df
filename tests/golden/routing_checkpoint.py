"""Vectors of checkpoints: what a load does when the routing rule differs, who owns what then."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from hedgerow.routing.router import Router
from hedgerow.tables.checkpoint.load import load_tables
from hedgerow.tables.checkpoint.routers import check_routing
from hedgerow.tables.checkpoint.save import save_tables
from hedgerow.tables.host import HostTable
from hedgerow.tables.optimizers import Sgd

from ..tables.checkpoint.common import change_manifest, content
from .routing_area import AREA
from .runner import Case
from .tables_area import one_segment


def _with_rows(keys: list[int]) -> HostTable:
    table = one_segment(Sgd(lr=0.1), 2)
    ids = torch.tensor(keys).unique()
    table.assign(ids, torch.arange(2.0 * len(ids)).view(-1, 2))
    return table


@AREA.handles("checkpoint", "rule")
def rule(case: Case) -> None:
    c = case.take(("saved", "runtime", "anchor", "ours"))
    saved, runtime = c["saved"] or "roundrobin", c["runtime"]
    assert c["anchor"] in ("load", "error")
    assert c["ours"] in ("load", "reroute", "reroute_global")  # our files hold global ids always
    if c["anchor"] == "error":
        with pytest.raises(ValueError, match=rf"{saved}.*{runtime}"):
            check_routing(saved, runtime, reroute=False)
    else:
        assert check_routing(saved, runtime, reroute=False) is False
    assert check_routing(saved, runtime, reroute=True) is (c["ours"] != "load")
    _load_under(c["saved"], runtime, case.document["keys"], reroutes=c["ours"] != "load")


def _without_rule(manifest: dict[str, Any]) -> None:
    """As files of old were: no rule anywhere."""
    manifest["router"].pop("dist_type")
    for table in manifest["tables"].values():
        table.pop("dist_type")


def _load_under(saved: str | None, runtime: str, keys: list[int], *, reroutes: bool) -> None:
    """The same with files, on 1 shard and on 3."""
    table = _with_rows(keys)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "a"
        save_tables([table], folder, router=Router(saved or "roundrobin", 2, rows=1000))
        if saved is None:
            change_manifest(folder, _without_rule)
        for shards in (1, 3):
            router, found = Router(runtime, shards, rows=1000), {}
            for shard in range(shards):
                fresh = one_segment(Sgd(lr=0.1), 2)
                if reroutes:
                    with pytest.raises(ValueError, match=rf"{saved or 'roundrobin'}.*{runtime}"):
                        load_tables(folder, [fresh], router=router, shard=shard)
                load_tables(folder, [fresh], router=router, shard=shard, reroute=reroutes)
                assert not found.keys() & content(fresh).keys()
                found |= content(fresh)
            assert found == content(table)


@AREA.handles("checkpoint", "reshard")
def reshard(case: Case) -> None:
    c = case.take(
        ("from_world", "from_mode", "to_world", "to_mode", "from_owner", "to_owner"),
        ("rows_the_anchor_places_correctly",),  # what Monolith loses; we lose nothing
    )
    keys: list[int] = case.document["keys"]
    ids, table = torch.tensor(keys), _with_rows(keys)
    before = Router(c["from_mode"], c["from_world"])
    after = Router(c["to_mode"], c["to_world"])
    assert before.owners(ids).tolist() == c["from_owner"]
    places: dict[int, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        save_tables([table], folder, router=before)
        for shard in range(after.shards):
            part = one_segment(Sgd(lr=0.1), 2)
            load_tables(folder, [part], router=after, shard=shard, reroute=True)
            for key, row in content(part).items():
                assert key not in places
                assert row == content(table)[key]
                places[key] = shard
    assert [places[key] for key in keys] == c["to_owner"]
    assert len(places) == table.size()
