"""Pushes that are under way to one replica: a few at once, in order, each answered."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from .link import Call, Link, TargetError
from .protocol import PushMark
from .requests import Push

_MOST = 2  # one is applied while the next arrives; two that arrive come in alternating pieces
Observe = Callable[[Push, str, float, str], None]
"""Called after each push: what was sent, the model, its seconds, and its code."""


@dataclass(frozen=True, slots=True)
class _Flying:
    push: Push
    call: Call
    seq: int
    begun_s: float


class Flights:
    """Pushes of one session, numbered from 1; of one thread.

    Each tells the number of the one before while that is not answered: the replica applies them in
    this order, whichever of its threads is first.
    """

    def __init__(
        self,
        session: str,
        model: str,
        place: tuple[str, int],
        *,
        timeout_s: float,
        observe: Observe,
    ) -> None:
        self.session, self.seq = session, 0
        self._model, self._timeout_s, self._observe = model, timeout_s, observe
        self._publisher, self._shard = place
        self._flying: deque[_Flying] = deque()

    def send(self, link: Link, push: Push) -> None:
        """Begins a push, once there is room for it."""
        while len(self._flying) >= _MOST:
            self._land()
        self.seq += 1
        after = self._flying[-1].seq if self._flying else 0
        mark = PushMark(self.session, self.seq, self._shard, self._publisher, after)
        call = link.begin_predict(push.request, self._timeout_s, mark)
        self._flying.append(_Flying(push, call, self.seq, time.monotonic()))

    def land_all(self) -> None:
        """Waits for all answers; the first that is an error is raised."""
        while self._flying:
            self._land()

    def give_up(self) -> None:
        """Waits for no answer: what may still arrive is older than all that is sent from now on."""
        for one in self._flying:
            one.call.cancel()
        self._flying.clear()

    def _land(self) -> None:
        flying, code = self._flying.popleft(), "OK"
        try:
            flying.call.answer()
        except TargetError as error:
            code = error.code
            raise
        finally:
            self._observe(flying.push, self._model, time.monotonic() - flying.begun_s, code)
