"""Watches folders of versions, `<base>/<version>`, and loads the versions that a policy selects."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..core import checks
from ..core.errors import ConfigError
from .model import Model

if TYPE_CHECKING:
    from .registry import Registry


@dataclass(frozen=True, slots=True)
class Policy:
    """Selects versions to serve: the newest that loads. Base of every policy."""

    def candidates(self, found: Iterable[int]) -> list[int]:
        """Returns the versions to try, the best first."""
        return sorted(found, reverse=True)

    def most(self) -> int:
        """Returns how many versions are served at once."""
        return 1

    def settled(self, available: Iterable[int]) -> bool:
        """Returns whether the served versions stay, even if new ones appear."""
        return False


@dataclass(frozen=True, slots=True)
class Latest(Policy):
    """Serves the newest `num_versions` that load.

    >>> Latest().candidates([1, 3, 2])
    [3, 2, 1]
    """

    num_versions: int = 1

    def __post_init__(self) -> None:
        checks.whole("Latest", "num_versions", self.num_versions, least=1)

    def most(self) -> int:
        """Returns `num_versions`."""
        return self.num_versions


@dataclass(frozen=True, slots=True)
class LatestOnce(Policy):
    """Serves the version that is newest at the start, for ever: pushes keep it fresh.

    >>> LatestOnce().settled([1])
    True
    """

    def settled(self, available: Iterable[int]) -> bool:
        """Returns whether a version is served."""
        return any(True for _ in available)


@dataclass(frozen=True, slots=True)
class All(Policy):
    """Serves every version."""

    def most(self) -> int:
        """Returns a number above every number of versions."""
        return 1 << 62


@dataclass(frozen=True, slots=True)
class Specific(Policy):
    """Serves the named versions.

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
        """Returns the named versions that exist."""
        return sorted(set(found) & set(self.versions), reverse=True)

    def most(self) -> int:
        """Returns the number of named versions."""
        return len(self.versions)


def policy_of(policy: Policy | str) -> Policy:
    """Returns a policy, from itself or its text: latest, latest_once, all, specific:3,4.

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


Loader = Callable[[Path, str], Model]
_Stamp = tuple[int, int]
_RETRY_S = 60.0  # after which an unchanged refused version is tried again: its disk may work now


class _WatchedFolder:
    """A base folder, and its refused versions: when each was refused, and its stamp then."""

    def __init__(self, name: str, base: Path, policy: Policy) -> None:
        self.name, self.base, self.policy = name, base, policy
        self.refused: dict[int, tuple[_Stamp, float]] = {}
        self.missing = False

    def found(self) -> dict[int, Path]:
        """Returns the folders named by a number, by that number."""
        try:
            entries = list(self.base.iterdir())
            self.missing = False
        except OSError as error:
            if not self.missing:
                logging.getLogger("hedgerow").warning("model %s: %s", self.name, error)
            self.missing = True
            return {}
        numbered = [e for e in entries if e.name.isascii() and e.name.isdigit() and e.is_dir()]
        return {int(e.name): e for e in numbered if int(e.name) < 2**63}

    def worth_trying(self, version: int, folder: Path) -> bool:
        """Returns whether a version was never refused, has changed, or was refused long ago."""
        stamp, when = self.refused.get(version, ((0, 0), -_RETRY_S))
        return stamp != _stamp(folder) or time.monotonic() - when >= _RETRY_S


class FolderWatch:
    """The watched folders of a registry. One thread polls them all. Owns two locks."""

    def __init__(self, registry: Registry, load: Loader | None, poll_s: float) -> None:
        if not 0 < poll_s <= 86400:
            raise ConfigError(f"poll_s is {poll_s!r}; it must lie in 0..86400 seconds.")
        self._registry, self._load, self._poll_s = registry, load, poll_s
        self._watched: dict[str, _WatchedFolder] = {}
        self._lock = threading.Lock()
        self._looking = threading.Lock()  # one look at a time, so that no version is loaded twice
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, name: str, base: Path, policy: Policy) -> None:
        """Looks at a folder now, and then at every poll."""
        if self._load is None:
            raise ConfigError(
                "this registry cannot load folders; make it with Registry(load=load_bundle)."
            )
        watched = _WatchedFolder(name, base, policy)
        with self._lock:
            before = self._watched.get(name)
        if before is not None and before.base != base:
            self._check_apart(before, watched)
        with self._lock:
            self._watched[name] = watched
        with self._looking:
            self._look(watched)
        with self._lock:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._poll, name="folders", daemon=True)
                self._thread.start()

    def _check_apart(self, before: _WatchedFolder, watched: _WatchedFolder) -> None:
        """Raises if a version of the new folder has the number of a served version of the old."""
        shared = {*self._registry.versions(before.name)} & {*watched.found()}
        if shared:
            raise ConfigError(
                f"version {max(shared)} of model {before.name} is served from {before.base}; in "
                f"{watched.base} it needs another number, or take the model out first."
            )

    def unwatch(self, name: str) -> None:
        """Stops watching a model: after the return no version of it is loaded."""
        with self._lock:
            self._watched.pop(name, None)
        with self._looking:  # a look in progress may be loading a version
            pass

    def names(self) -> list[str]:
        """Returns the names of the watched models."""
        with self._lock:
            return sorted(self._watched)

    def refresh(self) -> None:
        """Looks at every folder; an error in one is counted and logged, and retried later."""
        with self._lock:
            watched = list(self._watched.values())
        for one in watched:
            try:
                with self._looking:
                    self._look(one)
            except Exception:  # the other folders must still be looked at
                self._registry.counters.add("folder_faults")
                logging.getLogger("hedgerow").exception("looking at the folder of %s", one.name)

    def close(self) -> None:
        """Stops the thread."""
        with self._lock:
            self._closed.set()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _poll(self) -> None:
        while not self._closed.wait(self._poll_s):
            self.refresh()

    def _look(self, watched: _WatchedFolder) -> None:
        """Loads the versions that the policy selects, then removes the others."""
        name, policy = watched.name, watched.policy
        with self._lock:
            if self._watched.get(name) is not watched:  # it was unwatched since
                return
        available = self._registry.versions(name)
        if policy.settled(available):
            return
        found, kept = watched.found(), []
        for version in policy.candidates(found):
            if len(kept) < policy.most() and (
                version in available or self._try(watched, version, found[version])
            ):
                kept.append(version)
        for version in available if kept else ():
            if version not in kept:
                self._registry.remove(name, version)

    def _try(self, watched: _WatchedFolder, version: int, folder: Path) -> bool:
        load, name = self._load, watched.name
        if load is None or not watched.worth_trying(version, folder):
            return False
        stamp = _stamp(folder)
        watched.refused.pop(version, None)
        if self._registry.load(name, version, lambda: load(folder, name)):
            return True
        watched.refused[version] = (stamp, time.monotonic())
        return False


def _stamp(folder: Path) -> _Stamp:
    """Returns a value that changes when a folder is replaced, or its entries change."""
    try:
        about = folder.stat()
    except OSError:
        return (0, 0)  # the folder is gone; loading it reports the error
    return (about.st_ino, about.st_mtime_ns)
