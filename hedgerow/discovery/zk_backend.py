"""Replicas as the second generation tells them: containers say what they serve, and where."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from ..core.errors import FileDamagedError, InputError
from .names import check_name
from .paths import Container, Places, SavedModel
from .payloads import ContainerServiceInfo
from .session import Session

_LOG = logging.getLogger("hedgerow")


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of the subscribed model: the services of each sub graph, by its name."""

    services: dict[str, list[ContainerServiceInfo]]
    bindings: tuple[str, ...] | None = None


class ZkBackend:
    """One object for both sides: containers tell, trainers subscribe. Owns a lock.

    A trainer subscribes to one model and asks for the replicas of its sub graphs; bindings and
    the containers' addresses are both watched. `parity=True` repeats the original's defects: an
    address that changes after its binding is not noticed, an assertion for a second model, and a
    container without a gRPC address is passed on as None.
    """

    def __init__(self, session: Session, bzid: str, *, parity: bool = False) -> None:
        self.session, self.places = session, Places(bzid)
        self._parity = parity
        self._lock = threading.Lock()
        self._model: str | None = None
        self._known = _Known({})

    def start(self) -> None:
        """Nothing to start: the session is, and a subscription follows from its own call."""

    def stop(self) -> None:
        """Follows the model no more; the last known replicas stay."""
        self.session.unfollow(self._refresh)

    # What a container tells

    def report_service_info(self, container: Container, info: ContainerServiceInfo) -> None:
        """Tells the addresses of a container, for as long as this process lives."""
        self.session.own.put(self.places.container(container), info.to_bytes())

    def get_service_info(self, container: Container) -> ContainerServiceInfo | None:
        """What a container told; None where it told nothing."""
        data = self.session.reads.data(self.places.container(container))
        return None if not data else ContainerServiceInfo.from_bytes(data)

    def sync_available_saved_models(
        self, container: Container, models: Iterable[SavedModel]
    ) -> None:
        """Tells which sub graphs a container serves now: these, and no others."""
        wanted = {self.places.binding(model, container) for model in models}
        root, end = self.places.bindings("x").rpartition("/")[0] + "/", f":{container}"
        held = self.session.own.paths()
        told = {path for path in held if path.startswith(root) and path.endswith(end)}
        for path in sorted(wanted):
            self.session.own.put(path, b"")
        for path in sorted(told - wanted):
            self.session.own.remove(path)

    # What a trainer asks

    def subscribe_model(self, model_name: str) -> None:
        """Follows the replicas of one model; a backend has one."""
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
                self._model = None  # so that it can be tried again
            raise

    def get_sync_targets(self, sub_graph: str) -> tuple[str, list[str]]:
        """The name "model:ps_1", and the gRPC addresses of the containers that serve it."""
        with self._lock:
            model, services = self._model, self._known.services.get(sub_graph, [])
        if self._parity:
            found = [info.grpc for info in services]
            return f"{model}:{sub_graph}", found  # pyright: ignore[reportReturnType]
        if model is None:
            raise InputError("no model is subscribed; call subscribe_model(name) first.")
        return f"{model}:{sub_graph}", [info.grpc for info in services if info.grpc]

    def addresses(self, server_type: str) -> dict[str, list[str]]:
        """The replicas of every sub graph of a kind, by full name: "model:ps_1"."""
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
            self._known = _Known(services, names)

    def _info(self, container: str) -> ContainerServiceInfo | None:
        """What a container told; one without an address of ours is skipped and counted."""
        data = self.session.reads.data(self.places.container(container))
        if not data:
            _LOG.warning("container %s serves a model and tells no address; skipped", container)
            self.session.counters.add("containers_without_info")
            return None
        try:
            info = ContainerServiceInfo.from_bytes(data)
        except FileDamagedError as error:
            _LOG.warning("container %s is skipped: %s", container, error)
            self.session.counters.add("damaged_nodes")
            return None
        if not info.grpc and not self._parity:
            _LOG.warning("container %s tells no gRPC address; skipped", container)
            self.session.counters.add("containers_without_grpc")
            return None
        return info
