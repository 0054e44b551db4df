"""A server of exported models that publishers keep fresh, inside this process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from os import PathLike
from types import TracebackType
from typing import Any, Self

from ..core.errors import StateError
from ..core.local_path import local_path
from ..sync.roster import Announcer
from .process import Access, ServePlan, find_models, open_servers
from .sync_service import SyncService
from .tls import Tls


class Replica:
    """Serves what `export` wrote and takes what publishers push; use it in a `with`.

    `path` is a version, the versions of one model, or a folder of models. `follow` names the
    addresses where publishers listen; those who know this replica's address need no word from it.
    It takes pushes from every client that reaches it. `access` says more: Access(insecure=True)
    for an address that other machines reach without `tls`, Access(trust=KEY) for signed bundles.

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
        """Answers from now on, at `address`."""
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
        """Of every model: its version, how fresh each trainer shard's rows are, its weights."""
        return {"models": []} if self._service is None else self._service.status()

    def stop(self) -> None:
        """Says good-bye to publishers, and lets requests under way end."""
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
