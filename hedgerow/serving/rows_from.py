"""How an entry model finds its row servers: a file, the agent beside it, or ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from ..core.errors import InputError
from ..discovery.paths import Service
from ..discovery.replica_watcher import ReplicaWatcher
from ..discovery.session import Session
from ..discovery.watched_file import FileBook
from ..discovery.zk_backend import ZkBackend
from .agent import AddressBook
from .ask_rows import ask_rows
from .heartbeats import Heartbeats, KeptReplicas
from .model import Tensors
from .replicas import Replicas

_FILE_S = 1.0
FORMS = "file:PATH, agent:HOST:PORT, zk:HOSTS/BZID/BASE_NAME or zk2:HOSTS/BZID/MODEL"
Ask = Callable[[Mapping[str, Tensors]], Mapping[str, Tensors]]


@contextmanager
def rows_from(place: str) -> Iterator[Ask]:
    """What `load_bundle(..., ask=)` takes, for servers that `place` tells.

    >>> with rows_from("pigeon:1"):
    ...     pass
    Traceback (most recent call last):
    hedgerow.core.errors.InputError: 'pigeon:1' tells no row servers; write file:PATH, \
agent:HOST:PORT, zk:HOSTS/BZID/BASE_NAME or zk2:HOSTS/BZID/MODEL.
    """
    kind, _, rest = place.partition(":")
    parts = rest.split("/")
    with ExitStack() as stack:
        if kind == "file" and rest:
            book = FileBook(rest)
            kept = KeptReplicas(lambda: _rows(book), every_s=_FILE_S)
            yield ask_rows(stack.enter_context(kept))
        elif kind == "agent" and rest:
            beats = stack.enter_context(Heartbeats(rest))
            kept = KeptReplicas(beats.ask)
            yield ask_rows(stack.enter_context(kept))
        elif kind == "zk" and len(parts) == 3:
            session = stack.enter_context(Session.connect(parts[0]))
            watcher = ReplicaWatcher(session, Service(parts[1], parts[2]))
            watcher.start()
            yield ask_rows(stack.enter_context(followed(session, watcher)))
        elif kind == "zk2" and len(parts) == 3:
            session = stack.enter_context(Session.connect(parts[0]))
            backend = ZkBackend(session, parts[1])
            backend.subscribe_model(parts[2])
            replicas = stack.enter_context(followed(session, backend))
            yield ask_rows(replicas, model_name=parts[2])
        else:
            raise InputError(f"{place!r} tells no row servers; write {FORMS}.")


@contextmanager
def followed(session: Session, book: AddressBook) -> Iterator[Replicas]:
    """Replicas that change with a book, which the session keeps up to date already."""
    replicas = Replicas(_rows(book))
    last = _rows(book)

    def refresh() -> None:
        nonlocal last
        found = _rows(book)
        if found != last:
            last = found
            replicas.update(found)

    with replicas:
        session.follow(refresh)
        try:
            yield replicas
        finally:
            session.unfollow(refresh)


def _rows(book: AddressBook) -> dict[str, list[str]]:
    return {
        key: list(found) for kind in ("ps", "dense") for key, found in book.addresses(kind).items()
    }
