"""Plain twins of the core's functions on bytes."""

from __future__ import annotations

import numpy as np

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
