"""Target addresses: fixed ones, those in a watched file, and the replicas of a sub graph."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from ..core.counters import Counters
from ..core.errors import FileDamagedError, FileMissingError, HedgerowError, InputError
from .paths import check_name


@runtime_checkable
class Targets(Protocol):
    """The current addresses. `current` is cheap, never blocks, and is safe from many threads."""

    def current(self) -> list[str]:
        """Returns the addresses, each once: "host:port" or "[v6]:port"."""
        ...


class StaticTargets:
    """A fixed list of addresses, each once.

    >>> StaticTargets(["b:1", "a:1", "b:1"]).current()
    ['b:1', 'a:1']
    """

    def __init__(self, addresses: Iterable[str]) -> None:
        self._addresses = tuple(dict.fromkeys(check_address(one) for one in addresses))

    def __repr__(self) -> str:
        return f"StaticTargets({list(self._addresses)})"

    def current(self) -> list[str]:
        """Returns all addresses."""
        return list(self._addresses)


def targets_of(to: Targets | str | Sequence[str]) -> Targets:
    """Returns Targets of an address, of a list of addresses, or the given Targets.

    >>> targets_of("127.0.0.1:8500").current()
    ['127.0.0.1:8500']
    """
    if isinstance(to, str):
        return StaticTargets([to])
    return to if isinstance(to, Targets) else StaticTargets(to)


def check_address(address: object) -> str:
    """Returns an address; raises unless it is HOST:PORT.

    >>> check_address("[::1]:8500")
    '[::1]:8500'
    """
    if isinstance(address, str):
        host, _, port = address.rpartition(":")
        if host and port.isascii() and port.isdecimal() and 0 < int(port) < 65536:
            return address
    raise InputError(f"an address is {address!r}; write HOST:PORT, as in '127.0.0.1:8500'.")


T = TypeVar("T")


class WatchedFile(Generic[T]):
    """The parsed value of a JSON file, reread when the file changes. Owns a lock.

    `current` costs one `stat` while the file is unchanged. Replace the file by a rename, so that
    no half-written file is read. A missing or invalid file is counted in `counters`, and the last
    valid value stays.
    """

    def __init__(self, path: str | Path, parse: Callable[[Any], T]) -> None:
        self.path, self._parse = Path(path), parse
        self.counters = Counters()
        self._lock = threading.Lock()
        try:
            self._seen: object = self._mark()
        except OSError as error:
            raise FileMissingError(
                f"there is no file {self.path} ({error}); write its first version before."
            ) from error
        self._value = self._read()

    def current(self) -> T:
        """Returns the current value."""
        with self._lock:
            try:
                mark = self._mark()
                if mark != self._seen:
                    self._seen = mark
                    self._value = self._read()
                    self.counters.add("file_reads")
            except FileNotFoundError:
                self._seen = None
                self.counters.add("file_missing")
            except (OSError, HedgerowError):
                self.counters.add("file_broken")
            return self._value

    def _mark(self) -> object:
        stat = self.path.stat()
        return stat.st_ino, stat.st_mtime_ns, stat.st_size

    def _read(self) -> T:
        try:
            return self._parse(json.loads(self.path.read_bytes()))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise FileDamagedError(f"{self.path} holds no list of addresses: {error}") from error


class FileTargets:
    """The addresses in a watched JSON file: a list, or the list under `key` of an object.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
    ...     _ = file.write('{"ps_0": ["127.0.0.1:8500"]}')
    ...     file.flush()
    ...     FileTargets(file.name, "ps_0").current()
    ['127.0.0.1:8500']
    """

    def __init__(self, path: str | Path, key: str | None = None) -> None:
        self._key = key
        self.file = WatchedFile(path, self._parse)

    def current(self) -> list[str]:
        """Returns the current addresses."""
        return list(self.file.current())

    def _parse(self, found: Any) -> list[str]:
        return _addresses(found if self._key is None else found.get(self._key, []))


class FileAddressBook:
    """The replicas of many servers in a watched JSON file: `{"ps:0": ["127.0.0.1:8500"]}`.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
    ...     _ = file.write('{"ps:0": ["127.0.0.1:8500"], "entry:0": []}')
    ...     file.flush()
    ...     FileAddressBook(file.name).addresses("ps")
    {'ps:0': ['127.0.0.1:8500']}
    """

    def __init__(self, path: str | Path) -> None:
        self.file = WatchedFile(path, _book)

    def addresses(self, server_type: str) -> dict[str, list[str]]:
        """Returns the replica addresses of each server of a type, by key ("ps:1", "model:ps_1")."""
        return {
            key: list(found)
            for key, found in self.file.current().items()
            if kind_of(key) == server_type
        }


def kind_of(key: str) -> str:
    """Returns the server type that a key of either style names.

    >>> kind_of("ps:1"), kind_of("model:ps_1"), kind_of("model:entry")
    ('ps', 'ps', 'entry')
    """
    first, _, second = key.partition(":")
    return first if second.isdecimal() else second.split("_")[0]


def _addresses(found: Any) -> list[str]:
    if not isinstance(found, list):
        raise FileDamagedError(f"{found!r} is no list of addresses.")
    return StaticTargets(found).current()


def _book(found: Any) -> dict[str, list[str]]:
    return {str(key): _addresses(one) for key, one in found.items()}


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """The place of a replica, for metrics.

    >>> TargetInfo("lf", "default", 0).replica_id
    0
    """

    idc: str | None = None
    cluster: str | None = None
    replica_id: int = -1


SyncTargets = Mapping[str, TargetInfo] | Sequence[str]


class SyncBackend(Protocol):
    """A source of the replicas of each sub graph, with the name that they serve it by."""

    def subscribe_model(self, model_name: str) -> None:
        """Selects the model whose replicas are wanted."""
        ...

    def get_sync_targets(self, sub_graph: str) -> tuple[str, SyncTargets]:
        """Returns a sub graph's name at its replicas, and their current addresses."""
        ...

    def start(self) -> None:
        """Starts watching."""
        ...

    def stop(self) -> None:
        """Stops watching."""
        ...


class ListedBackend:
    """A SyncBackend over one Targets per sub graph, fixed or in watched files.

    >>> from .targets import StaticTargets
    >>> backend = ListedBackend({"ps_0": StaticTargets(["127.0.0.1:8500"])})
    >>> backend.get_sync_targets("ps_0")
    ('ps_0', ['127.0.0.1:8500'])
    """

    def __init__(self, targets: Mapping[str, Targets]) -> None:
        self._targets = {check_name("sub_graph", name): one for name, one in targets.items()}

    def subscribe_model(self, model_name: str) -> None:
        """Does nothing: the lists are those of one model."""

    def get_sync_targets(self, sub_graph: str) -> tuple[str, list[str]]:
        """Returns the addresses of a sub graph; none if it has no list."""
        found = self._targets.get(sub_graph)
        return sub_graph, [] if found is None else found.current()

    def start(self) -> None:
        """Does nothing."""

    def stop(self) -> None:
        """Does nothing."""


class SubGraphTargets:
    """The replicas of one sub graph as Targets, for `hr.publish(to=...)`.

    >>> from .targets import StaticTargets
    >>> backend = ListedBackend({"ps_0": StaticTargets(["127.0.0.1:8500"])})
    >>> SubGraphTargets(backend, "ps_0").current()
    ['127.0.0.1:8500']
    """

    def __init__(self, backend: SyncBackend, sub_graph: str) -> None:
        self._backend, self._sub_graph = backend, sub_graph

    def current(self) -> list[str]:
        """Returns their current addresses."""
        return list(dict.fromkeys(self._backend.get_sync_targets(self._sub_graph)[1]))
