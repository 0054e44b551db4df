"""Watches folders of versions, `<base>/<version>`, and loads those that a policy selects."""

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


Loader = Callable[[Path, str], Model]
_Stamp = tuple[int, int]
_RETRY_S = 60.0  # a folder that was refused and did not change: a disk may have been full


class _WatchedFolder:
    """A base folder, and which of its versions were refused, when, and as what."""

    def __init__(self, name: str, base: Path, policy: Policy) -> None:
        self.name, self.base, self.policy = name, base, policy
        self.refused: dict[int, tuple[_Stamp, float]] = {}
        self.missing = False

    def found(self) -> dict[int, Path]:
        """The versions there: folders named by a number. Others, half written ones too, are not."""
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
        """Whether a version was never refused, has changed since, or that was long ago."""
        stamp, when = self.refused.get(version, ((0, 0), -_RETRY_S))
        return stamp != _stamp(folder) or time.monotonic() - when >= _RETRY_S


class FolderWatch:
    """The watched folders of a registry; one thread looks at them all. Owns two locks."""

    def __init__(self, registry: Registry, load: Loader | None, poll_s: float) -> None:
        if not 0 < poll_s <= 86400:
            raise ConfigError(f"poll_s is {poll_s!r}; it must lie in 0..86400 seconds.")
        self._registry, self._load, self._poll_s = registry, load, poll_s
        self._watched: dict[str, _WatchedFolder] = {}
        self._lock = threading.Lock()
        self._looking = threading.Lock()  # one look at a time: a version is loaded once
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, name: str, base: Path, policy: Policy) -> None:
        """Looks at a folder now, and from now on."""
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
        """A version of the new folder is not taken for that of the old one, which would stay."""
        shared = {*self._registry.versions(before.name)} & {*watched.found()}
        if shared:
            raise ConfigError(
                f"version {max(shared)} of model {before.name} is served from {before.base}; in "
                f"{watched.base} it needs another number, or take the model out first."
            )

    def unwatch(self, name: str) -> None:
        """Looks at it no more: nothing of it is loaded once this returns."""
        with self._lock:
            self._watched.pop(name, None)
        with self._looking:  # a look under way may be loading a version
            pass

    def names(self) -> list[str]:
        """The models watched."""
        with self._lock:
            return sorted(self._watched)

    def refresh(self) -> None:
        """Looks at every folder; a fault at one is counted, told in the log, and tried again."""
        with self._lock:
            watched = list(self._watched.values())
        for one in watched:
            try:
                with self._looking:
                    self._look(one)
            except Exception:  # must not keep the others from being looked at
                self._registry.counters.add("folder_faults")
                logging.getLogger("hedgerow").exception("looking at the folder of %s", one.name)

    def close(self) -> None:
        """Ends the thread."""
        with self._lock:
            self._closed.set()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _poll(self) -> None:
        while not self._closed.wait(self._poll_s):
            self.refresh()

    def _look(self, watched: _WatchedFolder) -> None:
        """Loads what the policy wants, and only then takes out of service what it does not."""
        name, policy = watched.name, watched.policy
        with self._lock:
            if self._watched.get(name) is not watched:  # unwatched meanwhile
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
    """What changes when a folder is replaced, or a file in it is added or removed."""
    try:
        about = folder.stat()
    except OSError:
        return (0, 0)  # gone again; loading it will say so
    return (about.st_ino, about.st_mtime_ns)
