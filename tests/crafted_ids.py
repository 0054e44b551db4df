"""Ids that collide under the hashes that everybody can read: those of slot key 0."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

_START_1, _BY_1 = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93
_START_2, _BY_2 = 0xA0761D6478BD642F, 0xE7037ED1A0B428DB


def known_hash(ids: np.ndarray) -> np.ndarray:
    """What `SlotHash(0)` of the core makes of unsigned ids."""
    once = _fold(ids ^ np.uint64(_START_1), _BY_1)
    return _fold(once ^ np.uint64(_START_2), _BY_2)


def that_share(bits: int, n: int, *, low: bool = False) -> torch.Tensor:
    """So many ids whose known hashes have the same first bits, or the same last ones."""
    found: list[np.ndarray] = []
    random, shift = np.random.default_rng(5), np.uint64(0 if low else 64 - bits)
    mask = np.uint64(2**bits - 1)
    while sum(map(len, found)) < n:
        ids = random.integers(0, 2**64, 1 << 20, dtype=np.uint64)
        found.append(ids[(known_hash(ids) >> shift) & mask == 5])
    return torch.from_numpy(np.concatenate(found)[:n].view(np.int64))


def that_meet(n: int, places: Callable[[int], tuple[int, ...]]) -> torch.Tensor:
    """So many ids with the places of the first one."""
    wanted, found, id_ = places(1), [1], 1
    while len(found) < n:
        id_ += 1
        if places(id_) == wanted:
            found.append(id_)
    return torch.tensor(found)


def that_share_a_bucket_of_numpy(n: int, buckets: int) -> torch.Tensor:
    """So many ids that `np.unique` puts into one of so many buckets: its hash is FNV-1a."""
    found: list[np.ndarray] = []
    random = np.random.default_rng(6)
    while sum(map(len, found)) < n:
        ids = random.integers(0, 2**64, 1 << 20, dtype=np.uint64)
        hashes = np.full_like(ids, 0xCBF29CE484222325)
        for byte in range(8):
            hashes ^= ids >> np.uint64(8 * byte) & np.uint64(0xFF)
            hashes *= np.uint64(0x100000001B3)
        found.append(ids[hashes % np.uint64(buckets) == 7])
    return torch.from_numpy(np.concatenate(found)[:n].view(np.int64))


def _fold(a: np.ndarray, b: int) -> np.ndarray:
    """Both halves of the products of 64 bits, one upon the other."""
    half, low = np.uint64(32), np.uint64(2**32 - 1)
    a_low, a_high = a & low, a >> half
    b_low, b_high = np.uint64(b & 0xFFFFFFFF), np.uint64(b >> 32)
    first, second = a_low * b_high, a_high * b_low
    carried = ((a_low * b_low) >> half) + (first & low) + (second & low)
    high = a_high * b_high + (first >> half) + (second >> half) + (carried >> half)
    return (a * np.uint64(b)) ^ high
