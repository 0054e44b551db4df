"""TFRecord of tf.Example: values, messages from the wire, exact resume, and clear errors."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hedgerow as hr
from hedgerow.core.errors import DtypeError, FileDamagedError, HedgerowError, InputError
from hedgerow.core.protobuf import WireError, bytes_field, floats_field, varint_field
from hedgerow.data import tfrecord_files
from hedgerow.data.tfrecord_format import decode_example, encode_example, frame


def write(path: Path, examples: list[dict[str, Any]]) -> Path:
    data = b"".join(frame(encode_example(example)) for example in examples)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def numbered(path: Path, n: int) -> Path:
    return write(
        path,
        [
            {"user": [i], "tags": [b"t%d" % (i % 5)] * (i % 3), "x": [i / 2], "click": [i % 2]}
            for i in range(n)
        ],
    )


def read(file: Any, batch_size: int, **more: Any) -> hr.data.TableStream:
    chosen = {"features": ["user", "tags"], "dense": ["x"], "label": "click", **more}
    return hr.data.tfrecord(file, batch_size, **chosen)


@pytest.mark.parametrize("name", ["a.tfrecord", "a.tfrecord.gz"])
def test_lists_of_every_kind_are_read(tmp_path: Path, name: str) -> None:
    first, second = read(numbered(tmp_path / name, 5), 3)
    assert first.ids.feature("user").to_lists() == [[0], [1], [2]]
    tag = {i: hr.id64(f"t{i}", field="tags") for i in range(5)}
    assert first.ids.feature("tags").to_lists() == [[], [tag[1]], [tag[2]] * 2]
    assert first.dense.tolist() == [[0], [0.5], [1]]
    assert first.labels.tolist() == [0, 1, 0]
    assert second.samples == 2


NAMES = st.text(min_size=1, max_size=5)
LISTS = (
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4)
    | st.lists(st.binary(max_size=9), min_size=1, max_size=4)
    | st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=4)
)


@given(st.dictionaries(NAMES, LISTS, max_size=4))
def test_what_was_encoded_is_decoded(features: dict[str, Any]) -> None:
    found = decode_example(encode_example(features))
    assert {name: list(values) for name, values in found.items()} == features


def test_numbers_that_are_not_packed_and_unknown_fields_are_read() -> None:
    """Other writers than TensorFlow's may put one tag before every number."""
    ints = bytes_field(3, varint_field(1, 5) + varint_field(9, 1) + varint_field(1, -6))
    floats = bytes_field(2, floats_field(1, np.array([0.5, 2], np.float32)) + varint_field(9, 1))
    for feature, wanted in ((ints, [5, -6]), (floats, [0.5, 2])):
        entry = bytes_field(1, b"a") + bytes_field(2, feature) + varint_field(7, 1)
        message = bytes_field(1, bytes_field(1, entry) + varint_field(7, 1)) + varint_field(7, 1)
        assert list(decode_example(message)["a"]) == wanted
    assert decode_example(b"") == {}
    assert decode_example(bytes_field(1, bytes_field(1, bytes_field(1, b"a")))) == {}


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a\x05abc",
        varint_field(1, 5),
        bytes_field(1, bytes_field(1, bytes_field(1, b"\xff"))),
        bytes_field(1, bytes_field(1, bytes_field(2, varint_field(3, 1)))),
    ],
)
def test_what_is_no_example_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        decode_example(data)


@pytest.mark.parametrize("stop", [0, 1, 4, 6])
@pytest.mark.parametrize("window", [0, 11])
def test_a_source_goes_on_exactly_where_another_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int, window: int
) -> None:
    monkeypatch.setattr(tfrecord_files, "_READ_RECORDS", 6)
    files = [numbered(tmp_path / "a.tfrecord", 20), numbered(tmp_path / "b.tfrecord.gz", 15)]
    whole = read(files, 6, window_rows=window)
    states, batches = [whole.state_dict()], []
    for batch in whole:
        states.append(whole.state_dict())
        batches.append((batch.ids.values.tolist(), batch.labels.tolist()))
    resumed = read(files, 6, window_rows=window)
    resumed.load_state_dict(states[stop])
    assert [(b.ids.values.tolist(), b.labels.tolist()) for b in resumed] == batches[stop:]
    assert len(batches) == 6


FINE = {"user": [1], "tags": [b"a"], "x": [0.5], "click": [1]}
BAD: list[tuple[dict[str, Any], type[HedgerowError], str]] = [
    ({"click": None}, InputError, "record 1: no feature 'click'; the record has tags, user, x"),
    ({"click": [1, 0]}, DtypeError, "record 1: feature 'click' holds 2 values"),
    ({"x": [b"1"]}, DtypeError, "record 1: feature 'x' holds bytes"),
    ({"user": [0.5]}, DtypeError, "record 1: feature 'user' holds floats"),
    ({"user": [b"7"]}, DtypeError, "record 1: feature 'user' holds bytes, and int before"),
    ({"click": [float("nan")]}, InputError, "column 'click' is nan in row 1"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD)
def test_a_bad_record_is_named(
    tmp_path: Path, change: dict[str, Any], error: type[HedgerowError], message: str
) -> None:
    bad = {name: values for name, values in {**FINE, **change}.items() if values is not None}
    file = write(tmp_path / "a.tfrecord", [FINE, bad])
    with pytest.raises(error, match=f"a.tfrecord.*{message}"):
        list(read(file, 4))


def test_a_feature_of_no_record_is_named(tmp_path: Path) -> None:
    file = numbered(tmp_path / "a.tfrecord", 5)
    with pytest.raises(InputError, match="no record has a feature 'usr'; the records have click"):
        list(read(file, 4, features=["usr"]))


def test_empty_and_damaged_files_are_named(tmp_path: Path) -> None:
    file = write(tmp_path / "a.tfrecord", [])
    with pytest.raises(InputError, match=r"a.tfrecord holds no rows"):
        list(read(file, 4))
    file.write_bytes(numbered(file, 5).read_bytes()[:-3])
    with pytest.raises(FileDamagedError, match=r"a.tfrecord is damaged"):
        list(read(file, 4))
    file.write_bytes(frame(encode_example(FINE)) + frame(b"\x0a\x05abc"))
    with pytest.raises(FileDamagedError, match=r"record 1 .* is no tf.Example"):
        list(read(file, 4))
    packed = numbered(tmp_path / "b.tfrecord.gz", 500)
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(FileDamagedError, match=r"b.tfrecord.gz is no complete gzip file"):
        list(read(packed, 4))
    packed.write_bytes(b"no gzip")
    with pytest.raises(FileDamagedError, match=r"b.tfrecord.gz is no complete gzip file"):
        list(read(packed, 4))
