"""The events of a training job on a terminal: a live line, or plain lines where there is none."""

from __future__ import annotations

import os
import sys

from rich.console import Console as Terminal
from rich.live import Live
from rich.text import Text

from ..train.events import Event
from .event_line import event_line, rate, short_time


class Console:
    """A sink that shows events on stderr, or on the `terminal` given. Single-owner.

    On a terminal training shows as one line that changes, and everything else as lines above it;
    elsewhere each event is a line. With `total_steps` it says how much is done and how long the
    rest will take. A reader that goes away ends the show, never the job.

    >>> import io
    >>> out = io.StringIO()
    >>> console = Console(200, terminal=Terminal(file=out))
    >>> console.write({"kind": "train", "step": 50, "samples": 3200, "seconds": 1, "loss": 0.69})
    >>> console.write({"kind": "train", "step": 100, "samples": 6400, "seconds": 2, "loss": 0.5})
    >>> console.close()
    >>> print(out.getvalue(), end="")
    step 50  25 %  loss 0.6900
    step 100  50 %, 2 s left  loss 0.5000  3.2 k samples/s
    """

    def __init__(self, total_steps: int | None = None, *, terminal: Terminal | None = None) -> None:
        self._terminal = terminal or Terminal(stderr=True)
        self._terminal.on_broken_pipe = _raise_broken_pipe  # rich would end the process
        self._total = total_steps
        self._first: Event | None = None  # of training: what the time left is judged from
        self._before: Event | None = None
        self._live: Live | None = None
        self._gone = False
        self._changes = self._terminal.is_terminal and not self._terminal.is_dumb_terminal

    def write(self, event: Event) -> None:
        """Shows one event."""
        line = event_line(event, self._before, self._left(event))
        self._before = _latest(event, self._before)
        if self._first is None and event["kind"] == "train":
            self._first = event
        if self._gone:
            return
        try:
            self._show(line, passing=event["kind"] == "train")
        except OSError:  # a closed pipe, a terminal that hung up
            self._give_up()

    def close(self) -> None:
        """Leaves the last line standing and gives the terminal back."""
        live, self._live = self._live, None
        if live is None or self._gone:
            return
        try:
            live.stop()
        except OSError:
            self._give_up()

    def _left(self, event: Event) -> str:
        if not self._total or event["kind"] != "train":
            return ""
        step = int(event["step"])
        done = f"{min(100, 100 * step // self._total)} %"
        speed = rate("step", event, self._first)
        if not speed or speed < 0 or step >= self._total:
            return done
        return f"{done}, {short_time((self._total - step) / speed)} left"

    def _show(self, line: str, *, passing: bool) -> None:
        if not self._changes:
            self._print(line)
        elif passing:
            self._change(line)
        else:
            # Through the live display's own console, which puts it above the line that changes.
            self._terminal.print(_text(line), soft_wrap=True)

    def _print(self, line: str) -> None:
        """A plain line; not by rich, which would break it at the width it guesses."""
        file = self._terminal.file
        encoding = getattr(file, "encoding", None) or "utf-8"
        file.write(line.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        file.flush()

    def _change(self, line: str) -> None:
        if self._live is None:
            # What others print goes above the line, but stays out of it where it goes to a file.
            live = Live(
                console=self._terminal,
                auto_refresh=False,
                redirect_stdout=sys.stdout.isatty(),
                redirect_stderr=sys.stderr.isatty(),
            )
            live.start()
            self._live = live  # one that could not start cannot be stopped either
        self._live.update(_text(line), refresh=True)

    def _give_up(self) -> None:
        """No more output; what Python still holds for the closed pipe must not fail at its exit."""
        self._gone = self._terminal.quiet = True
        live, self._live = self._live, None
        if live is not None:
            live.stop()
        if self._terminal.file in (sys.stdout, sys.stderr):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._terminal.file.fileno())
            os.close(nowhere)


def _latest(event: Event, before: Event | None) -> Event:
    """What the next rates are taken from; rows do not change while nothing is trained."""
    if before is not None and event.get("samples") == before.get("samples"):
        return {**before, **event}
    return event


def _raise_broken_pipe() -> None:
    raise BrokenPipeError("the reader of the terminal's output went away")


def _text(line: str) -> Text:
    return Text(line, no_wrap=True, overflow="ellipsis")
