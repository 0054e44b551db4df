"""The errors that a client and a server raise about each other."""

from __future__ import annotations

from ..core.errors import HedgerowError, StateError


class FrameError(HedgerowError, ValueError):
    """A message that is no request, or no answer, of this version. Nothing was done."""


class ServerAwayError(HedgerowError, ConnectionError):
    """A server that cannot be reached, or that refuses this client."""


class DeadlineError(ServerAwayError, TimeoutError):
    """No answer within the deadline. `may_have_happened`: a write that was sent, and not answered.

    >>> DeadlineError("no answer").may_have_happened
    False
    """

    def __init__(self, message: str, *, may_have_happened: bool = False) -> None:
        super().__init__(message)
        self.may_have_happened = may_have_happened


class ServerRefusedError(HedgerowError, RuntimeError):
    """A server could not do what it was asked for; the message is its own."""


class ConsumerGoneError(StateError):
    """A server does not know a consumer of touched keys: it was restarted, or dropped it."""


class LogError(HedgerowError, OSError):
    """The server's log cannot be written or read. What it says was not accepted, was not."""


class RolledBackError(StateError):
    """A server was restarted and has lost the writes since its last checkpoint. Raised once.

    `step` is that of the checkpoint, `sequence` the last write of this connection that is in it; 0
    means none. A write that was under way when it was found out is not in the checkpoint, unless
    `may_have_happened`: then it is or may be.

    >>> RolledBackError("server 0/2", step=100, sequence=7)
    RolledBackError('server 0/2', step=100, sequence=7)
    """

    def __init__(
        self, message: str, *, step: int = 0, sequence: int = 0, may_have_happened: bool = False
    ) -> None:
        super().__init__(message)
        self.step = step
        self.sequence = sequence
        self.may_have_happened = may_have_happened

    def __repr__(self) -> str:
        return f"RolledBackError({self.args[0]!r}, step={self.step}, sequence={self.sequence})"
