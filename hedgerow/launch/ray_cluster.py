"""The Ray cluster of a job: the one that is there or one of its own, and places on it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any

from ..core.errors import LaunchError
from . import env
from .ray_library import ray_library
from .worker_variables import Spot

_NAMESPACE = "hedgerow"
_OBJECTS_BYTES = 2**27  # of Ray's own store, through which next to nothing goes: rows go by ZeroMQ
_ROOM_S = 300.0  # for a place: a cluster may have to grow first
_THREADS = 4  # of an actor: its work, and who asks or stops it meanwhile
_ADDRESS = "RAY_ADDRESS"
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # actors that book no GPU see the machine's
}


class RayCluster:
    """So many processes of one core each, on the cluster at RAY_ADDRESS or a local one."""

    def __init__(self, processes: int) -> None:
        self.ray = ray_library()
        self._processes = processes
        self._address = env.current().get(_ADDRESS)
        self._group: Any = None
        self.is_joined = False

    @property
    def is_own(self) -> bool:
        """Whether it is started for the job and ends with it."""
        return not self._address

    @property
    def words(self) -> str:
        """As messages call it."""
        return "a Ray cluster of its own" if self.is_own else f"the Ray cluster at {self._address}"

    def join(self) -> None:
        """Connects; a cluster of its own has room for all processes, whatever the cores."""
        env.set_absent(_QUIET, env.current())
        common = {"namespace": _NAMESPACE, "log_to_driver": False, "logging_level": logging.ERROR}
        if self.is_own:
            self.ray.init(
                address="local",
                num_cpus=self._processes,
                include_dashboard=False,
                object_store_memory=_OBJECTS_BYTES,
                _node_ip_address="127.0.0.1",
                **common,
            )
        else:
            try:
                self.ray.init(address=self._address, **common)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise LaunchError(
                    f"{_ADDRESS} is {self._address!r}, and no cluster lets us in there: {error}. "
                    f"Is it up? If it asks for a token, RAY_AUTH_TOKEN must be the same on both "
                    f"sides."
                ) from error
        self.is_joined = True

    def place(self, look: Callable[[bool, Collection[int]], Spot]) -> list[Spot]:
        """A spot for each process, on as many machines as there are; `look` runs on each."""
        from ray.util.placement_group import placement_group

        bundles = [{"CPU": 1.0}] * self._processes
        self._group = placement_group(bundles, strategy="SPREAD")
        if not self._group.wait(_ROOM_S):
            there = self.ray.cluster_resources().get("CPU", 0)
            raise LaunchError(
                f"no room for {self._processes} processes of one core each on {self.words} within "
                f"{_ROOM_S:g} s; it has {there:g} cores in all. Add machines, or ask for less."
            )
        spots: list[Spot] = []
        for i in range(self._processes):
            task = self.ray.remote(look).options(num_cpus=0, **self._at(i))
            spots.append(self.ray.get(task.remote(self.is_own, {spot.port for spot in spots})))
        return spots

    def actor(self, kind: type, place: int, name: str, *, lasting: bool = False) -> Any:
        """What makes a named actor at a place; one that lasts is made again whenever it is lost."""
        return self.ray.remote(kind).options(
            name=name,
            num_cpus=1,
            max_concurrency=_THREADS,
            max_restarts=-1 if lasting else 0,
            **self._at(place),
        )

    def _at(self, place: int) -> dict[str, Any]:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        strategy = PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=place
        )
        return {"scheduling_strategy": strategy}

    def leave(self) -> None:
        """Gives the places back; a cluster of its own ends."""
        from ray.util.placement_group import remove_placement_group

        if self._group is not None:
            remove_placement_group(self._group)
        self.ray.shutdown()
        self.is_joined = False
