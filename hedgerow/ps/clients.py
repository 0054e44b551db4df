"""What a server records about its clients, so that a repeated write is applied once."""

from __future__ import annotations

import base64
import json
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ..core.errors import CheckpointError
from .messages import RequestOrigin, ServerAnswer, Status, Verb

MAX_CLIENTS = 65536  # beyond it, the client that was idle longest is forgotten
MAX_WAITING = 4096  # unacknowledged writes of one client


class WriteState(Enum):
    """The state of a write that has arrived."""

    NEW = "new"
    UNDERWAY = "underway"  # the same write arrived before and is not done
    STALE = "stale"  # a late copy: the client has acknowledged the answer
    FULL = "full"  # the client has too many unacknowledged writes


@dataclass(slots=True)
class Client:
    """The writes of one client: those that are done, with their answers, and those in progress."""

    acked: int = 0  # the client has the answers to all its writes below this sequence
    last: int = 0  # the highest sequence that was applied
    done: dict[int, ServerAnswer] = field(default_factory=dict)
    underway: dict[int, object] = field(default_factory=dict)  # the address of each answer


class Clients:
    """The clients of a server. Safe from many threads.

    >>> clients = Clients()
    >>> write = RequestOrigin(client=7, sequence=1)
    >>> clients.admit(write, "here"), clients.admit(write, "there")
    (<WriteState.NEW: 'new'>, <WriteState.UNDERWAY: 'underway'>)
    >>> clients.last_of(7)
    0
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[int, Client] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def admit(self, origin: RequestOrigin, to: object) -> WriteState | ServerAnswer:
        """Returns the state of a write, or its answer if it is done.

        A new write becomes in progress.
        """
        with self._lock:
            client = self._of(origin.client)
            self._acknowledge(client, origin.acked)
            if origin.sequence < client.acked:
                return WriteState.STALE
            if origin.sequence in client.done:
                return client.done[origin.sequence]
            if origin.sequence in client.underway:
                client.underway[origin.sequence] = to  # the client may have reconnected
                return WriteState.UNDERWAY
            if len(client.done) + len(client.underway) >= MAX_WAITING:
                return WriteState.FULL
            client.underway[origin.sequence] = to
            return WriteState.NEW

    def finish(self, origin: RequestOrigin, answer: ServerAnswer) -> object:
        """Records the answer to a write. Returns the address of the answer; None in a replay."""
        with self._lock:
            client = self._of(origin.client)
            self._acknowledge(client, origin.acked)
            if origin.sequence >= client.acked:
                client.done[origin.sequence] = answer
            client.last = max(client.last, origin.sequence)
            return client.underway.pop(origin.sequence, None)

    def give_up(self, origin: RequestOrigin) -> object:
        """Forgets a write that was not applied, so that it may be sent again.

        Returns the address of its answer.
        """
        with self._lock:
            return self._of(origin.client).underway.pop(origin.sequence, None)

    def refuse(self, origin: RequestOrigin, answer: ServerAnswer) -> None:
        """Records an error as the answer to a write, so that late copies are refused as well."""
        with self._lock:
            client = self._of(origin.client)
            if origin.sequence >= client.acked:
                client.done[origin.sequence] = answer
            client.underway.pop(origin.sequence, None)

    def is_writing(self, number: int) -> bool:
        """Whether a client has writes in progress. Its reads must not overtake them."""
        client = self._known.get(number)
        return client is not None and bool(client.underway)

    def last_of(self, number: int) -> int:
        """Returns the sequence of the last applied write of a client."""
        client = self._known.get(number)
        return 0 if client is None else client.last

    def put(self, number: int, client: Client) -> None:
        """Adds a client that was read from a file."""
        with self._lock:
            self._known[number] = client

    def remembered(self) -> list[tuple[int, int, int, dict[int, ServerAnswer]]]:
        """Returns the number, `acked`, `last` and answers of each client, longest idle first."""
        with self._lock:
            return [(n, c.acked, c.last, dict(c.done)) for n, c in self._known.items()]

    def _of(self, number: int) -> Client:
        client = self._known.get(number)
        if client is None:
            client = self._known[number] = Client()
            self._forget_silent()
        else:
            self._known.move_to_end(number)
        return client

    def _acknowledge(self, client: Client, acked: int) -> None:
        if acked <= client.acked:
            return
        client.acked = acked
        for sequence in [s for s in client.done if s < acked]:
            del client.done[sequence]

    def _forget_silent(self) -> None:
        if len(self._known) <= MAX_CLIENTS:
            return
        for number, client in self._known.items():
            if not client.underway:
                del self._known[number]
                return


BLOB = "hedgerow ps"


def blob_name(shard: int, shards: int) -> str:
    """Returns the name of one server's blob in a checkpoint of all servers."""
    return f"{BLOB} {shard} of {shards}"


@dataclass(frozen=True, slots=True)
class Remembered:
    """The content of the blob. The log continues at `segment`; 0 means that there is no log."""

    segment: int
    clients: list[tuple[int, Client]]


def pack(clients: Clients, segment: int = 0) -> bytes:
    """Returns the state of all clients as bytes."""
    told = [
        [number, acked, last, [[s, *_plain(answer)] for s, answer in done.items()]]
        for number, acked, last, done in clients.remembered()
    ]
    return json.dumps({"segment": segment, "clients": told}).encode()


def _plain(answer: ServerAnswer) -> list[Any]:
    frames = [base64.b64encode(bytes(frame)).decode() for frame in answer.frames]
    return [int(answer.verb), int(answer.status), list(answer.numbers), frames]


def unpack(data: bytes) -> Remembered:
    """Reads the result of `pack`."""
    try:
        told = json.loads(data)
        clients = [
            (int(number), Client(int(acked), int(last), {int(s): _answer_of(*a) for s, *a in done}))
            for number, acked, last, done in told["clients"]
        ]
        return Remembered(int(told["segment"]), clients)
    except (ArithmeticError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"the blob of a server is not readable: {error!r}.") from error


def _answer_of(verb: int, status: int, numbers: list[int], frames: list[str]) -> ServerAnswer:
    a, b, c = numbers
    return ServerAnswer(
        Verb(verb),
        status=Status(status),
        numbers=(a, b, c),
        frames=[base64.b64decode(frame) for frame in frames],
    )
