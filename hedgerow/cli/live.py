"""The progress of a training job: one changing line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator

from rich.console import Console as Terminal
from rich.live import Live
from rich.text import Text

from ..core.units import format_count
from ..train.events import PLACE, Event

_DIGITS = {"loss": 4, "auc": 4, "ne": 3, "calibration": 3}
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def event_line(event: Event, before: Event | None = None, left: str = "") -> str:
    """Returns an event's line, with rates since `before`; `left` has the progress and time left.

    >>> first = {"kind": "train", "step": 11000, "samples": 0, "seconds": 8, "rows": 41_190_700}
    >>> event_line({"kind": "train", "step": 12000, "samples": 546_000, "seconds": 11.0,
    ...             "loss": 0.44123, "auc": 0.78712, "rows": 41_200_000}, first, "60 %")
    'step 12 000  60 %  loss 0.4412  auc 0.7871  182 k samples/s  rows 41.2 M (+3.1 k/s)'
    >>> event_line({"kind": "checkpoint", "step": 9, "path": "out/step-9"})
    'step 9  checkpoint  path out/step-9'
    """
    parts = [f"step {format_count(int(event['step']))}", left]
    if event["kind"] != "train":
        parts.append(str(event["kind"]))
    parts += [
        f"{name} {event[name]:.{digits}f}" for name, digits in _DIGITS.items() if name in event
    ]
    parts += _speed(event, before)
    parts += _rest(event)
    return _plain("  ".join(part for part in parts if part))


def short_count(number: float) -> str:
    """Returns a count with at most three digits and its unit.

    >>> short_count(950), short_count(3100), short_count(182_400), short_count(41_200_117)
    ('950', '3.1 k', '182 k', '41.2 M')
    """
    for size, unit in _UNITS:
        if abs(number) >= size * 0.9995:  # so that 999 999 becomes 1.0 M, not 1000 k
            scaled = number / size
            return f"{scaled:.{0 if abs(scaled) >= 99.95 else 1}f} {unit}"
    return f"{number:.0f}"


def short_time(seconds_s: float) -> str:
    """Returns a duration in its two largest units.

    >>> short_time(7.6), short_time(125), short_time(7300), short_time(200_000)
    ('8 s', '2 min 05 s', '2 h 01 min', '2 d 07 h')
    """
    whole = round(seconds_s)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def rate(name: str, event: Event, before: Event | None) -> float | None:
    """Returns the growth of a count per second since `before`; None if it is unknown."""
    if before is None or not all(key in e for key in (name, "seconds") for e in (event, before)):
        return None
    passed_s = float(event["seconds"]) - float(before["seconds"])
    return (float(event[name]) - float(before[name])) / passed_s if passed_s > 0 else None


def _speed(event: Event, before: Event | None) -> Iterator[str]:
    speed = rate("samples", event, before)
    if speed is not None and speed > 0:
        yield f"{short_count(speed)} samples/s"
    if "rows" in event:
        growth = rate("rows", event, before)
        sign = "+" if growth is not None and growth >= 0 else ""
        grows = "" if growth is None else f" ({sign}{short_count(growth)}/s)"
        yield f"rows {short_count(float(event['rows']))}{grows}"


def _rest(event: Event) -> Iterator[str]:
    for name, value in event.items():
        if name not in PLACE and name not in _DIGITS and name != "rows":
            yield f"{name} {value if isinstance(value, int | str) else format(value, '.4g')}"


def _plain(text: str) -> str:
    """Returns text without line ends and control characters, which a terminal would interpret."""
    return "".join(char if char.isprintable() else "?" for char in text)


_TICK_S = 0.25  # between two updates of the line
_RECENT_S = 10.0  # the window in which the line's speed is measured
_BAR_WIDTH, _LEAST_WIDTH = 20, 90  # the bar is shown on terminals of at least _LEAST_WIDTH


class Console:
    """A sink that shows events on stderr, or on `terminal`. Owns a lock and a thread.

    On a terminal, training is one changing line, with all other lines above it. Elsewhere each
    event is a line. After `begin` the line is redrawn four times a second, even without a new
    step. With `total_steps` it has the progress and the time left. A closed output ends the
    display, but not the job.

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
        self._terminal.on_broken_pipe = _raise_broken_pipe  # rich's default ends the process
        self.total_steps = total_steps
        self._first: Event | None = None  # the first training event, for the time left
        self._before: Event | None = None
        self._trained: Event = {}  # the last training event
        self._live: Live | None = None
        self._gone = False
        self._changes = self._terminal.is_terminal and not self._terminal.is_dumb_terminal
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._ticker: threading.Thread | None = None
        self._phase, self._began_s = "", time.monotonic()
        self._at: tuple[int, int] | None = None  # steps and samples
        self._recent: deque[Event] = deque()

    def begin(self, phase: str) -> None:
        """Shows the current phase before the first step; from now on the line is redrawn."""
        self._phase = phase
        if self._changes and self._ticker is None:
            self._draw()
            self._ticker = threading.Thread(target=self._tick, name="console", daemon=True)
            self._ticker.start()

    def say(self, line: str) -> None:
        """Shows a line above the changing line."""
        with self._lock:
            self._try_to_show(line, passing=False)

    def on_start(self, model: object, optimizer: object, step: int) -> None:
        """Does nothing: `begin` has drawn the line."""

    def after_step(self, step: int, samples: int) -> None:
        """Records the job's progress; cheap enough for every step."""
        self._at = (step, samples)

    def write(self, event: Event) -> None:
        """Shows an event."""
        with self._lock:
            line = event_line(event, self._before, self._left(event, self._first))
            self._before = _latest(event, self._before)
            if event["kind"] == "train":
                self._first, self._trained = self._first or event, event
            if event["kind"] == "end":  # no updates after it
                self._stop()
            self._try_to_show(line, passing=event["kind"] == "train")

    def close(self) -> None:
        """Releases the terminal and removes the changing line, which would be outdated."""
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        self._closed.set()
        live, self._live = self._live, None
        if live is None or self._gone:
            return
        try:
            live.transient = True
            live.stop()
        except OSError:
            self._give_up()

    def _tick(self) -> None:
        while not self._closed.wait(_TICK_S):
            self._draw()

    def _draw(self) -> None:
        with self._lock:
            if not self._closed.is_set():
                self._try_to_show(self._now(), passing=True)

    def _now(self) -> str:
        """Returns the current text of the line."""
        now_s = time.monotonic()
        if self._at is None:
            return f"{self._phase}  {short_time(now_s - self._began_s)}"
        step, samples = self._at
        now: Event = {"kind": "train", "step": step, "samples": samples, "seconds": now_s}
        while self._recent and now_s - float(self._recent[0]["seconds"]) > _RECENT_S:
            if len(self._recent) == 1:
                break
            self._recent.popleft()
        before = self._recent[0] if self._recent else None
        if not self._recent or self._recent[-1]["step"] != step:
            self._recent.append(now)
        return event_line({**self._trained, **now}, before, self._left(now, before))

    def _try_to_show(self, line: str, *, passing: bool) -> None:
        if self._gone:
            return
        try:
            self._show(line, passing=passing)
        except OSError:  # a closed pipe or terminal
            self._give_up()

    def _left(self, event: Event, since: Event | None) -> str:
        if not self.total_steps or event["kind"] != "train":
            return ""
        step, total = int(event["step"]), self.total_steps
        done = f"{min(100, 100 * step // total)} %"
        speed = rate("step", event, since)
        if not speed or speed < 0 or step >= total:
            return done
        return f"{done}, {short_time((total - step) / speed)} left"

    def _show(self, line: str, *, passing: bool) -> None:
        if not self._changes:
            self._print(line)
        elif passing:
            self._change(line)
        else:
            # By the live display's console, which puts it above the changing line.
            self._terminal.print(_text(line), soft_wrap=True)

    def _print(self, line: str) -> None:
        """Writes a plain line, without rich, which would wrap it at a guessed width."""
        file = self._terminal.file
        encoding = getattr(file, "encoding", None) or "utf-8"
        file.write(line.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        file.flush()

    def _change(self, line: str) -> None:
        if self._live is None:
            # Redirects other output above the line, but not output that goes to a file.
            live = Live(
                console=self._terminal,
                auto_refresh=False,
                redirect_stdout=sys.stdout.isatty(),
                redirect_stderr=sys.stderr.isatty(),
            )
            live.start()
            self._live = live  # only after the start: stop() needs a started display
        self._live.update(_text(self._bar() + line), refresh=True)

    def _bar(self) -> str:
        if not self.total_steps or self._at is None or self._terminal.width < _LEAST_WIDTH:
            return ""
        done = min(_BAR_WIDTH, _BAR_WIDTH * self._at[0] // self.total_steps)
        full, empty = "━─" if self._terminal.encoding.startswith("utf") else "#-"
        return f"{full * done}{empty * (_BAR_WIDTH - done)}  "

    def _give_up(self) -> None:
        """Stops all output, and redirects it so that Python's flush at exit does not fail."""
        self._gone = self._terminal.quiet = True
        self._closed.set()
        live, self._live = self._live, None
        if live is not None:
            live.stop()
        if self._terminal.file in (sys.stdout, sys.stderr):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._terminal.file.fileno())
            os.close(nowhere)


def _latest(event: Event, before: Event | None) -> Event:
    """Returns the event for the next rates; an event without training keeps the earlier rows."""
    if before is not None and event.get("samples") == before.get("samples"):
        return {**before, **event}
    return event


def _raise_broken_pipe() -> None:
    raise BrokenPipeError("the reader of the terminal's output went away")


def _text(line: str) -> Text:
    return Text(line, no_wrap=True, overflow="ellipsis")
