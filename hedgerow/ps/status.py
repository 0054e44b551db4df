"""How servers are: health and counters, also of one that has no tables yet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core.errors import HedgerowError
from .buffers import value_of
from .connection import Connection
from .curve import ClientKeys
from .frames import Request, Verb
from .tickets import Kept, Patience

_RETRY_S = 1.0


def status_of(
    addresses: Sequence[str], *, keys: Path | None = None, deadline_s: float = 5.0
) -> list[dict[str, Any]]:
    """For each address its health and counters, or an error; all are asked at once."""
    own = None if keys is None else ClientKeys.read(keys)
    patience = Patience(deadline_s, _RETRY_S)
    asked = []
    try:
        for address in addresses:
            full = address if "://" in address else f"tcp://{address}"
            connection = Connection(full, keys=own, patience=patience)
            verbs = (Verb.HEALTH, Verb.COUNTERS)
            kept = [Kept() for _ in verbs]
            tickets = [
                connection.start(Request(verb), [], sink)
                for verb, sink in zip(verbs, kept, strict=True)
            ]
            asked.append((address, connection, kept, tickets))
        return [_answer(*one) for one in asked]
    finally:
        for _, connection, _, _ in asked:
            connection.close()


def _answer(
    address: str, connection: Connection, kept: Sequence[Kept], tickets: Sequence[Any]
) -> dict[str, Any]:
    try:
        for ticket in tickets:
            connection.wait(ticket)
    except HedgerowError as error:
        return {"address": address, "error": str(error)}
    health, counters = (dict(value_of(one.frames[0])) for one in kept)
    return {"address": address, "health": health, "counters": counters}
