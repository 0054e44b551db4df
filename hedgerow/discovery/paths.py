"""Names and paths of ZooKeeper nodes in both generations of Monolith's layout."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..core.errors import InputError

_NAME_PATTERN = re.compile(r"[-_0-9A-Za-z]+")
_CONTAINER = re.compile(r"[-_;.0-9A-Za-z]+")
SERVER_TYPES = ("ps", "entry", "dense")


def check_name(what: str, name: object) -> str:
    """Returns a name; raises unless it can be a part of a path.

    >>> check_name("bzid", "demo-1")
    'demo-1'
    """
    if isinstance(name, str) and _NAME_PATTERN.fullmatch(name):
        return name
    raise InputError(
        f"{what} is {name!r}; it must match [-_0-9A-Za-z]+, because it is part of a path."
    )


def check_container_part(what: str, name: object) -> str:
    """Returns a part of a container's name (clusters have semicolons); raises if it is invalid.

    >>> check_container_part("ctx_cluster", "psm;hl;canary")
    'psm;hl;canary'
    """
    if isinstance(name, str) and _CONTAINER.fullmatch(name) and name not in (".", ".."):
        return name
    raise InputError(f"{what} is {name!r}; it must match [-_;.0-9A-Za-z]+, as in 'default'.")


def check_server_type(server_type: object) -> str:
    """Returns a server type; raises unless it is "ps", "entry" or "dense".

    >>> check_server_type("ps")
    'ps'
    """
    if isinstance(server_type, str) and server_type in SERVER_TYPES:
        return server_type
    raise InputError(f"server_type is {server_type!r}; it must be one of {SERVER_TYPES}.")


def sub_graph_number(name: str, server_type: str) -> int:
    """Returns the number in a sub graph's name.

    >>> sub_graph_number("ps_12", "ps")
    12
    """
    kind, _, number = name.partition("_")
    if kind == server_type and number.isascii() and number.isdecimal():
        return int(number)
    raise InputError(f"{name!r} is no sub graph of a {server_type}; write {server_type}_<number>.")


def join_address(host: str, port: int) -> str:
    """Returns HOST:PORT, with brackets around an IPv6 host.

    >>> join_address("localhost", 10), join_address("::1", 10)
    ('localhost:10', '[::1]:10')
    """
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"{host}:{port}"


def replica_id_of(environ: Mapping[str, str]) -> int:
    """Returns a replica's number: REPLICA_ID, else a hash of the pod's name, else -1.

    >>> replica_id_of({"MY_POD_NAME": "pod-1"}), replica_id_of({"REPLICA_ID": "3"})
    (352048498, 3)
    >>> replica_id_of({})
    -1
    """
    given, pod = environ.get("REPLICA_ID", ""), environ.get("MY_POD_NAME", "")
    if given:
        try:
            return int(given)
        except ValueError:
            raise InputError(f"REPLICA_ID is {given!r}; it must be a whole number.") from None
    if not pod:
        return -1
    return int(hashlib.md5(pod.encode(), usedforsecurity=False).hexdigest()[10:20], 16)


_NAME = r"[-_0-9A-Za-z]+"
_SERVICE = re.compile(
    rf"/(?P<bzid>{_NAME})/service/(?P<base_name>{_NAME})"
    rf"(?:/(?P<idc>{_NAME}):(?P<cluster>{_NAME}))?"
    r"/(?P<server_type>[0-9A-Za-z_]+):(?P<index>[0-9]+)(?:/(?P<replica_id>[0-9]+))?"
)


@dataclass(frozen=True, slots=True)
class ServicePath:
    """The parts of a path of the first generation; all are None if the path has another form.

    A replica is a number without a sign, as in Monolith: the node `-1` of a replica without a
    number is no service path.

    >>> found = ServicePath.parse("/b/service/m/lf:default/ps:1/0")
    >>> found.task, found.location, found.replica_id, found.ship_in("lf", "default")
    ('ps:1', 'lf:default', '0', True)
    >>> ServicePath.parse("/b/srv/m/ps:1").bzid is None
    True
    """

    bzid: str | None = None
    base_name: str | None = None
    idc: str | None = None
    cluster: str | None = None
    server_type: str | None = None
    index: str | None = None
    replica_id: str | None = None

    @classmethod
    def parse(cls, path: str) -> ServicePath:
        """Returns the parts of `path`."""
        found = _SERVICE.fullmatch(path)
        return cls() if found is None else cls(**found.groupdict())

    @property
    def task(self) -> str | None:
        """The server type and number, as in "ps:1"."""
        return None if self.server_type is None else f"{self.server_type}:{self.index}"

    @property
    def location(self) -> str | None:
        """The data centre and cluster, as in "lf:default"."""
        return None if self.idc is None else f"{self.idc}:{self.cluster}"

    def ship_in(self, idc: str | None, cluster: str | None) -> bool:
        """Returns whether the path is in a data centre and cluster; True if either is None."""
        return idc is None or cluster is None or (self.idc, self.cluster) == (idc, cluster)


@dataclass(frozen=True, slots=True)
class ReplicaPaths:
    """The paths of a model's replicas, first generation; `dc_aware` adds data centre and cluster.

    >>> ReplicaPaths("demo", "ffm").replica("ps", 1, "0")
    '/demo/service/ffm/ps:1/0'
    >>> ReplicaPaths("demo", "ffm", dc_aware=True).replica("ps", 1, "0", "lf", "default")
    '/demo/service/ffm/lf:default/ps:1/0'
    """

    bzid: str
    base_name: str
    dc_aware: bool = False

    def __post_init__(self) -> None:
        check_name("bzid", self.bzid)
        check_name("base_name", self.base_name)

    @property
    def root(self) -> str:
        """The node above all replicas."""
        return f"/{self.bzid}/service/{self.base_name}"

    def task(
        self, server_type: str, index: int, idc: str | None = None, cluster: str | None = None
    ) -> str:
        """Returns the path above the replicas of one server."""
        check_server_type(server_type)
        if not self.dc_aware:
            return f"{self.root}/{server_type}:{index}"
        place = f"{check_name('idc', idc)}:{check_name('cluster', cluster)}"
        return f"{self.root}/{place}/{server_type}:{index}"

    def replica(
        self,
        server_type: str,
        index: int,
        replica: str,
        idc: str | None = None,
        cluster: str | None = None,
    ) -> str:
        """Returns the path of one replica."""
        return f"{self.task(server_type, index, idc, cluster)}/{replica}"


@dataclass(frozen=True, slots=True, order=True)
class SavedModel:
    """A sub graph of a model, as in "ffm:ps_1".

    >>> SavedModel("ffm", "ps_1"), str(SavedModel.parse("ffm:entry"))
    (SavedModel(model_name='ffm', sub_graph='ps_1'), 'ffm:entry')
    """

    model_name: str
    sub_graph: str

    def __post_init__(self) -> None:
        check_name("model_name", self.model_name)
        check_name("sub_graph", self.sub_graph)

    def __str__(self) -> str:
        return f"{self.model_name}:{self.sub_graph}"

    @classmethod
    def parse(cls, text: str) -> SavedModel:
        """Returns the sub graph of a text that `str()` made."""
        model_name, _, sub_graph = text.partition(":")
        return cls(model_name, sub_graph)


@dataclass(frozen=True, slots=True)
class Container:
    """A serving process of the second generation.

    >>> str(Container("default", "asdf"))
    'default:asdf'
    """

    ctx_cluster: str
    ctx_id: str

    def __post_init__(self) -> None:
        check_container_part("ctx_cluster", self.ctx_cluster)
        check_container_part("ctx_id", self.ctx_id)

    def __str__(self) -> str:
        return f"{self.ctx_cluster}:{self.ctx_id}"


@dataclass(frozen=True, slots=True)
class DeploymentPaths:
    """The paths of the second generation below one bzid.

    >>> DeploymentPaths("demo").binding(SavedModel("ffm", "ps_1"), Container("default", "asdf"))
    '/demo/binding/ffm/ps_1:default:asdf'
    """

    bzid: str

    def __post_init__(self) -> None:
        check_name("bzid", self.bzid)

    def container(self, container: Container | str) -> str:
        """Returns the path of a container's addresses."""
        return f"/{self.bzid}/container_service/{container}"

    def bindings(self, model_name: str) -> str:
        """Returns the path above all bindings of a model."""
        return f"/{self.bzid}/binding/{check_name('model_name', model_name)}"

    def binding(self, model: SavedModel, container: Container) -> str:
        """Returns the path of the binding of a sub graph to a container that serves it."""
        return f"{self.bindings(model.model_name)}/{model.sub_graph}:{container}"

    def models(self, model_name: str | None = None) -> str:
        """Returns the path above the sub graphs of a model, or above all models."""
        root = f"/{self.bzid}/saved_models"
        return root if model_name is None else f"{root}/{check_name('model_name', model_name)}"

    def model(self, model: SavedModel) -> str:
        """Returns the path of a sub graph's deploy config."""
        return f"{self.models(model.model_name)}/{model.sub_graph}"

    def layout(self, layout: str, model: SavedModel | None = None) -> str:
        """Returns the path of a layout, or of a sub graph in it."""
        root = f"/{self.bzid}/layouts/{check_name('layout', layout)}"
        return root if model is None else f"{root}/{model}"

    def resource(self, shard: int, replica: int) -> str:
        """Returns the path of a machine's free resources."""
        return f"/{self.bzid}/resource/{shard}:{replica}"

    def portal(self, model_name: str) -> str:
        """Returns the path of a request to load a model."""
        return f"/{self.bzid}/portal/{check_name('model_name', model_name)}"

    def publish(self, shard: int, replica: int, model_name: str) -> str:
        """Returns the path of the scheduler's order to one server."""
        return f"/{self.bzid}/publish/{shard}:{replica}:{check_name('model_name', model_name)}"
