"""Damage to whole sets of files: found, named, never loaded."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pytest

from hedgerow.core.errors import FileDamagedError, FileMissingError, HedgerowError, InputError
from hedgerow.data.tfrecord_format import payloads
from hedgerow.monolith.files.exporter import export_table, export_tables
from hedgerow.monolith.files.importer import import_table, import_tables
from hedgerow.monolith.files.records import (
    FileSet,
    SnappyReader,
    file_count,
    find_bases,
    find_files,
    first_base,
    numbered,
)
from hedgerow.tables import monolith_rules
from hedgerow.tables.host import HostTable
from tests.support import everything

from .files import config, trained

CONFIGS = {
    "a": config("a", monolith_rules.MonolithAdam()),
    "b": config("b", monolith_rules.MonolithFtrl()),
}


def _boundaries(path: Path) -> set[int]:
    with path.open("rb") as file:
        return {0, path.stat().st_size, *(at for at, _ in payloads(file, path.name))}


def _damaged_import(base: Path, path: Path, tables: dict[str, HostTable]) -> None:
    before = {name: everything(table) for name, table in tables.items()}
    with pytest.raises(FileDamagedError) as caught:
        _import(base, tables)
    assert path.name in str(caught.value)
    assert {name: everything(table) for name, table in tables.items()} == before


def _import(base: Path, tables: dict[str, HostTable]) -> None:
    if find_files(base).is_multi:
        import_tables(base, tables)
    else:
        import_table(base, tables["a"])


def _saved(folder: Path, several: bool) -> tuple[FileSet, dict[str, HostTable]]:
    tables = {name: trained(cfg, list(range(20))) for name, cfg in CONFIGS.items()}
    if several:
        return export_tables(tables, folder / "all", files=2), tables
    return export_table(tables["a"], folder / "all", files=2), {"a": tables["a"]}


@pytest.mark.parametrize("several", [False, True], ids=["single", "multi"])
def test_random_bit_flips_are_found_and_named(several: bool, tmp_path: Path) -> None:
    files, tables = _saved(tmp_path, several)
    targets = {name: trained(CONFIGS[name], [77]) for name in tables}
    chance = random.Random(1)
    for _ in range(100):
        path = chance.choice([*files.files, *files.metas])
        data = path.read_bytes()
        bit = chance.randrange(8 * len(data))
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        if several and path in files.files and _same_content(data, bytes(changed)):
            continue  # another way to compress the same bytes: nothing is damaged
        path.write_bytes(changed)
        _damaged_import(files.base, path, targets)
        path.write_bytes(data)
    fresh = {name: HostTable(CONFIGS[name]) for name in tables}
    _import(files.base, fresh)
    assert {k: everything(t) for k, t in fresh.items()} == {
        k: everything(t) for k, t in tables.items()
    }


def _same_content(one: bytes, other: bytes) -> bool:
    try:
        return SnappyReader(io.BytesIO(one), "").read(2**26) == SnappyReader(
            io.BytesIO(other), ""
        ).read(2**26)
    except FileDamagedError:
        return False


@pytest.mark.parametrize("several", [False, True], ids=["single", "multi"])
def test_random_truncations_are_found_and_named(several: bool, tmp_path: Path) -> None:
    files, tables = _saved(tmp_path, several)
    targets = {name: trained(CONFIGS[name], [77]) for name in tables}
    chance = random.Random(2)
    for _ in range(100):
        path = chance.choice([*files.files, *files.metas])
        data = path.read_bytes()
        # A single-table file has no count of its rows: a cut between two frames cannot be seen.
        cuts = set(range(len(data))) - (set() if several else _boundaries(path))
        path.write_bytes(data[: chance.choice(sorted(cuts))])
        if path in files.metas:
            path = files.files[files.metas.index(path)]
            # The metadata or the file it belongs to is named.
            with pytest.raises(FileDamagedError, match=r"all(\.meta)?-0000"):
                _import(files.base, targets)
            files.metas[files.files.index(path)].write_bytes(data)
        else:
            _damaged_import(files.base, path, targets)
            path.write_bytes(data)


def test_no_files_at_all(tmp_path: Path) -> None:
    for base in (tmp_path / "user", tmp_path / "no folder" / "user"):
        with pytest.raises(FileMissingError, match="no files user-"):
            find_files(base)


def _touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_bytes(b"")


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (["user-00000-of-00002"], "lacks user-00001-of-00002: 1 of 2"),
        (["user-00001-of-00002"], "lacks user-00000-of-00002"),
        (["user-00000-of-00001", "user-00000-of-00002", "user-00001-of-00002"], "one of 1, 2"),
        (["user-00000-of-00001", "user-00001-of-00001"], "has too many files"),
        (["user-00000-of-00000"], "has too many files"),
        (["user-00000-of-99999999999999999999"], "1 of 99999999999999999999"),
        (["user-00000-of-00001", "user.meta-00000-of-00002"], "user.meta lacks"),
        (
            ["user-00000-of-00001", "user.meta-00000-of-00002", "user.meta-00001-of-00002"],
            "1 files and 2 files of metadata",
        ),
    ],
)
def test_a_set_that_is_not_whole(names: list[str], what: str, tmp_path: Path) -> None:
    _touch(tmp_path, *names)
    with pytest.raises(FileDamagedError, match=what):
        find_files(tmp_path / "user")


def test_left_over_and_foreign_files_do_not_count(tmp_path: Path) -> None:
    _touch(
        tmp_path,
        "user-00000-of-00001",
        "user-00000-of-00002-tmp-ab12",
        "user2-00000-of-00003",
        "the-user-00000-of-00003",
        "user-000000-of-00001",
        "user",
    )
    files = find_files(tmp_path / "user")
    assert [path.name for path in files.files] == ["user-00000-of-00001"]
    assert not files.is_multi


def test_names_are_tried_in_order(tmp_path: Path) -> None:
    _touch(tmp_path, "ps-0-user-00000-of-00001", "old-00000-of-00001", "m.meta-00000-of-00001")
    assert first_base(tmp_path, ["ps:0/user", "old"]).name == "ps-0-user"
    assert first_base(tmp_path, ["new", "old"]).name == "old"
    assert [base.name for base in find_bases(tmp_path)] == ["m.meta", "old", "ps-0-user"]
    with pytest.raises(FileMissingError, match=r"table 'new' has no files.*new, newer.*Found: m"):
        first_base(tmp_path, ["new", "newer"])
    with pytest.raises(InputError, match="names is empty"):
        first_base(tmp_path, [])


@pytest.mark.parametrize("files", [0, -2, 1.5, True])
def test_a_number_of_files_must_be_one(files: int) -> None:
    with pytest.raises(HedgerowError, match="files is"):
        file_count(5, files)


def test_a_folder_in_place_of_a_file_is_an_error_of_the_system(tmp_path: Path) -> None:
    numbered(tmp_path / "user", 0, 1).mkdir()
    with pytest.raises(IsADirectoryError):
        import_table(tmp_path / "user", HostTable(CONFIGS["a"]))
