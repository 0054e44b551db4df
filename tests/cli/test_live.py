"""The live line: on a terminal, in a file, over a closed pipe, on a dumb terminal."""

from __future__ import annotations

import io
import subprocess
import sys
import textwrap

import pytest
from rich.console import Console as Terminal

from hedgerow.cli.live import Console, event_line, short_count, short_time
from hedgerow.train.events import Event


def _train(step: int, **values: float) -> dict[str, float | int | str]:
    return {"kind": "train", "step": step, "samples": 64 * step, "seconds": step / 100, **values}


_EVENTS: list[Event] = [
    _train(100, loss=0.69314, auc=0.5, ne=1.0, rows=900),
    _train(200, loss=0.44, auc=0.78714, ne=0.8123, rows=1900),
    {"kind": "eval", "step": 200, "samples": 12_800, "seconds": 2.5, "loss": 0.5, "auc": 0.7},
    {"kind": "checkpoint", "step": 200, "samples": 12_800, "seconds": 2.6, "path": "out/step-200"},
    {**_train(300, rows=2100), "seconds": 3.6},
]
_LINES = [
    "step 100  25 %  loss 0.6931  auc 0.5000  ne 1.000  rows 900",
    "step 200  50 %, 2 s left  loss 0.4400  auc 0.7871  ne 0.812  6.4 k samples/s"
    "  rows 1.9 k (+1.0 k/s)",
    "step 200  eval  loss 0.5000  auc 0.7000",
    "step 200  checkpoint  path out/step-200",
    "step 300  75 %, 1 s left  6.4 k samples/s  rows 2.1 k (+200/s)",
]


def _show(terminal: Terminal, total: int | None = 400) -> None:
    console = Console(total, terminal=terminal)
    for event in _EVENTS:
        console.write(event)
    console.close()
    console.close()


def test_where_there_is_no_terminal_each_event_is_a_plain_line() -> None:
    out = io.StringIO()
    _show(Terminal(file=out, force_terminal=False, width=20))
    assert out.getvalue().splitlines() == _LINES


def test_a_terminal_shows_one_changing_line_and_the_rest_above_it() -> None:
    out = io.StringIO()
    _show(Terminal(file=out, force_terminal=True, width=120, color_system=None))
    text = out.getvalue()
    assert all(line in text for line in _LINES)
    assert text.count("\x1b[2K") >= 3  # the line is erased and drawn again
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor comes back
    above = text.index(_LINES[3])
    assert _LINES[4] in text[above:]  # the line that changes stays last


def test_a_narrow_terminal_cuts_the_changing_line() -> None:
    out = io.StringIO()
    console = Console(terminal=Terminal(file=out, force_terminal=True, width=20, color_system=None))
    console.write(_EVENTS[0])
    console.close()
    assert "step 100  loss 0.69…" in out.getvalue()
    assert "auc" not in out.getvalue()


def test_a_dumb_terminal_gets_plain_lines() -> None:
    out = io.StringIO()
    _show(Terminal(file=out, force_terminal=True, _environ={"TERM": "dumb"}))
    assert out.getvalue().splitlines() == _LINES


def test_without_a_total_nothing_is_said_of_the_rest() -> None:
    out = io.StringIO()
    _show(Terminal(file=out), total=None)
    assert "%" not in out.getvalue()
    assert "left" not in out.getvalue()


def test_time_left_is_judged_from_this_run_alone() -> None:
    out = io.StringIO()
    console = Console(2000, terminal=Terminal(file=out))
    for step, seconds in ((1000, 500.0), (1100, 501.0)):  # it resumed; earlier steps were slow
        console.write({"kind": "train", "step": step, "samples": step, "seconds": seconds})
    assert out.getvalue().splitlines() == [
        "step 1 000  50 %",
        "step 1 100  55 %, 9 s left  100 samples/s",
    ]


class _Closed(io.StringIO):
    """A pipe whose reader went away."""

    writes = 0

    def write(self, text: str) -> int:
        self.writes += 1
        raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_reader_that_goes_away_does_not_end_the_job(is_terminal: bool) -> None:
    closed, stdout, stderr = _Closed(), sys.stdout, sys.stderr
    _show(Terminal(file=closed, force_terminal=is_terminal))
    assert closed.writes == 1
    assert (sys.stdout, sys.stderr) == (stdout, stderr)


def test_a_terminal_that_hangs_up_between_events_does_not_end_the_job() -> None:
    class HungUp(io.StringIO):
        def write(self, text: str) -> int:
            if "step 200" in text:
                raise OSError(5, "Input/output error")
            return super().write(text)

    out = HungUp()
    _show(Terminal(file=out, force_terminal=True))
    assert "step 100" in out.getvalue()
    assert "eval" not in out.getvalue()


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_closed_pipe_of_a_real_process_is_survived(stream: str, forced: bool) -> None:
    script = f"""
        import sys
        from rich.console import Console as Terminal
        from hedgerow.cli.live import Console
        sys.stdin.readline()
        terminal = Terminal(stderr={stream == "stderr"}, force_terminal={forced})
        console = Console(terminal=terminal)
        for step in range(1000):
            console.write({{"kind": "train", "step": step, "samples": 1, "seconds": 1}})
        console.close()
        print("more", file=sys.{stream})
        sys.exit(7)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    pipe = process.stdout if stream == "stdout" else process.stderr
    assert pipe is not None
    pipe.close()
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.close()
    assert process.wait(60) == 7
    other = process.stderr if stream == "stdout" else process.stdout
    assert other is not None
    assert other.read() == ""
    other.close()


def test_letters_that_the_stream_lacks_and_control_characters_do_no_harm() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    console = Console(terminal=Terminal(file=out))
    console.write({"kind": "checkpoint", "step": 1, "path": "ü[bold]\n\x1b[2J"})
    assert raw.getvalue() == b"step 1  checkpoint  path \\xfc[bold]??[2J\n"


def test_numbers_as_people_read_them() -> None:
    assert [short_count(n) for n in (0, 999, 999.6, 99_960, 999_600, -3100, 2e12)] == [
        *("0", "999", "1.0 k", "100 k", "1.0 M", "-3.1 k", "2.0 T")
    ]
    assert [short_time(s) for s in (0, 59.6, 3599.7, 86400)] == [
        *("0 s", "1 min 00 s", "1 h 00 min", "1 d 00 h")
    ]
    assert event_line({"kind": "train", "step": 1, "auc": float("nan")}) == "step 1  auc nan"
    event: Event = {"kind": "train", "step": 1, "rows": 5, "seconds": 2, "lag": 0.123456, "hits": 3}
    before: Event = {"rows": 25, "seconds": 1}
    assert event_line(event, before) == "step 1  rows 5 (-20/s)  lag 0.1235  hits 3"
