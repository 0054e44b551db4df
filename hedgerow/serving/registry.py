"""The models of a server by name, version and label; versions load while others answer."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import ParamSpec, TypeVar

from ..core import checks
from ..core.counters import Counters
from ..core.errors import ConfigError, HedgerowError, InputError, NameTakenError
from .batching import Batcher, Batching
from .folders import FolderWatch, Loader, Policy, policy_of
from .model import Model, ServingError, Signature, Tensors


class VersionState(IntEnum):
    """Where a version stands, with the numbers of GetModelStatus."""

    START = 10
    LOADING = 20
    AVAILABLE = 30
    UNLOADING = 40
    END = 50


@dataclass(frozen=True, slots=True)
class LoadStatus:
    """What is told about a version; `code` and `error` say why it did not load."""

    version: int
    state: VersionState
    code: str = "OK"
    error: str = ""


class Version:
    """A version and how many requests hold it. Not thread-safe: its registry holds the lock."""

    __slots__ = ("code", "error", "model", "number", "requests", "state")

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = VersionState.START
        self.model: Model | None = None
        self.requests = 0
        self.code, self.error = "OK", ""

    def status(self) -> LoadStatus:
        """As it is told."""
        return LoadStatus(self.number, self.state, self.code, self.error)

    def fail(self, code: str, error: str) -> None:
        """Ends it, with the reason."""
        self.state, self.code, self.error, self.model = VersionState.END, code, error, None

    def closable(self) -> bool:
        """Whether it waits for nothing but being closed."""
        return self.state is VersionState.UNLOADING and not self.requests


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


class ModelVersions:
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
        ready = [v for v in self.versions.values() if v.state is VersionState.AVAILABLE]
        self.newest = max(ready, key=lambda version: version.number, default=None)
        ended = sorted(n for n, v in self.versions.items() if v.state is VersionState.END)
        for number in ended[: -self.MOST_ENDED]:
            del self.versions[number]

    def available(self) -> list[int]:
        """The versions that answer, in order."""
        return sorted(n for n, v in self.versions.items() if v.state is VersionState.AVAILABLE)


P = ParamSpec("P")
R = TypeVar("R")


class Registry:
    """Versions of models; safe from many threads, owns a lock.

    `load` reads a version's folder for watch(); at most `threads` requests of a version run at
    once; `batching` joins requests of signatures that allow it, None runs each alone. Rows change
    by pushes only with `accept_pushes`.

    >>> registry = Registry()
    >>> registry.add(Model("ctr", 3, {}))
    >>> with registry.find("ctr") as model:
    ...     model.version
    3
    """

    def __init__(
        self,
        load: Loader | None = None,
        *,
        threads: int = 8,
        batching: Batching | None = None,
        poll_s: float = 1.0,
        accept_pushes: bool = False,
    ) -> None:
        checks.whole("Registry", "threads", threads, least=1)
        self.counters = Counters()
        self._threads, self._batching = threads, batching
        self._accepts_pushes = checks.flag("accept_pushes", accept_pushes)
        self._aliases: dict[str, str] = {}
        self._lock = threading.Lock()
        self._families: dict[str, ModelVersions] = {}
        self._listeners: list[Callable[[], None]] = []
        self._folders = FolderWatch(self, load, poll_s)

    # ---- requests

    def find(self, name: str, version: int | None = None, label: str | None = None) -> Lease:
        """A lease of a version: the one asked for, or the newest that answers."""
        with self._lock:
            found = self._choose(name, version, label)
            if found is not None and found.model is not None:
                found.requests += 1
                return Lease(found.model, found, self._give_back)
        if label is not None and self.names().count(name):
            raise ServingError("INVALID_ARGUMENT", f"Unrecognized servable version label: {label}")
        asked = f"Latest({name})" if version is None else f"Specific({name}, {version})"
        raise ServingError("NOT_FOUND", f"Servable not found for request: {asked}")

    def known(self, name: str, version: int | None, label: str | None) -> Model | None:
        """The version that find() would give, only to be told of: it may be closed at any time."""
        with self._lock:
            found = self._choose(name, version, label)
            return None if found is None else found.model

    def _choose(self, name: str, version: int | None, label: str | None) -> Version | None:
        family = self._family(name)
        if family is None:
            return None
        if version is None and label is None:
            return family.newest
        number = family.labels.get(label) if label is not None else version
        found = family.versions.get(-1 if number is None else number)
        return found if found is not None and found.state is VersionState.AVAILABLE else None

    def _give_back(self, version: Version) -> None:
        with self._lock:
            version.requests -= 1
            closes = version.closable()
        if closes:
            self._close(version)

    def _family(self, name: str) -> ModelVersions | None:
        """A model by its name, or by another name that is none of its own."""
        return self._families.get(name) or self._families.get(self._aliases.get(name, name))

    def alias(self, other: str, name: str) -> None:
        """Lets clients call a model by another name, too, while no model has that name."""
        with self._lock:
            self._aliases[other] = name

    # ---- what is there

    def names(self) -> list[str]:
        """The models known, those that do not answer as well."""
        with self._lock:
            return sorted(self._families)

    def versions(self, name: str) -> list[int]:
        """The versions of a model that answer, in order."""
        with self._lock:
            family = self._family(name)
            return family.available() if family else []

    def status(self, name: str, version: int | None = None) -> list[LoadStatus]:
        """The state of one version, or of all versions, the newest first."""
        with self._lock:
            family = self._family(name)
            found = dict(family.versions) if family else {}
            told = [v.status() for _, v in sorted(found.items(), reverse=True)]
        if not told:
            raise ServingError("NOT_FOUND", f"Could not find any versions of model {name}")
        if version is None:
            return told
        if version not in found:
            raise ServingError("NOT_FOUND", f"Could not find version {version} of model {name}")
        return [status for status in told if status.version == version]

    def ready(self) -> bool:
        """Whether there are models, and each of them answers."""
        with self._lock:
            wanted = [family for family in self._families.values() if family.wanted]
            return bool(wanted) and all(family.newest is not None for family in wanted)

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after every change, in the thread that made it."""
        with self._lock:
            self._listeners.append(listener)

    def unsubscribe(self, listener: Callable[[], None]) -> None:
        """Ends what subscribe() began."""
        with self._lock:
            self._listeners.remove(listener)

    # ---- changes

    def add(self, model: Model) -> None:
        """Serves a version that is loaded; from now on it answers."""
        self._begin(model.name, model.version)
        self._become(model)

    def load(self, name: str, version: int, load: Callable[[], Model]) -> bool:
        """Loads a version, and serves it if that works; what was served before goes on."""
        self._begin(name, version).state = VersionState.LOADING
        self._tell()
        try:
            model = load()
            if (model.name, model.version) != (name, version):
                model.close()
                raise InputError(
                    f"version {version} of model {name} holds version {model.version} of model "
                    f"{model.name}; put it under its own name."
                )
        except Exception as error:  # whatever a broken folder raises, others go on answering
            self._refuse(name, version, error)
            return False
        self._become(model)
        return True

    def remove(self, name: str, version: int | None = None) -> None:
        """Takes a version, or all, out of service; each is closed after its last request."""
        with self._lock:
            family = self._families.get(name)
            numbers = [] if family is None else family.available()
            retired = [n for n in numbers if version in (None, n)]
            closing = [self._retire(family, n) for n in retired] if family else []
            if family is not None:
                family.wanted = family.wanted and version is not None
        for found in closing:
            if found is not None:
                self._close(found)
        self._tell()

    def set_labels(self, name: str, labels: Mapping[str, int]) -> None:
        """Names versions that answer; labels that are not named again are gone.

        >>> registry = Registry()
        >>> registry.add(Model("ctr", 3, {}))
        >>> registry.set_labels("ctr", {"stable": 3})
        >>> with registry.find("ctr", label="stable") as model:
        ...     model.version
        3
        """
        known = self.versions(name)
        for label, version in labels.items():
            if version not in known:
                raise InputError(
                    f"label {label!r} names version {version} of model {name}, which does not "
                    f"answer; those that do: {', '.join(map(str, known)) or 'none'}."
                )
        with self._lock:
            if name in self._families:
                self._families[name].labels = dict(labels)

    def watch(self, name: str, base_path: str | Path, policy: Policy | str = "latest") -> None:
        """Serves the versions `<base_path>/<version>` that the policy picks, now and later.

        Returns when what is there was tried; ask status() for what became of it.
        """
        chosen = policy_of(policy)
        with self._lock:  # a model that is waited for is known, and not ready
            self._families.setdefault(name, ModelVersions(name)).wanted = True
        self._tell()
        self._folders.watch(name, Path(base_path), chosen)

    def unwatch(self, name: str) -> None:
        """Looks at a model's folder no more; what is served goes on."""
        self._folders.unwatch(name)

    def watched(self) -> list[str]:
        """The models whose folders are watched."""
        return self._folders.names()

    def refresh(self) -> None:
        """Looks at all folders at once, without waiting for the next time."""
        self._folders.refresh()

    def close(self) -> None:
        """Stops watching, and takes all models out of service."""
        self._folders.close()
        for name in self.names():
            self.remove(name)

    # ---- helpers

    def _begin(self, name: str, number: int) -> Version:
        checks.count("version", number)
        if not isinstance(name, str) or not name:
            raise ConfigError(f"a model's name is {name!r}; it must be a non-empty str.")
        with self._lock:
            family = self._families.setdefault(name, ModelVersions(name))
            before = family.versions.get(number)
            if before is not None and before.state is not VersionState.END:
                raise NameTakenError(
                    f"version {number} of model {name} is here already; remove it first, or give "
                    "the new one a higher version."
                )
            family.wanted = True
            version = family.versions[number] = Version(number)
        return version

    def _become(self, model: Model) -> None:
        prepared = self._prepared(model)
        with self._lock:
            family = self._families[model.name]
            version = family.versions[model.version]
            version.model, version.state = prepared, VersionState.AVAILABLE
            family.settle()
        self.counters.add("versions_loaded")
        self._tell()

    def _refuse(self, name: str, number: int, error: Exception) -> None:
        with self._lock:
            family = self._families[name]
            code = "INVALID_ARGUMENT" if isinstance(error, HedgerowError) else "INTERNAL"
            family.versions[number].fail(code, str(error) or type(error).__name__)
            family.settle()
        self.counters.add("versions_refused")
        text = "version %d of model %s was refused: %s"
        logging.getLogger("hedgerow").warning(text, number, name, error)
        self._tell()

    def _retire(self, family: ModelVersions, number: int) -> Version | None:
        """Lets no new request in; the version, if nothing is left to wait for."""
        version = family.versions[number]
        version.state = VersionState.UNLOADING
        family.labels = {label: n for label, n in family.labels.items() if n != number}
        family.settle()
        return version if version.closable() else None

    def _close(self, version: Version) -> None:
        """Frees a version, once: only the thread that ends it gets its model."""
        with self._lock:
            model, version.model, version.state = version.model, None, VersionState.END
        if model is None:
            return
        try:
            model.close()
        except Exception:
            self.counters.add("close_failures")
            logging.getLogger("hedgerow").exception("closing model %s", model.name)
        self.counters.add("versions_closed")
        self._tell()

    def _tell(self) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def _prepared(self, model: Model) -> Model:
        """The model with bounded and, where that is allowed, joined runs."""
        gate: SimpleQueue[None] = SimpleQueue()  # a place for each that may run
        for _ in range(self._threads):  # its own: one model may wait for another that is here, too
            gate.put(None)
        signatures = {key: self._bounded(s, gate) for key, s in model.signatures.items()}
        return dataclasses.replace(model, signatures=signatures)

    def check_pushes(self) -> None:
        """Refuses what changes rows or weights, unless pushes are accepted."""
        if not self._accepts_pushes:
            raise ServingError(
                "PERMISSION_DENIED",
                "this server accepts no pushes; start it with --accept-pushes or --follow "
                "(Registry(accept_pushes=True)) to let clients change what it serves.",
            )

    def _refuse_push(self, inputs: Tensors) -> Tensors:
        self.check_pushes()
        return inputs

    def _bounded(self, signature: Signature, gate: SimpleQueue[None]) -> Signature:
        if signature.pushes and not self._accepts_pushes:
            return dataclasses.replace(signature, run=self._refuse_push, answer_plain=None)
        run, answer_plain = _in_turn(signature.run, gate), signature.answer_plain
        if signature.joining is not None and self._batching is not None:
            joined = Batcher(run, signature.joining, self._batching, self.counters)
            return dataclasses.replace(signature, run=joined, answer_plain=None)
        if answer_plain is not None:
            answer_plain = _in_turn(answer_plain, gate)
        return dataclasses.replace(signature, run=run, answer_plain=answer_plain)


def _in_turn(run: Callable[P, R], gate: SimpleQueue[None]) -> Callable[P, R]:
    def run_in_turn(*args: P.args, **kwargs: P.kwargs) -> R:
        gate.get()
        try:
            return run(*args, **kwargs)
        finally:
            gate.put(None)

    return run_in_turn
