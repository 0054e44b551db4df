"""Key statistics from ids: exact counts of a sample of bounded size."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...core import checks
from ...core.errors import DtypeError, InputError
from .key_stats import KeyStats

if TYPE_CHECKING:
    from torch import Tensor

SAMPLE_IDS = 2_000_000
"""Ids of a sample: 16 MB, counted exactly in less than a second."""
HEAD_KEYS = 65_536
"""Keys whose counts are kept one by one; of all others only how many were seen how often."""
ROUTING_KEYS = 65_536
"""Ids kept as they came, for advice on routing: two steps of a source."""
_HOT = 10  # times seen: a key so frequent in one half is in the other by chance 0.99995


@dataclass(slots=True)
class KeySampler:
    """Takes ids in the order of their use until it has `limit` of them; single-owner.

    The order matters to caches and to drift, so the first ids are the sample, not random ones.

    >>> sampler = KeySampler(limit=5)
    >>> sampler.add(np.array([7, 7, 8])), sampler.add(np.array([7, 9, 9, 9]))
    (3, 2)
    >>> sampler.full, sampler.stats().counts()
    (True, [(3, 1), (1, 2)])
    """

    limit: int = SAMPLE_IDS
    _parts: list[NDArray[np.int64]] = field(default_factory=list)
    _taken: int = 0

    def __post_init__(self) -> None:
        checks.count("limit", self.limit, least=1)

    @property
    def taken(self) -> int:
        """Ids so far."""
        return self._taken

    @property
    def full(self) -> bool:
        """No more are taken."""
        return self._taken >= self.limit

    def add(self, keys: NDArray[np.int64] | Tensor) -> int:
        """Takes ids as far as there is room, and says how many."""
        part = _checked(keys)[: self.limit - self._taken]
        if len(part):
            self._parts.append(part.copy())  # a slice would keep all of a file's row group
        self._taken += len(part)
        return len(part)

    def stats(self) -> KeyStats:
        """What the sample says so far."""
        if not self._taken:
            raise InputError("the sample is empty; key statistics need at least one id.")
        keys = np.concatenate(self._parts)
        _, counts = np.unique(keys, return_counts=True)
        falling = np.sort(counts)[::-1]
        times, often = np.unique(falling[HEAD_KEYS:], return_counts=True)
        return KeyStats(
            sampled=len(keys),
            head=tuple(falling[:HEAD_KEYS].tolist()),
            tail=tuple(zip(times.tolist(), often.tolist(), strict=True)),
            drift=drift(keys[: len(keys) // 2], keys[len(keys) // 2 :]),
            keys=tuple(keys[:ROUTING_KEYS].tolist()),
        )


def key_stats(keys: NDArray[np.int64] | Tensor, limit: int = SAMPLE_IDS) -> KeyStats:
    """The statistics of the first `limit` ids, in the order of their use.

    >>> key_stats(np.array([5, 5, 6])).head
    (2, 1)
    """
    sampler = KeySampler(limit)
    sampler.add(keys)
    return sampler.stats()


def drift(earlier: NDArray[np.int64] | Tensor, later: NDArray[np.int64] | Tensor) -> float:
    """The share of the later window's hot keys that the earlier window does not have at all.

    Hot is what was seen ten times or more, so that chance alone makes no drift.

    >>> drift(np.repeat([1, 2, 3], 20), np.repeat([3, 4], 20))
    0.5
    """
    before, now = _checked(earlier), _checked(later)
    keys, counts = np.unique(now, return_counts=True)
    hot = keys[counts >= _HOT]
    if not len(before) or not len(hot):
        return 0.0
    return float(1 - _are_among(hot, before).mean())


def _are_among(keys: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which keys are among others, of which there is one at least.

    Numpy's `isin` has a hash without a key, and ids that are chosen to collide make it quadratic.
    """
    ordered = np.sort(others)
    at = np.searchsorted(ordered, keys)
    return ordered[np.minimum(at, len(ordered) - 1)] == keys


def _checked(keys: NDArray[np.int64] | Tensor) -> NDArray[np.int64]:
    found = np.asarray(keys)
    if found.dtype != np.int64:
        raise DtypeError(
            f"keys have dtype {found.dtype}; ids are whole numbers of 64 bits: give int64."
        )
    if found.ndim != 1:
        raise InputError(f"keys have shape {found.shape}; give one row of ids.")
    return found
