"""`hedgerow import-monolith`: what it lists, checks and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

import hedgerow as hr
from hedgerow.cli.app import app
from hedgerow.core.errors import (
    CheckpointExistsError,
    ConfigError,
    FileDamagedError,
    FileMissingError,
    InputError,
)
from hedgerow.monolith.files.exporter import export_table, export_tables
from hedgerow.routing.router import Router
from hedgerow.tables import monolith_rules
from hedgerow.tables.config import TableConfig
from hedgerow.tables.host import HostTable
from tests.monolith.files import ADAGRAD, config, trained

A, B = config("a", monolith_rules.MonolithAdam(), ADAGRAD), config("b:1", dim=2)


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["import-monolith", *map(str, arguments)])


def _configs(folder: Path, *configs: TableConfig, name: str = "tables.json") -> Path:
    path = folder / name
    path.write_text(json.dumps([cfg.to_dict() for cfg in configs]))
    return path


@pytest.fixture
def several(tmp_path: Path) -> Path:
    tables = {"a": trained(A, [1, 2, 3]), "b:1": HostTable(B)}
    return export_tables(tables, tmp_path / "all", files=2).base


def test_the_list_names_tables_rows_dims_and_optimizers(several: Path) -> None:
    result = _run(several, "--list")
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        f"{several}: 2 files, checksums ok",
        "  a: 3 rows, dim 6, optimizer adam+adagrad, newest time 1600000002",
        "  b:1: 0 rows, dim unknown, optimizer unknown, newest time 0",
    ]


def test_a_folder_lists_every_base_in_it(several: Path) -> None:
    export_table(trained(B, [1]), several.with_name("b-1"))
    lines = _run(several.parent, "--list").output.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == [
        f"{several}: 2 files, checksums ok",
        f"{several.with_name('b-1')}: 1 files, checksums ok",
    ]


def test_rows_are_read_into_configured_tables(several: Path, tmp_path: Path) -> None:
    result = _run(several, "--config", _configs(tmp_path, A, config("new")))
    assert result.output.splitlines() == [
        "a: 3 rows read, 3 distinct",
        "b:1: skipped, not in tables.json",
        "new: not in the files",
    ]


def test_each_table_of_a_folder_is_found_under_its_own_name(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    export_table(trained(B, [1]), saved / "b-1")
    export_table(trained(B, [1]), saved / "c")
    result = _run(saved, "--config", _configs(tmp_path, A, B))
    assert result.output.splitlines() == [
        "b:1: 1 rows read, 1 distinct",
        "c: skipped, not in tables.json",
        "a: not in the files",
    ]


def test_a_single_table_takes_a_single_config(tmp_path: Path) -> None:
    export_table(trained(B, [1, 2]), tmp_path / "any")
    result = _run(tmp_path / "any", "--config", _configs(tmp_path, B))
    assert result.output == "b:1: 2 rows read, 2 distinct\n"
    result = _run(tmp_path / "any", "--config", _configs(tmp_path, A, B))
    assert isinstance(result.exception, ConfigError)
    assert "holds a single table" in str(result.exception)


def test_states_of_another_optimizer_can_be_reset(tmp_path: Path) -> None:
    export_table(trained(B, [1, 2]), tmp_path / "any")
    other = _configs(tmp_path, config("b", monolith_rules.MonolithAdam(), dim=2))
    assert isinstance(_run(tmp_path / "any", "--config", other).exception, InputError)
    result = _run(tmp_path / "any", "--config", other, "--reset-states")
    assert result.output == "b: 2 rows read, 2 distinct, 2 with fresh states\n"


def _content(table: HostTable) -> dict[int, tuple[object, ...]]:
    """Rows, states and times by id."""
    (part,) = table.scan()
    states = [(name, s) for segment in part.states for name, s in sorted(segment.items())]
    return {
        key: (part.rows[i].tolist(), int(part.ts[i]), [(n, s[i].tolist()) for n, s in states])
        for i, key in enumerate(part.ids.tolist())
    }


@pytest.mark.parametrize(
    "options", [(), ("--shards", 3), ("--shards", 2, "--dist-type", "roundrobin")]
)
def test_the_files_become_a_checkpoint_with_rows_states_and_times(
    options: tuple[object, ...], tmp_path: Path
) -> None:
    tables = {"a": trained(A, [0, -1, 2**63 - 1, 77]), "b:1": trained(B, list(range(-9, 50)))}
    base = export_tables(tables, tmp_path / "all", files=2).base
    configs, out = _configs(tmp_path, A, B, config("new")), tmp_path / "step-0"
    result = _run(base, "--config", configs, "--out", out, *options)
    assert result.exit_code == 0, result.output
    rule = "roundrobin" if "roundrobin" in options else "hash_roundrobin"
    shards = int(str(options[1])) if options else 1
    last = result.output.splitlines()[-1]
    assert last == f"wrote {out}   {shards} shards ({rule})   63 rows"
    assert len(list(out.glob("*.arrow"))) == 2 * shards

    fresh = {cfg.name: HostTable(cfg) for cfg in (A, B)}
    new = trained(config("new"), [5])
    loaded = hr.load([*fresh.values(), new], out)
    assert loaded.rows == {"a": 4, "b:1": 59}
    assert loaded.added == ("new",)  # the files do not have it: as it was
    assert new.size() == 1
    for name, table in tables.items():
        assert _content(fresh[name]) == _content(table)
        assert fresh[name].max_ts() == table.max_ts()

    router = Router(rule, shards)
    parts = [HostTable(B) for _ in range(shards)]
    for shard, part in enumerate(parts):
        hr.load([part], out, router=router, shard=shard)
        assert set(router.owners(torch.tensor(list(_content(part)))).tolist()) <= {shard}
    assert sum(part.size() for part in parts) == 59


def test_a_checkpoint_is_replaced_only_when_told(several: Path, tmp_path: Path) -> None:
    arguments = (several, "--config", _configs(tmp_path, A), "--out", tmp_path / "out")
    assert _run(*arguments).exit_code == 0
    before = (tmp_path / "out" / "manifest.json").read_bytes()
    refused = _run(*arguments)
    assert isinstance(refused.exception, CheckpointExistsError)
    assert "rows read" not in refused.output  # before the long work
    assert (tmp_path / "out" / "manifest.json").read_bytes() == before
    assert _run(*arguments, "--overwrite").exit_code == 0


def test_damaged_files_leave_no_checkpoint(several: Path, tmp_path: Path) -> None:
    path = several.with_name("all-00001-of-00002")
    path.write_bytes(path.read_bytes()[:-1])
    result = _run(several, "--config", _configs(tmp_path, A), "--out", tmp_path / "out")
    assert isinstance(result.exception, FileDamagedError)
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_saved_is_refused(several: Path, tmp_path: Path) -> None:
    tables, out = _configs(tmp_path, A), tmp_path / "out"
    other = _configs(tmp_path, config("other"), name="other.json")
    for arguments, error, what in (
        (("--list", "--out", out), InputError, "--out needs --config"),
        (("--config", tables, "--shards", 2), InputError, "need --out"),
        (("--config", tables, "--dist-type", "roundrobin"), InputError, "need --out"),
        (("--list", "--overwrite"), InputError, "need --out"),
        (("--config", tables, "--out", out, "--shards", 0), ConfigError, "shards"),
        (("--config", tables, "--out", out, "--dist-type", "odd"), ConfigError, "dist_type"),
        (("--config", other, "--out", out), InputError, "none of the configured tables"),
    ):
        result = _run(several, *arguments)
        assert isinstance(result.exception, error), arguments
        assert what in str(result.exception)
        assert not out.exists()


def test_damage_is_named(several: Path) -> None:
    path = several.with_name("all-00001-of-00002")
    path.write_bytes(path.read_bytes()[:-1])
    result = _run(several, "--list")
    assert isinstance(result.exception, FileDamagedError)
    assert str(path) in str(result.exception)


def test_what_cannot_be_asked_is_refused(several: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    twice = _configs(tmp_path, B, B, name="twice.json")
    for arguments, error, what in (
        ((several,), InputError, "either --list or --config"),
        ((several, "--list", "--config", "x"), InputError, "either --list or --config"),
        ((tmp_path / "none", "--list"), FileMissingError, "no files none-"),
        ((empty, "--list"), FileMissingError, "has no files"),
        ((several, "--config", tmp_path / "absent.json"), ConfigError, "cannot be read as JSON"),
        ((several, "--config", _configs(tmp_path)), ConfigError, "at least one"),
        ((several, "--config", twice), ConfigError, "each name once"),
    ):
        result = _run(*arguments)
        assert isinstance(result.exception, error), arguments
        assert what in str(result.exception)


@pytest.mark.parametrize("text", ["{", "{}", "[1]"])
def test_a_file_that_is_no_list_of_tables_is_refused(text: str, several: Path) -> None:
    path = several.with_name("bad.json")
    path.write_text(text)
    assert isinstance(_run(several, "--config", path).exception, ConfigError)
