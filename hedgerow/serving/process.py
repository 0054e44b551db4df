"""A serving process: which folders it serves, its servers, its start and its end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import FileMissingError, InputError, JobFailedError
from ..sync.roster import Announcer
from ..wire.tensors import Compat
from .ask_rows import ask_rows
from .batching import Batching
from .bundle import load_bundle
from .metrics import Metrics
from .policies import Policy, Specific, policy_of
from .registry import Registry
from .replicas import Replicas
from .rest import RestServer
from .rows_from import rows_from
from .server import PredictionServer
from .tls import Tls


@dataclass(frozen=True, slots=True, kw_only=True)
class ServePlan:
    """What a process serves: model names with their folders, and where it listens."""

    models: tuple[tuple[str, Path, Policy], ...]
    grpc: str
    http: str | None = None
    tls: Tls | None = None
    row_servers: tuple[tuple[str, ...], ...] = ()  # the replicas of ps_0, of ps_1, ...
    ps_from: str | None = None  # who tells them instead, as rows_from() takes it
    grace_s: float = 10.0
    compat: Compat = None
    follow: tuple[str, ...] = ()


def find_models(
    folder: Path, name: str | None = None, policy: str = "latest"
) -> tuple[tuple[str, Path, Policy], ...]:
    """The models of a folder: one version, the versions of one model, or a folder of models.

    >>> find_models(Path("/nowhere"))
    Traceback (most recent call last):
    hedgerow.core.errors.FileMissingError: there is no folder /nowhere; name what export() wrote.
    """
    if not folder.is_dir():
        raise FileMissingError(f"there is no folder {folder}; name what export() wrote.")
    own = folder.resolve()
    if _has_versions(own):
        return ((name or own.name, own, policy_of(policy)),)
    if _is_version(own):
        if policy != "latest":
            raise InputError(f"{folder} is one version; --policy needs the folder above it.")
        return ((name or own.parent.name, own.parent, Specific((int(own.name),))),)
    found = sorted(path for path in own.iterdir() if path.is_dir() and _has_versions(path))
    if not found:
        raise FileMissingError(f"{folder} holds no version of a model; name what export() wrote.")
    if name is not None and len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise InputError(f"{folder} holds several models ({names}); --name fits only one.")
    return tuple((name or path.name, path, policy_of(policy)) for path in found)


def _is_version(path: Path) -> bool:
    return path.name.isascii() and path.name.isdecimal()


def _has_versions(folder: Path) -> bool:
    return any(_is_version(path) and path.is_dir() for path in folder.iterdir())


def serve(plan: ServePlan, tell: Callable[[str], None], stop: threading.Event) -> None:
    """Serves until `stop`; `tell` gets a line for each address once requests may come."""
    with ExitStack() as stack:
        _, server, rest = open_servers(plan, stack)
        if rest is not None:
            tell(f"http {rest.start().address}")
        tell(f"grpc {server.start().address}")
        if plan.follow:
            stack.enter_context(Announcer(plan.follow, server.address))
        stop.wait()
        if rest is not None:
            rest.drain()  # first, so that balancers see it while requests are still answered
        server.stop(plan.grace_s)


def open_servers(
    plan: ServePlan, stack: ExitStack
) -> tuple[Registry, PredictionServer, RestServer | None]:
    """Loads the models and makes their servers, which are not started; `stack` closes all."""
    registry = _registry(plan, stack)
    stack.callback(registry.close)
    for name, folder, policy in plan.models:
        registry.watch(name, folder, policy)
    _check_ready(registry, [name for name, _, _ in plan.models])
    metrics = Metrics(registry)
    server = PredictionServer(
        registry, plan.grpc, tls=plan.tls, compat=plan.compat, observe=metrics.observe
    )
    stack.callback(server.stop, plan.grace_s)
    rest = None
    if plan.http is not None:
        rest = RestServer(registry, plan.http, tls=plan.tls, metrics=metrics)
        stack.callback(rest.stop, plan.grace_s)
    return registry, server, rest


def _registry(plan: ServePlan, stack: ExitStack) -> Registry:
    ask = None
    if plan.row_servers:
        known = {f"ps:{place}": replicas for place, replicas in enumerate(plan.row_servers)}
        ask = ask_rows(stack.enter_context(Replicas(known)))
    elif plan.ps_from is not None:
        ask = stack.enter_context(rows_from(plan.ps_from))
    return Registry(lambda folder, name: load_bundle(folder, name, ask=ask), batching=Batching())


def _check_ready(registry: Registry, names: Sequence[str]) -> None:
    for name in names:
        if not registry.versions(name):
            reasons = [one.error for one in registry.status(name) if one.error]
            raise JobFailedError(
                f"no version of model {name} could be loaded: {'; '.join(reasons) or 'none found'}"
            )


def stop_by_signals() -> threading.Event:
    """An event that SIGTERM and SIGINT set; a second one ends the process at once."""
    stop = threading.Event()

    def end(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    return stop
