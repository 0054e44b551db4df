"""The connection of a client to one server: requests in flight, deadlines and retries.

Threads share a connection. A thread that waits for an answer reads the socket on behalf of all
threads and gives way to threads that want to send. A connection therefore needs no thread of its
own.

A failed handshake can mean wrong keys or a bad network. Before the first success, wrong keys are
the likely cause, and no request has been sent. After it, the keys are known to be right, and a
failure means that the network or the server failed.
"""

from __future__ import annotations

import logging
import math
import os
import random
import secrets
import time
from collections.abc import Iterable, Sequence
from datetime import datetime

from ..core.clock import wall_ns
from ..core.counters import Counters
from ..core.errors import StateError
from .curve import ClientKeys
from .errors import DeadlineError, FrameError, RolledBackError, ServerAwayError
from .messages import (
    CONTROL,
    ORIGIN,
    ORIGIN_AT,
    WRITES,
    Buffer,
    ServerAnswer,
    ServerRequest,
    Status,
    Verb,
    read_answer,
)
from .pending_requests import AnswerSink, BufferReader, PendingRequest, WaitPolicy, error_of
from .sockets import SocketOwnership
from .transports import IN, OUT, TransportEvent, UnixTransport, ZmqTransport, connect_unix

_MOST_BROKEN_OFF = 8  # failures in a row before the first success that mean wrong keys
_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.02, 0.5  # between two handshakes


class Handshakes:
    """Counts the handshakes of one connection. Single-owner: the thread that owns the socket.

    >>> handshakes = Handshakes(has_keys=True)
    >>> for _ in range(8):
    ...     _ = handshakes.failed(TransportEvent.BROKEN_OFF)
    >>> handshakes.refused, "the keys do not fit" in handshakes.complaint
    (True, True)
    >>> handshakes.succeeded()
    >>> pause_s = handshakes.failed(TransportEvent.REFUSED)
    >>> handshakes.refused, 0 < pause_s < 1
    (False, True)
    """

    def __init__(self, *, has_keys: bool) -> None:
        self._has_keys = has_keys
        self._was_accepted = self.settled = False  # settled: the last handshake succeeded
        self._failed = 0  # in a row
        self._last = TransportEvent.BROKEN_OFF
        self._random = random.Random()  # leaves the user's global generator unchanged

    def succeeded(self) -> None:
        """Records that the server accepted this client."""
        self._was_accepted = self.settled = True
        self._failed = 0

    def lost(self) -> float:
        """Returns the seconds until the next try after an established connection was lost.

        The pause is random, so that clients of one server do not all reconnect at the same moment.
        """
        return _FIRST_RETRY_S * self._random.uniform(0.75, 1.25)

    def failed(self, why: TransportEvent) -> float:
        """Records a failed handshake and returns the seconds until the next try.

        The pause grows with each failure in a row.
        """
        self._last, self.settled = why, False
        self._failed += 1
        return min(self.lost() * 2 ** min(self._failed - 1, 10), _LONGEST_RETRY_S)

    @property
    def refused(self) -> bool:
        """Whether the server will probably never accept this client."""
        if self._was_accepted or not self._failed:
            return False
        if self._last in (TransportEvent.UNKNOWN_KEY, TransportEvent.REFUSED):
            return True
        return self._has_keys and self._failed >= _MOST_BROKEN_OFF

    @property
    def complaint(self) -> str:
        """Describes what is wrong with the handshakes; empty while they succeed."""
        if not self._failed:
            return ""
        if self._was_accepted:
            unknown = "; it says that it does not know this client's key" * self._is_unknown
            return (
                f"it accepted this client before, and {self._failed} handshakes failed since then: "
                f"the network cuts connections, or the server was restarted, perhaps with other "
                f"keys{unknown}"
            )
        if self._is_unknown:
            return (
                "it refuses this client: the keys do not fit; the client's public key is not among "
                "the server's client*.pub"
            )
        if self._last is TransportEvent.REFUSED:
            return "it refuses this client: the keys do not fit; only one side has keys"
        if not self.refused:
            return f"{self._failed} handshakes in a row were broken off"
        return (
            f"it broke off {self._failed} handshakes in a row: the keys do not fit (server.pub is "
            f"not that of the server, or only one side has keys), or the network cuts every "
            f"connection"
        )

    @property
    def _is_unknown(self) -> bool:
        return self._last is TransportEvent.UNKNOWN_KEY


_FIRST_S = 2.0  # without an answer, until the first warning
_AGAIN_S = 15.0  # between two warnings
_LONG = frozenset((Verb.CHECKPOINT, Verb.SAVE, Verb.LOAD))  # their time grows with the rows


class SilenceLog:
    """Logs warnings about a server that does not answer.

    Single-owner: the thread that owns the socket.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._heard_s = -math.inf  # the last answer, on the monotonic clock
        self._since_s = math.inf  # start of the silence that was logged; infinite if none was
        self._next_s = -math.inf  # time of the next warning at the earliest

    def heard(self) -> None:
        """Records an answer of the server, and logs the end of a silence."""
        self._heard_s = now = time.monotonic()
        if self._since_s < now:
            _say("%s answers again, after %.0f s.", self._where, now - self._since_s)
            self._since_s, self._next_s = math.inf, -math.inf

    def look(
        self, waiting: Iterable[PendingRequest], now: float, *, is_up: bool, complaint: str
    ) -> None:
        """Logs a warning if a request has waited too long.

        Saves and loads on a connected server may take long and are ignored.
        """
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


def _what_next(pending: PendingRequest, now: float) -> str:
    if math.isinf(pending.limit_s):
        return "The request is repeated without a limit."
    return (
        f"The request is repeated until {_at(pending.limit_s - now)} and executed once; after that "
        f"it fails with DeadlineError."
    )


def _began_s(pending: PendingRequest) -> float:
    return pending.began_s


def _at(from_now_s: float) -> str:
    """Returns the time of day in `from_now_s` seconds."""
    return datetime.fromtimestamp(wall_ns() / 1e9 + from_now_s).strftime("%H:%M:%S")


def _say(text: str, *values: object) -> None:
    logging.getLogger("hedgerow").warning(text, *values)


_LONGEST_GAP = 4  # longest time between two sends of a request, in multiples of `retry_s`
# A connection is lost after this time without a heartbeat: a multiple of `retry_s`, and a minimum.
_SILENT_GAPS, _LEAST_SILENT_S = 10, 2.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.5  # before a request to a busy server is sent again
_HOW_TO_GO_ON = (
    " Do not repeat the call, because the write could be applied twice: go on with the next batch, "
    "where at most this write is missing, or load a checkpoint on all servers and go on from it."
)
_NOT_THIS_ONE = ", but this one is or may be in the checkpoint: do not repeat it"


class ServerConnection:
    """The connection to one server and its requests in flight.

    Safe from many threads; must not be used after a fork.
    """

    def __init__(
        self,
        address: str,
        *,
        name: str = "",
        keys: ClientKeys | None = None,
        patience: WaitPolicy | None = None,
        counters: Counters | None = None,
    ) -> None:
        self.address, self.name = address, name or address
        self.patience = patience or WaitPolicy()
        self.counters = counters or Counters()
        self.client = secrets.randbits(64)
        self.incarnation = 0
        self._process = os.getpid()
        self._in_flight: dict[int, PendingRequest] = {}
        self._writes: dict[int, None] = {}  # the writes in flight, in rising order of sequence
        self._unsent = 0
        self._sequence = 0
        self._handshakes = Handshakes(has_keys=keys is not None)
        self._silence_log = SilenceLog(self.where)
        self._silent_s = max(_LEAST_SILENT_S, _SILENT_GAPS * self.patience.retry_s)
        self._connect_s = math.inf  # when the transport will connect, if it waits before a retry
        self._ownership = SocketOwnership()
        self.keys = keys
        self._may_use_unix = keys is None  # with keys, traffic must be encrypted
        self._transport: ZmqTransport | UnixTransport = self._open_unix() or self._open_zmq()
        self._is_up = isinstance(self._transport, UnixTransport)

    @property
    def where(self) -> str:
        """The name and address of the server, for error messages."""
        return self.name if self.name == self.address else f"server {self.name} at {self.address}"

    def _open_unix(self) -> UnixTransport | None:
        return connect_unix(self.address, self._ownership.wake_fd) if self._may_use_unix else None

    def _open_zmq(self) -> ZmqTransport:
        made = self._waiting_line()
        made.connect()
        return made

    def _waiting_line(self) -> ZmqTransport:
        """Returns a ZeroMQ transport that is not connected yet."""
        return ZmqTransport(
            self.address, self.keys, self._ownership.wake_fd, silent_s=self._silent_s
        )

    def close(self) -> None:
        """Closes the connection. Requests in flight fail with `StateError`."""
        if self._transport.closed or os.getpid() != self._process:
            return
        self._ownership.take()
        try:
            for pending in self._in_flight.values():
                pending.error = StateError(f"the connection to {self.where} was closed.")
                pending.frames, pending.done = (), True
            self._in_flight.clear()
            self._writes.clear()
            self._transport.close()
            self._ownership.close()
        finally:
            self._ownership.end()

    def __del__(self) -> None:
        if hasattr(self, "_transport"):  # else the constructor failed
            self.close()

    # ---- requests

    def start(
        self,
        request: ServerRequest,
        frames: Sequence[Buffer],
        sink: AnswerSink,
        patience: WaitPolicy | None = None,
    ) -> PendingRequest:
        """Sends a request. A thread that waits for any answer writes this one to `sink`."""
        patience = patience or self.patience
        now, deadline_s = time.monotonic(), patience.deadline_s
        pending = PendingRequest(
            request.verb,
            [bytearray(request.head()), *frames],
            sink,
            patience,
            gap_s=patience.retry_s,
            began_s=now,
            limit_s=math.inf if deadline_s is None else now + deadline_s,
        )
        if os.getpid() != self._process:
            raise self._forked()
        self._ownership.take()
        try:
            if self._transport.closed:
                raise StateError(f"the connection to {self.where} is closed; make another.")
            self._sequence += 1
            pending.sequence = self._sequence
            self._in_flight[pending.sequence] = pending
            if request.verb in WRITES:
                self._writes[pending.sequence] = None
            self._unsent += 1
            self._try_send(pending)
        finally:
            self._ownership.end()
        return pending

    def wait(self, pending: PendingRequest) -> None:
        """Returns when the answer is complete. Raises the error of the request."""
        if os.getpid() != self._process:
            raise self._forked()
        while not pending.done:
            if self._ownership.take_to_read(pending):
                try:
                    self._read_until(pending)
                finally:
                    self._ownership.end()
        if pending.error is not None:
            raise pending.error

    def _forked(self) -> StateError:
        return StateError(
            f"the connection to {self.where} was made by process {self._process}, from which this "
            f"one was forked; connect again here."
        )

    # ---- sending; the caller owns the socket

    def _try_send(self, pending: PendingRequest) -> None:
        now = time.monotonic()
        left_s = pending.limit_s - now
        left_ms = 0 if math.isinf(left_s) else min(max(int(left_s * 1000), 1), 2**32 - 1)
        sequence, (head, *buffers) = pending.sequence, pending.frames
        acked = next(iter(self._writes), self._sequence + 1)  # the oldest write in flight
        origin = self.client, sequence, acked, self.incarnation, left_ms
        ORIGIN.pack_into(head, ORIGIN_AT, *origin)
        once, room_bytes = pending.again_s == 0, pending.sink.room_bytes
        try:
            if not self._transport.send(sequence, head, buffers, room_bytes, once=once):
                return  # sent once the transport can take it
        except OSError:  # memory cannot be shared: send over TCP
            self._may_use_unix = False
            self._change(self._open_zmq())
            return
        self._unsent -= not pending.sent
        pending.sent = True
        pending.again_s = now + pending.gap_s
        pending.gap_s = min(2 * pending.gap_s, _LONGEST_GAP * pending.patience.retry_s)

    def _take_back(self, pending: PendingRequest) -> None:
        """Marks a request to be sent again."""
        self._unsent += pending.sent
        pending.sent = False

    # ---- reading; the caller owns the socket

    def _read_until(self, pending: PendingRequest) -> None:
        while not pending.done:
            send = self._unsent > 0
            found, complained, wanted = self._transport.ready(send=send), False, False
            if not found:
                self._ownership.reader_waits = True  # a sender wakes this thread from now on
                if self._ownership.senders:
                    self._ownership.reader_waits = False
                    return
                found, complained, wanted = self._transport.poll(self._pause_ms(), send=send)
                self._ownership.reader_waits = False
            if complained:
                self._read_monitor()
            while found & IN and not pending.done:
                came = self._transport.receive()
                if came is None:
                    break
                try:
                    self._read_answer(*came, pending)
                finally:
                    if came[1] is self._transport:
                        self._transport.skip_rest()
            if found & OUT and self._unsent:
                self._send_unsent()
            if not pending.done:
                self._tend()
            if wanted:
                return

    def _pause_ms(self) -> int:
        now, due = time.monotonic(), self._connect_s
        for pending in self._in_flight.values():
            due = min(due, pending.limit_s, pending.again_s if pending.sent else math.inf)
        if not self._in_flight:
            due = min(due, now)
        return 1000 if math.isinf(due) else min(max(int((due - now) * 1000) + 1, 0), 1000)

    def _read_answer(self, head: Buffer, rest: BufferReader, own: PendingRequest) -> None:
        try:
            answer, frames = read_answer(head)
        except FrameError:
            self.counters.add("answers_refused")  # not a valid answer; the request still waits
            return
        self._silence_log.heard()
        if not self._handshakes.settled:
            self._handshakes.succeeded()  # a Unix socket reports no handshake of its own
        pending = self._in_flight.get(answer.sequence)
        if pending is None:
            self.counters.add("answers_late")
            return
        try:
            if answer.status == Status.DONE and answer.incarnation == self.incarnation:
                whole, error = pending.sink.take(answer, frames, rest), None
            else:
                whole, error = self._took(pending, answer, frames, rest), None
        except FrameError as raised:
            whole, error = True, FrameError(f"{raised} [{self.where}]")
        if whole:
            self._finish(pending, error)
            if pending is not own:
                self._ownership.tell()

    def _took(
        self, pending: PendingRequest, answer: ServerAnswer, frames: int, rest: BufferReader
    ) -> bool:
        if answer.status == Status.ROLLED_BACK:
            self._roll_back(answer)
            return False
        if answer.verb not in CONTROL or not self.incarnation:
            self._meet(answer.incarnation)  # a rolled-back server refuses every other request
        if answer.status == Status.BUSY:
            self.counters.add("busy")
            pending.gap_s = min(max(pending.gap_s / 2, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            pending.again_s = time.monotonic() + pending.gap_s
            return False
        if answer.status == Status.FAILED:
            told = [rest.frame() for _ in range(frames)]
            self._finish(pending, error_of(told, self.where))
            return True
        return pending.sink.take(answer, frames, rest)

    def _meet(self, incarnation: int) -> None:
        if incarnation != self.incarnation:
            if self.incarnation:
                self.counters.add("server_restarts")
            self.incarnation = incarnation

    def _finish(self, pending: PendingRequest, error: Exception | None) -> None:
        if self._in_flight.pop(pending.sequence, None) is not None:
            self._writes.pop(pending.sequence, None)
            if not pending.sent:
                self._unsent -= 1
            pending.error, pending.frames, pending.done = error, (), True
            self._transport.release(pending.sequence, answered=error is None)

    # ---- failures

    def _roll_back(self, answer: ServerAnswer) -> None:
        """Fails the writes in flight with `RolledBackError` and sends the reads again.

        If no write is in flight, the first read fails, so that the caller learns of the rollback.
        """
        if answer.incarnation == self.incarnation:
            return  # already reported
        self.incarnation = answer.incarnation
        self.counters.add("rolled_back")
        step, sequence, _ = answer.numbers
        what = f"the checkpoint of step {step}" if step else "an empty start"
        waiting = list(self._in_flight.values())
        told = [t for t in waiting if t.is_write] or waiting[:1]
        for pending in waiting:
            if pending in told:
                unsure = pending.is_write and pending.sequence <= sequence
                error = RolledBackError(
                    f"{self.where} was restarted and went back to {what}: writes of this client "
                    f"after its sequence {sequence} are lost{_NOT_THIS_ONE * unsure}. Load a "
                    f"checkpoint of all servers, or go on from there.",
                    step=step,
                    sequence=sequence,
                    may_have_happened=unsure,
                )
                self._finish(pending, error)
            else:
                self._take_back(pending)
        self._ownership.tell()

    def _read_monitor(self) -> None:
        """Reads all transport events and acts on the resulting state of the connection."""
        pause_s = math.inf
        for event in self._transport.events():
            if event is TransportEvent.CONNECTED:
                self._handshakes.succeeded()
                self._is_up, pause_s = True, math.inf
                self._send_all_again()  # earlier sends may have been lost
            elif event is TransportEvent.ENDED:
                self.counters.add("disconnected")
                self._may_use_unix &= self._transport.was_heard  # else it accepts no client
                self._change(self._open_unix() or self._open_zmq())
                return
            elif self._is_up:
                self.counters.add("disconnected")
                self._is_up, pause_s = False, self._handshakes.lost()
            elif event is not TransportEvent.DISCONNECTED or math.isinf(
                pause_s
            ):  # a disconnect after another event is not counted again
                pause_s = self._handshakes.failed(event)
        if not math.isinf(pause_s):
            self._rest(pause_s)
        elif self._is_up and (unix := self._open_unix()) is not None:
            self._change(unix)

    def _rest(self, pause_s: float) -> None:
        """Replaces the transport with one that connects after `pause_s`.

        After a failed connection, a ZeroMQ socket either reconnects at once without end or never.
        """
        if self._handshakes.refused:
            self._refuse_all()
        self._change(self._waiting_line())
        self._connect_s = time.monotonic() + pause_s

    def _connect_again(self) -> None:
        unix = self._open_unix()
        if unix is not None:
            self._change(unix)
        elif isinstance(self._transport, ZmqTransport):
            self._transport.connect()
        self._connect_s = math.inf

    def _refuse_all(self) -> None:
        """Fails the requests to a server that has never accepted this client.

        Requests without a deadline, and requests that were sent over a Unix socket, keep waiting.
        """
        why = f"{self.where}: {self._handshakes.complaint}. Nothing was sent."
        for pending in list(self._in_flight.values()):
            if not (math.isinf(pending.limit_s) or pending.was_sent):
                self._finish(pending, ServerAwayError(why))
        self._ownership.tell()

    def _send_unsent(self) -> None:
        for pending in [t for t in self._in_flight.values() if not t.sent]:
            if pending.was_sent:
                self.counters.add("sent_again")
            self._try_send(pending)
            if not pending.sent:
                return

    def _tend(self) -> None:
        """Sends unanswered requests again and ends those whose deadline has passed."""
        now = time.monotonic()
        if now >= self._connect_s:
            self._connect_again()
        self._silence_log.look(
            self._in_flight.values(), now, is_up=self._is_up, complaint=self._handshakes.complaint
        )
        for pending in list(self._in_flight.values()):
            if now >= pending.limit_s:
                self._give_up(pending)
            elif pending.sent and now >= pending.again_s:
                self._take_back(pending)
                self._send_unsent()

    def _give_up(self, pending: PendingRequest) -> None:
        self.counters.add("deadlines")
        unsure = pending.is_write and pending.was_sent
        reached = "it was sent" if pending.was_sent else "the server was not reached"
        if unsure:
            reached = "it was sent, so the write may have happened or not"
        elif pending.is_write:
            reached = "the server was not reached, so the write did not happen"
        why = f" ({self._handshakes.complaint})" if self._handshakes.complaint else ""
        error = DeadlineError(
            f"no answer to {pending.verb.name.lower()} from {self.where} within its deadline of "
            f"{pending.patience.deadline_s:g} s: {reached}{why}.{_HOW_TO_GO_ON * unsure}",
            may_have_happened=unsure,
        )
        self._finish(pending, error)
        if pending.is_write and pending.sent:
            self._forget_sent()
        self._ownership.tell()

    def _forget_sent(self) -> None:
        """Replaces the transport and sends the other requests again.

        The old socket may still hold a write that was given up, in memory that the caller reuses
        now.
        """
        self._change(self._open_unix() or self._open_zmq())

    def _change(self, transport: ZmqTransport | UnixTransport) -> None:
        """Replaces the transport. Requests in flight are sent again through the new one."""
        self._transport.close()
        self._transport = transport
        self._is_up, self._connect_s = isinstance(transport, UnixTransport), math.inf
        self._send_all_again()

    def _send_all_again(self) -> None:
        for pending in self._in_flight.values():
            self._take_back(pending)
