"""Statistics of a table's keys, and how to sample them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...core import checks
from ...core.errors import ConfigError, DtypeError, InputError

if TYPE_CHECKING:
    from torch import Tensor


_FIELDS = ("sampled", "head", "tail", "drift", "keys")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyStats:
    """Counts of sampled ids: exact for the hottest keys, and how many keys were seen how often.

    `drift` is the share of hot keys of the later half that the earlier half does not have; `keys`
    the first ids of the sample in their order, of which routing advice is made.

    >>> stats = KeyStats(sampled=7, head=(3,), tail=((1, 2), (2, 1)))
    >>> stats.distinct, round(stats.unseen_mass, 3)
    (4, 0.286)
    >>> KeyStats.from_dict(stats.to_dict()) == stats
    True
    """

    sampled: int
    head: tuple[int, ...] = field(repr=False)  # times each of the hottest was seen, falling
    tail: tuple[tuple[int, int], ...] = field(repr=False)  # (times seen, keys), of all others
    drift: float = 0.0
    keys: tuple[int, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        checks.whole("KeyStats", "sampled", self.sampled, least=1)
        object.__setattr__(self, "head", tuple(_counts("head", self.head)))
        object.__setattr__(self, "tail", tuple(_pairs("tail", self.tail)))
        object.__setattr__(self, "keys", tuple(_ids(self.keys)))
        if list(self.head) != sorted(self.head, reverse=True):
            raise ConfigError("KeyStats.head is not in falling order; sort it.")
        if not isinstance(self.drift, float | int) or not 0 <= self.drift <= 1:
            raise ConfigError(f"KeyStats.drift is {self.drift!r}; it is a share from 0 to 1.")
        total = sum(self.head) + sum(times * keys for times, keys in self.tail)
        if total != self.sampled:
            raise ConfigError(
                f"KeyStats.sampled is {self.sampled}, but head and tail count {total} ids; all of "
                f"a sample must be in them."
            )

    def __hash__(self) -> int:
        # Equal statistics have equal hashes, as they must; heads are long, and looked up often.
        return hash((self.sampled, len(self.head), self.head[:4], self.tail[:4]))

    @property
    def distinct(self) -> int:
        """Keys seen at least once."""
        return len(self.head) + sum(keys for _, keys in self.tail)

    @property
    def unseen_mass(self) -> float:
        """The chance that the next id was not seen yet, by Good and Turing: ids seen once."""
        return dict(self.counts()).get(1, 0) / self.sampled

    def counts(self) -> list[tuple[int, int]]:
        """(times seen, keys seen so often) of all keys, the most frequent first.

        >>> KeyStats(sampled=7, head=(3,), tail=((1, 2), (2, 1))).counts()
        [(3, 1), (2, 1), (1, 2)]
        """
        found: dict[int, int] = {}
        for times, keys in (*_runs(self.head), *self.tail):
            found[times] = found.get(times, 0) + keys
        return sorted(found.items(), reverse=True)

    def to_dict(self) -> dict[str, Any]:
        """Fit for JSON; equal counts of the head are one pair."""
        return {
            "sampled": self.sampled,
            "head": [list(pair) for pair in _runs(self.head)],
            "tail": [list(pair) for pair in self.tail],
            "drift": self.drift,
            "keys": list(self.keys),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> KeyStats:
        """What `to_dict` was called on. What is missing, unknown or no count is named."""
        if not isinstance(values, Mapping) or not {"sampled", "head", "tail"} <= set(values):
            raise ConfigError(
                f"{_short(values)} is no key statistics; it must be a dict with sampled, head and "
                f"tail, as `hedgerow sample-keys` writes it."
            )
        for name in values:
            if name not in _FIELDS:
                checks.unknown("field of key statistics", str(name), _FIELDS)
        runs = _pairs("head", values["head"])
        if sum(keys for _, keys in runs) > _MOST_HEAD:
            raise ConfigError(f"KeyStats.head has more than {_MOST_HEAD:,} keys.")
        head = tuple(times for times, keys in runs for _ in range(keys))
        rest = {name: values[name] for name in ("drift", "keys") if name in values}
        return cls(sampled=values["sampled"], head=head, tail=values["tail"], **rest)


_MOST_HEAD = 2**24  # what a file may ask us to hold


def _runs(falling: Iterable[int]) -> list[tuple[int, int]]:
    return [(times, len(list(same))) for times, same in groupby(falling)]


def _counts(name: str, values: Sequence[int]) -> list[int]:
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise ConfigError(f"KeyStats.{name} is {_short(values)}; give a list of counts.")
    for value in values:
        checks.whole("KeyStats", name, value, least=1)
    return [int(value) for value in values]


def _pairs(name: str, values: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise ConfigError(f"KeyStats.{name} is {_short(values)}; give a list of pairs.")
    found = []
    for pair in values:
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise ConfigError(
                f"KeyStats.{name} has {_short(pair)}; give pairs of times seen and keys."
            )
        found.append(tuple(_counts(name, pair)))
    return found


def _ids(values: Sequence[int]) -> list[int]:
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise ConfigError(f"KeyStats.keys is {_short(values)}; give a list of ids.")
    for value in values:
        if type(value) is not int or not -(2**63) <= value < 2**63:
            raise ConfigError(f"KeyStats.keys has {value!r}; an id is a whole number of 64 bits.")
    return list(values)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


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
