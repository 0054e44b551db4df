"""Replicas as the first generation registers them: one ephemeral node each, below its task."""

from __future__ import annotations

import logging
import re
import threading
from dataclasses import dataclass, replace

from ..core.errors import FileDamagedError, InputError
from .names import SERVER_TYPES, check_server_type, sub_graph_number
from .paths import Service, ServicePath
from .payloads import AVAILABLE, UNKNOWN, Family, ReplicaMeta
from .session import Session
from .sync_backend import TargetInfo

_LOG = logging.getLogger("hedgerow")
_NUMBER = re.compile(r"-?[0-9]+")  # -1: a replica that has no number yet


@dataclass(frozen=True, slots=True)
class _Replica:
    place: ServicePath
    number: int
    meta: ReplicaMeta
    created: int


class ReplicaWatcher:
    """Knows all replicas of a model at every moment. Owns a lock, never held during a request.

    `start()` reads them, and from then on each change is taken in when ZooKeeper tells it. While
    ZooKeeper is away the last known replicas stay. A node that cannot be read is skipped and
    counted as `damaged_nodes` of the session.
    """

    def __init__(
        self,
        session: Session,
        service: Service,
        *,
        address_family: Family = "ipv4",
        use_archon: bool = False,
    ) -> None:
        if address_family not in ("ipv4", "ipv6"):
            raise InputError(f"address_family is {address_family!r}; it must be ipv4 or ipv6.")
        self.session, self.service = session, service
        self._family: Family = address_family
        self._use_archon = use_archon
        self._lock = threading.Lock()
        self._replicas: dict[str, _Replica] = {}

    def start(self) -> None:
        """Reads the replicas, and follows them from now on."""
        self.session.follow(self._refresh)

    def stop(self) -> None:
        """Follows them no more; the last known ones stay."""
        self.session.unfollow(self._refresh)

    def subscribe_model(self, model_name: str) -> None:
        """A watcher has one model from the start: the name changes nothing, as in the original."""

    def get_sync_targets(self, sub_graph: str) -> tuple[str, dict[str, TargetInfo]]:
        """The available replicas of "ps_1" in all places; the name stays "ps_1"."""
        index = sub_graph_number(sub_graph, "ps")
        return f"ps_{index}", self.replicas("ps", index)

    def replicas(
        self, server_type: str, index: int, idc: str | None = None, cluster: str | None = None
    ) -> dict[str, TargetInfo]:
        """The available replicas of one server by address: of one place, or of all."""
        task = f"{check_server_type(server_type)}:{index}"
        with self._lock:
            found = list(self._replicas.values())
        return {
            address: TargetInfo(one.place.idc, one.place.cluster, one.number)
            for one in found
            if one.place.task == task
            and one.place.ship_in(idc, cluster)
            and (address := self._address(one.meta)) is not None
        }

    def addresses(
        self, server_type: str, idc: str | None = None, cluster: str | None = None
    ) -> dict[str, list[str]]:
        """The available replicas of every server of a kind, by task: "ps:1"."""
        check_server_type(server_type)
        with self._lock:
            indices = {
                int(one.place.index or 0)
                for one in self._replicas.values()
                if one.place.server_type == server_type
            }
        found = {
            f"{server_type}:{index}": list(self.replicas(server_type, index, idc, cluster))
            for index in sorted(indices)
        }
        return {task: addresses for task, addresses in found.items() if addresses}

    def metas(self, task_path: str) -> dict[str, ReplicaMeta]:
        """All replicas of one task, available or not, by number as decimal text."""
        with self._lock:
            found = dict(self._replicas)
        return {
            str(one.number): one.meta
            for path, one in found.items()
            if path.rpartition("/")[0] == task_path
        }

    def _address(self, meta: ReplicaMeta) -> str | None:
        if meta.stat != AVAILABLE:
            return None
        return meta.choose(self._family, self._use_archon)

    def _refresh(self) -> None:
        with self._lock:
            before = dict(self._replicas)
        found: dict[str, _Replica] = {}
        for task_path in self._task_paths():
            for name in self.session.reads.children(task_path) or ():
                path = f"{task_path}/{name}"
                replica = self._replica(task_path, name, before.get(path))
                if replica is not None:
                    found[path] = replica
        # In the order they registered in: of two with one address the later one is alive.
        ordered = sorted(found.items(), key=lambda item: item[1].created)
        with self._lock:
            self._replicas = dict(ordered)

    def _task_paths(self) -> list[str]:
        root, reads = self.service.root, self.session.reads
        above = [root]
        if self.service.dc_aware:
            above = [f"{root}/{place}" for place in reads.children(root) or ()]
        return [f"{path}/{task}" for path in above for task in reads.children(path) or ()]

    def _replica(self, task_path: str, name: str, before: _Replica | None) -> _Replica | None:
        path, place = f"{task_path}/{name}", ServicePath.parse(task_path)
        if place.server_type not in SERVER_TYPES or not _NUMBER.fullmatch(name):
            self._skip(path, "its path is none of a replica")
            return None
        content = self.session.reads.content(path)
        if content is None:  # removed since it was listed
            return None
        if not content.data:  # emptied: it is there, and nobody knows how it is
            return before and replace(before, meta=replace(before.meta, stat=UNKNOWN))
        try:
            return _Replica(place, int(name), ReplicaMeta.from_bytes(content.data), content.created)
        except FileDamagedError as error:
            self._skip(path, str(error))
            return None

    def _skip(self, path: str, why: str) -> None:
        self.session.counters.add("damaged_nodes")
        _LOG.warning("ZooKeeper node %s is skipped: %s", path, why)
