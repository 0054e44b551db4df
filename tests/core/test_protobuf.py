"""Messages on the wire: what is written is read, and hostile bytes are refused, not believed."""

from __future__ import annotations

import struct
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.core import protobuf as pb
from hedgerow.monolith.files.entry_dump import decode_dumps, decode_entry, encode_entry

INT64 = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.lists(st.floats(width=32, allow_nan=False), max_size=20)


def _packed(number: int, values: list[float]) -> bytes:
    return pb.bytes_field(number, struct.pack(f"<{len(values)}f", *values))


@given(INT64)
def test_numbers_come_back(value: int) -> None:
    for number in (1, 15, 16, 2**29 - 1):
        data = pb.varint_field(number, value) + pb.sfixed64_field(number, value)
        reader = pb.ProtobufReader(data)
        fields = reader.fields()
        assert next(fields) == (number, pb.VARINT)
        assert reader.int64() == value
        assert next(fields) == (number, pb.FIXED64)
        assert reader.sfixed64() == value
        assert next(fields, None) is None


@given(INT64, st.lists(FLOATS, max_size=4), st.lists(st.booleans(), min_size=4, max_size=4), INT64)
def test_an_entry_comes_back_whatever_form_its_floats_have(
    key: int, runs: list[list[float]], packed: list[bool], ts: int
) -> None:
    data = pb.varint_field(4, ts)
    for run, pack in zip(runs, packed, strict=False):
        # Between the runs stands a field that nobody knows.
        data += _packed(2, run) if pack else pb.floats_field(2, np.array(run, np.float32))
        data += pb.varint_field(77, 5)
    entry = decode_entry(data + pb.sfixed64_field(1, key))
    assert (entry.id, entry.ts, entry.dumps) == (key, ts, ())
    assert entry.values.tolist() == [x for run in runs for x in run]


@given(INT64, FLOATS, INT64)
def test_an_entry_we_wrote_comes_back(key: int, values: list[float], ts: int) -> None:
    row = np.array(values, np.float32)
    entry = decode_entry(encode_entry(key, row, b"", ts))
    assert (entry.id, entry.values.tolist(), entry.ts) == (key, values, ts)


def test_absent_fields_are_zero() -> None:
    entry = decode_entry(pb.floats_field(2, np.ones(2, np.float32)))
    assert (entry.id, entry.ts, entry.dumps) == (0, 0, ())


@pytest.mark.parametrize(
    "unknown",
    [
        pb.varint_field(9, -1),
        pb.sfixed64_field(100, 3),
        pb.bytes_field(9, b"abc"),
        pb.floats_field(9, np.ones(3, np.float32)),
        pb.varint(1000 << 3 | pb.FIXED32) + bytes(4),
    ],
)
def test_unknown_fields_are_skipped(unknown: bytes) -> None:
    known = encode_entry(3, np.ones(2, np.float32), b"", 4)
    for data in (unknown + known, known + unknown):
        entry = decode_entry(data)
        assert (entry.id, entry.values.tolist(), entry.ts) == (3, [1.0, 1.0], 4)


def test_a_tag_written_in_two_bytes_is_one_float() -> None:
    long_tag = bytes([0x95, 0x00]) + struct.pack("<f", 2.0)
    data = long_tag * 3 + pb.floats_field(2, np.zeros(3, np.float32))
    assert decode_entry(data).values.tolist() == [2.0, 2.0, 2.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\xff" * 9, "cut off"),
        (b"\x20" + b"\xff" * 11, "longer than 64 bits"),
        (b"\x20" + b"\xff" * 9 + b"\x02", "longer than 64 bits"),
        (b"\x00\x00", "field number 0"),
        (b"\x80\x80\x80\x80\x10\x00", "field number 536870912"),
        (b"\x09\x01", "8 bytes wanted"),
        (b"\x15\x00\x00", "5 bytes wanted"),
        (b"\x12\x03abc", "not 4 per value"),
        (b"\x1a" + pb.varint(2**63) + b"x", "9223372036854775808 bytes wanted"),
        (b"\x12" + pb.varint(2**64 - 1), "bytes wanted"),
        (b"\x08\x01", "field 1 before byte 1 has wire type 0"),
        (b"\x10\x01", "wire type 0"),
        (b"\x25\x00\x00\x00\x00", "field 4 before byte 1 has wire type 5"),
        (b"\x4b\x4c", "wire type 3"),
        (b"\x4c", "wire type 4"),
        (b"\x4e", "wire type 6"),
        (b"\x1a\x02\x08\x01", "field 1 before byte 1 has wire type 0"),
    ],
)
def test_what_is_no_message_is_refused(data: bytes, what: str) -> None:
    with pytest.raises(pb.WireError, match=what):
        decode_entry(data)


@given(st.binary(max_size=60))
def test_any_bytes_are_an_entry_or_an_error_of_ours(data: bytes) -> None:
    for decode in (decode_entry, decode_dumps):
        with suppress(pb.WireError):  # anything else fails the test
            decode(data)
