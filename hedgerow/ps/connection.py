"""One connection to a server: many requests under way, deadlines, and asking again.

Threads share a connection: the one that waits reads the socket for all of them, and stands aside
for one that wants to send. So there is no thread of our own and no hand-over for a lone caller.
"""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Sequence

from ..core.counters import Counters
from ..core.errors import StateError
from .curve import ClientKeys
from .errors import DeadlineError, FrameError, RolledBackError, ServerAwayError
from .frames import (
    CONTROL,
    Answer,
    Buffer,
    Origin,
    Request,
    Status,
    address_head,
    read_answer,
)
from .greetings import Greetings
from .line import IN, OUT, Event, Line
from .near_line import NearLine, near_line
from .silence import Silence
from .tickets import Patience, Reader, Sink, Ticket, error_of
from .turns import Turns

_LONGEST_GAP = 4  # times `retry_s` between two times of asking
# Times `retry_s` without a sign of life, until a connection counts as lost; at least so long.
_SILENT_GAPS, _LEAST_SILENT_S = 10, 2.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.5  # before a busy server is asked again
_HOW_TO_GO_ON = (
    " Do not repeat the call, which could do it twice: go on with the next batch, so that at most "
    "this write is missing, or load a checkpoint on all servers and go on from there."
)
_NOT_THIS_ONE = ", but this one is or may be in the checkpoint: do not repeat it"


class Connection:
    """A line to a server and the requests on it. Safe from many threads; not across a fork."""

    def __init__(
        self,
        address: str,
        *,
        name: str = "",
        keys: ClientKeys | None = None,
        patience: Patience | None = None,
        counters: Counters | None = None,
    ) -> None:
        self.address, self.name = address, name or address
        self.patience = patience or Patience()
        self.counters = counters or Counters()
        self.client = secrets.randbits(64)
        self.incarnation = 0
        self._process = os.getpid()
        self._tickets: dict[int, Ticket] = {}
        self._unsent = 0
        self._sequence = 0
        self._greetings = Greetings(has_keys=keys is not None)
        self._silence = Silence(self.where)
        self._silent_s = max(_LEAST_SILENT_S, _SILENT_GAPS * self.patience.retry_s)
        self._connect_s = math.inf  # when the line, which waits until then, goes to the server
        self._turns = Turns()
        self.keys = keys
        self._may_be_near = keys is None  # who has keys wants what they protect
        self._line: Line | NearLine = self._open_near() or self._open_far()
        self._is_up = isinstance(self._line, NearLine)

    @property
    def where(self) -> str:
        """The server, as errors name it."""
        return self.name if self.name == self.address else f"server {self.name} at {self.address}"

    def _open_near(self) -> NearLine | None:
        return near_line(self.address, self._turns.wake_fd) if self._may_be_near else None

    def _open_far(self) -> Line:
        made = self._waiting_line()
        made.connect()
        return made

    def _waiting_line(self) -> Line:
        """One that goes nowhere yet."""
        return Line(self.address, self.keys, self._turns.wake_fd, silent_s=self._silent_s)

    def close(self) -> None:
        """Ends the connection; requests under way are forgotten."""
        if self._line.closed or os.getpid() != self._process:
            return
        self._turns.take()
        try:
            for ticket in self._tickets.values():
                ticket.finish(StateError(f"the connection to {self.where} was closed."))
            self._tickets.clear()
            self._line.close()
            self._turns.close()
        finally:
            self._turns.end()

    def __del__(self) -> None:
        if hasattr(self, "_line"):  # else it was never open
            self.close()

    # ---- asking

    def start(
        self,
        request: Request,
        frames: Sequence[Buffer],
        sink: Sink,
        patience: Patience | None = None,
    ) -> Ticket:
        """Sends a request; its answer goes to `sink` while somebody waits for an answer."""
        patience = patience or self.patience
        now = time.monotonic()
        head = bytearray(request.head())
        ticket = Ticket(request.verb, head, frames, sink, patience, patience.retry_s, now)
        self._check_process()
        self._turns.take()
        try:
            if self._line.closed:
                raise StateError(f"the connection to {self.where} is closed; make another.")
            self._sequence += 1
            ticket.sequence = self._sequence
            self._tickets[ticket.sequence] = ticket
            self._unsent += 1
            self._try_send(ticket)
        finally:
            self._turns.end()
        return ticket

    def wait(self, ticket: Ticket) -> None:
        """Returns when the answer is whole; raises what went wrong."""
        self._check_process()
        while not ticket.done:
            if self._turns.take_to_read(ticket):
                try:
                    self._read_until(ticket)
                finally:
                    self._turns.end()
        if ticket.error is not None:
            raise ticket.error

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise StateError(
                f"the connection to {self.where} was made by process {self._process}, from which "
                f"this one was forked; connect again here."
            )

    # ---- sending; whoever does has the turn

    def _try_send(self, ticket: Ticket) -> None:
        now = time.monotonic()
        left_s = ticket.limit_s - now
        left_ms = 0 if math.isinf(left_s) else min(max(int(left_s * 1000), 1), 2**32 - 1)
        head = ticket.head
        address_head(
            head, Origin(self.client, ticket.sequence, self._acked(), self.incarnation, left_ms)
        )
        once, room_bytes = not ticket.was_sent, ticket.sink.room_bytes
        try:
            if not self._line.send(ticket.sequence, head, ticket.frames, room_bytes, once=once):
                return  # sent when the line can
        except OSError:  # memory that cannot be shared travels
            self._may_be_near = False
            self._change(self._open_far())
            return
        self._mark(ticket, sent=True)
        ticket.again_s = now + ticket.gap_s
        ticket.gap_s = min(2 * ticket.gap_s, _LONGEST_GAP * ticket.patience.retry_s)

    def _mark(self, ticket: Ticket, *, sent: bool) -> None:
        if ticket.sent != sent:
            self._unsent += -1 if sent else 1
            ticket.sent = sent

    def _acked(self) -> int:
        """Below it, no write waits for its answer."""
        waiting = [s for s, ticket in self._tickets.items() if ticket.is_write]
        return min(waiting, default=self._sequence + 1)

    # ---- reading; whoever does has the turn

    def _read_until(self, ticket: Ticket) -> None:
        while not ticket.done:
            send = self._unsent > 0
            found, complained, wanted = self._line.ready(send=send), False, False
            if not found:
                if self._turns.stand_aside():
                    return
                found, complained, wanted = self._line.poll(self._pause_ms(), send=send)
                self._turns.go_on()
            if complained:
                self._read_monitor()
            if found & IN:
                self._read_some(ticket)
            if found & OUT and self._unsent:
                self._send_unsent()
            if not ticket.done:
                self._tend()
            if wanted:
                return

    def _pause_ms(self) -> int:
        now = time.monotonic()
        due = min(
            (min(t.limit_s, t.again_s if t.sent else math.inf) for t in self._tickets.values()),
            default=now,
        )
        due = min(due, self._connect_s)
        return 1000 if math.isinf(due) else min(max(int((due - now) * 1000) + 1, 0), 1000)

    def _read_some(self, own: Ticket) -> None:
        while not own.done:
            found = self._line.receive()
            if found is None:
                return
            try:
                self._read_answer(*found, own)
            finally:
                self._line.skip_rest()

    def _read_answer(self, head: Buffer, rest: Reader, own: Ticket) -> None:
        try:
            answer, frames = read_answer(head)
        except FrameError:
            self.counters.add("answers_refused")  # not from a server of ours; the deadline holds
            return
        self._silence.heard()
        self._greetings.succeeded()  # also on a near line, which has no greeting of its own
        ticket = self._tickets.get(answer.sequence)
        if ticket is None:
            self.counters.add("answers_late")
            return
        try:
            whole = self._took(ticket, answer, frames, rest)
            error = None
        except FrameError as raised:
            whole, error = True, FrameError(f"{raised} [{self.where}]")
        if whole:
            self._finish(ticket, error)
            if ticket is not own:
                self._turns.tell()

    def _took(self, ticket: Ticket, answer: Answer, frames: int, rest: Reader) -> bool:
        if answer.status == Status.ROLLED_BACK:
            self._roll_back(answer)
            return False
        if answer.verb not in CONTROL or not self.incarnation:
            self._meet(answer.incarnation)  # told only where a rolled-back server would say so
        if answer.status == Status.BUSY:
            self.counters.add("busy")
            ticket.gap_s = min(max(ticket.gap_s / 2, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            ticket.again_s = time.monotonic() + ticket.gap_s
            return False
        if answer.status == Status.FAILED:
            told = [rest.frame() for _ in range(frames)]
            self._finish(ticket, error_of(told, self.where))
            return True
        return ticket.sink.take(answer, frames, rest)

    def _meet(self, incarnation: int) -> None:
        if incarnation != self.incarnation:
            if self.incarnation:
                self.counters.add("server_restarts")
            self.incarnation = incarnation

    def _finish(self, ticket: Ticket, error: Exception | None) -> None:
        if self._tickets.pop(ticket.sequence, None) is not None:
            if not ticket.sent:
                self._unsent -= 1
            ticket.finish(error)
            self._line.release(ticket.sequence, answered=error is None)

    # ---- when things go wrong

    def _roll_back(self, answer: Answer) -> None:
        """Writes under way fail; reads are asked again, but one at least tells the caller."""
        if answer.incarnation == self.incarnation:
            return  # told already
        self.incarnation = answer.incarnation
        self.counters.add("rolled_back")
        step, sequence, _ = answer.numbers
        what = f"the checkpoint of step {step}" if step else "an empty start"
        waiting = list(self._tickets.values())
        told = [t for t in waiting if t.is_write] or waiting[:1]
        for ticket in waiting:
            if ticket in told:
                unsure = ticket.is_write and ticket.sequence <= sequence
                error = RolledBackError(
                    f"{self.where} was restarted and went back to {what}: writes of this client "
                    f"after its sequence {sequence} are lost{_NOT_THIS_ONE * unsure}. Load a "
                    f"checkpoint of all servers, or go on from there.",
                    step=step,
                    sequence=sequence,
                    may_have_happened=unsure,
                )
                self._finish(ticket, error)
            else:
                self._mark(ticket, sent=False)
        self._turns.tell()

    def _read_monitor(self) -> None:
        """What happened to the line; only how it stands in the end says what to do."""
        pause_s = math.inf
        for event in self._line.events():
            if event is Event.CONNECTED:
                self._greetings.succeeded()
                self._is_up, pause_s = True, math.inf
                self._send_all_again()  # what went out before may have been lost
            elif event is Event.ENDED:
                self.counters.add("disconnected")
                self._may_be_near &= self._line.was_heard  # else it lets nobody in
                self._change(self._open_near() or self._open_far())
                return
            elif self._is_up:
                self.counters.add("disconnected")
                self._is_up, pause_s = False, self._greetings.lost()
            elif event is not Event.DISCONNECTED or math.isinf(pause_s):  # it follows others
                pause_s = self._greetings.failed(event)
        if not math.isinf(pause_s):
            self._rest(pause_s)
        elif self._is_up and (near := self._open_near()) is not None:
            self._change(near)

    def _rest(self, pause_s: float) -> None:
        """Another line, which goes to the server after a pause: a socket whose connection failed
        comes back after some failures, at once and without end, and after others never."""
        if self._greetings.refused:
            self._refuse_all()
        self._change(self._waiting_line())
        self._connect_s = time.monotonic() + pause_s

    def _connect_again(self) -> None:
        near = self._open_near()
        if near is not None:
            self._change(near)
        elif isinstance(self._line, Line):
            self._line.connect()
        self._connect_s = math.inf

    def _refuse_all(self) -> None:
        """Of a server that has never let this client in: nothing was sent, but over a near line."""
        why = f"{self.where}: {self._greetings.complaint}. Nothing was sent."
        for ticket in list(self._tickets.values()):
            if not (math.isinf(ticket.limit_s) or ticket.was_sent):
                self._finish(ticket, ServerAwayError(why))
        self._turns.tell()

    def _send_unsent(self) -> None:
        for ticket in [t for t in self._tickets.values() if not t.sent]:
            if ticket.was_sent:
                self.counters.add("sent_again")
            self._try_send(ticket)
            if not ticket.sent:
                return

    def _tend(self) -> None:
        """Sends again what was not answered, and gives up what is late."""
        now = time.monotonic()
        if now >= self._connect_s:
            self._connect_again()
        self._silence.look(
            self._tickets.values(), now, is_up=self._is_up, complaint=self._greetings.complaint
        )
        for ticket in list(self._tickets.values()):
            if now >= ticket.limit_s:
                self._give_up(ticket)
            elif ticket.sent and now >= ticket.again_s:
                self._mark(ticket, sent=False)
                self._send_unsent()

    def _give_up(self, ticket: Ticket) -> None:
        self.counters.add("deadlines")
        unsure = ticket.is_write and ticket.was_sent
        reached = "it was sent" if ticket.was_sent else "the server was not reached"
        if unsure:
            reached = "it was sent, so the write may have happened or not"
        elif ticket.is_write:
            reached = "the server was not reached, so the write did not happen"
        why = f" ({self._greetings.complaint})" if self._greetings.complaint else ""
        error = DeadlineError(
            f"no answer to {ticket.verb.name.lower()} from {self.where} within its deadline of "
            f"{ticket.patience.deadline_s:g} s: {reached}{why}.{_HOW_TO_GO_ON * unsure}",
            may_have_happened=unsure,
        )
        self._finish(ticket, error)
        if ticket.is_write and ticket.sent:
            self._forget_sent()
        self._turns.tell()

    def _forget_sent(self) -> None:
        """A write that was given up may lie in the socket still, in memory of the caller's that
        will change now: a new line, and what else is under way is sent again."""
        self._change(self._open_near() or self._open_far())

    def _change(self, line: Line | NearLine) -> None:
        """Goes on with another line; what is under way is sent again there."""
        self._line.close()
        self._line = line
        self._is_up, self._connect_s = isinstance(line, NearLine), math.inf
        self._send_all_again()

    def _send_all_again(self) -> None:
        for ticket in self._tickets.values():
            self._mark(ticket, sent=False)
