"""Frames and Snappy blocks: round trips, and every kind of damage found and named."""

from __future__ import annotations

import io
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.core.errors import FileDamagedError
from hedgerow.data.tfrecord_format import MAX_PAYLOAD_BYTES, frame, masked_crc, payloads
from hedgerow.monolith.files.records import MAX_BLOCK_BYTES, SnappyReader, SnappyWriter


def _read(data: bytes) -> list[bytes]:
    return [payload for _, payload in payloads(io.BytesIO(data), "some.file")]


@given(st.lists(st.binary(max_size=50), max_size=10))
def test_payloads_come_back(written: list[bytes]) -> None:
    data = b"".join(map(frame, written))
    assert _read(data) == written
    starts = [at for at, _ in payloads(io.BytesIO(data), "some.file")]
    assert [data[at:].startswith(frame(p)) for at, p in zip(starts, written, strict=True)] == [
        True
    ] * len(written)


def test_a_known_frame() -> None:
    # An empty payload: CRC32C of nothing is 0, so both ends show the mask's own constant.
    assert frame(b"")[-4:] == struct.pack("<I", 0xA282EAD8)
    length = struct.pack("<Q", 0)
    assert frame(b"") == length + struct.pack("<I", masked_crc(length)) + frame(b"")[-4:]


def test_every_bit_of_a_frame_is_guarded() -> None:
    data = frame(b"first") + frame(b"second")
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FileDamagedError, match=r"some\.file is damaged.*record at byte"):
            _read(bytes(changed))


def test_every_cut_inside_a_frame_is_seen() -> None:
    data = frame(b"first") + frame(b"second")
    whole = {0, len(frame(b"first")), len(data)}
    for cut in set(range(len(data))) - whole:
        with pytest.raises(FileDamagedError, match="the file ends"):
            _read(data[:cut])


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, MAX_PAYLOAD_BYTES + 1])
def test_a_huge_length_with_a_right_checksum_is_refused_unread(length: int) -> None:
    head = struct.pack("<Q", length)
    with pytest.raises(FileDamagedError, match=f"a length of {length}"):
        _read(head + struct.pack("<I", masked_crc(head)) + b"x" * 100)


def _compressed(*parts: bytes) -> bytes:
    file = io.BytesIO()
    writer = SnappyWriter(file)
    for part in parts:
        writer.write(part)
    writer.finish()
    return file.getvalue()


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=40), max_size=5), st.integers(1, 300_000), st.integers(1, 70))
def test_streams_come_back_in_pieces_of_any_size(parts: list[bytes], long: int, piece: int) -> None:
    content = b"".join(parts) + random.Random(long).randbytes(long) + b"z" * long
    reader = SnappyReader(io.BytesIO(_compressed(content)), "some.file")
    start = b"".join(reader.read(piece) for _ in range(10))
    assert start + reader.read(2**30) == content
    assert reader.read(1) == b""


def test_a_stream_of_nothing_is_empty() -> None:
    assert _compressed() == b""
    assert SnappyReader(io.BytesIO(b""), "some.file").read(5) == b""


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x00\x00", "a block of 0 bytes"),
        (b"\x00\x00\x00\x00", "a block of 0 bytes"),
        (b"\xff\xff\xff\xffabc", "a block of 4294967295 bytes"),
        (b"\x00\x00\x00\x09abc", "ends after 3 of 9 bytes"),
        (b"\x00\x00\x00\x05\xff\xff\xff\xff\x0f", "a block that holds 4294967295 bytes"),
        (b"\x00\x00\x00\x01\xff", "no Snappy block"),
        (b"\x00\x00\x00\x04\x09abc", "no Snappy block"),
    ],
)
def test_what_is_no_stream_is_refused(data: bytes, what: str) -> None:
    assert MAX_BLOCK_BYTES < 2**32 - 1
    with pytest.raises(FileDamagedError, match=rf"some\.file is damaged.*{what}.*block at byte 0"):
        SnappyReader(io.BytesIO(data), "some.file").read(1)
