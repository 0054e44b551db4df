"""A ZooKeeper in memory: exactly the calls of kazoo's client that we use, with its exceptions."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kazoo.exceptions import ConnectionClosedError, NodeExistsError, NoNodeError, NotEmptyError
from kazoo.protocol.states import EventType, KeeperState, WatchedEvent

Watch = Callable[[WatchedEvent], None]


@dataclass
class Stat:
    ephemeralOwner: int  # noqa: N815  (kazoo's name)
    czxid: int


@dataclass
class Node:
    data: bytes = b""
    owner: int = 0
    created: int = 0
    numbers: Any = field(default_factory=itertools.count)


class MemoryZooKeeper:
    """One tree, any number of sessions; children are listed in the order they were made in."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.nodes: dict[str, Node] = {"/": Node()}
        self.watches: dict[tuple[str, str], dict[Any, None]] = {}
        self._sessions, self.changes = itertools.count(1), itertools.count(1)

    def client(self) -> MemoryClient:
        return MemoryClient(self, next(self._sessions))

    def new_session(self) -> int:
        return next(self._sessions)

    def below(self, path: str) -> list[str]:
        start = "/" if path == "/" else path + "/"
        return [
            p[len(start) :]
            for p in self.nodes
            if p != "/" and p.startswith(start) and "/" not in p[len(start) :]
        ]

    def fire(self, kind: str, path: str, event: str) -> None:
        for client, watch in list(self.watches.pop((kind, path), {})):
            client.deliver(watch, WatchedEvent(event, KeeperState.CONNECTED, path))

    def remove(self, path: str) -> None:
        del self.nodes[path]
        self.fire("data", path, EventType.DELETED)
        self.fire("children", path, EventType.DELETED)
        self.fire("children", path.rpartition("/")[0] or "/", EventType.CHILD)

    def end_session(self, session: int) -> None:
        for path in [path for path, node in self.nodes.items() if node.owner == session]:
            self.remove(path)


class MemoryClient:
    """A session of a MemoryZooKeeper, as kazoo.client.KazooClient has them."""

    def __init__(self, server: MemoryZooKeeper, session: int) -> None:
        self.server, self.session = server, session
        self.state = "LOST"
        self._listeners: list[Callable[[str], None]] = []

    @property
    def client_id(self) -> tuple[int, bytes]:
        return self.session, b""

    def start(self, timeout: float = 15) -> None:
        self._become("CONNECTED")

    def stop(self) -> None:
        if self.state != "LOST":
            with self.server.lock:
                self._drop_watches()
                self.server.end_session(self.session)
            self._become("LOST")

    def close(self) -> None:
        assert self.state == "LOST", "stop() comes before close()"

    def add_listener(self, listener: Callable[[str], None]) -> None:
        self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[str], None]) -> None:
        self._listeners.remove(listener)

    def lose_session(self) -> None:
        """What an expiry does: nodes and watches are gone, then a new session begins."""
        with self.server.lock:
            self._drop_watches()
            self.server.end_session(self.session)
            self._become("LOST")
            self.session = self.server.new_session()
            self._become("CONNECTED")

    def deliver(self, watch: Watch, event: WatchedEvent) -> None:
        watch(event)

    def create(
        self,
        path: str,
        value: bytes = b"",
        ephemeral: bool = False,
        sequence: bool = False,
        makepath: bool = False,
    ) -> str:
        with self._connected():
            parent = path.rpartition("/")[0] or "/"
            if parent not in self.server.nodes:
                if not makepath:
                    raise NoNodeError
                self.ensure_path(parent)
            if sequence:
                path += f"{next(self.server.nodes[parent].numbers):010d}"
            if path in self.server.nodes:
                raise NodeExistsError
            self.server.nodes[path] = Node(
                value, self.session if ephemeral else 0, next(self.server.changes)
            )
            self.server.fire("data", path, EventType.CREATED)
            self.server.fire("children", parent, EventType.CHILD)
            return path

    def ensure_path(self, path: str) -> None:
        with self._connected():
            for end in [i for i, c in enumerate(path) if c == "/" and i] + [len(path)]:
                if path[:end] not in self.server.nodes:
                    self.create(path[:end])

    def set(self, path: str, value: bytes) -> None:
        with self._connected():
            self._node(path).data = value
            self.server.fire("data", path, EventType.CHANGED)

    def delete(self, path: str) -> None:
        with self._connected():
            self._node(path)
            if self.server.below(path):
                raise NotEmptyError
            self.server.remove(path)

    def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat]:
        with self._connected():
            node = self._node(path)
            self._watch("data", path, watch)
            return node.data, Stat(node.owner, node.created)

    def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        with self._connected():
            self._watch("data", path, watch)
            node = self.server.nodes.get(path)
            return None if node is None else Stat(node.owner, node.created)

    def get_children(self, path: str, watch: Watch | None = None) -> list[str]:
        with self._connected():
            self._node(path)
            self._watch("children", path, watch)
            return self.server.below(path)

    def _connected(self) -> threading.RLock:
        if self.state != "CONNECTED":
            raise ConnectionClosedError("Connection has been closed")
        return self.server.lock  # pyright: ignore[reportReturnType]

    def _node(self, path: str) -> Node:
        if path not in self.server.nodes:
            raise NoNodeError
        return self.server.nodes[path]

    def _watch(self, kind: str, path: str, watch: Watch | None) -> None:
        if watch is not None:
            self.server.watches.setdefault((kind, path), {})[self, watch] = None

    def _drop_watches(self) -> None:
        for found in self.server.watches.values():
            for client, watch in list(found):
                if client is self:
                    del found[client, watch]

    def _become(self, state: str) -> None:
        self.state = state
        for listener in list(self._listeners):
            listener(state)
