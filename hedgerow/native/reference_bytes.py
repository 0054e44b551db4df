"""Plain twins of the core's functions on bytes."""

from __future__ import annotations

import numpy as np

from ..core.hashing import xxh64
from .reference_values import at

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
