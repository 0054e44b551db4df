"""Addresses in a JSON file: read again when it was replaced, kept when the new one is broken."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..core.counters import Counters
from ..core.errors import FileDamagedError, FileMissingError, HedgerowError
from .targets import StaticTargets

T = TypeVar("T")


class WatchedFile(Generic[T]):
    """The value of a file; a look costs one `stat`. Owns a lock.

    Replace the file by renaming a new one into its place: a half-written one may be read. A file
    that is gone or broken is counted in `counters`, and the last good value stays.
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
        """The value as it is now."""
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
    """The addresses in a JSON file: a list, or the list under `key` of an object.

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
        """The addresses now."""
        return list(self.file.current())

    def _parse(self, found: Any) -> list[str]:
        return _addresses(found if self._key is None else found.get(self._key, []))


class FileBook:
    """Replicas of many servers in a JSON object: `{"ps:0": ["127.0.0.1:8500"]}`.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
    ...     _ = file.write('{"ps:0": ["127.0.0.1:8500"], "entry:0": []}')
    ...     file.flush()
    ...     FileBook(file.name).addresses("ps")
    {'ps:0': ['127.0.0.1:8500']}
    """

    def __init__(self, path: str | Path) -> None:
        self.file = WatchedFile(path, _book)

    def addresses(self, server_type: str) -> dict[str, list[str]]:
        """The replicas of every server of a kind, by its key: "ps:1", or "model:ps_1"."""
        return {
            key: list(found)
            for key, found in self.file.current().items()
            if kind_of(key) == server_type
        }


def kind_of(key: str) -> str:
    """The kind of server that a key of either style names.

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
