"""The contents of ZooKeeper nodes: JSON in Monolith's form."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self

from ..core.errors import FileDamagedError

Family = Literal["ipv4", "ipv6"]
UNKNOWN, START, LOADING, AVAILABLE, UNLOADING, END = 0, 10, 20, 30, 40, 50
"""States of a replica, with TensorFlow Serving's numbers."""
LOAD, UNLOAD = 1, 2
"""Kinds of orders of Monolith's scheduler."""

_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "str | None": (str, type(None)),
    "int": (int,),
    "int | None": (int, type(None)),
    "float": (int, float),
    "bool": (bool,),
    "list[str]": (list,),
    "dict[str, str] | None": (dict, type(None)),
}


class _Payload:
    """A record written as a JSON object, one key per field in order; absent keys get defaults."""

    __slots__ = ()

    def to_bytes(self) -> bytes:
        """Returns the content of the node."""
        return json.dumps(asdict(self)).encode()  # pyright: ignore[reportArgumentType]

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Returns the record in a node's content; ignores unknown keys."""
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise _damaged(cls, data, str(error)) from error
        if not isinstance(found, dict):
            raise _damaged(cls, data, f"it is a {type(found).__name__}, not an object")
        given: dict[str, Any] = {}
        for one in fields(cls):  # pyright: ignore[reportArgumentType]
            if one.name in found:
                value = found[one.name]
                kinds = _KINDS[str(one.type)]
                if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                    raise _damaged(cls, data, f"{one.name} is {value!r}; it must be {one.type}")
                given[one.name] = value
        try:
            return cls(**given)
        except TypeError as error:
            raise _damaged(cls, data, str(error)) from error


def _damaged(cls: type, data: bytes, why: str) -> FileDamagedError:
    return FileDamagedError(f"a node holds {data[:80]!r}, which is no {cls.__name__}: {why}.")


@dataclass(frozen=True, slots=True)
class ReplicaMeta(_Payload):
    """A replica, first generation.

    >>> ReplicaMeta("0.0.0.0:8500", "[fd00::1]:8500", AVAILABLE).choose()
    '[fd00::1]:8500'
    >>> ReplicaMeta.from_bytes(b'{"address": "h:1"}').stat
    0
    """

    address: str | None = None
    address_ipv6: str | None = None
    stat: int = UNKNOWN
    model_name: str | None = None
    server_type: str | None = None
    task: int = -1
    replica: int = -1
    archon_address: str | None = None
    archon_address_ipv6: str | None = None

    def choose(self, family: Family = "ipv4", use_archon: bool = False) -> str | None:
        """Returns the address of the requested family, else of the other family, else None."""
        v4, v6 = self.address, self.address_ipv6
        if use_archon:
            v4, v6 = self.archon_address, self.archon_address_ipv6
        v4 = None if v4 is None or v4.startswith("0.0.0.0") else v4
        v6 = None if v6 is None or v6.startswith("[::]") else v6
        return (v4 or v6 if family == "ipv4" else v6 or v4) or None


@dataclass(frozen=True, slots=True)
class ContainerServiceInfo(_Payload):
    """The addresses of a container, second generation.

    >>> ContainerServiceInfo(grpc="h:1").to_bytes()[:30]
    b'{"grpc": "h:1", "http": null, '
    """

    grpc: str | None = None
    http: str | None = None
    archon: str | None = None
    agent: str | None = None
    idc: str | None = None
    debug_info: str | None = None


@dataclass(frozen=True, slots=True)
class SavedModelDeployConfig(_Payload):
    """Where a sub graph's versions are, and which to serve.

    >>> SavedModelDeployConfig("/models/ps_0", "latest_once").to_bytes()
    b'{"model_base_path": "/models/ps_0", "version_policy": "latest_once"}'
    """

    model_base_path: str | None = None
    version_policy: str | None = None


@dataclass(frozen=True, slots=True)
class ResourceSpec(_Payload):
    """The free resources of a machine; None or -1 if unknown.

    >>> ResourceSpec("h:1", 1, 2, 12345, 3.5).network
    -1.0
    """

    address: str | None = None
    shard_id: int | None = None
    replica_id: int | None = None
    memory: int | None = None
    cpu: float = -1.0
    network: float = -1.0
    work_load: float = -1.0


@dataclass(frozen=True, slots=True)
class ModelMeta(_Payload):
    """A request to load a model.

    >>> ModelMeta("ffm", num_shard=3).action
    'NONE'
    """

    model_name: str | None = None
    model_dir: str | None = None
    ckpt: str | None = None
    num_shard: int = -1
    action: str = "NONE"
    spec_replicas: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PublishMeta(_Payload):
    """An order of Monolith's scheduler to one server: load or unload a model.

    `sub_models` has the folder of each sub graph. `ptype` is `LOAD` or `UNLOAD`.

    >>> PublishMeta(0, model_name="ffm", num_ps=2, ptype=UNLOAD).ptype
    2
    """

    shard_id: int | None = None
    replica_id: int = -1
    model_name: str | None = None
    num_ps: int | None = None
    total_publish_num: int = 1
    sub_models: dict[str, str] | None = None
    ptype: int = LOAD
    is_spec: bool = False
