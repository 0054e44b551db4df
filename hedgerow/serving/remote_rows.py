"""Reads the rows of an entry model from the servers that hold them, and finds these servers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate
from types import TracebackType

import torch
from torch import Tensor

from ..core.counters import Counters
from ..core.errors import InputError
from ..core.shapes import Int64
from ..discovery.paths import ReplicaPaths
from ..discovery.replicas import ReplicaWatcher, ZkBackend
from ..discovery.targets import FileAddressBook
from ..discovery.zookeeper import Session
from ..routing.router import Router
from ..tables.store import Lookup, Missing, TableKeys
from ..wire.messages import agent_service as messages
from ..wire.rpc import AGENT_SERVICE, methods
from .agent import AddressBook
from .channels import Channel, PendingCall, Replicas
from .client import decoded, predict_method, predict_request
from .model import ServingError, Tensors
from .request_context import shortest_s

Ask = Callable[[Mapping[str, Tensors]], Mapping[str, Tensors]]
"""Returns the outputs of `raw_lookup` for inputs by sub graph (`ps_0`); all are sent at once."""


class RemoteRows:
    """Reads each distinct id once, from the server that owns it."""

    def __init__(self, dims: Mapping[str, int], routers: Mapping[str, Router], ask: Ask) -> None:
        self.names, self.dims = tuple(dims), tuple(dims.values())
        self._routers, self._ask = [routers[name] for name in dims], ask
        self._servers = self._routers[0].shards if self._routers else 0

    def lookup(
        self, keys: TableKeys, *, missing: Missing = "zeros", step: int | None = None
    ) -> Lookup:
        """Returns the rows of `keys`; absent keys give zeros, whatever `missing` and `step` are."""
        del missing, step
        tables = [_Distinct(keys.ids_of(k), router) for k, router in enumerate(self._routers)]
        requests = {f"ps_{s}": _request(tables, s) for s in range(self._servers)}
        requests = {name: inputs for name, inputs in requests.items() if len(inputs["id"])}
        answers = self._ask(requests) if requests else {}
        found = [
            torch.empty(len(t.ids), dim, dtype=torch.float32)
            for t, dim in zip(tables, self.dims, strict=True)
        ]
        for name, inputs in requests.items():
            self._fill(found, tables, name, inputs, answers)
        rows = [part[table.inverse].view(-1) for part, table in zip(found, tables, strict=True)]
        return Lookup(keys, torch.cat(rows), self.dims)

    def _fill(
        self,
        found: list[Tensor],
        tables: list[_Distinct],
        name: str,
        inputs: Tensors,
        answers: Mapping[str, Tensors],
    ) -> None:
        """Copies the rows of one server's answer to their places."""
        sizes = inputs["id_split"].diff().tolist()
        floats = [n * dim for n, dim in zip(sizes, self.dims, strict=True)]
        flat = answers[name].get("flat_emb") if name in answers else None
        if flat is None or flat.dtype != torch.float32 or flat.numel() != sum(floats):
            raise ServingError(
                "INTERNAL", f"{name} did not answer with {sum(floats)} floats named flat_emb."
            )
        server = int(name.removeprefix("ps_"))
        for rows, table, part, dim in zip(
            found, tables, flat.view(-1).split(floats), self.dims, strict=True
        ):
            rows[table.owners == server] = part.view(-1, dim)


class _Distinct:
    """The distinct ids of one table, and the owner of each."""

    def __init__(self, ids: Int64[Tensor, "n"], router: Router) -> None:
        self.ids, self.inverse = ids.unique(return_inverse=True)
        self.owners = router.owners(self.ids)


def _request(tables: list[_Distinct], server: int) -> dict[str, Tensor]:
    parts = [table.ids[table.owners == server] for table in tables]
    splits = torch.tensor([0, *accumulate(len(part) for part in parts)])
    return {"id": torch.cat(parts), "id_split": splits}


RAW_LOOKUP = "raw_lookup"
ROWS_DEADLINE_S = 1.0


def ask_rows(
    replicas: Replicas,
    *,
    signature: str = RAW_LOOKUP,
    deadline_s: float = ROWS_DEADLINE_S,
    model_name: str | None = None,
) -> Callable[[Mapping[str, Tensors]], Mapping[str, Tensors]]:
    """Returns the function for `load_bundle(..., ask=)`, which reads rows from `replicas`.

    `model_name` is for servers that serve sub graph `ps_0` as "model:ps_0".

    >>> with Replicas({}) as replicas:
    ...     ask_rows(replicas)({})
    {}
    """

    def ask(inputs: Mapping[str, Tensors]) -> Mapping[str, Tensors]:
        timeout_s = shortest_s(deadline_s)
        if timeout_s <= 0:
            raise ServingError("DEADLINE_EXCEEDED", "the request has no time left to ask for rows.")
        prefix = f"{model_name}:" if model_name is not None and replicas.named else ""
        with ExitStack() as stack:
            pending = {
                name: _begin(replicas, prefix + name, given, signature, timeout_s, stack)
                for name, given in inputs.items()
            }
            return {name: _outputs(name, one) for name, one in pending.items()}

    return ask


def _begin(
    replicas: Replicas,
    name: str,
    given: Tensors,
    signature: str,
    timeout_s: float,
    stack: ExitStack,
) -> PendingCall:
    key, served = replicas.target(name, 0, name)
    addresses = replicas.choose(key)
    if not addresses:
        raise ServingError(
            "UNAVAILABLE",
            f"no remote server available for model {served!r}, signature {signature!r}: no "
            f"address is known under {key!r}.",
        )
    (channel,) = stack.enter_context(replicas.channels(addresses))
    request = predict_request(served, signature, given, (), None)
    pending = channel.begin(predict_method(), request, timeout_s)
    stack.callback(pending.cancel)  # if another call fails
    return pending


def _outputs(name: str, pending: PendingCall) -> Tensors:
    found = pending.answer().outputs
    return {alias: decoded(alias, found[alias], name) for alias in found}


HEARTBEAT_EVERY_S, HEARTBEAT_DEADLINE_S = 15.0, 5.0
_LOG = logging.getLogger("hedgerow")
Addresses = Mapping[str, Sequence[str]]


class Heartbeats:
    """The addresses of row servers and dense servers, as an agent reports them.

    Each kind is a call of its own. If a call fails, its last answer stays valid, since servers do
    not stop when their agent restarts. Failures are counted as `failed_heartbeats`.

    >>> with Heartbeats("127.0.0.1:1", deadline_s=0.1) as heartbeats:
    ...     heartbeats.ask(), heartbeats.counters.read("failed_heartbeats")
    ({}, 2)
    """

    def __init__(self, agent: str, *, deadline_s: float = HEARTBEAT_DEADLINE_S) -> None:
        self.counters = Counters()
        self._channel, self._deadline_s = Channel(agent), deadline_s
        self._told: dict[int, dict[str, list[str]]] = {}

    def ask(self) -> dict[str, list[str]]:
        """Asks the agent, and returns the addresses of all replicas by key."""
        method = methods(AGENT_SERVICE)["HeartBeat"]
        for kind in (messages.ServerType.PS, messages.ServerType.DENSE):
            request = messages.HeartBeatRequest(server_type=kind)
            try:
                answer = self._channel.call(method, request, self._deadline_s)
            except ServingError as error:
                self.counters.add("failed_heartbeats")
                _LOG.warning("the agent at %s: %s", self._channel.address, error)
                continue
            self._told[kind] = {key: list(one.address) for key, one in answer.addresses.items()}
        return {key: found for told in self._told.values() for key, found in told.items()}

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()

    def __enter__(self) -> Heartbeats:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


class RefreshedReplicas:
    """Replicas whose addresses a thread refreshes every `every_s` seconds.

    Inside `with` they are the current ones of this process, as with `Replicas`.

    >>> with RefreshedReplicas(lambda: {"ps:0": ["127.0.0.1:8500"]}, every_s=60) as replicas:
    ...     replicas.choose("ps:0")
    ['127.0.0.1:8500']
    """

    def __init__(
        self, source: Callable[[], Addresses], *, every_s: float = HEARTBEAT_EVERY_S
    ) -> None:
        self._source, self._every_s = source, every_s
        self._last = {key: list(found) for key, found in source().items()}
        self.replicas = Replicas(self._last)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="replicas", daemon=True)

    def refresh(self) -> bool:
        """Refreshes the addresses now; returns whether they changed."""
        found = {key: list(addresses) for key, addresses in self._source().items()}
        if found == self._last:
            return False
        self._last = found
        self.replicas.update(found)
        return True

    def _keep(self) -> None:
        while not self._ended.wait(self._every_s):
            try:
                self.refresh()
            except Exception:  # keep the last addresses and retry later
                _LOG.exception("replicas could not be asked for")

    def __enter__(self) -> Replicas:
        replicas = self.replicas.__enter__()
        self._thread.start()
        return replicas

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        self.replicas.__exit__(kind, error, at)


_FILE_S = 1.0
FORMS = "file:PATH, agent:HOST:PORT, zk:HOSTS/BZID/BASE_NAME or zk2:HOSTS/BZID/MODEL"


@contextmanager
def rows_from(place: str) -> Iterator[Ask]:
    """Yields the function for `load_bundle(..., ask=)`, which reads from the servers at `place`.

    >>> with rows_from("pigeon:1"):
    ...     pass
    Traceback (most recent call last):
    hedgerow.core.errors.InputError: 'pigeon:1' is no source of row servers; write file:PATH, \
agent:HOST:PORT, zk:HOSTS/BZID/BASE_NAME or zk2:HOSTS/BZID/MODEL.
    """
    kind, _, rest = place.partition(":")
    parts = rest.split("/")
    with ExitStack() as stack:
        if kind == "file" and rest:
            book = FileAddressBook(rest)
            kept = RefreshedReplicas(lambda: _rows(book), every_s=_FILE_S)
            yield ask_rows(stack.enter_context(kept))
        elif kind == "agent" and rest:
            beats = stack.enter_context(Heartbeats(rest))
            kept = RefreshedReplicas(beats.ask)
            yield ask_rows(stack.enter_context(kept))
        elif kind == "zk" and len(parts) == 3:
            session = stack.enter_context(Session.connect(parts[0]))
            watcher = ReplicaWatcher(session, ReplicaPaths(parts[1], parts[2]))
            watcher.start()
            yield ask_rows(stack.enter_context(watched_replicas(session, watcher)))
        elif kind == "zk2" and len(parts) == 3:
            session = stack.enter_context(Session.connect(parts[0]))
            backend = ZkBackend(session, parts[1])
            backend.subscribe_model(parts[2])
            replicas = stack.enter_context(watched_replicas(session, backend))
            yield ask_rows(replicas, model_name=parts[2])
        else:
            raise InputError(f"{place!r} is no source of row servers; write {FORMS}.")


@contextmanager
def watched_replicas(session: Session, book: AddressBook) -> Iterator[Replicas]:
    """Yields Replicas with the addresses of a book, which a ZooKeeper session keeps up to date."""
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
