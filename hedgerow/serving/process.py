"""A serving process: its models, its servers, its start and its end."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..core.errors import FileMissingError, InputError, JobFailedError, StateError
from ..core.files import local_path
from ..sync.roster import Announcer
from ..wire.tensors import Compat
from .batching import Batching
from .bundle import BundleTrust, load_trusted
from .channels import Replicas
from .export import ENTRY
from .folders import Policy, Specific, policy_of
from .live_model import SyncService
from .metrics import ServerMetrics
from .registry import Registry
from .remote_rows import ask_rows, rows_from
from .rest import RestServer
from .server import PredictionServer
from .tls import Tls, check_exposed, is_local

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who may reach a server and push to it, and which bundles it loads.

    `accept_pushes` lets clients push. `insecure` lets other machines connect without TLS. `hosts`
    are further host names for HTTP. With `trust`, a file with a key, only bundles signed with
    that key are loaded.

    >>> Access(insecure=True).accept_pushes
    False
    """

    accept_pushes: bool = False
    insecure: bool = False
    hosts: tuple[str, ...] = ()
    trust: Path | None = None
    trust_unsigned: bool = False
    trust_old: bool = False  # bundles of release 0.1, whose files can run code


@dataclass(frozen=True, slots=True, kw_only=True)
class ServePlan:
    """What a process serves: model names with their folders, addresses and options."""

    models: tuple[tuple[str, Path, Policy], ...]
    grpc: str
    http: str | None = None
    tls: Tls | None = None
    row_servers: tuple[tuple[str, ...], ...] = ()  # the replicas of ps_0, of ps_1, ...
    ps_from: str | None = None  # where to look them up instead, in the form of rows_from()
    grace_s: float = 10.0
    compat: Compat = None
    follow: tuple[str, ...] = ()
    access: Access = field(default_factory=lambda: Access())

    @property
    def accepts_pushes(self) -> bool:
        """Whether clients may change rows and weights; implied by `follow`."""
        return self.access.accept_pushes or bool(self.follow)

    @property
    def trust(self) -> BundleTrust:
        """The bundles that may be loaded; unsigned ones if only this machine reaches the server."""
        local = all(is_local(one) for one in (self.grpc, self.http) if one is not None)
        how = self.access
        return BundleTrust.of(
            key=how.trust, unsigned=local or how.trust_unsigned, old=how.trust_old
        )


def find_models(
    folder: Path, name: str | None = None, policy: str = "latest"
) -> tuple[tuple[str, Path, Policy], ...]:
    """Returns the models in a folder: one version, the versions of one model, or several models.

    >>> find_models(Path("/nowhere"))
    Traceback (most recent call last):
    hedgerow.core.errors.FileMissingError: there is no folder /nowhere; name what export() wrote.
    """
    if not folder.is_dir():
        raise FileMissingError(f"there is no folder {folder}; name what export() wrote.")
    own = folder.resolve()
    if _has_versions(own):
        return ((name or _name(own), own, policy_of(policy)),)
    if _is_version(own):
        if policy != "latest":
            raise InputError(f"{folder} is one version; --policy needs the folder above it.")
        return ((name or _name(own.parent), own.parent, Specific((int(own.name),))),)
    found = sorted(path for path in own.iterdir() if path.is_dir() and _has_versions(path))
    if not found:
        raise FileMissingError(f"{folder} holds no version of a model; name what export() wrote.")
    if name is not None and len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise InputError(f"{folder} holds several models ({names}); --name fits only one.")
    named = [name or _name(path) for path in found]
    for one, path in zip(named, found, strict=True):
        if named.count(one) > 1:
            raise InputError(
                f"two models below {folder} would be called {one!r}, {path.name} is one of them; "
                f"rename its folder, or serve one alone: hedgerow serve {path}."
            )
    return tuple((one, path, policy_of(policy)) for one, path in zip(named, found, strict=True))


def _name(folder: Path) -> str:
    """Returns a model's name: its folder's, or that of the folder above a sub graph `entry`.

    >>> _name(Path("/models/ctr/entry")), _name(Path("/models/ctr/ps_0"))
    ('ctr', 'ps_0')
    """
    return (folder.parent.name if folder.name == ENTRY else "") or folder.name


def _is_version(path: Path) -> bool:
    return path.name.isascii() and path.name.isdecimal()


def _has_versions(folder: Path) -> bool:
    return any(_is_version(path) and path.is_dir() for path in folder.iterdir())


def serve(plan: ServePlan, tell: Callable[[str], None], stop: threading.Event) -> None:
    """Serves until `stop` is set; `tell` gets a line for each address when requests may come."""
    with ExitStack() as stack:
        _, server, rest = open_servers(plan, stack)
        if rest is not None:
            tell(f"http {rest.start().address}")
        tell(f"grpc {server.start().address}")
        if plan.follow:
            stack.enter_context(Announcer(plan.follow, server.address))
        stop.wait()
        if rest is not None:
            rest.drain()  # before the stop, so that load balancers see it in time
        server.stop(plan.grace_s)


def open_servers(
    plan: ServePlan, stack: ExitStack
) -> tuple[Registry, PredictionServer, RestServer | None]:
    """Loads the models and makes their servers, not yet started; `stack` closes everything."""
    for address in (plan.grpc, plan.http):  # checked before a bundle is read
        if address is not None:
            encrypted, insecure = plan.tls is not None, plan.access.insecure
            check_exposed(address, encrypted=encrypted, insecure=insecure)
    registry = _registry(plan, stack)
    stack.callback(registry.close)
    entries = [name for name, folder, _ in plan.models if folder.name == ENTRY]
    alone = entries or [name for name, _, _ in plan.models]
    if len(alone) == 1:  # models by `hedgerow export` have no sub graph `entry`
        registry.alias(ENTRY, alone[0])
    for name, folder, policy in plan.models:
        registry.watch(name, folder, policy)
    _check_ready(registry, [name for name, _, _ in plan.models])
    metrics = ServerMetrics(registry)
    server = PredictionServer(
        registry,
        plan.grpc,
        tls=plan.tls,
        compat=plan.compat,
        observe=metrics.observe,
        insecure=plan.access.insecure,
    )
    stack.callback(server.stop, plan.grace_s)
    rest = None
    if plan.http is not None:
        rest = RestServer(
            registry,
            plan.http,
            tls=plan.tls,
            metrics=metrics,
            hosts=plan.access.hosts,
            insecure=plan.access.insecure,
        )
        stack.callback(rest.stop, plan.grace_s)
    return registry, server, rest


def _registry(plan: ServePlan, stack: ExitStack) -> Registry:
    ask = None
    if plan.row_servers:
        known = {f"ps:{place}": replicas for place, replicas in enumerate(plan.row_servers)}
        ask = ask_rows(stack.enter_context(Replicas(known)))
    elif plan.ps_from is not None:
        ask = stack.enter_context(rows_from(plan.ps_from))
    trust = plan.trust
    return Registry(
        lambda folder, name: load_trusted(folder, name, trust, ask=ask),
        batching=Batching(),
        accept_pushes=plan.accepts_pushes,
    )


def _check_ready(registry: Registry, names: Sequence[str]) -> None:
    for name in names:
        if not registry.versions(name):
            reasons = [one.error for one in registry.status(name) if one.error]
            raise JobFailedError(
                f"no version of model {name} could be loaded: {'; '.join(reasons) or 'none found'}"
            )


def stop_by_signals() -> threading.Event:
    """Returns an event that SIGTERM and SIGINT set; a second signal ends the process at once.

    The system may deliver a signal to any thread, and Python's handlers then wait for the main
    thread, which sleeps. So a thread reads the wakeup file, to which Python writes at once.
    """
    stop = threading.Event()
    told, tell = socket.socketpair()
    tell.setblocking(False)
    signal.set_wakeup_fd(tell.fileno(), warn_on_full_buffer=False)

    def end(number: int, _: object) -> None:  # may run while this thread holds the event's lock
        signal.signal(number, signal.SIG_DFL)

    for number in _SIGNALS:
        signal.signal(number, end)
    threading.Thread(target=_set_when_told, args=(stop, (told, tell)), daemon=True).start()
    return stop


def _set_when_told(stop: threading.Event, ends: tuple[socket.socket, socket.socket]) -> None:
    """Sets `stop` on a signal; keeps both sockets open, so that later signals can be written."""
    told, _ = ends
    while byte := told.recv(1):
        if byte[0] in _SIGNALS:
            stop.set()


class Replica:
    """A server of exported models that publishers keep fresh; use it in a `with`.

    `path` is a version, the versions of one model, or a folder of models. `follow` has addresses
    where publishers listen; it is not needed for publishers that know this replica's address.
    Every client that reaches the replica may push. `access` has further options:
    Access(insecure=True) to let other machines connect without `tls`, Access(trust=KEY) to load
    only signed bundles.

    >>> import tempfile, torch, hedgerow as hr
    >>> bags = hr.EmbeddingBags([hr.Table("user", 2)], init=hr.Zeros(), optimizer=hr.Sgd(lr=1.0))
    >>> ids = hr.IdBatch.from_lists({"user": [[7], [8]]})
    >>> with tempfile.TemporaryDirectory() as base:
    ...     _ = hr.serving.export(bags, base, example=ids)
    ...     with hr.serving.Replica(base) as replica:
    ...         with hr.publish(bags, to=replica.address, every="50ms") as publisher:
    ...             _ = publisher.flush()  # nothing yet: what comes now is sent once
    ...             bags(ids)["user"].sum().backward()
    ...             publisher.flush()
    ...         replica.status()["models"][0]["shards"][0]["rows"]
    True
    2
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        follow: str | Sequence[str] = (),
        grpc: str = "127.0.0.1:0",
        http: str | None = None,
        name: str | None = None,
        policy: str = "latest",
        tls: Tls | None = None,
        access: Access | None = None,
    ) -> None:
        models = find_models(local_path(path), name, policy)
        self._follow = (follow,) if isinstance(follow, str) else tuple(follow)
        self._plan = ServePlan(
            models=models,
            grpc=grpc,
            http=http,
            tls=tls,
            grace_s=2.0,
            access=replace(access or Access(), accept_pushes=True),
        )
        self._stack = ExitStack()
        self._service: SyncService | None = None
        self.address, self.http_address = "", ""

    def start(self) -> Self:
        """Starts to answer requests at `address`."""
        if self._service is not None:
            raise StateError("this replica was started before; make a new one.")
        with ExitStack() as stack:
            registry, server, rest = open_servers(self._plan, stack)
            self._service = SyncService(registry)
            if rest is not None:
                self.http_address = rest.start().address
            self.address = server.start().address
            if self._follow:
                stack.enter_context(Announcer(self._follow, self.address))
            self._stack = stack.pop_all()
        return self

    def status(self) -> dict[str, Any]:
        """Returns version, row freshness per trainer shard, and weights of every model."""
        return {"models": []} if self._service is None else self._service.status()

    def stop(self) -> None:
        """Deregisters from publishers, and waits for requests in flight."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
