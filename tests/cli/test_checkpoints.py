"""`hedgerow inspect` and `hedgerow reshard`: what they show, write and refuse."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import hedgerow as hr
from hedgerow.cli import app as program
from hedgerow.core.errors import (
    CheckpointError,
    CheckpointExistsError,
    CheckpointMissingError,
    InputError,
    SaveError,
    UnknownNameError,
)
from hedgerow.routing.router import Router

from ..tables.checkpoint.common import change_manifest, config, content, filled


def _run(*arguments: object) -> str:
    result: Result = CliRunner(env={"COLUMNS": "200"}).invoke(
        program.app, list(map(str, arguments))
    )
    if result.exception is not None:
        raise result.exception
    return result.output


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    item, path = filled(1200), tmp_path / "a"
    router = Router("hash_roundrobin", 2)
    hr.save([item, filled(9, "user")], path, router=router, step=5, blobs={"filter": b"1"})
    hr.save_increment([item], path, {"item": torch.tensor([-1, 77])}, step=6, metadata={"x": "[y]"})
    return path


def test_inspect_shows_what_is_there_without_reading_rows(folder: Path) -> None:
    for file in folder.glob("*.arrow"):
        file.write_bytes(b"")
    shown = _run("inspect", folder)
    assert "step 6   2 shards (hash_roundrobin)   1 209 rows in the base   increments 1" in shown
    assert "checksums not verified" in shown
    assert 'metadata {"x": "[y]"}' in shown
    assert re.search(r"item +1 200 +7 +Ftrl, Adam, RowAdagrad +1 +1", shown)
    with pytest.raises(CheckpointError, match="is damaged"):
        _run("inspect", folder, "--verify")


def test_inspect_as_json_with_statistics(folder: Path) -> None:
    report = json.loads(_run("inspect", folder, "--stats", "--json", "--table", "item"))
    rows = torch.tensor([row[1] for row in content(filled(1200)).values()], dtype=torch.float64)
    stats = report["tables"].pop("item")["stats"]
    assert report["tables"] == {}
    assert (report["checksums"], report["blobs"]) == ("ok", ["filter"])
    assert stats.pop("mean_length") == pytest.approx(float(rows.norm(dim=1).mean()))
    assert stats == {"rows": 1200, "zero_rows": 0, "oldest_ts": 5, "newest_ts": 9}
    assert "mean |row|" in _run("inspect", folder, "--stats")


def test_inspect_shows_one_row(folder: Path) -> None:
    report = json.loads(_run("inspect", folder, "--table", "item", "--key", -1, "--json"))
    assert report["row"]["columns"]["row"] == content(filled(1200))[-1][1]
    (owner,) = Router("hash_roundrobin", 2).owners(torch.tensor([-1])).tolist()
    assert report["row"]["shard"] == owner
    assert f"shard {owner}   last 9" in _run("inspect", folder, "--table", "item", "--key", -1)


def test_inspect_says_what_cannot_be_shown(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--key needs --table"):
        _run("inspect", folder, "--key", 1)
    with pytest.raises(InputError, match="no row of id 77"):
        _run("inspect", folder, "--table", "item", "--key", 77)
    with pytest.raises(InputError, match="an id lies in"):
        _run("inspect", folder, "--table", "item", "--key", 2**63)
    with pytest.raises(UnknownNameError, match=r"'itme'.*Did you mean 'item'"):
        _run("inspect", folder, "--table", "itme")
    with pytest.raises(CheckpointMissingError, match="no complete checkpoint"):
        _run("inspect", tmp_path / "none")


def test_an_empty_checkpoint_has_statistics_too(tmp_path: Path) -> None:
    hr.save([hr.HostTable(config())], tmp_path / "a")
    report = json.loads(_run("inspect", tmp_path / "a", "--stats", "--json"))
    assert report["tables"]["item"]["stats"]["oldest_ts"] is None


def test_reshard_moves_every_row_to_its_owner(folder: Path, tmp_path: Path) -> None:
    said = _run("reshard", folder, tmp_path / "b", "--shards", 5, "--dist-type", "roundrobin")
    assert "5 shards (roundrobin)   1 209 rows" in said
    union: dict = {}
    for shard in range(5):
        part = hr.HostTable(config())
        hr.load([part], tmp_path / "b", router=Router("roundrobin", 5), shard=shard)
        union |= content(part)
    assert union == content(filled(1200))
    with pytest.raises(CheckpointExistsError, match="overwrite"):
        _run("reshard", folder, tmp_path / "b", "--shards", 2)
    told = json.loads(
        _run("reshard", folder, tmp_path / "b", "--shards", 2, "--overwrite", "--json")
    )
    assert (told["dist_type"], told["shards"], told["rows"]) == ("hash_roundrobin", 2, 1209)


def test_a_target_that_is_no_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for target in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nowhere")):
        with pytest.raises(SaveError, match="cannot save to"):
            _run("reshard", folder, target, "--shards", 2)
    assert (tmp_path / "file").read_text() == "mine"


def test_reshard_keeps_rank_0_empty(tmp_path: Path) -> None:
    table = filled(50)
    router = Router("roundrobin", 4, rank0_empty=True)
    hr.save([table], tmp_path / "a", router=router)
    _run("reshard", tmp_path / "a", tmp_path / "b", "--shards", 8)
    first = hr.HostTable(config())
    new = Router("roundrobin", 8, rank0_empty=True)
    assert hr.load([first], tmp_path / "b", router=new).rows == {"item": 0}


def test_inspect_of_a_model_with_its_optimizer_is_a_few_readable_lines(tmp_path: Path) -> None:
    model = hr.models.DeepFM([hr.Table("user", 4), hr.Table("item", 4)], dense=4)
    optimizer = torch.optim.Adam(model.parameters())
    batch = hr.data.clicks(batch_size=16, steps=1).batch(0)
    model(batch.dense, batch.ids.select(["user", "item"])).sum().backward()
    optimizer.step()
    note = {"test_loss": 0.5, "history": list(range(1000))}
    hr.save(model, tmp_path / "a", optimizer=optimizer, metadata=note)
    shown = _run("inspect", tmp_path / "a")
    assert len(shown) < 1000
    assert 'metadata {"test_loss": 0.5, "history": [0, 1, 2,' in shown
    assert "... (--json shows all)" in shown
    assert "beside the rows: dense weights, optimizer" in shown
    assert re.search(r"item +\d+ +5 +Adagrad", shown)
    told = json.loads(_run("inspect", tmp_path / "a", "--json"))
    assert told["metadata"]["user"] == note


@pytest.mark.parametrize("extras", [7, None, [1], "x"])
def test_inspect_shows_what_has_odd_metadata(tmp_path: Path, extras: object) -> None:
    hr.save(torch.nn.Sequential(hr.EmbeddingBags([hr.Table("[/x]", 2)])), tmp_path / "a")
    change_manifest(tmp_path / "a", lambda manifest: manifest["metadata"].update(extras=extras))
    assert "[/x]" in _run("inspect", tmp_path / "a")
