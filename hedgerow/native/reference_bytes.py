"""Plain twins of the core's functions on bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..core.hashing import xxh64
from ..core.protobuf import BYTES, VARINT, Reader, WireError
from .reference_values import at

PlainInput = tuple[int, tuple[int, ...], int, int]  # dtype, shape, and where its bytes are
PlainRequest = tuple[str, int | None, str, dict[str, PlainInput]]
_MOST_INPUTS, _MOST_DIMS, _LENGTH_BYTES = 256, 8, 5
_PADDINGS = tuple(bytes(n) for n in range(16))  # a client's name of zeros: values stand aligned

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, with its bits in reverse


def crc32c(data_at: int, n: int, seed: int) -> int:
    """CRC32C of n bytes that follow bytes with checksum `seed` (0 = none), bit by bit."""
    crc = seed ^ 0xFFFFFFFF
    for byte in at(data_at, n, np.uint8).tolist():
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def hash_strings(data_at: int, offsets_at: int, n: int, seed: int, out_at: int) -> None:
    """XXH64 of n strings; string i is `data[offsets[i]:offsets[i + 1]]`."""
    offsets = at(offsets_at, n + 1, np.int64).tolist()
    out = at(out_at, n, np.uint64)
    data = at(data_at, offsets[-1], np.uint8).tobytes()
    for i in range(n):
        out[i] = xxh64(data[offsets[i] : offsets[i + 1]], seed)


def plain_request(message: bytes) -> PlainRequest | None:
    """Model, version, signature and inputs of a PredictRequest, if its tensors are plain buffers.

    None for any other: one with a field beside these, with one that comes twice, or broken.
    """
    try:
        return _plain_request(message)
    except (WireError, UnicodeDecodeError):
        return None


def _plain_request(message: bytes) -> PlainRequest | None:
    spec, inputs = b"", {}
    seen, paddings = False, 0
    for number, value, at_byte in _fields(message, 0):
        if number == 1 and isinstance(value, bytes) and not seen:
            spec, seen = value, True
        elif number == 2 and isinstance(value, bytes) and len(inputs) < _MOST_INPUTS:
            alias, tensor = _plain_input(value, at_byte)
            if alias in inputs:
                return None
            inputs[alias] = tensor
        elif number == 6 and value in _PADDINGS and paddings < _MOST_INPUTS:
            paddings += 1
        else:
            return None
    if inputs and not any(size for _, _, _, size in inputs.values()):
        return None
    asked = _once(spec, 0, {1: bytes, 2: bytes, 3: bytes})
    version = None
    if 2 in asked:
        version = _signed(_once(asked[2][0], 0, {1: int}).get(1, (0, 0))[0])
    name, signature = asked.get(1, (b"", 0))[0], asked.get(3, (b"", 0))[0]
    return name.decode(), version, signature.decode(), inputs


def _plain_input(entry: bytes, entry_at: int) -> tuple[str, PlainInput]:
    parts = _once(entry, entry_at, {1: bytes, 2: bytes})
    tensor, tensor_at = parts.get(2, (b"", 0))
    fields = _once(tensor, tensor_at, {1: int, 2: bytes, 4: bytes})
    content, content_at = fields.get(4, (b"", 0))
    dims = []
    for number, dim, _ in _fields(fields.get(2, (b"", 0))[0], 0):
        if number != 2 or not isinstance(dim, bytes) or len(dims) == _MOST_DIMS:
            raise WireError("a shape that is not plain")
        dims.append(_signed(_once(dim, 0, {1: int}).get(1, (0, 0))[0]))
    if not content and 0 not in dims:
        raise WireError("a tensor without content")
    number = _signed(fields.get(1, (0, 0))[0])
    return parts.get(1, (b"", 0))[0].decode(), (number, tuple(dims), content_at, len(content))


def _once(message: bytes, start: int, kinds: dict[int, type]) -> dict[int, tuple[Any, int]]:
    """The fields of a message by number, none of them twice, each of its kind, and their places."""
    found: dict[int, tuple[Any, int]] = {}
    for number, value, at_byte in _fields(message, start):
        if number in found or not isinstance(value, kinds.get(number, type(None))):
            raise WireError(f"field {number} is not plain")
        found[number] = (value, at_byte)
    return found


def _fields(message: bytes, start: int) -> Iterator[tuple[int, int | bytes, int]]:
    """Numbers, values, and where the values of a message that begins at `start` stand."""
    reader = Reader(message)
    while (before := reader.at) < len(message):
        tag = message[before]
        if tag >= 0x80 or tag & 7 not in (VARINT, BYTES):
            raise WireError("a tag that is not plain")
        reader.varint()
        value = reader.bytes() if tag & 7 == BYTES else reader.varint()
        begin = reader.at - (len(value) if isinstance(value, bytes) else 0)
        if isinstance(value, bytes) and begin - before - 1 > _LENGTH_BYTES:
            raise WireError("a length that a parser refuses")
        yield tag >> 3, value, start + begin


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
