"""`hedgerow sample-keys`: statistics from files of every kind, in parts, up to a limit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from hedgerow.cli import app as program
from hedgerow.cli.key_file import stream_keys
from hedgerow.core.errors import FileDamagedError, FileMissingError, InputError
from hedgerow.planner.problem.key_stats import KeyStats, key_stats

IDS = np.random.default_rng(2).zipf(1.3, 200_000).astype(np.int64)


def _run(*arguments: object) -> str:
    result = CliRunner().invoke(program.app, ["sample-keys", *map(str, arguments)])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def _parquet(path: Path, ids: np.ndarray = IDS) -> Path:
    lists = pa.array([part.tolist() for part in np.array_split(ids, 1 + len(ids) // 2)])
    pq.write_table(pa.table({"item": lists, "day": range(len(lists))}), path, row_group_size=10_000)
    return path


def _read(path: Path) -> KeyStats:
    return KeyStats.from_dict(json.loads(path.read_text()))


def test_files_of_every_kind_say_the_same(tmp_path: Path) -> None:
    parquet, out = _parquet(tmp_path / "a.parquet"), tmp_path / "stats.json"
    np.save(tmp_path / "a.npy", IDS)
    (tmp_path / "a.txt").write_text("\n".join(map(str, IDS.tolist())))
    for path in (parquet, tmp_path / "a.npy", tmp_path / "a.txt"):
        column = ["--column", "item"] if path is parquet else []
        text = _run(path, *column, "--out", out)
        assert f"{len(IDS):,} ids of {len(np.unique(IDS)):,} keys" in text
        assert _read(out) == key_stats(IDS)


def test_a_limit_takes_the_first_of_each_file(tmp_path: Path) -> None:
    names = []
    for place in range(3):
        np.save(tmp_path / f"{place}.npy", np.full(5000 if place else 10, place))
        names.append(tmp_path / f"{place}.npy")
    _run(*names, "--limit", "3k", "--out", tmp_path / "stats.json")
    assert _read(tmp_path / "stats.json").counts() == [(1495, 2), (10, 1)]
    shown = json.loads(_run(names[1], "--limit", "7", "--json", "--out", tmp_path / "s.json"))
    assert shown["sampled"] == 7


def test_a_large_parquet_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "large.parquet"
    pq.write_table(pa.table({"item": np.arange(500_000)}), path, row_group_size=50_000)
    parts = stream_keys(path)
    assert len(next(parts)) <= 65_536
    whole = path.read_bytes()
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + b"\xff" * 2000 + whole[middle + 2000 :])
    _run(path, "--limit", "60k", "--out", tmp_path / "stats.json")  # the damage lies further on
    assert _read(tmp_path / "stats.json").sampled == 60_000


def test_what_cannot_be_sampled_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "words.txt").write_text("1 two")
    (tmp_path / "bad.parquet").write_text("no")
    parquet = _parquet(tmp_path / "a.parquet", IDS[:100])
    cases = [
        ((tmp_path / "none.parquet",), FileMissingError, "none.parquet"),
        ((tmp_path / "empty.txt",), InputError, "empty"),
        ((tmp_path / "words.txt",), InputError, "two"),
        ((tmp_path / "bad.parquet",), FileDamagedError, "bad.parquet"),
        ((parquet,), InputError, "--column"),
        ((parquet, "--column", "user"), InputError, "no column 'user'"),
        ((parquet, "--column", "item", "--limit", "2G"), InputError, "--limit"),
        ((parquet, "--column", "item", "--limit", "0"), InputError, "--limit"),
    ]
    for arguments, error, words in cases:
        with pytest.raises(error, match=words):
            _run(*arguments, "--out", tmp_path / "stats.json")
    assert not (tmp_path / "stats.json").exists()


def test_an_archive_of_arrays_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "a.npy").open("wb") as file:
        np.savez(file, a=IDS)
    with pytest.raises(FileDamagedError, match="but an archive"):
        _run(tmp_path / "a.npy", "--out", tmp_path / "stats.json")
