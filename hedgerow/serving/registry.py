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
    """The state of a version, with the numbers of GetModelStatus."""

    START = 10
    LOADING = 20
    AVAILABLE = 30
    UNLOADING = 40
    END = 50


@dataclass(frozen=True, slots=True)
class LoadStatus:
    """The reported state of a version; `code` and `error` have the reason if it did not load."""

    version: int
    state: VersionState
    code: str = "OK"
    error: str = ""


class Version:
    """A version and its requests in flight. Not thread-safe: the registry's lock guards it."""

    __slots__ = ("code", "error", "model", "number", "requests", "state")

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = VersionState.START
        self.model: Model | None = None
        self.requests = 0
        self.code, self.error = "OK", ""

    def status(self) -> LoadStatus:
        """Returns the reported state."""
        return LoadStatus(self.number, self.state, self.code, self.error)

    def fail(self, code: str, error: str) -> None:
        """Ends the version, with the reason."""
        self.state, self.code, self.error, self.model = VersionState.END, code, error, None

    def closable(self) -> bool:
        """Returns whether it is unloading and has no more requests."""
        return self.state is VersionState.UNLOADING and not self.requests


class Lease:
    """A model held for one request: `with registry.find("ctr") as model:`.

    The model stays open inside the `with` block, whatever is loaded or removed meanwhile.
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
    """All versions of one model. Not thread-safe: the registry's lock guards it."""

    MOST_ENDED = 16  # ended versions whose status is kept, so that memory does not grow for ever

    def __init__(self, name: str) -> None:
        self.name = name
        self.versions: dict[int, Version] = {}
        self.labels: dict[str, int] = {}
        self.newest: Version | None = None
        self.wanted = True  # False once the whole model was removed

    def settle(self) -> None:
        """Updates the newest version, and deletes the oldest of the ended ones."""
        ready = [v for v in self.versions.values() if v.state is VersionState.AVAILABLE]
        self.newest = max(ready, key=lambda version: version.number, default=None)
        ended = sorted(n for n, v in self.versions.items() if v.state is VersionState.END)
        for number in ended[: -self.MOST_ENDED]:
            del self.versions[number]

    def available(self) -> list[int]:
        """Returns the versions that answer, in ascending order."""
        return sorted(n for n, v in self.versions.items() if v.state is VersionState.AVAILABLE)


P = ParamSpec("P")
R = TypeVar("R")


class Registry:
    """The models that a server serves. Safe from many threads; owns a lock.

    `load` reads a version's folder for watch(). At most `threads` requests of a model version run
    at once. `batching` joins requests of signatures that allow it; None runs each alone. Pushes
    change rows only with `accept_pushes`.

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
        """Returns a lease of the requested version, or of the newest that answers."""
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
        """Returns the model that find() would lease, without a lease: it may close at any time."""
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
        """Returns the versions of a model by its name, or by its alias if no model has the name."""
        return self._families.get(name) or self._families.get(self._aliases.get(name, name))

    def alias(self, other: str, name: str) -> None:
        """Makes `other` a second name of model `name`, unless a model has that name."""
        with self._lock:
            self._aliases[other] = name

    # ---- status

    def names(self) -> list[str]:
        """Returns all known models, including those that do not answer."""
        with self._lock:
            return sorted(self._families)

    def versions(self, name: str) -> list[int]:
        """Returns the versions of a model that answer, in ascending order."""
        with self._lock:
            family = self._family(name)
            return family.available() if family else []

    def status(self, name: str, version: int | None = None) -> list[LoadStatus]:
        """Returns the status of one version, or of all versions, the newest first."""
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
        """Returns whether there is a model, and every model has a version that answers."""
        with self._lock:
            wanted = [family for family in self._families.values() if family.wanted]
            return bool(wanted) and all(family.newest is not None for family in wanted)

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after every change, in the thread that made the change."""
        with self._lock:
            self._listeners.append(listener)

    def unsubscribe(self, listener: Callable[[], None]) -> None:
        """Removes a listener of subscribe()."""
        with self._lock:
            self._listeners.remove(listener)

    # ---- changes

    def add(self, model: Model) -> None:
        """Adds a loaded version, which answers from now on."""
        self._begin(model.name, model.version)
        self._become(model)

    def load(self, name: str, version: int, load: Callable[[], Model]) -> bool:
        """Loads a version and adds it; returns False if that fails. Other versions stay."""
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
        except Exception as error:  # a broken folder may raise anything; other versions must go on
            self._refuse(name, version, error)
            return False
        self._become(model)
        return True

    def remove(self, name: str, version: int | None = None) -> None:
        """Takes one or all versions out of service; each closes after its last request."""
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
        """Sets the labels of a model's versions; deletes all other labels of the model.

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
        """Serves the versions in `<base_path>/<version>` that the policy selects, now and later.

        Returns after each current version was tried; status() has the results.
        """
        chosen = policy_of(policy)
        with self._lock:  # so that the model is known, and not ready, while it loads
            self._families.setdefault(name, ModelVersions(name)).wanted = True
        self._tell()
        self._folders.watch(name, Path(base_path), chosen)

    def unwatch(self, name: str) -> None:
        """Stops watching a model's folder; loaded versions stay."""
        self._folders.unwatch(name)

    def watched(self) -> list[str]:
        """Returns the models whose folders are watched."""
        return self._folders.names()

    def refresh(self) -> None:
        """Looks at all folders now, without waiting for the next poll."""
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
        """Stops new requests of a version; returns it if it can be closed now, else None."""
        version = family.versions[number]
        version.state = VersionState.UNLOADING
        family.labels = {label: n for label, n in family.labels.items() if n != number}
        family.settle()
        return version if version.closable() else None

    def _close(self, version: Version) -> None:
        """Closes a version once: only the thread that takes its model closes it."""
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
        """Returns the model with a limit on concurrent runs, and with joined runs if allowed."""
        gate: SimpleQueue[None] = SimpleQueue()  # one entry per run that may start
        for _ in range(self._threads):  # per model: one model may wait for another on this server
            gate.put(None)
        signatures = {key: self._bounded(s, gate) for key, s in model.signatures.items()}
        return dataclasses.replace(model, signatures=signatures)

    def check_pushes(self) -> None:
        """Raises unless pushes are accepted."""
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
