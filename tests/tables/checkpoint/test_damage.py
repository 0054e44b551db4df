"""Damaged and hostile files: every one is named, none is loaded, none crashes."""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

import hedgerow as hr
from hedgerow.core.errors import CheckpointError
from hedgerow.routing.router import Router
from hedgerow.tables.checkpoint.manifest import MANIFEST, seal
from hedgerow.tables.checkpoint.manifest_reader import parse_manifest, read_manifest

from .common import change_manifest, config, content, filled

FLIPS = 200


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base with blobs and two increments."""
    folder = tmp_path_factory.mktemp("whole") / "a"
    tables = [filled(60, "item"), filled(40, "user", seed=1)]
    blobs = {"filter": bytes(range(200))}
    hr.save(tables, folder, router=Router("hash_roundrobin", 2), blobs=blobs)
    for i in range(2):
        changed = {t.config.name: next(iter(t.scan())).ids[:10].clone() for t in tables}
        tables[0].erase(changed["item"][:3])
        hr.save_increment(tables, folder, changed, step=i)
    return folder


def _damage(data: bytes, at_random: random.Random) -> bytes:
    kind = at_random.randrange(4)
    where = at_random.randrange(len(data))
    if kind == 0:
        return data[:where]
    if kind == 1:
        return data + bytes(at_random.randrange(1, 9))
    bit = 1 << at_random.randrange(8)
    return data[:where] + bytes([data[where] ^ bit]) + data[where + 1 :]


def test_every_flip_and_cut_is_found_and_named(whole: Path, tmp_path: Path) -> None:
    at_random = random.Random(4)
    files = sorted(p.relative_to(whole) for p in whole.rglob("*") if p.is_file())
    assert sum(f.name == MANIFEST for f in files) == 3
    copy = tmp_path / "copy"
    shutil.copytree(whole, copy)
    tables = [filled(7, "item", seed=8), filled(7, "user", seed=9)]
    before = [content(t) for t in tables]
    for i in range(FLIPS):
        file = files[i % len(files)]
        good = (whole / file).read_bytes()
        (copy / file).write_bytes(_damage(good, at_random))
        with pytest.raises(CheckpointError, match=re.escape(file.name)):
            hr.load(tables, copy)
        (copy / file).write_bytes(good)
    assert [content(t) for t in tables] == before
    hr.load(tables, copy)  # all damage was undone
    assert content(tables[0]) != before[0]


def test_every_byte_of_a_manifest_counts(tmp_path: Path) -> None:
    hr.save([filled(3)], tmp_path, metadata={"é": 1e-5})
    good = (tmp_path / MANIFEST).read_bytes()
    at_random = random.Random(2)
    for at in range(len(good)):
        bad = good[:at] + bytes([good[at] ^ 1 << at_random.randrange(8)]) + good[at + 1 :]
        with pytest.raises(CheckpointError, match="is damaged"):
            parse_manifest(bad, tmp_path / MANIFEST)


@pytest.mark.parametrize("what", ["rows", "blob"])
def test_a_missing_file_is_named(whole: Path, tmp_path: Path, what: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(whole, copy)
    manifest = read_manifest(copy)
    name = manifest.files[0].file if what == "rows" else manifest.blobs[0].file
    (copy / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        hr.load([], copy)
    (copy / name).mkdir()
    with pytest.raises(CheckpointError, match=f"{name} is no plain file"):
        hr.load([], copy)


def _set(*way: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        place: Any = manifest
        for key in way[:-1]:
            place = place[key]
        place[way[-1]] = value

    return change


def _drop(*way: Any) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        place: Any = manifest
        for key in way[:-1]:
            place = place[key]
        del place[way[-1]]

    return change


SEGMENT = ("tables", "item", "schema", "segments", 0)
HOSTILE = {
    "format is 'zip'": _set("format", value="zip"),
    "version is 2; this release reads 1": _set("version", value=2),
    "version is True": _set("version", value=True),
    "kind is 'half'": _set("kind", value="half"),
    "number is 3; a base has number 0": _set("number", value=3),
    "parent is 'x'; it must be 64 hex": _set("parent", value="x"),
    "step is -1": _set("step", value=-1),
    "step is 9223372036854775808": _set("step", value=2**63),
    "step is 1.0": _set("step", value=1.0),
    "metadata is []": _set("metadata", value=[]),
    "router is None": _set("router", value=None),
    "router.shards is 0": _set("router", "shards", value=0),
    "shards of the files of table 'item' is": _set("router", "shards", value=10**18),
    "router.dist_type is 'random'": _set("router", "dist_type", value="random"),
    "router.rank0_empty is 1": _set("router", "rank0_empty", value=1),
    "manifest.blobs is None; it is missing": _drop("blobs"),
    "manifest.extra is 1; no such field": _set("extra", value=1),
    "tables is []": _set("tables", value=[]),
    "tables['item'].rows is '60'": _set("tables", "item", "rows", value="60"),
    "tables['item'].rows is 7; its files hold": _set("tables", "item", "rows", value=7),
    "tables['item'].config is 5": _set("tables", "item", "config", value=5),
    "segments is {}": _set("tables", "item", "schema", "segments", value={}),
    "must add up to 1..65536": _set("tables", "item", "schema", "segments", value=[]),
    "segments[0].dim is 1000000000": _set(*SEGMENT, "dim", value=10**9),
    "segments[0].optimizer is ''": _set(*SEGMENT, "optimizer", value=""),
    "states[0].dtype is 'float64'": _set(*SEGMENT, "states", 0, "dtype", value="float64"),
    "states[0].per is None; it is missing": _drop(*SEGMENT, "states", 0, "per"),
    "files is 'all'": _set("files", value="all"),
    "files[0].file is '../../etc/passwd'": _set("files", 0, "file", value="../../etc/passwd"),
    "files[0].file is '/etc/passwd'": _set("files", 0, "file", value="/etc/passwd"),
    "files[0].file is '.hidden'": _set("files", 0, "file", value=".hidden"),
    "files[0].file is 'a\\x00b'": _set("files", 0, "file", value="a\0b"),
    "files[0].file is 'a\\n'": _set("files", 0, "file", value="a\n"),
    "a manifest does not list itself": _set("files", 0, "file", value=MANIFEST),
    "files[0].table is 'none'; tables has no such table": _set("files", 0, "table", value="none"),
    "files[0].shard is 2; the router has 2": _set("files", 0, "shard", value=2),
    "a shard occurs twice": _set("files", 0, "shard", value=1),
    "files[0].content is 'deletions'; a base": _set("files", 0, "content", value="deletions"),
    "files[0].bytes is 1e+300": _set("files", 0, "bytes", value=1e300),
    "files[0].sha256 is 'abc'": _set("files", 0, "sha256", value="abc"),
    "every one of the 2 shards must have one": _drop("files", 0),
    "blobs[0].name is 5": _set("blobs", 0, "name", value=5),
    "a file occurs twice": lambda m: m["blobs"][0].update(file=m["files"][0]["file"]),
    "a name occurs twice": lambda m: m["blobs"].append({**m["blobs"][0], "file": "other"}),
    "bytes where the manifest says 1": _set("files", 0, "bytes", value=1),
}


@pytest.mark.parametrize("message", HOSTILE)
def test_a_hostile_manifest_is_refused_by_field(whole: Path, tmp_path: Path, message: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(whole, copy)
    shutil.rmtree(next(copy.glob("increments-*")))
    change_manifest(copy, HOSTILE[message])
    with pytest.raises(CheckpointError, match=re.escape(message)):
        hr.load([], copy)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{",
        '{"format": NaN',
        '{"a": 1, "a": 2',
        "[" * 100_000,
        '{"step": ' + "9" * 5000,
        '{"x": "\ud800"',
    ],
    ids=range(9),
)
def test_what_is_no_manifest_at_all(tmp_path: Path, text: str) -> None:
    body = text.encode(errors="surrogatepass").decode(errors="replace")
    for data in (seal(body), body.encode()):
        (tmp_path / MANIFEST).write_bytes(data)
        with pytest.raises(CheckpointError, match=MANIFEST):
            read_manifest(tmp_path)


def _replaced(folder: Path, make: Callable[[pa.RecordBatch], bytes]) -> None:
    """Puts other bytes in place of the first file, with sizes and checksums that fit."""
    import hashlib

    entry = json.loads((folder / MANIFEST).read_text())["files"][0]
    path = folder / entry["file"]
    with pa.OSFile(str(path)) as source:
        batch = pa.ipc.open_file(source).get_batch(0)
    path.write_bytes(data := make(batch))

    def change(manifest: dict[str, Any]) -> None:
        manifest["files"][0]["bytes"] = len(data)
        manifest["files"][0]["sha256"] = hashlib.sha256(data).hexdigest()

    change_manifest(folder, change)


def _arrow(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _with_null(batch: pa.RecordBatch) -> bytes:
    ids = pa.array([None, *batch.column(0).to_pylist()[1:]], pa.int64())
    arrays = [ids, *batch.columns[1:]]
    return _arrow(pa.RecordBatch.from_arrays(arrays, names=batch.schema.names))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda b: b"", "no readable Arrow file"),
        (lambda b: b"ARROW1\0\0" + bytes(500), "no readable Arrow file"),
        (lambda b: _arrow(b)[:-100], "no readable Arrow file"),
        (lambda b: _arrow(b.slice(1)), "rows where the manifest says"),
        (lambda b: _arrow(b.select(["id", "ts", "row"])), "has the columns"),
        (lambda b: _arrow(b.rename_columns([f"{n}_" for n in b.schema.names])), "has the columns"),
        (_with_null, "has the columns|holds nulls"),
    ],
)
def test_a_file_that_is_not_what_the_manifest_says(
    tmp_path: Path, make: Callable[[pa.RecordBatch], bytes], message: str
) -> None:
    hr.save([filled(30)], tmp_path)
    _replaced(tmp_path, make)
    live = filled(5, seed=5)
    before = content(live)
    with pytest.raises(CheckpointError, match=message):
        hr.load([live], tmp_path)
    assert content(live) == before


def test_noise_inside_a_file_with_a_checksum_that_fits_never_crashes(tmp_path: Path) -> None:
    """Arrow's framing is parsed from bytes an enemy may have chosen."""
    at_random, outcomes = random.Random(1), set()
    for _ in range(150):
        folder = tmp_path / "a"
        hr.save([filled(30)], folder, overwrite=True)
        _replaced(folder, lambda b: _noisy(_arrow(b), at_random))
        try:
            hr.load([hr.HostTable(config())], folder)
            outcomes.add("loaded")  # the noise fell on a value, or on padding
        except CheckpointError:
            outcomes.add("refused")
    assert "refused" in outcomes


def _noisy(data: bytes, at_random: random.Random) -> bytes:
    noisy = bytearray(data)
    for _ in range(at_random.randrange(1, 4)):
        start = at_random.choice([0, max(0, len(data) - 900)])
        noisy[at_random.randrange(start, min(len(data), start + 900))] = at_random.randrange(256)
    return bytes(noisy)


def test_rows_that_no_file_has_room_for_take_no_memory(whole: Path, tmp_path: Path) -> None:
    """Room for rows is made before they are read: of as many as the files can hold."""
    copy = tmp_path / "copy"
    shutil.copytree(whole, copy)
    shutil.rmtree(next(copy.glob("increments-*")))

    def change(manifest: dict[str, Any]) -> None:
        more = 2**45 - manifest["files"][0]["rows"]
        manifest["files"][0]["rows"] += more
        manifest["tables"]["item"]["rows"] += more

    change_manifest(copy, change)
    with pytest.raises(CheckpointError, match="rows where the manifest says 35184372088832"):
        hr.load([hr.HostTable(config())], copy)


def test_ids_of_a_file_are_plain_numbers_for_others(tmp_path: Path) -> None:
    table = filled(30)
    (file,) = hr.save([table], tmp_path).files
    with pa.memory_map(str(tmp_path / file.file)) as source:
        read = pa.ipc.open_file(source).read_all()
    assert read.schema.field("id").type == pa.int64()
    assert read.schema.field("row").type.list_size == 7
    wanted = table.lookup(torch.tensor(read["id"].to_pylist())).rows_of()
    assert read["row"].to_pylist() == wanted.tolist()


DEEP = "[" * 100_000


def _counting() -> hr.HostTable:
    segments = (hr.Segment(1, hr.Zeros(), hr.Sgd(lr=1.0)),)
    return hr.HostTable(
        hr.TableConfig("seen", segments, admit=hr.Within(1000, 2), evict=hr.Lru(50))
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"meta": {"slot_key": [1]}},
        {"meta": {"slot_key": "x"}},
        {"meta": {"slot_key": -1}},
        {"meta": {"slot_key": 2**64}},
        {"shards": "x"},
        {"shards": 2, "shard": [0]},
        {"shards": None},
        None,
    ],
)
def test_the_head_of_a_filter_is_checked(tmp_path: Path, wrong: Any) -> None:
    table = _counting()
    table.apply_gradients(torch.arange(9), torch.ones(9, 1))
    hr.save([table], tmp_path / "a")
    path = next((tmp_path / "a").glob("blob-*filter*"))
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    head = json.loads(data[8:start])
    for name, value in (wrong or {}).items():
        head[name] = {**head[name], **value} if isinstance(value, dict) else value
    text = (DEEP if wrong is None else json.dumps(head)).encode()
    _write(tmp_path / "a", path, len(text).to_bytes(8, "little") + text + data[start:])
    with pytest.raises(CheckpointError, match="is not the state of a filter"):
        hr.load([_counting()], tmp_path / "a")


def test_an_order_that_is_nested_deeply_is_refused(tmp_path: Path) -> None:
    hr.save([_counting()], tmp_path / "a")
    _write(tmp_path / "a", next((tmp_path / "a").glob("blob-*order*")), DEEP.encode())
    with pytest.raises(CheckpointError, match="is not the state of an order"):
        hr.load([_counting()], tmp_path / "a")


def _write(folder: Path, path: Path, data: bytes) -> None:
    """Puts other bytes into a blob, with a checksum that fits."""
    path.write_bytes(data)
    entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def change(manifest: dict[str, Any]) -> None:
        for blob in manifest["blobs"]:
            if blob["file"] == path.name:
                blob.update(entry)

    change_manifest(folder, change)
