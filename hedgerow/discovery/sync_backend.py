"""Who takes the pushes of a training server: what a sync client asks, and two simple answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from .names import check_name
from .targets import Targets


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """Where a replica stands, for metrics.

    >>> TargetInfo("lf", "default", 0).replica_id
    0
    """

    idc: str | None = None
    cluster: str | None = None
    replica_id: int = -1


SyncTargets = Mapping[str, TargetInfo] | Sequence[str]


class SyncBackend(Protocol):
    """Knows the replicas of each sub graph: "ps_1" gives the name they serve it by, and them."""

    def subscribe_model(self, model_name: str) -> None:
        """Says whose replicas are wanted."""
        ...

    def get_sync_targets(self, sub_graph: str) -> tuple[str, SyncTargets]:
        """The name of a sub graph at its replicas, and their addresses as they are now."""
        ...

    def start(self) -> None:
        """Begins to watch."""
        ...

    def stop(self) -> None:
        """Watches no more."""
        ...


class ListedBackend:
    """Replicas that lists tell: fixed ones, or those of watched files; one list a sub graph.

    >>> from .targets import StaticTargets
    >>> backend = ListedBackend({"ps_0": StaticTargets(["127.0.0.1:8500"])})
    >>> backend.get_sync_targets("ps_0")
    ('ps_0', ['127.0.0.1:8500'])
    """

    def __init__(self, targets: Mapping[str, Targets]) -> None:
        self._targets = {check_name("sub_graph", name): one for name, one in targets.items()}

    def subscribe_model(self, model_name: str) -> None:
        """Lists are of one model: whichever it is called."""

    def get_sync_targets(self, sub_graph: str) -> tuple[str, list[str]]:
        """The list of a sub graph; one without a list has no replicas."""
        found = self._targets.get(sub_graph)
        return sub_graph, [] if found is None else found.current()

    def start(self) -> None:
        """Nothing to start."""

    def stop(self) -> None:
        """Nothing to stop."""


class SubGraphTargets:
    """The replicas of one sub graph as a plain list of addresses, for `hr.publish(to=...)`.

    >>> from .targets import StaticTargets
    >>> backend = ListedBackend({"ps_0": StaticTargets(["127.0.0.1:8500"])})
    >>> SubGraphTargets(backend, "ps_0").current()
    ['127.0.0.1:8500']
    """

    def __init__(self, backend: SyncBackend, sub_graph: str) -> None:
        self._backend, self._sub_graph = backend, sub_graph

    def current(self) -> list[str]:
        """Their addresses now."""
        return list(dict.fromkeys(self._backend.get_sync_targets(self._sub_graph)[1]))
