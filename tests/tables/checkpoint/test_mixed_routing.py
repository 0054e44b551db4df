"""Tables of one checkpoint may have different owner rules: each keeps its own, and every row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import hedgerow as hr
from hedgerow.core.errors import CheckpointError, InputError
from hedgerow.routing.router import Router
from hedgerow.tables.checkpoint.chain import Chain
from hedgerow.tables.checkpoint.increments import compact, reshard
from hedgerow.tables.checkpoint.manifest_reader import read_manifest

from .common import change_manifest, config, content, filled, some_ids, step_of

RULES = {"ads": "roundrobin", "item": "continuous", "user": "hash_roundrobin"}
Contents = dict[str, dict[int, Any]]


def _routers(shards: int, rules: dict[str, str] = RULES) -> dict[str, Router]:
    return {name: Router(rule, shards, rows=300) for name, rule in rules.items()}


def _tables() -> list[hr.HostTable]:
    """Ids over all 64 bits, and small ones, which `continuous` puts into ranges."""
    tables = [filled(200, name, seed) for seed, name in enumerate(RULES)]
    for table in tables:
        step_of(table, torch.arange(300), 7)
    return tables


def _contents(tables: list[hr.HostTable]) -> Contents:
    return {table.config.name: content(table) for table in tables}


def _loaded(folder: Path, routers: dict[str, Router], **options: Any) -> Contents:
    """The rows of all shards; each is on the shard that its rule names, and on no other."""
    found: Contents = {name: {} for name in RULES}
    for shard in range(next(iter(routers.values())).shards):
        tables = [hr.HostTable(config(name)) for name in RULES]
        hr.load(tables, folder, router=routers, shard=shard, **options)
        for name, rows in _contents(tables).items():
            ids = torch.tensor(list(rows), dtype=torch.int64)
            assert set(routers[name].owners(ids).tolist()) <= {shard}
            assert not found[name].keys() & rows.keys()
            found[name].update(rows)
    return found


@pytest.mark.parametrize("before", [1, 2, 3])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_every_table_keeps_its_rule_and_every_row(tmp_path: Path, before: int, after: int) -> None:
    tables = _tables()
    saved = hr.save(tables, tmp_path, router=_routers(before))
    assert {name: saved.dist_type_of(name) for name in RULES} == RULES
    assert {name: read_manifest(tmp_path).router_of(name) for name in RULES} == _routers(before)
    assert saved.rows == sum(table.size() for table in tables)
    assert _loaded(tmp_path, _routers(after)) == _contents(tables)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (2, 3), (3, 1), (3, 2)])
def test_resharding_keeps_the_rule_of_every_table(tmp_path: Path, before: int, after: int) -> None:
    tables = _tables()
    hr.save(tables, tmp_path / "a", router=_routers(before))
    done = reshard(tmp_path / "a", tmp_path / "b", after)
    assert {name: done.router_of(name) for name in RULES} == _routers(after)
    assert done.rows == sum(table.size() for table in tables)
    assert _loaded(tmp_path / "b", _routers(after)) == _contents(tables)


@pytest.mark.parametrize("rule", ["continuous", "roundrobin", "hash_roundrobin"])
def test_resharding_can_bring_all_tables_under_one_rule(tmp_path: Path, rule: str) -> None:
    tables, one = _tables(), dict.fromkeys(RULES, rule)
    hr.save(tables, tmp_path / "a", router=_routers(2))
    done = reshard(tmp_path / "a", tmp_path / "b", 3, dist_type=rule, rows=300)
    assert done.dist_types() == (rule,)
    assert _loaded(tmp_path / "b", _routers(3, one)) == _contents(tables)


def test_a_new_rule_that_needs_rows_asks_for_them(tmp_path: Path) -> None:
    tables = _tables()
    hr.save(tables, tmp_path / "a", router=_routers(2))
    with pytest.raises(ValueError, match="'continuous' and rows is None"):
        reshard(tmp_path / "a", tmp_path / "b", 2, dist_type="continuous")
    rows = {"ads": 10, "user": 20}
    done = reshard(tmp_path / "a", tmp_path / "b", 2, dist_type="continuous", rows=rows)
    assert [done.tables[name].dist_rows for name in RULES] == [10, 300, 20]


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_one_table_under_another_rule_is_an_error_that_names_both(
    tmp_path: Path, shards: int
) -> None:
    tables = _tables()
    hr.save(tables, tmp_path, router=_routers(2))
    other = _routers(shards, {**RULES, "item": "roundrobin"})
    fresh = [hr.HostTable(config(name)) for name in RULES]
    with pytest.raises(ValueError, match="routed by continuous, table 'item' is now by roundrobin"):
        hr.load(fresh, tmp_path, router=other)
    assert all(table.size() == 0 for table in fresh)
    with pytest.raises(ValueError, match="'ads' is now by hash_roundrobin"):
        hr.load(fresh, tmp_path, router=Router("hash_roundrobin", shards))
    assert _loaded(tmp_path, other, reroute=True) == _contents(tables)


def test_tables_that_nobody_loads_may_have_any_rule(tmp_path: Path) -> None:
    tables = _tables()
    hr.save(tables, tmp_path, router=_routers(2))
    fresh = hr.HostTable(config("ads"))
    hr.load([fresh], tmp_path, router=Router("roundrobin", 1))
    assert content(fresh) == content(tables[0])


def test_increments_and_compaction_keep_the_rules(tmp_path: Path) -> None:
    tables = _tables()
    hr.save(tables, tmp_path, router=_routers(3))
    ids = torch.cat([torch.arange(50), some_ids(100, seed=9)]).unique()
    for table in tables:
        step_of(table, ids, 3)
    changed = dict.fromkeys(RULES, ids)
    done = hr.save_increment(tables, tmp_path, changed)
    assert {name: done.router_of(name) for name in RULES} == _routers(3)
    assert _loaded(tmp_path, _routers(2)) == _contents(tables)
    whole = compact(tmp_path)
    assert {name: whole.router_of(name) for name in RULES} == _routers(3)
    assert _loaded(tmp_path, _routers(2)) == _contents(tables)


def test_a_table_that_is_new_in_an_increment_brings_its_rule(tmp_path: Path) -> None:
    old, new = filled(60, "item"), filled(60, "user")
    rules = {"item": Router("continuous", 2, rows=50), "user": Router("roundrobin", 2)}
    hr.save([old], tmp_path, router=rules)
    ids = torch.tensor(list(content(new)))
    with pytest.raises(InputError, match="has 3 shards"):
        hr.save_increment([old, new], tmp_path, {"user": ids}, router=Router("roundrobin", 3))
    with pytest.raises(CheckpointError, match="'user' was routed by continuous"):
        hr.save_increment([old, new], tmp_path, {"user": ids})
    hr.save_increment([old, new], tmp_path, {"user": ids}, router=rules)
    fresh = [hr.HostTable(config(name)) for name in ("item", "user")]
    whole = {name: Router(rule.dist_type, 1, rows=50) for name, rule in rules.items()}
    hr.load(fresh, tmp_path, router=whole)
    assert _contents(fresh) == _contents([old, new])


def test_bounds_are_kept_and_cannot_be_cut_anew(tmp_path: Path) -> None:
    table, router = filled(100), Router("continuous", 2, bounds=[0, 2**62, 2**63])
    hr.save([table], tmp_path / "a", router=router)
    assert read_manifest(tmp_path / "a").router_of("item") == router
    assert reshard(tmp_path / "a", tmp_path / "b", 2).router_of("item") == router
    with pytest.raises(CheckpointError, match="bounds for 2 shards; name the new rule"):
        reshard(tmp_path / "a", tmp_path / "c", 3)
    fresh = hr.HostTable(config())
    hr.load([fresh], tmp_path / "b")
    assert content(fresh) == content(table)


def test_rows_on_the_wrong_shard_of_their_own_rule_are_found(tmp_path: Path) -> None:
    hr.save(_tables(), tmp_path, router=_routers(2))
    change_manifest(tmp_path, lambda m: m["tables"]["user"].update(dist_type="roundrobin"))
    fresh = hr.HostTable(config("user"))
    with pytest.raises(CheckpointError, match="does not belong to shard"):
        hr.load([fresh], tmp_path)
    assert fresh.size() == 0


def _old(manifest: dict[str, Any]) -> None:
    """A manifest as it was before tables had rules of their own."""
    for table in manifest["tables"].values():
        for name in ("dist_type", "dist_rows", "dist_bounds"):
            table.pop(name, None)


def test_old_manifests_have_one_rule_for_all(tmp_path: Path) -> None:
    tables = _tables()
    hr.save(tables, tmp_path, router=Router("hash_roundrobin", 2))
    change_manifest(tmp_path, _old)
    one = dict.fromkeys(RULES, "hash_roundrobin")
    assert _loaded(tmp_path, _routers(3, one)) == _contents(tables)
    change_manifest(tmp_path, lambda m: m["router"].update(dist_type="continuous"))
    assert Chain.read(tmp_path).parts("item")[0].router is None  # its rows are not known
    assert _loaded(tmp_path, _routers(3, one), reroute=True) == _contents(tables)
    with pytest.raises(CheckpointError, match="reshard it to another rule"):
        reshard(tmp_path, tmp_path / "b", 2)
    assert reshard(tmp_path, tmp_path / "b", 2, dist_type="roundrobin").rows == sum(
        table.size() for table in tables
    )


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"dist_type": "modulo"}, "dist_type is 'modulo'; it must be one of continuous"),
        ({"dist_type": None}, "dist_type is None"),
        ({"dist_rows": 0}, "dist_rows is 0"),
        ({"dist_rows": "9"}, "dist_rows is '9'"),
        ({"dist_bounds": [0, -1]}, r"dist_bounds\[1\] is -1"),
        ({"dist_bounds": 3}, "must be a list"),
        ({"dist_bounds": [1, 2]}, "must be sorted and begin with 0"),
        ({"dist_rows": 2**63 - 1}, "below 2"),
        ({"dist_tipe": "x"}, "no such field"),
    ],
)
def test_rules_that_make_no_sense_are_named(
    tmp_path: Path, rule: dict[str, Any], message: str
) -> None:
    hr.save([filled(10)], tmp_path, router=Router("continuous", 2, rows=9))
    change_manifest(tmp_path, lambda m: m["tables"]["item"].update(rule))
    with pytest.raises(CheckpointError, match=message):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("router", "message"),
    [
        ({"item": Router("roundrobin", 2)}, "no rule for table 'ads'; it has item"),
        ({}, "no rule for table 'ads'; it has none"),
        (
            {**_routers(2), "item": Router("roundrobin", 3)},
            "'item' has 3 shards.*the checkpoint has 2",
        ),
        ({**_routers(2), "item": "roundrobin"}, "must be a Router"),
        ("roundrobin", "router is 'roundrobin'"),
    ],
)
def test_rules_that_do_not_fit_together_are_refused(
    tmp_path: Path, router: Any, message: str
) -> None:
    tables = [hr.HostTable(config(name)) for name in RULES]
    with pytest.raises(ValueError, match=message):
        hr.save(tables, tmp_path / "a", router=router)
    hr.save(tables, tmp_path / "b", router=_routers(2))
    with pytest.raises(ValueError, match=message):
        hr.load(tables, tmp_path / "b", router=router)
