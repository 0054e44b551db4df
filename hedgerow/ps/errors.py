"""The errors that a client and a server raise about each other."""

from __future__ import annotations

from ..core.errors import HedgerowError, StateError


class FrameError(HedgerowError, ValueError):
    """A message is not a valid request or answer of this version. Nothing was done."""


class ServerAwayError(HedgerowError, ConnectionError):
    """A server cannot be reached, or refuses this client."""


class DeadlineError(ServerAwayError, TimeoutError):
    """No answer arrived within the deadline.

    `may_have_happened` is true for a write that was sent but not answered.

    >>> DeadlineError("no answer").may_have_happened
    False
    """

    def __init__(self, message: str, *, may_have_happened: bool = False) -> None:
        super().__init__(message)
        self.may_have_happened = may_have_happened


class ServerRefusedError(HedgerowError, RuntimeError):
    """A server could not do what was requested. The message comes from the server."""


class ConsumerGoneError(StateError):
    """A server does not know a consumer of touched keys, because it was restarted or dropped it."""


class LogError(HedgerowError, OSError):
    """The log of a server cannot be written or read. A write that raises it was not accepted."""


class RolledBackError(StateError):
    """A server was restarted and has lost the writes since its last checkpoint. Raised once.

    `step` is the step of the checkpoint. `sequence` is the last write of this connection in the
    checkpoint, or 0 if there is none. If `may_have_happened` is true, the write that raises this
    error is or may be in the checkpoint; otherwise it is not.

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
