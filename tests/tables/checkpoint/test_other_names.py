"""A table that has several names: a load finds its rows under any of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import hedgerow as hr
from hedgerow.core.errors import ConfigError
from hedgerow.tables.checkpoint.increments import save_increment
from hedgerow.tables.checkpoint.load import load_tables
from hedgerow.tables.checkpoint.manifest_reader import read_manifest
from hedgerow.tables.checkpoint.save import save_tables
from tests.support import everything, table_config

IDS = torch.tensor([1, 2, -3])


def table(name: str, *also: str) -> hr.HostTable:
    return hr.HostTable(table_config(name=name, also=also))


@pytest.mark.parametrize(
    ("saved", "live"),
    [
        (("old", "new"), ("new",)),
        (("old",), ("new", "old")),
        (("old", "shared"), ("new", "shared")),
        (("same", "other"), ("same",)),
    ],
)
def test_a_load_finds_either(tmp_path: Path, saved: tuple[str, ...], live: tuple[str, ...]) -> None:
    before, after = table(*saved), table(*live)
    before.assign(IDS, torch.rand(3, 4))
    manifest = save_tables([before], tmp_path)
    assert read_manifest(tmp_path).tables[saved[0]].also == saved[1:]
    before.assign(IDS[:1], torch.ones(1, 4))
    before.erase(IDS[1:2])
    save_increment(tmp_path, [before], {saved[0]: IDS[:2]})
    loaded = load_tables(tmp_path, [after])
    assert everything(after) == everything(before)
    assert (loaded.added, loaded.removed) == ((), ())
    assert manifest.rows == 3


def test_the_own_name_comes_first(tmp_path: Path) -> None:
    right, wrong = table("one"), table("two", "one")
    right.assign(IDS, torch.ones(3, 4))
    save_tables([wrong, right], tmp_path)
    after = table("one")
    assert load_tables(tmp_path, [after]).removed == ("two",)
    assert after.size() == 3


def test_names_are_texts() -> None:
    with pytest.raises(ConfigError, match="also"):
        table_config(also=["a"])


def test_the_order_of_leaving_is_found_by_another_name(tmp_path: Path) -> None:
    def made(name: str, *also: str) -> hr.HostTable:
        segments = (hr.Segment(1, hr.Zeros(), hr.Sgd(lr=1.0)),)
        rule = hr.Lfu(8, half_life=16)
        return hr.HostTable(hr.TableConfig(name, segments, evict=rule, also=also))

    old, new = made("old"), made("new", "old")
    for _ in range(20):
        old.apply_gradients(torch.arange(8), torch.ones(8, 1))
    hr.save([old], tmp_path / "a")
    assert hr.load([new], tmp_path / "a").rows == {"new": 8}
    assert new.uses(torch.arange(8)).tolist() == old.uses(torch.arange(8)).tolist()
    assert min(new.uses(torch.arange(8)).tolist()) > 0
