"""Rows decoded many at once equal rows decoded one by one, whatever form they have."""

from __future__ import annotations

import threading
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.core import protobuf as pb
from hedgerow.data.tfrecord_format import frame
from hedgerow.monolith.files import importer
from hedgerow.monolith.files.entry_dump import (
    RowShape,
    decode_entry,
    encode_dump,
    encode_entry,
    form_of,
)
from hedgerow.monolith.files.exporter import export_table, export_tables
from hedgerow.monolith.files.importer import ImportedTable, RowBatch, import_table, import_tables
from hedgerow.monolith.files.records import FileRecord, find_files, numbered, read_records
from hedgerow.tables import monolith_rules
from hedgerow.tables.host import HostTable
from tests.support import EXTREME_IDS, everything

from .files import ADAGRAD, config, trained
from .test_import_export import SAVED

FLOATS = st.lists(st.floats(0, 1, width=32), min_size=3, max_size=3)
FORM = form_of(ADAGRAD)
FIXED = [o for o in SAVED if o.kind != "batch_softmax"]


def _row(key: int, values: list[float], norm: list[float], ts: int, form: str) -> bytes:
    """One row of the table `config("user")`, written in one of several legal forms."""
    row, state = np.array(values, np.float32), np.array(norm, np.float32)
    assert FORM is not None
    dump = encode_dump(FORM, {"norm": state}, {})
    whole = encode_entry(key, row, dump, ts)
    if form == "no time":
        return whole[: -len(pb.varint_field(4, ts))]
    if form == "time first":
        return pb.varint_field(4, ts) + encode_entry(key, row, dump, ts)
    if form == "packed":
        values_field = pb.bytes_field(2, row.tobytes())
        return values_field + pb.sfixed64_field(1, key) + pb.bytes_field(3, dump)
    if form == "unknown field":
        return whole + pb.varint_field(99, 1)
    return whole


@given(
    st.lists(
        st.tuples(
            st.integers(-(2**63), 2**63 - 1),
            FLOATS,
            FLOATS,
            st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1)),
            st.sampled_from(["usual", "usual", "no time", "time first", "packed", "unknown field"]),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_a_batch_of_any_forms_equals_single_rows(
    rows: list[tuple[int, list[float], list[float], int, str]],
) -> None:
    batch = RowBatch(config("user"))
    payloads = [_row(*row) for row in rows]
    for i, payload in enumerate(payloads):
        batch.add(FileRecord(None, Path("demo"), i, payload))
    entries, resets = batch.take()
    single = [decode_entry(payload) for payload in payloads]
    assert resets == 0
    assert entries.ids.tolist() == [entry.id for entry in single] == [row[0] for row in rows]
    assert entries.rows.tolist() == [row[1] for row in rows]
    assert entries.states[0]["norm"].tolist() == [row[2] for row in rows]
    assert entries.ts.tolist() == [entry.ts for entry in single]


@pytest.mark.parametrize("optimizer", FIXED, ids=lambda o: o.kind)
def test_what_we_write_has_the_usual_form(
    optimizer: monolith_rules.Optimizer, tmp_path: Path
) -> None:
    cfg = config("user", optimizer, ADAGRAD)
    export_table(trained(cfg, EXTREME_IDS), tmp_path / "user")
    payloads = [record.payload for record in read_records(find_files(tmp_path / "user"))]
    shape = RowBatch(cfg)._shape
    assert shape is not None
    assert sorted(shape.decode(payloads).at.tolist()) == list(range(len(EXTREME_IDS)))


def test_a_changed_tag_or_length_is_no_usual_form() -> None:
    assert FORM is not None
    shape = RowShape(3, [(FORM, {"norm": 3})])
    usual = _row(5, [1, 2, 3], [4, 5, 6], 1_600_000_000, "usual")
    assert shape.decode([usual]).at.tolist() == [0]
    numbers = set(range(1, 9)) | {10 + 5 * i + b for i in range(3) for b in range(4)}
    start = 9 + 5 * 3 + 2 + 2 + 2  # id, values, then three tags with their lengths
    numbers |= {start + 5 * i + 1 + b for i in range(3) for b in range(4)}
    for at in range(len(usual)):
        changed = bytearray(usual)
        changed[at] ^= 0x80
        is_number = at in numbers
        assert shape.decode([bytes(changed)]).at.tolist() == ([0] if is_number else []), at
    for length in range(len(usual) + 12):
        cut = usual[:length].ljust(length, b"\x81")
        assert shape.decode([cut]).at.tolist() == ([0] if length == len(usual) else [])


def test_many_batches_make_one_table(tmp_path: Path) -> None:
    tables = {name: trained(config(name), list(range(40)), steps=1) for name in "ab"}
    export_tables(tables, tmp_path / "all", files=2)
    copies = {name: HostTable(table.config) for name, table in tables.items()}
    with mock.patch.object(importer, "_BATCH_BYTES", 300):
        done = import_tables(tmp_path / "all", copies)
    assert done.tables == {name: ImportedTable(40, 40) for name in "ab"}
    assert {k: everything(t) for k, t in copies.items()} == {
        k: everything(t) for k, t in tables.items()
    }


def test_an_id_that_is_saved_twice_shows_in_the_counts(tmp_path: Path) -> None:
    rows = [_row(5, [v] * 3, [1, 1, 1], 1, "usual") for v in (1.0, 2.0)]
    numbered(tmp_path / "user", 0, 1).write_bytes(b"".join(map(frame, rows)))
    table = HostTable(config("user"))
    assert import_table(tmp_path / "user", table) == ImportedTable(rows=2, inserted=1)
    assert table.lookup(torch.tensor([5])).rows_of().tolist() == [[2.0] * 3]


def test_an_export_beside_writers_is_whole(tmp_path: Path) -> None:
    table = trained(config("user"), list(range(500)), steps=1)
    stop = threading.Event()

    def write() -> None:
        key = 1000
        while not stop.is_set() and key < 4000:
            ids = torch.arange(key, key + 50)
            table.apply_gradients(ids, torch.ones(50, 3), ts=key)
            table.apply_gradients(torch.arange(500), torch.ones(500, 3), ts=key)
            key += 50

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for i in range(3):
            export_tables({"user": table}, tmp_path / f"all{i}", files=3)
    finally:
        stop.set()
        writer.join()
    for i in range(3):
        copy = HostTable(config("user"))
        done = import_tables(tmp_path / f"all{i}", {"user": copy}).tables["user"]
        assert done.inserted == done.rows >= 500
        assert bool(copy.contains(torch.arange(500)).all())
