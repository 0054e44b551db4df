"""How a server has received a client so far: what a failed greeting means, and when to try again.

A greeting is the handshake of a connection. One that fails can mean wrong keys or a bad network.
Before the first success wrong keys are likely, and nothing was sent; after it the keys are right,
and every failure is the network's, or that of a server on its way down or up.
"""

from __future__ import annotations

import random

from .line import Event

_MOST_BROKEN_OFF = 8  # in a row, with keys, before the first success: then keys are what is wrong
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5  # between two greetings


class Greetings:
    """The greetings of one connection. Single-owner: whoever has the turn.

    >>> greetings = Greetings(has_keys=True)
    >>> for _ in range(8):
    ...     _ = greetings.failed(Event.BROKEN_OFF)
    >>> greetings.refused, "the keys do not fit" in greetings.complaint
    (True, True)
    >>> greetings.succeeded()
    >>> pause_s = greetings.failed(Event.REFUSED)
    >>> greetings.refused, 0 < pause_s < 1
    (False, True)
    """

    def __init__(self, *, has_keys: bool) -> None:
        self._has_keys = has_keys
        self._was_accepted = self.settled = False  # settled: the last greeting succeeded
        self._failed = 0  # in a row
        self._last = Event.BROKEN_OFF
        self._random = random.Random()  # not the user's own draws

    def succeeded(self) -> None:
        """The server accepted this client."""
        self._was_accepted = self.settled = True
        self._failed = 0

    def lost(self) -> float:
        """A connection ended after its greeting; seconds until the next try.

        Clients that lost their server at one moment come back at different ones.
        """
        return _FIRST_PAUSE_S * self._random.uniform(0.75, 1.25)

    def failed(self, why: Event) -> float:
        """A greeting failed; seconds until the next try, more each time."""
        self._last, self.settled = why, False
        self._failed += 1
        return min(self.lost() * 2 ** min(self._failed - 1, 10), _LONGEST_PAUSE_S)

    @property
    def refused(self) -> bool:
        """Whether the server lets this client in at no time, as far as it can be known."""
        if self._was_accepted or not self._failed:
            return False
        if self._last in (Event.UNKNOWN_KEY, Event.REFUSED):
            return True
        return self._has_keys and self._failed >= _MOST_BROKEN_OFF

    @property
    def complaint(self) -> str:
        """What is wrong with the greetings, in words; empty while they succeed."""
        if not self._failed:
            return ""
        if self._was_accepted:
            unknown = "; it says that it does not know this client's key" * self._is_unknown
            return (
                f"it accepted this client before, and since then {self._failed} greetings failed: "
                f"the network cuts connections, or the server was restarted, perhaps with other "
                f"keys{unknown}"
            )
        if self._is_unknown:
            return (
                "it refuses this client: the keys do not fit; the client's public key is not among "
                "the server's client*.pub"
            )
        if self._last is Event.REFUSED:
            return "it refuses this client: the keys do not fit; only one side has keys"
        if not self.refused:
            return f"{self._failed} greetings in a row were broken off"
        return (
            f"it broke off {self._failed} greetings in a row: the keys do not fit (server.pub here "
            f"is not the server's, or only one side has keys), or the network cuts every connection"
        )

    @property
    def _is_unknown(self) -> bool:
        return self._last is Event.UNKNOWN_KEY
