"""Tables through Monolith's files and back: every optimizer, many tables, who takes what."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.core import protobuf
from hedgerow.core.errors import InputError, NotFiniteError, ServingTableError, UnknownNameError
from hedgerow.data.tfrecord_format import frame
from hedgerow.monolith.files import exporter
from hedgerow.monolith.files.entry_dump import encode_entry
from hedgerow.monolith.files.exporter import export_table, export_tables
from hedgerow.monolith.files.importer import (
    Imported,
    ImportedTable,
    import_table,
    import_tables,
    list_tables,
)
from hedgerow.monolith.files.records import find_files, meta_base, numbered, read_counts
from hedgerow.tables import monolith_rules, optimizers
from hedgerow.tables.compressors import Fp16
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.host import HostTable
from tests.support import EXTREME_IDS, everything

from .files import ADAGRAD, config, trained

SAVED = [
    monolith_rules.MonolithSgd(),
    monolith_rules.MonolithAdagrad(),
    monolith_rules.DynamicWdAdagrad(decouple_weight_decay=True, weight_decay_factor=0.1),
    monolith_rules.Adadelta(),
    monolith_rules.MonolithAdam(),
    monolith_rules.MonolithAmsGrad(),
    monolith_rules.MonolithFtrl(),
    monolith_rules.GroupFtrl(),
    monolith_rules.GroupAdagrad(),
    monolith_rules.MonolithMomentum(),
    monolith_rules.MovingAverage(),
    monolith_rules.MonolithRmsProp(),
    monolith_rules.RmsPropV2(),
    monolith_rules.BatchSoftmax(),
    optimizers.Sgd(),
    optimizers.Adagrad(),
    optimizers.Ftrl(),
]


@pytest.mark.parametrize("optimizer", SAVED, ids=lambda o: o.kind)
def test_rows_states_and_times_of_every_optimizer_come_back(
    optimizer: monolith_rules.Optimizer, tmp_path: Path
) -> None:
    cfg = config("user", optimizer, ADAGRAD, optimizer)
    table, copy = trained(cfg, EXTREME_IDS), trained(cfg, [99])
    export_table(table, tmp_path / "user")
    rows = len(EXTREME_IDS)
    assert import_table(tmp_path / "user", copy) == ImportedTable(rows=rows, inserted=rows)
    assert everything(copy) == everything(table)  # and id 99 is gone
    assert copy.max_ts() == table.max_ts()


@settings(max_examples=25)
@given(
    st.dictionaries(
        st.sampled_from(["a", "b", "ü", "B", "slot:1/x"]),
        st.sets(st.integers(-(2**63), 2**63 - 1), max_size=12),
        min_size=1,
    ),
    st.integers(1, 5),
)
def test_many_tables_come_back_from_any_number_of_files(
    tmp_path_factory: pytest.TempPathFactory, ids: dict[str, set[int]], n: int
) -> None:
    base = tmp_path_factory.mktemp("files") / "all"
    tables = {
        name: trained(config(name, ADAGRAD, dim=2 + i), sorted(keys))
        for i, (name, keys) in enumerate(ids.items())
    }
    files = export_tables(tables, base, files=n)
    assert files == find_files(base)
    assert len(files.files) == len(files.metas) == n
    for meta in files.metas:
        assert list(read_counts(meta)) == sorted(tables, key=str.encode)
    copies = {name: HostTable(table.config) for name, table in tables.items()}
    done = import_tables(base, copies)
    assert done.tables == {k: ImportedTable(len(v), len(v)) for k, v in ids.items()}
    assert (done.only_in_files, done.only_in_config) == ((), ())
    for name, table in tables.items():
        assert everything(copies[name]) == everything(table)
    assert {t.name: t.rows for t in list_tables(base).tables} == {k: len(v) for k, v in ids.items()}


def test_rows_are_spread_over_files_with_the_remainder_first(tmp_path: Path) -> None:
    table = trained(config("user"), list(range(8)), steps=1)
    files = export_table(table, tmp_path / "user", files=3)
    sizes = [_rows_of(path, tmp_path) for path in files.files]
    assert sizes == [3, 3, 2]


def _rows_of(path: Path, folder: Path) -> int:
    alone = numbered(folder / f"alone{path.name}", 0, 1)
    alone.write_bytes(path.read_bytes())
    return list_tables(folder / f"alone{path.name}").tables[0].rows


def test_tables_only_in_the_files_are_skipped_and_only_in_the_config_stay(tmp_path: Path) -> None:
    export_tables(
        {"old": trained(config("old"), [1]), "both": trained(config("both"), [2, 3])},
        tmp_path / "all",
    )
    both, new = trained(config("both"), [3, 4]), trained(config("new"), [5])
    before = everything(new)
    done = import_tables(tmp_path / "all", {"both": both, "new": new})
    assert done == Imported({"both": ImportedTable(rows=2, inserted=1)}, ("old",), ("new",))
    assert set(everything(both)) == {2, 3, 4}  # not cleared
    assert everything(new) == before


def test_other_names_are_tried_in_order(tmp_path: Path) -> None:
    export_tables(
        {"old": trained(config("old"), [1]), "older": trained(config("older"), [2])},
        tmp_path / "all",
    )
    table = HostTable(config("new"))
    done = import_tables(
        tmp_path / "all", {"new": table}, other_names={"new": ["absent", "old", "older"]}
    )
    assert (set(everything(table)), done.only_in_files) == ({1}, ("older",))
    with pytest.raises(InputError, match="'x' and 'y' both take the rows saved as 'old'"):
        import_tables(
            tmp_path / "all",
            {"x": table, "y": table},
            other_names={"x": ["old"], "y": ["old"]},
        )
    with pytest.raises(UnknownNameError, match="unknown table in other_names 'z'"):
        import_tables(tmp_path / "all", {"x": table}, other_names={"z": ["old"]})


def test_a_serving_table_takes_rows_without_times(tmp_path: Path) -> None:
    table = trained(config("user"), [1, 2])
    export_table(table, tmp_path / "user")
    serving = HostTable(TableConfig("user", (Segment(3, compressor=Fp16()),), serving=True))
    import_table(tmp_path / "user", serving)
    ids = torch.tensor([1, 2])
    expected = table.entries(ids).rows.half().float()
    assert torch.equal(serving.lookup(ids).rows_of(), expected)
    assert serving.entries(ids).ts.tolist() == [0, 0]


def _single(folder: Path, *payloads: bytes) -> Path:
    numbered(folder / "user", 0, 1).write_bytes(b"".join(map(frame, payloads)))
    return folder / "user"


def test_a_missing_time_is_zero(tmp_path: Path) -> None:
    row = protobuf.sfixed64_field(1, 5) + protobuf.floats_field(2, np.ones(3, np.float32))
    opt = protobuf.bytes_field(3, bytes.fromhex("0a021200"))
    table = HostTable(config("user", monolith_rules.MonolithSgd()))
    import_table(_single(tmp_path, row + opt), table)
    assert table.entries(torch.tensor([5])).ts.tolist() == [0]


def test_an_empty_file_is_a_table_without_rows(tmp_path: Path) -> None:
    table = trained(config("user"), [1])
    assert import_table(_single(tmp_path), table) == ImportedTable()
    assert table.size() == 0


def test_an_error_changes_nothing(tmp_path: Path) -> None:
    table = trained(config("user"), [1])
    before = everything(table)
    good = trained(config("user"), [2])
    base = export_table(good, tmp_path / "user").base
    path = numbered(base, 0, 1)
    path.write_bytes(path.read_bytes() + frame(encode_entry(7, np.ones(9, np.float32), b"", 0)))
    with pytest.raises(InputError, match=r"table 'user', id 7 .*byte \d+\) has 9 values.*dim 3"):
        import_table(base, table)
    assert everything(table) == before


@pytest.mark.parametrize(
    ("saved", "wanted", "what"),
    [
        (monolith_rules.MonolithAdam(), ADAGRAD, r"saved by adam; segments\[0\] has adagrad"),
        (
            monolith_rules.MonolithAdam(),
            optimizers.Adam(),
            r"saved by adam; segments\[0\] has Adam",
        ),
        (monolith_rules.MovingAverage(), ADAGRAD, "states of 0 segments; the table has 1"),
    ],
)
def test_states_of_another_optimizer_are_refused_or_reset(
    saved: monolith_rules.Optimizer, wanted: monolith_rules.Optimizer, what: str, tmp_path: Path
) -> None:
    source = trained(config("user", saved), [1])
    export_table(source, tmp_path / "user")
    table, fresh = HostTable(config("user", wanted)), HostTable(config("user", wanted))
    with pytest.raises(InputError, match=f"table 'user', id 1 .*{what}.*on_state_mismatch"):
        import_table(tmp_path / "user", table)
    done = import_table(tmp_path / "user", table, on_state_mismatch="reset")
    assert done == ImportedTable(rows=1, inserted=1, resets=1)
    fresh.assign(torch.tensor([1]), source.entries(torch.tensor([1])).rows, ts=1_600_000_000)
    assert everything(table) == everything(fresh)


@pytest.mark.parametrize(
    ("dump", "what"),
    [
        (b"", "states of 0 segments"),
        (bytes.fromhex("0a00"), "saved by no. 0"),
        (bytes.fromhex("0a03fa0100"), "saved by no. 31"),
        (bytes.fromhex("0a020a00"), "0 values of adagrad's 'norm'"),
        (bytes.fromhex("0a070a05") + b"\x0d\x00\x00\x00\x3f", "1 values of adagrad's 'norm'"),
        (bytes.fromhex("0a040a020a09"), "damaged optimizer state"),
    ],
)
def test_every_kind_of_bad_state_is_named(dump: bytes, what: str, tmp_path: Path) -> None:
    base = _single(tmp_path, encode_entry(7, np.ones(3, np.float32), dump, 0))
    with pytest.raises(ValueError, match=f"table 'user', id 7 .*{what}"):
        import_table(base, HostTable(config("user")))


def test_states_no_update_leaves_behind_are_refused(tmp_path: Path) -> None:
    norm = protobuf.floats_field(1, np.array([1, -1, 1], np.float32))
    dump = protobuf.bytes_field(1, protobuf.bytes_field(1, norm))
    base = _single(tmp_path, encode_entry(7, np.ones(3, np.float32), dump, 0))
    with pytest.raises(ValueError, match=r"table 'user' in .*'norm'.*holds -1"):
        import_table(base, HostTable(config("user")))


def test_rows_that_are_not_finite_are_refused_or_dropped_by_the_tables_rule(tmp_path: Path) -> None:
    bad = np.array([1, np.nan, 1], np.float32)
    base = _single(tmp_path, encode_entry(7, bad, bytes.fromhex("0a021200"), 0))
    segment = config("user", monolith_rules.MonolithSgd()).segments
    with pytest.raises(NotFiniteError, match=r"table 'user', id 7 .*holds nan"):
        import_table(base, HostTable(TableConfig("user", segment)))
    table = HostTable(TableConfig("user", segment, not_finite="drop"))
    assert import_table(base, table) == ImportedTable(rows=1, dropped=1)


def test_a_negative_time_is_refused(tmp_path: Path) -> None:
    base = _single(tmp_path, encode_entry(7, np.ones(3, np.float32), b"", -1))
    with pytest.raises(InputError, match=r"id 7 .*has the time -1"):
        import_table(base, HostTable(config("user")))


def test_single_and_several_are_not_confused(tmp_path: Path) -> None:
    table = trained(config("user"), [1])
    export_table(table, tmp_path / "one")
    export_tables({"user": table}, tmp_path / "many")
    with pytest.raises(InputError, match="use import_tables"):
        import_table(tmp_path / "many", table)
    with pytest.raises(InputError, match="use import_table"):
        import_tables(tmp_path / "one", {"user": table})
    with pytest.raises(InputError, match="tables is empty"):
        export_tables({}, tmp_path / "none")


def test_what_monolith_cannot_hold_is_not_exported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"segments\[0\] learns with Adam"):
        export_table(HostTable(config("user", optimizers.Adam())), tmp_path / "user")
    serving = HostTable(TableConfig("user", (Segment(3, compressor=Fp16()),), serving=True))
    with pytest.raises(ServingTableError, match="serving table"):
        export_table(serving, tmp_path / "user")
    assert list(tmp_path.iterdir()) == []


def test_an_export_never_writes_over_files(tmp_path: Path) -> None:
    table = trained(config("user"), [1])
    export_table(table, tmp_path / "user")
    with pytest.raises(InputError, match="has files already"):
        export_tables({"user": table}, tmp_path / "user")
    numbered(meta_base(tmp_path / "left"), 0, 1).write_bytes(b"")
    with pytest.raises(InputError, match="has files already"):
        export_table(table, tmp_path / "left")


def test_an_export_that_fails_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(payload: bytes) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporter, "frame", full)
    with pytest.raises(OSError, match="No space left"):
        export_tables({"user": trained(config("user"), [1])}, tmp_path / "user")
    assert list(tmp_path.iterdir()) == []
