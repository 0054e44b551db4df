"""What a server remembers of its clients as bytes of a checkpoint, and back."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

from ..core.errors import CheckpointError
from .clients import Client, Clients
from .frames import Answer, Status, Verb

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


def _plain(answer: Answer) -> list[Any]:
    frames = [base64.b64encode(bytes(frame)).decode() for frame in answer.frames]
    return [int(answer.verb), int(answer.status), list(answer.numbers), frames]


def unpack(data: bytes) -> Remembered:
    """What `pack` was given."""
    try:
        told = json.loads(data)
        clients = [
            (int(number), Client(int(acked), int(last), {int(s): _answer(*a) for s, *a in done}))
            for number, acked, last, done in told["clients"]
        ]
        return Remembered(int(told["segment"]), clients)
    except (ArithmeticError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"the blob of a server is not readable: {error!r}.") from error


def _answer(verb: int, status: int, numbers: list[int], frames: list[str]) -> Answer:
    a, b, c = numbers
    return Answer(
        Verb(verb),
        status=Status(status),
        numbers=(a, b, c),
        frames=[base64.b64decode(frame) for frame in frames],
    )
