"""URLs in place of paths: refused by name wherever a path is given, and no folder appears."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import hedgerow as hr
from hedgerow.cli.app import app
from hedgerow.core.errors import HedgerowError, InputError
from hedgerow.core.files import local_path
from hedgerow.train.checkpoints import Checkpoints
from hedgerow.train.events import JsonLines
from hedgerow.train.job import job_of
from hedgerow.train.run_folder import RunFolder

URL = "s3://bucket/place"


def _model() -> hr.EmbeddingBags:
    return hr.EmbeddingBags([hr.Table("user", 2)])


def _table() -> hr.HostTable:
    return hr.HostTable(hr.TableConfig("user", (hr.Segment(2, hr.Zeros(), hr.Sgd(lr=1.0)),)))


CALLS: dict[str, Callable[[], Any]] = {
    "save": lambda: hr.save(_model(), URL),
    "load": lambda: hr.load(_model(), URL),
    "save_tables": lambda: hr.save([_table()], URL),
    "save_tables_async": lambda: hr.save_async([_table()], URL),
    "save_increment": lambda: hr.save_increment([_table()], URL),
    "load_tables": lambda: hr.load([_table()], URL),
    "export": lambda: hr.serving.export(
        _model(), URL, example=hr.IdBatch.from_lists({"user": [[1]]})
    ),
    "replica": lambda: hr.serving.Replica(URL),
    "parquet": lambda: hr.data.parquet(URL, 2, features=["user"]),
    "tfrecord": lambda: hr.data.tfrecord([URL], 2, features=["user"]),
    "criteo": lambda: hr.data.criteo("hdfs://node/day.txt", 2),
    "movielens": lambda: hr.data.movielens(2, cache=URL),
    "rows in a file": lambda: hr.HostTable(_table().config, rows_in=hr.RowFile(URL, 2**20)),
    "checkpoints": lambda: Checkpoints(URL),
    "run folder": lambda: RunFolder(Path(URL)),
    "log": lambda: JsonLines(URL),
    "plan": lambda: hr.planner.Plan.load(URL),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_url_is_refused_and_no_folder_appears(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="is a URL; only paths of this machine's file system"):
        CALLS[name]()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "--data", "clicks", "--steps", "1", "--out", URL),
        ("train", URL),
        ("predict", URL),
        ("summary", URL),
        ("inspect", URL),
        ("reshard", URL, "there", "--shards", "2"),
        ("ps", "--shard", "0/1", "--checkpoint", URL),
        ("launch", "--servers", "1", "--checkpoint", URL, "script.py"),
        ("keys", "new", URL),
        ("keys", "bundle", URL),
        ("serve", URL),
        ("sample-keys", "keys.npy", "--out", URL),
        ("import-monolith", "--list", URL),
        ("bench", "ps", URL, "--profile", "--monolith", "--quick"),
        ("predict", "run", "--files", "here.parquet", "--files", URL),
    ],
)
def test_the_command_line_refuses_it_too(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, list(arguments))
    assert isinstance(result.exception, HedgerowError), result.output
    assert "is a URL; only paths of this machine's file system" in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_a_job_names_the_key() -> None:
    data = {"source": "parquet", "files": [URL], "features": ["user"], "label": "click"}
    with pytest.raises(HedgerowError, match=r"^the job: data: 's3://bucket/place' is a URL"):
        job_of({"data": data})


def test_paths_stay_paths(tmp_path: Path) -> None:
    for path in ("a:b", "x/s3://y", "C:/data", tmp_path, "weird:name/file"):
        assert local_path(path) == Path(path)
    with pytest.raises(InputError, match="'s3:/bucket'"):  # as pathlib writes it
        local_path(Path("s3://bucket"))
