"""What a sample of ids says about the keys of a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from ...core import checks
from ...core.errors import ConfigError

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
