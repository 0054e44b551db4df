"""Requests are read as the plain twin and as protobuf read them, whatever bytes come."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from hedgerow import native
from hedgerow.wire.messages import tensor, tf_serving
from hedgerow.wire.predict import request_bytes
from tests.twins import native_core

TEXTS = st.text(max_size=5)
SIZES = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3)
EMPTY = st.tuples(
    st.integers(0, 200),
    st.permutations([0, 3]) | st.just([0]),
    st.just(b""),
    st.just(False),
)
PLAIN = st.builds(
    lambda dtype, dims, content: (dtype, dims, content, False),
    st.integers(0, 200),
    st.lists(SIZES, max_size=8),
    st.binary(min_size=1, max_size=40),
)
ODD = st.tuples(
    st.integers(0, 200), st.lists(SIZES, max_size=10), st.binary(max_size=3), st.booleans()
)


def _message(
    name: str, version: int | None, signature: str, inputs: dict[str, Any], label: str, odd: bool
) -> bytes:
    request = tf_serving.PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = name, signature
    if version is not None:
        request.model_spec.version.value = version
    elif label:
        request.model_spec.version_label = label
    for alias, (dtype, dims, content, unknown) in inputs.items():
        made = tensor.TensorProto(dtype=dtype, tensor_content=content)
        for size in dims:
            made.tensor_shape.dim.add(size=size)
        made.tensor_shape.unknown_rank = unknown
        request.inputs[alias].CopyFrom(made)
    if odd:
        request.output_filter.append("y")
    return request.SerializeToString()


VERSIONS = st.none() | st.integers(-(2**63), 2**63 - 1)
PLAIN_REQUESTS = st.builds(
    _message,
    TEXTS,
    VERSIONS,
    TEXTS,
    st.dictionaries(TEXTS, PLAIN, max_size=4)
    | st.builds(
        lambda some, more: more | some,
        st.dictionaries(TEXTS, PLAIN, min_size=1, max_size=2),
        st.dictionaries(TEXTS, EMPTY, max_size=2),
    ),
    st.just(""),
    st.just(False),
)
ANY_REQUESTS = st.builds(
    _message,
    TEXTS,
    VERSIONS,
    TEXTS,
    st.dictionaries(TEXTS, PLAIN | EMPTY | ODD, max_size=4),
    TEXTS,
    st.booleans(),
)


@st.composite
def _spoilt(draw: st.DrawFn) -> bytes:
    """A request with some bytes changed, cut off, doubled or added."""
    data = bytearray(draw(ANY_REQUESTS))
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(data)))
        data[place : place + draw(st.integers(0, 2))] = draw(st.binary(max_size=3))
    return bytes(data[: draw(st.integers(0, len(data)))]) if draw(st.booleans()) else bytes(data)


def _check_as_protobuf(data: bytes, found: Any) -> None:
    model, version, signature, inputs = found
    parsed = tf_serving.PredictRequest.FromString(data)
    spec = parsed.model_spec
    assert (spec.name, spec.signature_name) == (model, signature)
    assert version == (spec.version.value if spec.HasField("version") else None)
    assert not spec.version_label
    assert not parsed.output_filter
    assert parsed.inputs.keys() == inputs.keys()
    for alias, (dtype, shape, start, size) in inputs.items():
        one = parsed.inputs[alias]
        if -(2**31) <= dtype < 2**31:  # protobuf cuts off the rest; no such type is known to us
            assert one.dtype == dtype
        assert tuple(dim.size for dim in one.tensor_shape.dim) == shape
        assert not one.tensor_shape.unknown_rank
        assert one.tensor_content == data[start : start + size]


@given(PLAIN_REQUESTS)
def test_plain_requests_are_read(data: bytes) -> None:
    found = native.plain_request(data)
    assert found == native_core.plain_request(data)
    _check_as_protobuf(data, found)


@given(_spoilt() | st.binary(max_size=60))
def test_other_bytes_are_read_alike_or_left_to_a_parser(data: bytes) -> None:
    found = native.plain_request(data)
    assert found == native_core.plain_request(data)
    if found is not None:
        try:
            _check_as_protobuf(data, found)
        except DecodeError as error:
            raise AssertionError(f"protobuf refuses {data.hex()}") from error


def test_what_our_clients_send_is_plain_and_aligned() -> None:
    spec = tf_serving.PredictRequest(model_spec={"name": "ctr"})
    values = {"id": torch.arange(3), "weight": torch.ones(5), "no": torch.arange(2)}
    data = request_bytes(spec, values)
    found = native.plain_request(data)
    assert found == native_core.plain_request(data)
    assert found is not None
    assert [start % 16 for _, _, start, _ in found[3].values()] == [0, 0, 0]
    _check_as_protobuf(data, found)


def test_many_inputs_are_left_to_a_parser() -> None:
    inputs = {str(i): (9, [1], bytes(8), False) for i in range(257)}
    assert native.plain_request(_message("m", None, "", inputs, "", False)) is None
    del inputs["0"]
    found = native.plain_request(_message("m", None, "", inputs, "", False))
    assert found is not None
    assert len(found[3]) == 256


@pytest.mark.parametrize("core", [native, native_core])
def test_only_what_a_parser_takes_is_plain(core: Any) -> None:
    """A length in more than five bytes is refused by protobuf; many paddings by the screen."""
    for length, taken in ((b"\x83\x80\x80\x80\x00", True), (b"\x83\x80\x80\x80\x80\x00", False)):
        data = b"\x0a" + length + b"\x0a\x01m"
        assert (core.plain_request(data) is not None) == taken
    for paddings, taken in ((256, True), (257, False)):
        assert (core.plain_request(b"\x32\x00" * paddings) is not None) == taken


def _tables(core: Any) -> list[Any]:
    codec = core.Codec("fp32")
    made = []
    for dim, ids in ((3, np.arange(5)), (1, np.array([-1, 2**63 - 1]))):
        segment = core.Segment(dim, "constant", 0.0, 0.0, "sgd", [0.0], [], codec, False)
        table = core.Table([segment], True, False, 1, 0)
        rows = np.arange(len(ids) * dim, dtype=np.float32)
        table.assign(ids.ctypes.data, len(ids), rows.ctypes.data, 0)
        made.append(table)
    return made


@given(
    st.lists(st.sampled_from([0, 1, 4, 7, -1, 2**63 - 1, -(2**63)]), max_size=12),
    st.floats(0, 1),
    st.binary(max_size=9),
)
def test_rows_between_bytes_agree(ids: list[int], part: float, around: bytes) -> None:
    message = around + np.array(ids, np.int64).tobytes() + around
    first = int(part * len(ids))
    counts = [first, len(ids) - first]
    ours, twin = (
        core.lookup_between(_tables(core), message, len(around), counts, around, b"tail")
        for core in (native, native_core)
    )
    assert ours == twin
    assert len(ours) == len(around) + 4 * (3 * first + len(ids) - first) + len(b"tail")


@pytest.mark.parametrize("core", [native, native_core])
@pytest.mark.parametrize(
    ("start", "counts"),
    [(0, [2, 2]), (9, [1, 2]), (25, [0, 0]), (0, [2**61, 0]), (0, [2**63, 2**63]), (0, [3])],
)
def test_ids_beyond_a_message_are_refused(core: Any, start: int, counts: list[int]) -> None:
    with pytest.raises((ValueError, OverflowError)):
        core.lookup_between(_tables(core), bytes(24), start, counts, b"", b"")


@pytest.mark.parametrize("core", [native, native_core])
def test_rows_of_no_table_are_refused(core: Any) -> None:
    with pytest.raises((ValueError, AttributeError)):
        core.lookup_between([None], bytes(8), 0, [1], b"", b"")


@given(
    st.lists(st.sampled_from([0, 1, 2, 3, 4, 7]), max_size=12),
    st.lists(st.sampled_from([-1, 2**63 - 1]), max_size=3),
    st.binary(max_size=9),
    st.binary(max_size=9),
)
def test_rows_after_bytes_agree(
    first: list[int], second: list[int], before: bytes, between: bytes
) -> None:
    """Rows may stand at any byte, and 0 has a row of zeros: it is there; 7 is not."""
    ids = [np.array(first, np.int64), np.array(second, np.int64)]
    places = [one.ctypes.data for one in ids]
    counts = [len(one) for one in ids]
    ours, twin = (
        core.rows_after(_tables(core), places, counts, 0, [before, b"x"], [between, b""])
        for core in (native, native_core)
    )
    assert ours == twin
    assert (ours is None) == (7 in first)


@pytest.mark.parametrize("core", [native, native_core])
def test_rows_after_bytes_need_all_their_parts(core: Any) -> None:
    tables, empty = _tables(core), [b"", b""]
    for counts, before in (([0], empty), ([0, 0], [b""]), ([0, 0, 0], empty)):
        with pytest.raises(ValueError, match=r"."):
            core.rows_after(tables, [0, 0], counts, 0, before, empty)
    with pytest.raises((ValueError, AttributeError)):
        core.rows_after([None], [0], [0], 0, [b""], [b""])


@pytest.mark.parametrize("core", [native, native_core])
def test_tensors_without_values_are_plain_beside_others(core: Any) -> None:
    """A push names all tables, those without keys as well; without any content it is no raw one."""
    empty, one = (9, [0], b"", False), (9, [1], bytes(8), False)
    found = core.plain_request(_message("m", None, "", {"a": empty, "b": one}, "", False))
    assert found[3]["a"] == (9, (0,), 0, 0)
    for inputs in ({"a": empty}, {"a": (9, [2], b"", False), "b": one}, {"a": (9, [], b"", False)}):
        assert core.plain_request(_message("m", None, "", inputs, "", False)) is None


def _rows_in(core: Any, tables: Any, ids: list[Any]) -> list[bytes]:
    rows = []
    for table, keys in zip(tables, ids, strict=True):
        out = np.empty((len(keys), table.dim()), np.float32)
        table.lookup(keys.ctypes.data, len(keys), "zeros", 0, out.ctypes.data, True)
        rows.append(out.tobytes())
    return rows


@pytest.mark.parametrize("bad", [None, 0, 1])
@pytest.mark.parametrize("strict", [True, False])
def test_rows_assigned_out_of_a_message_agree(bad: int | None, strict: bool) -> None:
    """A value that a table rejects changes no table; one that drops it loses the row alone."""
    ids = [np.array([3, 9], np.int64), np.array([-1], np.int64)]
    values = [np.full((2, 3), 7, np.float32), np.full((1, 1), 5, np.float32)]
    if bad is not None:
        values[bad][0, 0] = np.nan
    message = bytes(16) + b"".join(
        keys.tobytes() + rows.tobytes() for keys, rows in zip(ids, values, strict=True)
    )
    places = [(16, 2, 32), (56, 1, 64)]
    found = []
    for core in (native, native_core):
        tables = _tables(core)
        done = core.assign_in(tables, message, places, [1, 2], [strict, strict])
        assert done == (bad is None or not strict)
        found.append(_rows_in(core, tables, ids))
    assert found[0] == found[1]
    assert (found[0] == [rows.tobytes() for rows in values]) == (bad is None)


@pytest.mark.parametrize("core", [native, native_core])
def test_what_does_not_stand_in_a_message_is_not_assigned(core: Any) -> None:
    tables, rules = _tables(core), ([0, 0], [True, True])
    assert not core.assign_in(tables, bytes(64), [(1, 1, 16), (8, 1, 16)], *rules)
    assert not core.assign_in(tables, bytes(64), [(8, 1, 17), (8, 1, 16)], *rules)
    for place in ((64, 1, 0), (0, 1, 64), (72, 0, 0), (0, 2**60, 0), (0, 2**63, 0)):
        with pytest.raises((ValueError, OverflowError)):
            core.assign_in(tables, bytes(64), [(8, 1, 16), place], *rules)
    with pytest.raises(ValueError, match=r"."):
        core.assign_in(tables, bytes(64), [(8, 1, 16)], *rules)
