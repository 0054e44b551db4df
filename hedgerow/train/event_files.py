"""Event files that TensorBoard reads, written without it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..core.clock import Clock, SystemClock
from ..core.local_path import local_path
from ..core.protobuf import bytes_field, double_field, floats_field, varint_field
from ..core.whole_file import naming
from ..data.record_frames import frame
from .events import PLACE, Event

# Fields of the messages, by their published numbers.
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY, _SESSION_LOG = 1, 2, 3, 5, 7  # Event
_VALUE = 1  # Summary
_TAG, _SIMPLE_VALUE = 1, 2  # Summary.Value
_STATUS, _START = 1, 1  # SessionLog, and the status of a session that begins


class TensorBoard:
    """Writes the numbers of each event as scalars `train/loss`, `eval/auc` and so on, at once.

    A new file each time, in `folder`. A job that resumes gives `from_step`, the step it goes on
    after: readers then drop what earlier files hold beyond it. A new job drops all that
    they hold. Single-owner.

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
            with suppress(OSError):  # it tries once more to write what found no room
                self._file.close()
            raise

    def write(self, event: Event) -> None:
        """Appends the event's numbers; its texts and its place among steps are no scalars."""
        values = b"".join(
            bytes_field(_VALUE, _scalar(f"{event['kind']}/{name}", value))
            for name, value in event.items()
            if name not in PLACE and not isinstance(value, str)
        )
        if values:
            self._append(int(event["step"]), bytes_field(_SUMMARY, values))

    def close(self) -> None:
        """Closes the file; a second call does nothing."""
        with naming(self._folder):
            self._file.close()

    def _append(self, step: int, content: bytes) -> None:
        head = double_field(_WALL_TIME, self._clock.now_s()) + varint_field(_STEP, step)
        with naming(self._folder):
            self._file.write(frame(head + content))
            self._file.flush()


def _new_file(folder: Path, now_s: int) -> BinaryIO:
    """A file whose name sorts behind those of earlier seconds and, within one, earlier files."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 0
    while True:
        try:
            return (folder / f"events.out.tfevents.{now_s:010d}.{number:03d}").open("xb")
        except FileExistsError:
            number += 1


def _scalar(tag: str, value: float) -> bytes:
    with np.errstate(over="ignore"):  # beyond float32 is infinity
        number = np.array([value]).astype(np.float32)
    return bytes_field(_TAG, tag.encode()) + floats_field(_SIMPLE_VALUE, number)
