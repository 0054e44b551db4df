"""A log of one JSON object a line, which a resumed job continues as if it had never stopped."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from ..core.errors import FileDamagedError
from ..core.local_path import local_path
from ..core.whole_file import naming
from .events import Event


class JsonLines:
    """Writes each event as a line, at once. Numbers that are not finite become null.

    A new job starts an empty file. One that resumes gives `kept`, how many events came before its
    checkpoint: what the interrupted run wrote later, and a last line that a kill tore, are cut off
    first. Single-owner.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/log.jsonl"
    >>> log = JsonLines(path)
    >>> log.write({"kind": "train", "step": 1, "loss": 0.7})
    >>> log.write({"kind": "train", "step": 2, "loss": 0.6})
    >>> log.close()
    >>> JsonLines(path, kept=1).close()
    >>> print(Path(path).read_text(), end="")
    {"kind": "train", "step": 1, "loss": 0.7}
    """

    def __init__(self, path: str | Path, kept: int | None = None) -> None:
        self._path = path = local_path(path)
        with naming(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            new = kept is None or not path.exists()
            self._file: BinaryIO = path.open("wb" if new else "r+b")
        if kept is None or new:
            return
        try:
            _cut(self._file, str(path), kept)
        except BaseException:
            self._file.close()
            raise

    def write(self, event: Event) -> None:
        """Appends one line and hands it to the system."""
        values = {name: _fit_for_json(value) for name, value in event.items()}
        with naming(self._path):
            self._file.write(json.dumps(values, allow_nan=False).encode() + b"\n")
            self._file.flush()

    def close(self) -> None:
        """Closes the file; a second call does nothing."""
        with naming(self._path):
            self._file.close()


def read_events(path: str | Path) -> list[dict[str, float | int | str]]:
    """The events of a log; null becomes NaN, a torn last line is left out.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "log.jsonl")
    >>> _ = path.write_text('{"kind": "eval", "step": 3, "auc": null}\\n{"kind": "tr')
    >>> read_events(path)
    [{'kind': 'eval', 'step': 3, 'auc': nan}]
    """
    with Path(path).open("rb") as file:
        return [event for _, event in _lines(file, str(path))]


def _fit_for_json(value: float | int | str) -> float | int | str | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cut(file: BinaryIO, name: str, kept: int) -> None:
    """Leaves the first `kept` events, and stands at their end."""
    keep = max((end for end, _ in islice(_lines(file, name), kept)), default=0)
    file.seek(keep)
    file.truncate()
    if keep:
        file.seek(keep - 1)
        if file.read(1) != b"\n":  # a whole event whose line was not ended
            file.write(b"\n")


def _lines(file: BinaryIO, name: str) -> Iterator[tuple[int, dict]]:
    """Each event with the byte its line ends at."""
    end = 0
    for number, line in enumerate(file, start=1):
        end += len(line)
        event = _event(line)
        if event is not None:
            yield end, event
        elif file.read(1):  # not the last line, so no kill tore it
            raise FileDamagedError(
                f"{name} is damaged: line {number} is no event. Move the file away; "
                "the job then starts a new one."
            )


def _event(line: bytes) -> dict | None:
    """The event of a line, or None: a torn one has no closing brace and parses as nothing."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not {"kind", "step"} <= set(event):
        return None
    return {key: math.nan if value is None else value for key, value in event.items()}
