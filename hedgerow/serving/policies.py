"""Which versions of a folder are served."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..core import checks
from ..core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Policy:
    """Base of every policy."""

    def candidates(self, found: Iterable[int]) -> list[int]:
        """The versions to try, the best first."""
        return sorted(found, reverse=True)

    def most(self) -> int:
        """How many of them are served at once."""
        return 1

    def settled(self, available: Iterable[int]) -> bool:
        """Whether what is served stays, whatever comes."""
        return False


@dataclass(frozen=True, slots=True)
class Latest(Policy):
    """The newest versions that load.

    >>> Latest().candidates([1, 3, 2])
    [3, 2, 1]
    """

    num_versions: int = 1

    def __post_init__(self) -> None:
        checks.whole("Latest", "num_versions", self.num_versions, least=1)

    def most(self) -> int:
        """As asked for."""
        return self.num_versions


@dataclass(frozen=True, slots=True)
class LatestOnce(Policy):
    """The version that is newest at the start; later ones are left alone, as pushes keep it fresh.

    >>> LatestOnce().settled([1])
    True
    """

    def settled(self, available: Iterable[int]) -> bool:
        """Yes, once one is served."""
        return any(True for _ in available)


@dataclass(frozen=True, slots=True)
class All(Policy):
    """Every version there is."""

    def most(self) -> int:
        """No bound."""
        return 1 << 62


@dataclass(frozen=True, slots=True)
class Specific(Policy):
    """The versions named.

    >>> Specific((2, 5)).candidates([1, 2, 3])
    [2]
    """

    versions: tuple[int, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.versions, tuple) or not self.versions:
            raise ConfigError(f"Specific.versions is {self.versions!r}; give a tuple of versions.")
        for version in self.versions:
            checks.whole("Specific", "versions", version)

    def candidates(self, found: Iterable[int]) -> list[int]:
        """Those of them that are there."""
        return sorted(set(found) & set(self.versions), reverse=True)

    def most(self) -> int:
        """All of them."""
        return len(self.versions)


def policy_of(policy: Policy | str) -> Policy:
    """A policy, also from the words of a command line: latest, latest_once, all, specific:3,4.

    >>> policy_of("specific:3,4")
    Specific(versions=(3, 4))
    """
    if isinstance(policy, Policy):
        return policy
    named = {"latest": Latest, "latest_once": LatestOnce, "all": All}
    if policy in named:
        return named[policy]()
    word, _, numbers = str(policy).partition(":")
    parts = numbers.split(",")
    if word != "specific" or not all(part.isascii() and part.isdigit() for part in parts):
        raise ConfigError(
            f"policy is {policy!r}; it must be 'latest', 'latest_once', 'all' or, for example, "
            "'specific:3,4'."
        )
    return Specific(tuple(int(part) for part in parts))
