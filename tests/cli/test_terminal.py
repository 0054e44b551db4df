"""What a person sees on a terminal, through a real one: from the first second to after Ctrl-C."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from pathlib import Path

import pytest

JOB = """\
[data]
source = "clicks"
batch_size = 64
steps = 1_000_000
test_steps = 1
[train]
log_every = 1_000_000
threads = 1
"""


class Terminal:
    """A program on a terminal of its own, and what it has written so far."""

    def __init__(self, *command: str) -> None:
        self.text, self._seen = "", 0
        # Otherwise they would tell the width, and not the terminal.
        environ = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
        self.pid, self._file = pty.fork()
        if not self.pid:
            os.execve(command[0], list(command), environ)
        fcntl.ioctl(self._file, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))

    def read_until(self, pattern: str, limit_s: float = 200) -> None:
        """Waits for the pattern in what comes after the last one; the empty one is the end."""
        deadline = time.monotonic() + limit_s
        while True:
            if pattern and (found := re.search(pattern, self.text[self._seen :])):
                self._seen += found.end()
                return
            if not select.select([self._file], [], [], max(0.0, deadline - time.monotonic()))[0]:
                pytest.fail(f"no {pattern or 'end'!r} in {self.text[-2000:]!r}")
            try:
                part = os.read(self._file, 65536)
            except OSError:  # the program closed the terminal
                part = b""
            if not part:
                assert not pattern, f"ended without {pattern!r}: {self.text!r}"
                return
            self.text += part.decode()

    def press(self, key: bytes) -> None:
        os.write(self._file, key)

    def ended(self) -> int:
        self.read_until("")
        status = os.waitpid(self.pid, 0)[1]
        os.close(self._file)
        return os.waitstatus_to_exitcode(status)


def screen(text: str) -> list[str]:
    """The lines that stand on the terminal in the end."""
    lines, at = [""], 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
        if part == "\n":
            at += 1
            lines += [""] * (at + 1 - len(lines))
        elif part == "\x1b[2K":
            lines[at] = ""
        elif move := re.fullmatch(r"\x1b\[(\d*)A", part):
            at -= int(move[1] or 1)
        elif not part.startswith("\x1b") and part != "\r":
            lines[at] += part
    return [line.rstrip() for line in lines]


def test_a_run_shows_itself_from_the_start_and_leaves_no_stale_line(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    run = str(tmp_path / "run")
    command = (sys.executable, "-m", "hedgerow", "train", str(tmp_path / "job.toml"))
    terminal = Terminal(*command, "--out", run)
    terminal.read_until(r"starting  \d+ s")  # before torch is there
    terminal.read_until(rf"deepfm on clicks, into {run}\r?\n")
    terminal.read_until(r"2 tables and 5 511 dense weights; 1 000 000 steps of 64 samples; cpu, 1")
    steps = set[str]()
    while len(steps) < 3:  # the line goes on, although no line of the log is due for hours
        terminal.read_until(r"─  step [\d ]+?  0 %[^\r]*samples/s")
        steps |= set(re.findall(r"─  step ([\d ]+?)  0 %", terminal.text))
    terminal.press(b"\x03")
    assert terminal.ended() == 1
    lines = screen(terminal.text)
    (end,) = [i for i, line in enumerate(lines) if "  end  " in line and "why interrupted" in line]
    after = [line for line in lines[end + 1 :] if line]
    assert after[0].startswith("deepfm on clicks: interrupted after ")
    assert f"go on with:  hedgerow train --resume --out {run}" in after
    assert not [line for line in lines if "─" in line or "starting" in line]
    assert terminal.text.count("\x1b[?25l") == terminal.text.count("\x1b[?25h")


def test_ctrl_c_before_the_first_step_gives_the_terminal_back(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "hedgerow", "train", "--data", "clicks")
    terminal = Terminal(*command, "--out", str(tmp_path / "run"))
    terminal.read_until(r"starting  \d+ s")
    terminal.press(b"\x03")
    assert terminal.ended() != 0
    assert not [line for line in screen(terminal.text) if "starting" in line and "^C" not in line]
    assert terminal.text.count("\x1b[?25l") == terminal.text.count("\x1b[?25h")


def test_lines_of_the_log_stand_above_the_line_that_changes(tmp_path: Path) -> None:
    """The plan is logged while the line says that the job is set up."""
    job = JOB.replace("1_000_000", "5").replace("[train]", '[train]\nplan = "auto"')
    (tmp_path / "job.toml").write_text(f"{job}[model.tables]\nuser.rows = 9\nitem.rows = 9\n")
    command = (sys.executable, "-m", "hedgerow", "train", str(tmp_path / "job.toml"))
    terminal = Terminal(*command, "--out", str(tmp_path / "run"))
    assert terminal.ended() == 0
    lines = screen(terminal.text)
    told = [line for line in lines if " INFO " in line]
    assert told
    assert all(re.match(r"\d{4}-\d\d-\d\d ", line) for line in told), told
    assert not [line for line in lines if "building the model" in line]
