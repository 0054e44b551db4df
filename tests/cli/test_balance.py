"""`hedgerow balance`: keys from files of every kind, text, JSON and a picture."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from hedgerow.cli import app as program
from hedgerow.cli.key_file import read_keys
from hedgerow.core.errors import FileDamagedError, FileMissingError, InputError

KEYS = [0, 8, 16, 24, -8, -(2**63), 2**63 - 1]


def _run(*arguments: object) -> str:
    result = CliRunner().invoke(program.app, ["balance", *map(str, arguments)])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def _files(folder: Path) -> dict[str, Path]:
    unsigned = [key % 2**64 for key in KEYS]
    (folder / "keys.txt").write_text("\n".join(map(str, KEYS)) + "\n")
    (folder / "unsigned.txt").write_text(" ".join(map(str, unsigned)))
    np.save(folder / "keys.npy", np.array(KEYS))
    np.save(folder / "unsigned.npy", np.array(unsigned, np.uint64).reshape(1, -1))
    columns = {"item": pa.array([KEYS[:3], None, [None], KEYS[3:]]), "day": pa.array([1, 2, 3, 4])}
    pq.write_table(pa.table(columns), folder / "keys.parquet")
    return {path.name: path for path in folder.iterdir()}


def test_keys_are_read_from_every_kind_of_file(tmp_path: Path) -> None:
    for name, path in _files(tmp_path).items():
        assert read_keys(path, "item" if "parquet" in name else "").tolist() == KEYS


def test_text_and_picture(tmp_path: Path) -> None:
    np.save(tmp_path / "keys.npy", np.arange(1000, dtype=np.int32) * 8)
    png = tmp_path / "balance.png"
    text = _run(tmp_path / "keys.npy", "--ranks", 8, "--png", png, "--rows", 8000)
    assert "roundrobin                     8.000 (0.875)" in text
    assert "recommended: hash_roundrobin" in text
    assert png.read_bytes().startswith(b"\x89PNG")


def test_json(tmp_path: Path) -> None:
    path = _files(tmp_path)["keys.parquet"]
    found = json.loads(_run(path, "--column", "item", "--ranks", 2, "--step-keys", 3, "--json"))
    assert (found["keys"], found["ranks"], found["step_keys"]) == (7, 2, 3)
    assert [rule["dist_type"] for rule in found["rules"]] == ["roundrobin", "hash_roundrobin"]


def test_files_that_hold_no_keys_are_named(tmp_path: Path) -> None:
    files = _files(tmp_path)
    pq.write_table(pa.table({"item": ["a"]}), tmp_path / "words.parquet")
    np.save(tmp_path / "floats.npy", np.ones(3))
    for name in ("bad.txt", "bad.npy", "bad.parquet"):
        (tmp_path / name).write_text("7 x")
    (tmp_path / "large.txt").write_text(str(2**64))
    (tmp_path / "keys.csv").write_text("1")
    for name, column, error, message in (
        ("keys.parquet", "", InputError, "item, day; choose one with --column"),
        ("keys.parquet", "user", InputError, "no column 'user'; it has item, day"),
        ("keys.npy", "user", InputError, "has no columns"),
        ("words.parquet", "", InputError, "holds string"),
        ("floats.npy", "", InputError, "holds float64"),
        ("bad.txt", "", InputError, "word 2 is 'x'"),
        ("large.txt", "", InputError, "a key has 64 bits"),
        ("bad.npy", "", FileDamagedError, "no file of one NumPy array"),
        ("bad.parquet", "", FileDamagedError, "no Parquet file"),
        ("keys.csv", "", InputError, r"ends in '\.csv'"),
        ("none.txt", "", FileMissingError, "is no file"),
    ):
        with pytest.raises(error, match=message):
            read_keys(tmp_path / name, column)
    with pytest.raises(InputError, match="choose one"):
        _run(files["keys.parquet"], "--ranks", 2)
