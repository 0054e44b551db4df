"""What publishers ask of a server: what it serves, sessions for pushes, sweeps and weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..core.errors import InputError
from ..sync.dense import DensePush
from ..sync.protocol import (
    ATTACH,
    BEAT,
    DENSE,
    DESCRIBE,
    REPLICA_SERVICE,
    SWEEP,
    read_json,
    to_json,
)
from ..wire.rpc import Behaviour, Coded, service_handler
from .followed import Followed
from .model import ServingError

if TYPE_CHECKING:
    from .registry import Registry

Answer = Callable[[bytes], dict[str, Any]]


class SyncService:
    """Answers publishers for the models of a registry: of each model its newest version."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def answers(self) -> dict[str, Answer]:
        """The function of each method, by name."""
        return {
            DESCRIBE: lambda _: {"models": [one["served"] for one in self._models()]},
            ATTACH: lambda data: self._ask(data, Followed.attach),
            SWEEP: lambda data: self._ask(data, Followed.sweep),
            BEAT: lambda data: self._ask(data, Followed.beat),
            DENSE: self._dense,
        }

    def status(self) -> dict[str, Any]:
        """How fresh every model is, fit for JSON."""
        return {"models": [one["status"] for one in self._models()]}

    def _models(self) -> Iterator[dict[str, Any]]:
        for name in self._registry.names():
            try:
                with self._registry.find(name) as model:
                    followed = model.followed
                    if followed is None:
                        continue
                    served = followed.describe(name, model.version)
            except ServingError:  # none of its versions answers now
                continue
            yield {
                "served": served.to_dict(),
                "status": {
                    "name": name,
                    "version": served.version,
                    "dense": followed.dense_status(),
                    "shards": [one.to_dict() for one in followed.shards()],
                },
            }

    @contextmanager
    def _followed(self, name: object) -> Iterator[Followed]:
        if not isinstance(name, str) or not name:
            raise InputError(f"model is {name!r}; name the model.")
        with self._registry.find(name) as model:
            if model.followed is None:
                raise InputError(f"model {name} takes no pushes in sessions.")
            yield model.followed

    def _ask(
        self, data: bytes, verb: Callable[[Followed, dict[str, Any]], dict[str, Any]]
    ) -> dict[str, Any]:
        self._registry.check_pushes()
        asked = read_json(data)
        with self._followed(asked.get("model")) as followed:
            return verb(followed, asked)

    def _dense(self, data: bytes) -> dict[str, Any]:
        self._registry.check_pushes()
        push = DensePush.from_bytes(data)
        with self._followed(push.model) as followed:
            return followed.take_dense(push)


def sync_handler(registry: Registry, coded: Coded) -> Any:
    """What grpcio calls; `coded` gives the code and the text of an error."""
    answers = SyncService(registry).answers()
    return service_handler(
        REPLICA_SERVICE, {name: _behaviour(answer) for name, answer in answers.items()}, coded
    )


def _behaviour(answer: Answer) -> Behaviour:
    return lambda data, _: to_json(answer(data))
