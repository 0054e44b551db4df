"""Columns as real tables have them: nulls, timestamps, labels that are wrong, keys of samples."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import hedgerow as hr
from hedgerow.core.errors import (
    ConfigError,
    DtypeError,
    InputError,
    NotFiniteError,
    UnknownNameError,
)
from hedgerow.data.tfrecord_format import encode_example, frame

PRICE = [1.5, None, float("nan"), 4.0]


def _write(path: Path, **columns: Any) -> Path:
    rows = len(next(iter(columns.values())))
    pq.write_table(pa.table({"user": range(rows), **columns}), path)
    return path


def _dense(path: Path, batch_size: int = 8, **more: Any) -> list[list[float]]:
    source = hr.data.parquet(path, batch_size, features=["user"], **more)
    return torch.cat([batch.dense for batch in source]).tolist()


def test_fill_takes_the_place_of_nulls_and_nan(tmp_path: Path) -> None:
    file = _write(tmp_path / "a.parquet", price=PRICE, age=pa.array([1, None, 3, None]))
    got = _dense(file, dense=["price", "age"], fill={"price": -1.0, "age": 30})
    assert got == [[1.5, 1.0], [-1.0, 30.0], [-1.0, 3.0], [4.0, 30.0]]
    empty = _write(tmp_path / "empty.parquet", price=pa.nulls(3))
    assert _dense(empty, dense=["price"], fill={"price": 2.0}) == [[2.0]] * 3
    weighted = _write(tmp_path / "w.parquet", w=[None, 2.0])
    (batch,) = hr.data.parquet(weighted, 4, features=["user"], weight="w", fill={"w": 1.0})
    assert batch.weights.tolist() == [1.0, 2.0]


def test_a_null_without_fill_names_file_row_column_and_the_fix(tmp_path: Path) -> None:
    file = _write(tmp_path / "a.parquet", price=PRICE)
    with pytest.raises(NotFiniteError) as error:
        _dense(file, dense=["price"])
    for part in (str(file), "'price' is None in row 1", "fill={'price': 0.0}", "price = 0.0"):
        assert part in str(error.value)
    spaced = _write(tmp_path / "c.parquet", **{"unit price": PRICE})
    with pytest.raises(NotFiniteError, match=r'`fill = \{"unit price" = 0\.0\}`'):  # TOML
        _dense(spaced, dense=["unit price"])
    other = _write(tmp_path / "b.parquet", price=[1.0, float("inf")])
    with pytest.raises(NotFiniteError, match="'price' is inf in row 1"):
        _dense(other, dense=["price"], fill={"price": 0.0})  # infinity is no missing value


def test_a_fill_that_fits_no_column_is_refused(tmp_path: Path) -> None:
    file = _write(tmp_path / "a.parquet", price=PRICE)
    with pytest.raises(UnknownNameError, match="dense column or weight in fill 'prise'"):
        _dense(file, dense=["price"], fill={"prise": 0.0})
    with pytest.raises(ConfigError, match=r"fill\['price'\] is nan"):
        _dense(file, dense=["price"], fill={"price": float("nan")})


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "Europe/Zurich"])
def test_timestamps_are_seconds_since_1970(tmp_path: Path, unit: str, zone: str | None) -> None:
    fraction = 0 if unit == "s" else 500_000
    moments = [
        datetime(2026, 11, 18, 12, 0, 1, fraction, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 58, fraction, tzinfo=UTC),
    ]
    seconds = [1795003201, -2]
    naive = [moment.replace(tzinfo=None) for moment in moments]
    column = pa.array(moments if zone else naive, pa.timestamp(unit, zone))
    file = _write(tmp_path / "a.parquet", at=column)
    (batch,) = hr.data.parquet(file, 8, features=["at"])
    assert batch.ids.values.tolist() == seconds
    got = _dense(file, dense=["at"])
    assert got == [[torch.tensor(float(one)).item()] for one in seconds]
    assert abs(got[0][0] - seconds[0]) <= 64


def test_dates_and_missing_timestamps(tmp_path: Path) -> None:
    days = pa.array([date(1970, 1, 2), None, date(1969, 12, 31)])
    file = _write(tmp_path / "a.parquet", day=days, day64=days.cast(pa.date64()))
    (batch,) = hr.data.parquet(file, 8, features=["day", "day64"])
    for name in ("day", "day64"):
        assert batch.ids.feature(name).to_lists() == [[86400], [], [-86400]]
    assert _dense(file, dense=["day"], fill={"day": 0.0}) == [[86400.0], [0.0], [-86400.0]]


def test_a_timestamp_is_no_label(tmp_path: Path) -> None:
    file = _write(tmp_path / "a.parquet", at=pa.array([datetime(2026, 1, 1)]))
    with pytest.raises(DtypeError, match=r"'at' holds timestamp\[us\]"):
        _dense(file, label="at")


def test_a_label_out_of_bounds_names_file_and_row(tmp_path: Path) -> None:
    file = _write(tmp_path / "a.parquet", stars=[1.0, 0.0, 5.0])
    with pytest.raises(
        InputError, match=r"a\.parquet: column 'stars' is 5\.0 in row 2; it must lie in 0\.\.1"
    ):
        _dense(file, batch_size=1, label="stars", label_bounds=(0, 1))
    source = hr.data.parquet(file, 8, features=["user"], label="stars")
    assert [batch.labels.tolist() for batch in source] == [[1.0, 0.0, 5.0]]  # your own loop's


def test_keys_go_with_their_samples_through_every_order(tmp_path: Path) -> None:
    rows = 40
    file = _write(tmp_path / "a.parquet", request=[f"r{row}" for row in range(rows)])
    names = ["request", "user"]  # a feature may be a key, too
    source = hr.data.parquet(file, 7, features=["user"], keys=names, window_rows=16)
    users: list[int] = []
    for batch in source:
        cut = batch.part(1, batch.samples).to("cpu")
        assert cut.keys.column("request").to_pylist() == [
            f"r{user}" for user in cut.ids.values.tolist()
        ]
        assert batch.keys.column("user").to_pylist() == batch.ids.values.tolist()
        users += batch.ids.values.tolist()
    assert sorted(users) == list(range(rows))
    assert users != sorted(users)
    with pytest.raises(ConfigError, match=r"Columns\.keys is 'request'; give a list"):
        hr.data.parquet(file, 7, features=["user"], keys="request")
    with pytest.raises(UnknownNameError, match=r"unknown column of .*'requst'"):
        hr.data.parquet(file, 7, features=["user"], keys=["requst"])


def test_tfrecords_have_keys_and_fill_too(tmp_path: Path) -> None:
    records = [
        {"user": [7], "price": [1.5], "request": [b"a"], "n": [1]},
        {"user": [8], "request": [b"b"], "n": [2]},
    ]
    file = tmp_path / "a.tfrecord"
    file.write_bytes(b"".join(frame(encode_example(record)) for record in records))
    more = {"features": ["user"], "dense": ["price"], "keys": ["request", "n"]}
    (batch,) = hr.data.tfrecord(file, 4, **more, fill={"price": -1.0})
    assert batch.dense.tolist() == [[1.5], [-1.0]]
    assert batch.keys.to_pylist() == [{"request": b"a", "n": 1}, {"request": b"b", "n": 2}]
    with pytest.raises(InputError, match=r"record 1: no feature 'price'.*fill=\{'price'"):
        list(hr.data.tfrecord(file, 4, **more))


def test_keys_of_several_files_have_the_type_of_the_first(tmp_path: Path) -> None:
    kinds = {"a": pa.array([1, 2]), "b": pa.array([3, 4], pa.int32()), "c": pa.nulls(2)}
    files = [_write(tmp_path / f"{name}.parquet", order=order) for name, order in kinds.items()]
    source = hr.data.parquet(files, 4, features=["user"], keys=["order"])
    assert [batch.keys.column("order").to_pylist() for batch in source] == [
        [1, 2, 3, 4],
        [None, None],
    ]
    other = _write(tmp_path / "d.parquet", order=["007", "8"])
    with pytest.raises(DtypeError, match=r"d\.parquet: the key 'order' holds string, which is not"):
        list(hr.data.parquet([*files, other], 4, features=["user"], keys=["order"]))
