"""Events of a training run, and the files that they are written to."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np

from ..core.clock import Clock, SystemClock
from ..core.errors import FileDamagedError
from ..core.files import local_path, naming
from ..core.protobuf import bytes_field, double_field, floats_field, varint_field
from ..data.tfrecord_format import frame

# "kind" is "train", "eval", "checkpoint" or "end". "step", "samples" and "seconds" are the steps,
# samples and seconds of training so far. All other keys are values of the event.
Event = Mapping[str, float | int | str]
PLACE = ("kind", "step", "samples", "seconds")


class Sink(Protocol):
    """An object that events are written to."""

    def write(self, event: Event) -> None:
        """Writes one event."""
        ...

    def close(self) -> None:
        """Closes the sink after the last event."""
        ...


class WithSpeed:
    """Passes events to a sink and adds `samples_per_s` since the previous event to train events.

    A resumed job counts its seconds from 0, so its first event has no speed. Single-owner.

    >>> import tempfile
    >>> from hedgerow.train.events import JsonLines, read_events
    >>> path = tempfile.mkdtemp() + "/log.jsonl"
    >>> log = WithSpeed(JsonLines(path))
    >>> log.write({"kind": "train", "step": 9, "samples": 900, "seconds": 3.0})
    >>> log.close()
    >>> read_events(path)[0]["samples_per_s"]
    300.0
    """

    def __init__(self, sink: Sink, *, resumed: bool = False) -> None:
        self._sink = sink
        self._before: Event | None = None if resumed else {"samples": 0, "seconds": 0}

    def write(self, event: Event) -> None:
        """Passes on one event."""
        before, self._before = self._before, event
        speed: dict[str, float] = {}
        if before is not None and event["kind"] == "train":
            samples = float(event["samples"]) - float(before["samples"])
            passed_s = float(event["seconds"]) - float(before["seconds"])
            if samples > 0 and passed_s > 0:
                speed["samples_per_s"] = samples / passed_s
        self._sink.write({**event, **speed})

    def close(self) -> None:
        """Closes the sink."""
        self._sink.close()


# Fields of the messages, by their published numbers.
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY, _SESSION_LOG = 1, 2, 3, 5, 7  # Event
_VALUE = 1  # Summary
_TAG, _SIMPLE_VALUE = 1, 2  # Summary.Value
_STATUS, _START = 1, 1  # SessionLog: its status field, and the value for a start


class TensorBoard:
    """Writes the numbers of each event as scalars such as `train/loss`, without buffering.

    Each object writes a new file in `folder`. A resumed job passes `from_step`, the step that it
    resumes after; readers then ignore later steps in older files. For a new job they ignore all
    older files. Single-owner.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> log = TensorBoard(folder)
    >>> log.write({"kind": "train", "step": 1, "samples": 64, "seconds": 0.1, "loss": 0.7})
    >>> log.close()
    >>> [file.name[:19] for file in Path(folder).iterdir()]
    ['events.out.tfevents']
    """

    def __init__(
        self, folder: str | Path, from_step: int | None = None, *, clock: Clock | None = None
    ) -> None:
        self._clock = clock or SystemClock()
        self._folder = local_path(folder)
        with naming(self._folder):
            self._file = _new_file(self._folder, self._clock.now_s())
        first_step = 0 if from_step is None else from_step + 1
        try:
            self._append(0, bytes_field(_FILE_VERSION, b"brain.Event:2"))
            self._append(first_step, bytes_field(_SESSION_LOG, varint_field(_STATUS, _START)))
        except BaseException:
            with suppress(OSError):  # closing tries to write again on a full disk
                self._file.close()
            raise

    def write(self, event: Event) -> None:
        """Appends the numbers of the event, except "step", "samples" and "seconds". Skips texts."""
        values = b"".join(
            bytes_field(_VALUE, _scalar(f"{event['kind']}/{name}", value))
            for name, value in event.items()
            if name not in PLACE and not isinstance(value, str)
        )
        if values:
            self._append(int(event["step"]), bytes_field(_SUMMARY, values))

    def close(self) -> None:
        """Closes the file. A second call has no effect."""
        with naming(self._folder):
            self._file.close()

    def _append(self, step: int, content: bytes) -> None:
        head = double_field(_WALL_TIME, self._clock.now_s()) + varint_field(_STEP, step)
        with naming(self._folder):
            self._file.write(frame(head + content))
            self._file.flush()


def _new_file(folder: Path, now_s: int) -> BinaryIO:
    """Creates a file whose name sorts after those of all earlier files."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 0
    while True:
        try:
            return (folder / f"events.out.tfevents.{now_s:010d}.{number:03d}").open("xb")
        except FileExistsError:
            number += 1


def _scalar(tag: str, value: float) -> bytes:
    with np.errstate(over="ignore"):  # values beyond float32 become infinity
        number = np.array([value]).astype(np.float32)
    return bytes_field(_TAG, tag.encode()) + floats_field(_SIMPLE_VALUE, number)


class JsonLines:
    """Writes each event as a JSON line, without buffering. Non-finite numbers become null.

    A new job starts with an empty file. A resumed job passes `kept`, the number of events before
    its checkpoint. Later events of the interrupted run, and an incomplete last line, are removed
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
        """Appends one line and flushes the file."""
        values = {name: _fit_for_json(value) for name, value in event.items()}
        with naming(self._path):
            self._file.write(json.dumps(values, allow_nan=False).encode() + b"\n")
            self._file.flush()

    def close(self) -> None:
        """Closes the file. A second call has no effect."""
        with naming(self._path):
            self._file.close()


def read_events(path: str | Path) -> list[dict[str, float | int | str]]:
    """Returns the events of a log. Null becomes NaN, and an incomplete last line is ignored.

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
    """Keeps the first `kept` events and moves to the end of the file."""
    keep = max((end for end, _ in islice(_lines(file, name), kept)), default=0)
    file.seek(keep)
    file.truncate()
    if keep:
        file.seek(keep - 1)
        if file.read(1) != b"\n":  # a complete event without a line end
            file.write(b"\n")


def _lines(file: BinaryIO, name: str) -> Iterator[tuple[int, dict]]:
    """Yields each event with the offset of the end of its line."""
    end = 0
    for number, line in enumerate(file, start=1):
        end += len(line)
        event = _event(line)
        if event is not None:
            yield end, event
        elif file.read(1):  # not the last line, so it is damage and not an interrupted write
            raise FileDamagedError(
                f"{name} is damaged: line {number} is no event. Move the file away; "
                "the job then starts a new one."
            )


def _event(line: bytes) -> dict | None:
    """Returns the event of a line, or None if the line is incomplete."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not {"kind", "step"} <= set(event):
        return None
    return {key: math.nan if value is None else value for key, value in event.items()}
