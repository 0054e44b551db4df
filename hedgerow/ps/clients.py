"""What a server remembers of its clients, so that a repeated write is applied once."""

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

MAX_CLIENTS = 65536  # remembered; beyond, the one that was silent longest and waits for nothing
MAX_WAITING = 4096  # writes of one client whose answers it has not acknowledged


class WriteState(Enum):
    """What the server knows of a write that has arrived."""

    NEW = "new"
    UNDERWAY = "underway"  # the same write came before and is not done
    STALE = "stale"  # its client has the answer already: a copy that was late
    FULL = "full"  # the client has too many writes whose answers it has not acknowledged


@dataclass(slots=True)
class Client:
    """One client: `acked` and `done` say what happened, `underway` what is about to."""

    acked: int = 0  # it has the answers to all its writes below this sequence
    last: int = 0  # the highest sequence that was applied
    done: dict[int, ServerAnswer] = field(default_factory=dict)
    underway: dict[int, object] = field(default_factory=dict)  # to where the answer goes


class Clients:
    """All of them. Safe from many threads.

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
        """What to do with a write; one that is new is under way from now on."""
        with self._lock:
            client = self._of(origin.client)
            self._acknowledge(client, origin.acked)
            if origin.sequence < client.acked:
                return WriteState.STALE
            if origin.sequence in client.done:
                return client.done[origin.sequence]
            if origin.sequence in client.underway:
                client.underway[origin.sequence] = to  # the client may have come anew
                return WriteState.UNDERWAY
            if len(client.done) + len(client.underway) >= MAX_WAITING:
                return WriteState.FULL
            client.underway[origin.sequence] = to
            return WriteState.NEW

    def finish(self, origin: RequestOrigin, answer: ServerAnswer) -> object:
        """Remembers what a write did; to where its answer goes, None in a replay."""
        with self._lock:
            client = self._of(origin.client)
            self._acknowledge(client, origin.acked)
            if origin.sequence >= client.acked:
                client.done[origin.sequence] = answer
            client.last = max(client.last, origin.sequence)
            return client.underway.pop(origin.sequence, None)

    def give_up(self, origin: RequestOrigin) -> object:
        """A write that was not done and may come again; to where that is told."""
        with self._lock:
            return self._of(origin.client).underway.pop(origin.sequence, None)

    def refuse(self, origin: RequestOrigin, answer: ServerAnswer) -> None:
        """A write that was not done, as its client is told: nor is a copy of it that is late."""
        with self._lock:
            client = self._of(origin.client)
            if origin.sequence >= client.acked:
                client.done[origin.sequence] = answer
            client.underway.pop(origin.sequence, None)

    def is_writing(self, number: int) -> bool:
        """Whether writes of a client are under way, which its reads must not overtake."""
        client = self._known.get(number)
        return client is not None and bool(client.underway)

    def last_of(self, number: int) -> int:
        """The last write of a client that was applied."""
        client = self._known.get(number)
        return 0 if client is None else client.last

    def put(self, number: int, client: Client) -> None:
        """One that a file remembers."""
        with self._lock:
            self._known[number] = client

    def remembered(self) -> list[tuple[int, int, int, dict[int, ServerAnswer]]]:
        """Number, acked, last and answers of each, the most silent first."""
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
    """The blob of one server in a checkpoint of all."""
    return f"{BLOB} {shard} of {shards}"


@dataclass(frozen=True, slots=True)
class Remembered:
    """What stands in the blob: the log goes on at `segment` (0: there is none)."""

    segment: int
    clients: list[tuple[int, Client]]


def pack(clients: Clients, segment: int = 0) -> bytes:
    """All clients at this moment."""
    told = [
        [number, acked, last, [[s, *_plain(answer)] for s, answer in done.items()]]
        for number, acked, last, done in clients.remembered()
    ]
    return json.dumps({"segment": segment, "clients": told}).encode()


def _plain(answer: ServerAnswer) -> list[Any]:
    frames = [base64.b64encode(bytes(frame)).decode() for frame in answer.frames]
    return [int(answer.verb), int(answer.status), list(answer.numbers), frames]


def unpack(data: bytes) -> Remembered:
    """What `pack` was given."""
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
