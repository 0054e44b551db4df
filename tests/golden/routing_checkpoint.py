"""Vectors of checkpoints: what a load does when the routing rule differs, who owns what then."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch

from hedgerow.routing.router import DIST_TYPES, Router
from hedgerow.tables.checkpoint.load import check_routing, load_tables
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
    if runtime in DIST_TYPES:
        _load_under(c["saved"], runtime, case.document["keys"], reroutes=c["ours"] != "load")


def _load_under(saved: str | None, runtime: str, keys: list[int], *, reroutes: bool) -> None:
    """The same with files."""
    table, fresh = _with_rows(keys), one_segment(Sgd(lr=0.1), 2)
    known = saved if saved in DIST_TYPES else "roundrobin"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "a"
        save_tables([table], folder, router=Router(known, 2))
        if saved is None:
            change_manifest(folder, lambda m: m["router"].pop("dist_type"))
        elif saved != known:
            change_manifest(folder, lambda m: m["router"].update(dist_type=saved))
        router = Router(runtime, 1)
        if reroutes:
            with pytest.raises(ValueError, match=rf"{saved or 'roundrobin'}.*{runtime}"):
                load_tables(folder, [fresh], router=router)
        load_tables(folder, [fresh], router=router, reroute=reroutes)
    assert content(fresh) == content(table)


@AREA.handles("checkpoint", "reshard")
def reshard(case: Case) -> None:
    c = case.take(
        ("from_world", "from_mode", "to_world", "to_mode", "from_owner", "to_owner"),
        ("rows_the_anchor_places_correctly",),  # what the original loses; we lose nothing
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
