"""Replicas in ZooKeeper, of both generations: registration of one, and watching all of a model."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..core.errors import FileDamagedError, InputError, StateError
from .paths import (
    SERVER_TYPES,
    Container,
    DeploymentPaths,
    ReplicaPaths,
    SavedModel,
    ServicePath,
    check_name,
    check_server_type,
    sub_graph_number,
)
from .payloads import AVAILABLE, UNKNOWN, ContainerServiceInfo, Family, ReplicaMeta
from .targets import TargetInfo
from .zookeeper import Session

_ENTRY_DIGITS = 11  # the prefix "0" and the ten digits that ZooKeeper appends


class ReplicaRegistration:
    """The node of one replica. It exists while the session does, and is made again after its loss.

    Server type, server number and replica number are those of `meta`. An entry without a number
    gets the next free one from ZooKeeper.
    """

    def __init__(
        self,
        session: Session,
        service: ReplicaPaths,
        meta: ReplicaMeta,
        idc: str | None = None,
        cluster: str | None = None,
    ) -> None:
        self._session, self._meta = session, meta
        server_type = check_server_type(meta.server_type)
        if meta.task < 0:
            raise InputError(f"task is {meta.task}; a replica belongs to a server of 0 or above.")
        self._above = service.task(server_type, meta.task, idc, cluster)
        self.path: str | None = None

    def register(self) -> str:
        """Makes the node, and returns its path."""
        entry, number = self._meta.server_type == "entry", self._meta.replica
        if entry and number < 0:
            path = self._session.own.put_numbered(f"{self._above}/0", self._meta.to_bytes())
            self._meta = replace(self._meta, replica=int(path.rpartition("/")[2]))
            self._session.own.put(path, self._meta.to_bytes())
        else:
            name = f"{number:0{_ENTRY_DIGITS}d}" if entry else str(number)
            path = f"{self._above}/{name}"
            self._session.own.put(path, self._meta.to_bytes())
        self.path = path
        return path

    def update(self, *, stat: int | None = None, address: str | None = None) -> None:
        """Writes a new state or address to the node."""
        if self.path is None:
            raise StateError("this replica is not registered; call register() first.")
        self._meta = replace(
            self._meta,
            stat=self._meta.stat if stat is None else stat,
            address=self._meta.address if address is None else address,
        )
        self._session.own.put(self.path, self._meta.to_bytes())

    def withdraw(self) -> None:
        """Removes the node; clients that know the address can still use the replica."""
        if self.path is not None:
            self._session.own.remove(self.path)
            self.path = None


_LOG = logging.getLogger("hedgerow")
_NUMBER = re.compile(r"-?[0-9]+")  # -1: a replica without a number


@dataclass(frozen=True, slots=True)
class _Replica:
    place: ServicePath
    number: int
    meta: ReplicaMeta
    created: int


class ReplicaWatcher:
    """Tracks all replicas of a model. Owns a lock, never held during a request.

    `start()` reads the replicas, and changes are applied when ZooKeeper reports them. While
    ZooKeeper is unreachable the last known replicas stay. A node that cannot be read is skipped
    and counted as `damaged_nodes` of the session.
    """

    def __init__(
        self,
        session: Session,
        service: ReplicaPaths,
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
        """Reads the replicas, and follows their changes from now on."""
        self.session.follow(self._refresh)

    def stop(self) -> None:
        """Stops following changes; the last known replicas stay."""
        self.session.unfollow(self._refresh)

    def subscribe_model(self, model_name: str) -> None:
        """Does nothing: a watcher's model is set by its constructor."""

    def get_sync_targets(self, sub_graph: str) -> tuple[str, dict[str, TargetInfo]]:
        """Returns the name "ps_1" unchanged, and its available replicas in all places."""
        index = sub_graph_number(sub_graph, "ps")
        return f"ps_{index}", self.replicas("ps", index)

    def replicas(
        self, server_type: str, index: int, idc: str | None = None, cluster: str | None = None
    ) -> dict[str, TargetInfo]:
        """Returns the available replicas of one server, by address, in one place or in all."""
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
        """Returns the available replicas of every server of a type, by task ("ps:1")."""
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
        """Returns all replicas of one task, available or not, by number as decimal text."""
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
        # In order of creation: of two nodes with one address the later one is valid.
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
            self._skip(path, "its path is not that of a replica")
            return None
        content = self.session.reads.content(path)
        if content is None:  # removed since the listing
            return None
        if not content.data:  # emptied: the replica exists, its state is unknown
            return before and replace(before, meta=replace(before.meta, stat=UNKNOWN))
        try:
            return _Replica(place, int(name), ReplicaMeta.from_bytes(content.data), content.created)
        except FileDamagedError as error:
            self._skip(path, str(error))
            return None

    def _skip(self, path: str, why: str) -> None:
        self.session.counters.add("damaged_nodes")
        _LOG.warning("ZooKeeper node %s is skipped: %s", path, why)


@dataclass(frozen=True, slots=True)
class _ModelServices:
    """The services of each sub graph of the subscribed model, and its bindings."""

    services: dict[str, list[ContainerServiceInfo]]
    bindings: tuple[str, ...] | None = None


class ZkBackend:
    """The second generation's tree: containers report to it, trainers subscribe. Owns a lock.

    A trainer subscribes to one model and gets the replicas of its sub graphs. Both bindings and
    the containers' addresses are watched. `parity=True` repeats Monolith's defects: an address
    that changes after its binding goes unnoticed, a second model raises AssertionError, and the
    address of a container without gRPC is None.
    """

    def __init__(self, session: Session, bzid: str, *, parity: bool = False) -> None:
        self.session, self.places = session, DeploymentPaths(bzid)
        self._parity = parity
        self._lock = threading.Lock()
        self._model: str | None = None
        self._known = _ModelServices({})

    def start(self) -> None:
        """Does nothing: the session is started, and subscribe_model() starts to follow."""

    def stop(self) -> None:
        """Stops following the model; the last known replicas stay."""
        self.session.unfollow(self._refresh)

    # Called by containers

    def report_service_info(self, container: Container, info: ContainerServiceInfo) -> None:
        """Writes the addresses of a container; the node lasts as long as this process."""
        self.session.own.put(self.places.container(container), info.to_bytes())

    def get_service_info(self, container: Container) -> ContainerServiceInfo | None:
        """Returns the addresses that a container has reported, or None."""
        data = self.session.reads.data(self.places.container(container))
        return None if not data else ContainerServiceInfo.from_bytes(data)

    def sync_available_saved_models(
        self, container: Container, models: Iterable[SavedModel]
    ) -> None:
        """Sets the sub graphs that a container serves now; removes all other bindings of it."""
        wanted = {self.places.binding(model, container) for model in models}
        root, end = self.places.bindings("x").rpartition("/")[0] + "/", f":{container}"
        held = self.session.own.paths()
        told = {path for path in held if path.startswith(root) and path.endswith(end)}
        for path in sorted(wanted):
            self.session.own.put(path, b"")
        for path in sorted(told - wanted):
            self.session.own.remove(path)

    # Called by trainers

    def subscribe_model(self, model_name: str) -> None:
        """Follows the replicas of a model; a backend follows one model only."""
        check_name("model_name", model_name)
        with self._lock:
            known, self._model = self._model, self._model or model_name
        if known == model_name:
            return
        if known is not None:
            if self._parity:
                raise AssertionError(f"{known} is subscribed, not {model_name}")
            raise InputError(
                f"this backend follows model {known!r}; make another one for {model_name!r}."
            )
        try:
            self.session.client.ensure_path(self.places.bindings(model_name))
            self.session.follow(self._refresh)
        except BaseException:
            with self._lock:
                self._model = None  # so that a later call can retry
            raise

    def get_sync_targets(self, sub_graph: str) -> tuple[str, list[str]]:
        """Returns the name "model:ps_1" and the gRPC addresses of the containers that serve it."""
        with self._lock:
            model, services = self._model, self._known.services.get(sub_graph, [])
        if self._parity:
            found = [info.grpc for info in services]
            return f"{model}:{sub_graph}", found  # pyright: ignore[reportReturnType]
        if model is None:
            raise InputError("no model is subscribed; call subscribe_model(name) first.")
        return f"{model}:{sub_graph}", [info.grpc for info in services if info.grpc]

    def addresses(self, server_type: str) -> dict[str, list[str]]:
        """Returns the replicas of every sub graph of a type, by full name ("model:ps_1")."""
        with self._lock:
            names = [name for name in self._known.services if name.split("_")[0] == server_type]
        found = dict(self.get_sync_targets(name) for name in sorted(names))
        return {name: addresses for name, addresses in found.items() if addresses}

    def _refresh(self) -> None:
        """Runs on the session's thread, or inside subscribe_model()."""
        with self._lock:
            model, before = self._model, self._known
        if model is None:
            return
        names = tuple(self.session.reads.children(self.places.bindings(model)) or ())
        if self._parity and names == before.bindings:
            return
        services: dict[str, list[ContainerServiceInfo]] = {}
        for name in names:
            sub_graph, _, container = name.partition(":")
            info = self._info(container)
            if info is not None:
                services.setdefault(sub_graph, []).append(info)
        with self._lock:
            self._known = _ModelServices(services, names)

    def _info(self, container: str) -> ContainerServiceInfo | None:
        """Returns a container's addresses; skips and counts one without a usable address."""
        data = self.session.reads.data(self.places.container(container))
        if not data:
            _LOG.warning("container %s serves a model and reports no address; skipped", container)
            self.session.counters.add("containers_without_info")
            return None
        try:
            info = ContainerServiceInfo.from_bytes(data)
        except FileDamagedError as error:
            _LOG.warning("container %s is skipped: %s", container, error)
            self.session.counters.add("damaged_nodes")
            return None
        if not info.grpc and not self._parity:
            _LOG.warning("container %s reports no gRPC address; skipped", container)
            self.session.counters.add("containers_without_grpc")
            return None
        return info
