"""One version of a model on its way through a server: its state, and the requests it is in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from types import TracebackType
from typing import TYPE_CHECKING

from .model import Model

if TYPE_CHECKING:
    from collections.abc import Callable


class State(IntEnum):
    """Where a version stands, with the numbers of GetModelStatus."""

    START = 10
    LOADING = 20
    AVAILABLE = 30
    UNLOADING = 40
    END = 50


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """What is told about a version; `code` and `error` say why it did not load."""

    version: int
    state: State
    code: str = "OK"
    error: str = ""


class Version:
    """A version and how many requests hold it. Not thread-safe: its registry holds the lock."""

    __slots__ = ("code", "error", "model", "number", "requests", "state")

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = State.START
        self.model: Model | None = None
        self.requests = 0
        self.code, self.error = "OK", ""

    def status(self) -> VersionStatus:
        """As it is told."""
        return VersionStatus(self.number, self.state, self.code, self.error)

    def fail(self, code: str, error: str) -> None:
        """Ends it, with the reason."""
        self.state, self.code, self.error, self.model = State.END, code, error, None

    def closable(self) -> bool:
        """Whether it waits for nothing but being closed."""
        return self.state is State.UNLOADING and not self.requests


class Lease:
    """A model for the time of one request: `with registry.find("ctr") as model:`.

    The model stays open until the `with` block is left, whatever is loaded or removed meanwhile.
    """

    __slots__ = ("_give_back", "_version", "model")

    def __init__(
        self, model: Model, version: Version, give_back: Callable[[Version], None]
    ) -> None:
        self.model = model
        self._version = version
        self._give_back = give_back

    def __enter__(self) -> Model:
        return self.model

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._give_back(self._version)


class Family:
    """All versions of one name. Not thread-safe: its registry holds the lock."""

    MOST_ENDED = 16  # kept to be told; a server that loads versions for years stays small

    def __init__(self, name: str) -> None:
        self.name = name
        self.versions: dict[int, Version] = {}
        self.labels: dict[str, int] = {}
        self.newest: Version | None = None
        self.wanted = True  # False once the whole model was removed

    def settle(self) -> None:
        """Finds the newest version again, and forgets the oldest of those that ended."""
        ready = [v for v in self.versions.values() if v.state is State.AVAILABLE]
        self.newest = max(ready, key=lambda version: version.number, default=None)
        ended = sorted(n for n, v in self.versions.items() if v.state is State.END)
        for number in ended[: -self.MOST_ENDED]:
            del self.versions[number]

    def available(self) -> list[int]:
        """The versions that answer, in order."""
        return sorted(n for n, v in self.versions.items() if v.state is State.AVAILABLE)
