"""Says whom a client waits for when a server does not answer, instead of waiting in silence."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable
from datetime import datetime

from ..core.clock import wall_ns
from .frames import Verb
from .tickets import Ticket

_FIRST_S = 2.0  # without an answer, until it is said
_AGAIN_S = 15.0  # until it is said again
_LONG = frozenset((Verb.CHECKPOINT, Verb.SAVE, Verb.LOAD))  # as long as there are rows


class Silence:
    """What was said about one server that does not answer. Single-owner: whoever has the turn."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._heard_s = -math.inf  # the last answer, on the monotonic clock
        self._since_s = math.inf  # of the silence that was told of; infinite if none was
        self._next_s = -math.inf  # before it, nothing more is said

    def heard(self) -> None:
        """The server has answered something."""
        self._heard_s = now = time.monotonic()
        if self._since_s < now:
            _say("%s answers again, after %.0f s.", self._where, now - self._since_s)
            self._since_s, self._next_s = math.inf, -math.inf

    def look(self, waiting: Iterable[Ticket], now: float, *, is_up: bool, complaint: str) -> None:
        """Says what is waited for if it has lasted. A save that takes long is none of that."""
        late = [t for t in waiting if not (is_up and t.verb in _LONG)]
        if not late or now < self._next_s:
            return
        oldest = min(late, key=_began_s)
        since_s = max(oldest.began_s, self._heard_s)
        if now - since_s < _FIRST_S:
            return
        self._next_s = now + _AGAIN_S
        self._since_s = min(self._since_s, since_s)
        state = "it is connected" if is_up else complaint or "it cannot be reached"
        _say(
            "waiting for %s: no answer to %s since %s (%.0f s); %s. %s",
            self._where,
            oldest.verb.name.lower(),
            _at(since_s - now),
            now - since_s,
            state,
            _what_next(oldest, now),
        )


def _what_next(ticket: Ticket, now: float) -> str:
    if math.isinf(ticket.limit_s):
        return "It is asked again for as long as it takes."
    return (
        f"It is asked again until {_at(ticket.limit_s - now)}; if it comes back by then, the "
        f"request goes on and is done once, otherwise it is given up with DeadlineError."
    )


def _began_s(ticket: Ticket) -> float:
    return ticket.began_s


def _at(from_now_s: float) -> str:
    """The time of day that many seconds from now."""
    return datetime.fromtimestamp(wall_ns() / 1e9 + from_now_s).strftime("%H:%M:%S")


def _say(text: str, *values: object) -> None:
    logging.getLogger("hedgerow").warning(text, *values)
