"""A peer as a process: asked line by line, never waited for without end."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from ..core.errors import HedgerowError
from .contestants import Contestant

# The folder goes last, so that no file of ours can stand in for a library of that environment.
# Answers get a descriptor of their own before any library is imported: libraries print at will.
_START = (
    "import os, runpy, sys; sys.path.append(sys.argv[1]); "
    "sys.argv.append(str(os.dup(1))); os.dup2(2, 1); "
    "runpy.run_module(sys.argv[2], run_name='__main__')"
)
_LEAVE_S = 10
_LAST_WORDS = 4  # lines of stderr in an error


class PeerError(HedgerowError, RuntimeError):
    """A peer crashed, hung or answered what nobody can read."""


class PeerMissingError(PeerError):
    """A peer's library is not in its environment."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds until a silent peer is given up."""

    prepare_s: float = 900.0
    answer_s: float = 600.0


class PeerProcess:
    """One running peer; single-owner. Leaving its `with` block ends the process."""

    def __init__(self, contestant: Contestant, folder: Path, patience: Patience) -> None:
        self._name, self._patience = contestant.name, patience
        python = contestant.interpreter()
        if python is None:
            raise PeerMissingError(contestant.missing() or "")
        self._complaints = folder / f"{contestant.module}.stderr"
        with self._complaints.open("w") as stderr:
            self._process = subprocess.Popen(
                [python, "-P", "-c", _START, contestant.path, contestant.module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                errors="replace",
            )
        self._answers: queue.Queue[str | None] = queue.Queue()
        # A thread, since a read from a pipe cannot be given up.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _close(self._process.stdin)  # then it ends by itself, and first what it has started
        try:
            self._process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # it has nothing to save
            self._process.wait()
        self._reader.join(timeout=5)  # a grandchild may hold the pipe
        _close(self._process.stdout)

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Sends one request and waits for its answer."""
        wait_s = self._patience.prepare_s if do == "prepare" else self._patience.answer_s
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            stdin.flush()
            line = self._answers.get(timeout=wait_s)
        except queue.Empty:
            raise PeerError(
                f"no answer to {do!r} within {wait_s:g} s.{self._last_words()}"
            ) from None
        except BrokenPipeError:
            line = None
        if line is None:
            status = self._process.wait()
            raise PeerError(f"ended with status {status} at {do!r}.{self._last_words()}")
        return self._parsed(do, line)

    def _parsed(self, do: str, line: str) -> dict[str, Any]:
        try:
            answer = json.loads(line)
        except ValueError:
            raise PeerError(f"answered {line!r} to {do!r}.{self._last_words()}") from None
        if not isinstance(answer, dict):
            raise PeerError(f"answered {line!r} to {do!r}.{self._last_words()}")
        if "missing" in answer:
            raise PeerMissingError(answer["missing"])
        return answer

    def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        for line in stdout:
            self._answers.put(line)
        self._answers.put(None)

    def _last_words(self) -> str:
        lines = self._complaints.read_text(errors="replace").splitlines()
        said = [line.strip() for line in lines if line.strip()][-_LAST_WORDS:]
        return f" Its last words: {' | '.join(said)}" if said else ""


def _close(stream: IO[str] | None) -> None:
    """Closes a pipe whose other end may be gone."""
    if stream is None:
        return
    try:
        stream.close()
    except BrokenPipeError:
        return  # what was not yet sent can no longer arrive
