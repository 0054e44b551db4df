"""How a benchmark runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..core import checks
from ..core.errors import InputError
from .contestants import CONTESTANTS, Contestant
from .peer_process import Patience

_MOST_THREADS = 1024  # the core's own limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the user chose, and for tests who takes part and how long one waits.

    >>> Settings(rounds=3).threads
    2
    """

    threads: int = 2
    rounds: int = 5
    cases: tuple[str, ...] = ()  # patterns; none: all
    peers: tuple[str, ...] = ()
    quick: bool = False
    contestants: Mapping[str, Contestant] = field(default_factory=lambda: CONTESTANTS)
    patience: Patience = field(default_factory=Patience)

    def __post_init__(self) -> None:
        checks.count("rounds", self.rounds, least=1)
        if not 1 <= self.threads <= _MOST_THREADS:
            raise InputError(f"threads is {self.threads}; it must lie in 1..{_MOST_THREADS}.")
