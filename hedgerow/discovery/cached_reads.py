"""Answers of ZooKeeper that hold until a watch says otherwise."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from .zookeeper import kazoo_errors

_Kind = Literal["data", "children"]


@dataclass(frozen=True, slots=True)
class Content:
    """What a node holds, and when it was made: a number that grows with every change anywhere."""

    data: bytes
    created: int


class CachedReads:
    """Contents and children of nodes; only what has changed is read again. Owns a lock.

    Walking a tree through it costs a request for each changed node, and nothing for the others.
    The lock is never held during a request. `changed` is called on kazoo's thread.
    """

    def __init__(self, client: Any, changed: Callable[[], None]) -> None:
        self._client, self._changed = client, changed
        self._lock = threading.Lock()
        self._held: dict[tuple[_Kind, str], Any] = {}
        self._events = 0

    def content(self, path: str) -> Content | None:
        """What a node holds; None where there is none."""
        return self._read("data", path)

    def data(self, path: str) -> bytes | None:
        """The bytes of a node; None where there is none."""
        found = self.content(path)
        return None if found is None else found.data

    def children(self, path: str) -> list[str] | None:
        """The names of the nodes below one; None where there is none."""
        return self._read("children", path)

    def clear(self) -> None:
        """Forgets everything: watches do not outlive a connection."""
        with self._lock:
            self._events += 1
            self._held.clear()

    def _read(self, kind: _Kind, path: str) -> Any:
        with self._lock:
            if (kind, path) in self._held:
                return self._held[kind, path]
            before = self._events
        found = self._ask(kind, path)
        with self._lock:
            if self._events == before:  # else what was read may be old already
                self._held[kind, path] = found
        return found

    def _ask(self, kind: _Kind, path: str) -> Any:
        missing = kazoo_errors().NoNodeError
        while True:
            try:
                if kind == "data":
                    data, stat = self._client.get(path, watch=self._on_event)
                    return Content(data, stat.czxid)
                return list(self._client.get_children(path, watch=self._on_event))
            except missing:
                if self._client.exists(path, watch=self._on_event) is None:
                    return None

    def _on_event(self, event: Any) -> None:
        with self._lock:
            self._events += 1
            if event.path is None:  # the connection ended, and with it every watch
                self._held.clear()
            else:
                self._held.pop(("data", event.path), None)
                self._held.pop(("children", event.path), None)
        self._changed()
