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
    """Counts of sampled ids: exact for the most frequent keys, a histogram for all others.

    `drift` is the share of frequent keys in the later half of the sample that are absent in the
    earlier half. `keys` are the first sampled ids in order, from which routing advice is computed.

    >>> stats = KeyStats(sampled=7, head=(3,), tail=((1, 2), (2, 1)))
    >>> stats.distinct, round(stats.unseen_mass, 3)
    (4, 0.286)
    >>> KeyStats.from_dict(stats.to_dict()) == stats
    True
    """

    sampled: int
    head: tuple[int, ...] = field(repr=False)  # counts of the most frequent keys, descending
    tail: tuple[tuple[int, int], ...] = field(repr=False)  # (count, keys with it) of the others
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
        # Cheap and consistent with equality. The head is long and hashed often.
        return hash((self.sampled, len(self.head), self.head[:4], self.tail[:4]))

    @property
    def distinct(self) -> int:
        """Distinct keys in the sample."""
        return len(self.head) + sum(keys for _, keys in self.tail)

    @property
    def unseen_mass(self) -> float:
        """The Good-Turing estimate that the next id is new: the share of ids seen once."""
        return dict(self.counts()).get(1, 0) / self.sampled

    def counts(self) -> list[tuple[int, int]]:
        """Returns (count, keys with that count) of all keys, highest count first.

        >>> KeyStats(sampled=7, head=(3,), tail=((1, 2), (2, 1))).counts()
        [(3, 1), (2, 1), (1, 2)]
        """
        found: dict[int, int] = {}
        for times, keys in (*_runs(self.head), *self.tail):
            found[times] = found.get(times, 0) + keys
        return sorted(found.items(), reverse=True)

    def to_dict(self) -> dict[str, Any]:
        """Returns the statistics as a dict for JSON.

        Runs of equal counts in the head become one pair.
        """
        return {
            "sampled": self.sampled,
            "head": [list(pair) for pair in _runs(self.head)],
            "tail": [list(pair) for pair in self.tail],
            "drift": self.drift,
            "keys": list(self.keys),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> KeyStats:
        """Returns the statistics from their dict form.

        Raises for missing, unknown or invalid fields.
        """
        if not isinstance(values, Mapping) or not {"sampled", "head", "tail"} <= set(values):
            raise ConfigError(
                f"{_short(values)} is not key statistics; it must be a dict with sampled, head and "
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


_MOST_HEAD = 2**24  # limit on what a file may make us allocate


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
"""Default sample size: 16 MB, counted in less than a second."""
HEAD_KEYS = 65_536
"""Number of keys whose counts are kept individually."""
ROUTING_KEYS = 65_536
"""Number of ids kept in their original order for routing advice."""
_HOT = 10  # a key seen 10 times in one half is in the other half with probability 0.99995


@dataclass(slots=True)
class KeySampler:
    """Collects ids in the order of use, up to `limit`. Not thread-safe.

    The sample is the first ids, not a random choice, because caches and drift depend on the order.

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
        """Number of ids collected so far."""
        return self._taken

    @property
    def full(self) -> bool:
        """Whether the sample has reached its limit."""
        return self._taken >= self.limit

    def add(self, keys: NDArray[np.int64] | Tensor) -> int:
        """Adds ids up to the limit. Returns how many were added."""
        part = _checked(keys)[: self.limit - self._taken]
        if len(part):
            self._parts.append(part.copy())  # a slice would keep the whole row group in memory
        self._taken += len(part)
        return len(part)

    def stats(self) -> KeyStats:
        """Returns the statistics of the ids collected so far."""
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
    """Returns the statistics of the first `limit` ids, in the order of use.

    >>> key_stats(np.array([5, 5, 6])).head
    (2, 1)
    """
    sampler = KeySampler(limit)
    sampler.add(keys)
    return sampler.stats()


def drift(earlier: NDArray[np.int64] | Tensor, later: NDArray[np.int64] | Tensor) -> float:
    """Returns the share of the frequent keys of `later` that are absent in `earlier`.

    Frequent keys are seen ten times or more, so that chance alone causes no drift.

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
    """Returns, for each key, whether it is in `others`, which must not be empty.

    numpy's `isin` uses an unkeyed hash, so keys that are chosen to collide make it quadratic.
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
