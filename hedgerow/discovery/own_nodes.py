"""The ephemeral nodes of one process: made, changed, removed, and made again."""

from __future__ import annotations

import threading
from typing import Any

from ..core.counters import Counters
from .zookeeper import kazoo_errors


class OwnNodes:
    """Nodes that stand as long as this process does. Owns a lock, never held during a request.

    A node that is there already is taken over if another session made it: that is what a process
    finds that came back before its old session ended. `renew` makes missing ones again, and
    leaves those alone that another process has taken over since.
    """

    def __init__(self, client: Any, counters: Counters) -> None:
        self._client, self._counters = client, counters
        self._lock = threading.Lock()
        self._nodes: dict[str, bytes] = {}
        self._lost: set[str] = set()  # nodes of a session that is gone
        self._unsent: set[str] = set()  # what a request did not bring there
        self._unremoved: set[str] = set()

    def paths(self) -> list[str]:
        """What stands, or will stand again."""
        with self._lock:
            return list(self._nodes)

    def put(self, path: str, data: bytes) -> None:
        """Makes a node, or changes it; nothing is sent when it has that content."""
        with self._lock:
            sent = path not in self._lost and path not in self._unsent
            if sent and self._nodes.get(path) == data:
                return
            self._nodes[path] = data
            self._unsent.add(path)
            self._unremoved.discard(path)
        self._make(path, data, take_over=True)
        with self._lock:
            self._unsent.discard(path)

    def put_numbered(self, prefix: str, data: bytes) -> str:
        """Makes a node with the next number after `prefix`; its path."""
        path = self._client.create(prefix, data, ephemeral=True, sequence=True, makepath=True)
        with self._lock:
            self._nodes[path] = data
        return path

    def remove(self, path: str) -> None:
        """Removes a node; harmless where it is gone."""
        with self._lock:
            self._nodes.pop(path, None)
            self._lost.discard(path)
            self._unsent.discard(path)
            self._unremoved.add(path)
        try:
            self._client.delete(path)
        except kazoo_errors().NoNodeError:
            self._counters.add("nodes_gone_already")
        with self._lock:
            self._unremoved.discard(path)

    def mark_lost(self) -> None:
        """The session is gone, and all nodes with it, soon if not yet."""
        with self._lock:
            self._lost = set(self._nodes)
            self._unremoved.clear()

    def renew(self) -> None:
        """Makes the nodes again that a lost session or another hand has removed.

        What a failed `put` should have brought is brought now, and what a failed `remove` left is
        removed.
        """
        with self._lock:
            left = list(self._unremoved)
        for path in left:
            self.remove(path)
        for path in self.paths():
            while not self._renewed(path):
                self._counters.add("nodes_raced")  # put() came in between: once more

    def _renewed(self, path: str) -> bool:
        """Renews one node; whether what it holds is still what is wanted."""
        with self._lock:
            data, lost, late = self._nodes.get(path), path in self._lost, path in self._unsent
        if data is None:
            return True
        if self._make(path, data, take_over=late or lost, only_missing=not late):
            self._counters.add("nodes_renewed")
        with self._lock:
            wanted = self._nodes.get(path)
            if wanted == data:
                self._lost.discard(path)
                self._unsent.discard(path)
                return True
        if wanted is None:  # removed meanwhile
            self.remove(path)
        return wanted is None

    def _make(self, path: str, data: bytes, *, take_over: bool, only_missing: bool = False) -> bool:
        """Whether a node was made; one that is ours already gets the content."""
        errors = kazoo_errors()
        while True:
            stat = self._client.exists(path)
            try:
                if stat is None:
                    self._client.create(path, data, ephemeral=True, makepath=True)
                    return True
                if stat.ephemeralOwner == self._client.client_id[0]:
                    if not only_missing:
                        self._client.set(path, data)
                    return False
                if not take_over:
                    self._counters.add("nodes_of_others")
                    return False
                self._client.delete(path)
            except (errors.NoNodeError, errors.NodeExistsError):
                self._counters.add("nodes_raced")  # somebody was quicker: look again
