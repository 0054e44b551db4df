"""Parquet: values, order, exact resume, and one clear error per kind of bad file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hedgerow as hr
from hedgerow.core.errors import (
    ConfigError,
    DtypeError,
    FileDamagedError,
    FileMissingError,
    HedgerowError,
    InputError,
    NotFiniteError,
    UnknownNameError,
)
from hedgerow.data.source import Batch


def write(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=7)
    return path


def numbered(folder: Path, *sizes: int) -> list[Path]:
    """Files whose users count on from file to file."""
    files, start = [], 0
    for number, size in enumerate(sizes):
        users = list(range(start, start + size))
        history = [[u, u + 1][: u % 3] for u in users]
        file = folder / f"part{number}.parquet"
        files.append(write(file, user=users, history=history, click=[u % 2 for u in users]))
        start += size
    return files


def read(files: Any, batch_size: int, **more: Any) -> hr.data.TableStream:
    given = {"features": ["user", "history"], "label": "click", **more}
    return hr.data.parquet(files, batch_size, **given)


def users_of(batches: Any) -> list[list[int]]:
    return [batch.ids.feature("user").values.tolist() for batch in batches]


def contents(batch: Batch) -> tuple[Any, ...]:
    tensors = (batch.dense, batch.ids.values, batch.ids.offsets, batch.labels)
    return tuple(t.tolist() for t in tensors)


def test_batches_go_over_the_borders_of_files(tmp_path: Path) -> None:
    source = read(numbered(tmp_path, 5, 3, 9), 4)
    assert users_of(source) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15], [16]]
    assert source.rows == 17
    first = next(iter(source))
    assert first.ids.feature("history").to_lists() == [[], [1], [2, 3], []]
    assert first.labels.tolist() == [0, 1, 0, 1]
    assert first.dense.shape == (4, 0)
    assert first.weights is None


def test_dense_columns_weights_and_missing_labels(tmp_path: Path) -> None:
    file = write(
        tmp_path / "a.parquet",
        user=pa.array([1, None, 3], pa.int32()),
        age=[20, 30, 40],
        price=[0.5, 1.5, 2.5],
        clicked=[True, False, True],
        weight=[1.0, 0.0, 2.0],
    )
    asked = {"features": ["user"], "dense": ["price", "age"], "weight": "weight"}
    (batch,) = hr.data.parquet(file, 8, label="clicked", **asked)
    assert batch.dense.tolist() == [[0.5, 20], [1.5, 30], [2.5, 40]]
    assert batch.ids.feature("user").to_lists() == [[1], [], [3]]
    assert batch.labels.tolist() == [1, 0, 1]
    assert batch.weights is not None
    assert batch.weights.tolist() == [1, 0, 2]
    (batch,) = hr.data.parquet(file, 8, **asked)
    assert bool(batch.labels.isnan().all())


def test_strings_are_hashed_with_the_column_or_the_given_field(tmp_path: Path) -> None:
    file = write(
        tmp_path / "a.parquet",
        item=["a", None, "ü"],
        history=[["a", "b"], [], ["ü"]],
        city=pa.array(["x", "y", "x"]).dictionary_encode(),
        code=pa.array([b"\xff", b"", b"z"], pa.large_binary()),
        pair=pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int64(), 2)),
    )
    names = ["item", "history", "city", "code", "pair"]
    (batch,) = hr.data.parquet(file, 8, features=names, fields={"history": "item"})
    feature = {name: batch.ids.feature(name).to_lists() for name in names}
    item = {text: hr.id64(text, field="item") for text in "abü"}
    assert feature["item"] == [[item["a"]], [], [item["ü"]]]
    assert feature["history"] == [[item["a"], item["b"]], [], [item["ü"]]]
    assert feature["city"] == [[hr.id64(c, field="city")] for c in "xyx"]
    assert feature["code"] == [[hr.id64(c, field="code")] for c in (b"\xff", b"", b"z")]
    assert feature["pair"] == [[1, 2], [3, 4], [5, 6]]


def test_files_with_different_types_of_one_feature_go_together(tmp_path: Path) -> None:
    files = [
        write(tmp_path / "a.parquet", user=pa.array([1, 2], pa.uint8())),
        write(tmp_path / "b.parquet", user=["x"]),
        write(tmp_path / "c.parquet", user=pa.array([2**64 - 1], pa.uint64())),
    ]
    (batch,) = hr.data.parquet(files, 8, features=["user"], window_rows=8)
    assert sorted(batch.ids.values.tolist()) == sorted([1, 2, hr.id64("x", field="user"), -1])


def test_a_column_without_a_single_value_is_empty_cells(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", user=[1, 2], tags=[[], None], city=[None, None])
    (batch,) = hr.data.parquet(file, 4, features=["user", "tags", "city"])
    assert batch.ids.values.tolist() == [1, 2]
    assert batch.ids.feature("tags").to_lists() == [[], []]


def test_shuffled_epochs_hold_every_row_once_in_an_order_of_their_own(tmp_path: Path) -> None:
    files = numbered(tmp_path, 40, 30)
    source = read(files, 8, window_rows=32, seed=5)
    first, second = ([u for users in users_of(source) for u in users] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(70))
    assert first != second
    assert first != list(range(70))
    assert users_of(read(files, 70, window_rows=32, seed=5)) == [first]
    assert users_of(read(files, 70, window_rows=32, seed=6)) != [first]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_source_goes_on_where_another_stopped(tmp_path: Path, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 25), min_size=1, max_size=3))
    files = numbered(tmp_path, *sizes)
    batch_size, window = data.draw(st.integers(1, 20)), data.draw(st.integers(0, 30))
    epochs = 2
    whole = read(files, batch_size, window_rows=window, seed=1)
    states, batches = [whole.state_dict()], []
    for _ in range(epochs):
        for batch in whole:
            batches.append(contents(batch))
            states.append(whole.state_dict())
    stop = data.draw(st.integers(0, len(states) - 1))
    resumed = read(files, batch_size, window_rows=window, seed=1)
    resumed.load_state_dict(states[stop])
    rest: list[Any] = []
    while resumed.state_dict()["epoch"] < epochs:
        rest.extend(contents(batch) for batch in resumed)
    assert rest == batches[stop:]


def test_a_broken_off_iteration_goes_on(tmp_path: Path) -> None:
    source = read(numbered(tmp_path, 10), 3)
    next(iter(source))
    assert users_of(source) == [[3, 4, 5], [6, 7, 8], [9]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 9}, "seed = 9"),
        ({"window_rows": 9}, "window_rows = 9"),
        ({"files": ["x.parquet"]}, "x.parquet"),
        ({"file": 5}, "file 5 of 1"),
        ({"row": 1.5}, "must be an int"),
        ({"more": 1}, "no position"),
    ],
)
def test_a_position_of_another_source_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    source = read(numbered(tmp_path, 10), 3)
    with pytest.raises(HedgerowError, match=message):
        source.load_state_dict({**source.state_dict(), **change})


BAD_COLUMNS: list[tuple[dict[str, Any], type[HedgerowError], str]] = [
    ({"users": [1]}, UnknownNameError, "'user'.*Did you mean 'users'"),
    ({"user": [1.5]}, DtypeError, "'user' holds double"),
    ({"user": [[1.5]]}, DtypeError, "'user' holds list<.*double>"),
    ({"user": [{"a": 1}]}, DtypeError, "'user' holds struct"),
    ({"user": [[1], [2, None]]}, InputError, "'user' has a null inside the list of row 1"),
    ({"label": ["yes"]}, DtypeError, "'label' holds string"),
    ({"label": [[1.0]]}, DtypeError, "'label' holds list"),
    ({"label": [0.0] * 9 + [float("nan")]}, NotFiniteError, "'label' is nan in row 9"),
    ({"label": [1, None]}, NotFiniteError, "'label' is None in row 1"),
    ({"label": [float("inf")]}, NotFiniteError, "'label' is inf in row 0"),
    ({"price": [1.0, None]}, NotFiniteError, "'price' is None in row 1"),
    ({"weight": [1.0, -1.0]}, NotFiniteError, "'weight' is -1.0 in row 1"),
    ({"user": []}, InputError, "holds no rows"),
]


@pytest.mark.parametrize(("columns", "error", "message"), BAD_COLUMNS)
def test_bad_columns_are_named_with_their_file(
    tmp_path: Path, columns: dict[str, Any], error: type[HedgerowError], message: str
) -> None:
    rows = len(next(iter(columns.values())))
    ones = pa.array([1.0] * rows, pa.float64())
    fine: dict[str, Any] = {"label": ones, "price": ones, "weight": ones}
    if "users" not in columns:
        fine["user"] = pa.array([7] * rows, pa.int64())
    made = {name: pa.array(c) if c else pa.array([], pa.int64()) for name, c in columns.items()}
    file = write(tmp_path / "clicks.parquet", **{**fine, **made})
    with pytest.raises(error, match=f"clicks.parquet.*{message}"):
        list(
            hr.data.parquet(
                file, 4, features=["user"], dense=["price"], label="label", weight="weight"
            )
        )


def test_a_bad_second_file_is_named_with_its_own_row(tmp_path: Path) -> None:
    files = numbered(tmp_path, 5)
    files.append(write(tmp_path / "bad.parquet", user=[1], history=[[1]], click=[float("nan")]))
    with pytest.raises(NotFiniteError, match=r"bad.parquet: column 'click' is nan in row 0"):
        list(read(files, 4))


def test_files_that_are_missing_or_no_parquet(tmp_path: Path) -> None:
    with pytest.raises(FileMissingError, match=r"absent.parquet is no file"):
        read(tmp_path / "absent.parquet", 4)
    with pytest.raises(InputError, match="list of files is empty"):
        read([], 4)
    for content in (b"", b"not parquet at all"):
        (tmp_path / "text.parquet").write_bytes(content)
        with pytest.raises(FileDamagedError, match=r"text.parquet cannot be read as Parquet"):
            read(tmp_path / "text.parquet", 4)


def test_a_damaged_page_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"user": list(range(10_000))}), file, compression="gzip")
    data = bytearray(file.read_bytes())
    data[200:4000] = bytes(3800)
    file.write_bytes(bytes(data))
    with pytest.raises(FileDamagedError, match=r"a.parquet is damaged"):
        list(hr.data.parquet(file, 4, features=["user"]))


def test_bad_choices_of_columns_are_refused(tmp_path: Path) -> None:
    (file,) = numbered(tmp_path, 3)
    with pytest.raises(ConfigError, match="each once"):
        hr.data.parquet(file, 2, features=["user"], label="user")
    with pytest.raises(ConfigError, match="at least one"):
        hr.data.parquet(file, 2, features=[])
    with pytest.raises(UnknownNameError, match="unknown feature in fields 'itm'"):
        read(file, 2, fields={"itm": "user"})
    with pytest.raises(InputError, match="batch_size is 0"):
        read(file, 0)


def test_a_batch_checks_that_its_parts_agree() -> None:
    ids = hr.IdBatch.from_lists({"user": [[1], [2]]})
    with pytest.raises(InputError, match="2 samples and labels 3"):
        hr.data.Batch(torch.zeros(3, 0), ids, torch.zeros(3))
    with pytest.raises(InputError, match="dense has shape"):
        hr.data.Batch(torch.zeros(3, 0), ids, torch.zeros(2))
    batch = hr.data.Batch(torch.zeros(2, 1), ids, torch.zeros(2), torch.ones(2))
    assert batch.samples == 2
    assert batch.to("cpu").weights is not None
