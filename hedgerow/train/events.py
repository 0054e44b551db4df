"""What a job tells while it runs: events, and what takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

# "kind" is "train", "eval", "checkpoint" or "end"; "step", "samples" and "seconds" say how far the
# job was: steps done, samples trained on, seconds of work. All else is what the event has to tell.
Event = Mapping[str, float | int | str]
PLACE = ("kind", "step", "samples", "seconds")


class Sink(Protocol):
    """Something that events are written to."""

    def write(self, event: Event) -> None:
        """Takes one event."""
        ...

    def close(self) -> None:
        """No event will follow."""
        ...


class WithSpeed:
    """Gives a sink every event, those of training with `samples_per_s` since the event before.

    A job that resumes counts its seconds anew: its first event has no speed. Single-owner.

    >>> import tempfile
    >>> from hedgerow.train.json_lines import JsonLines, read_events
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
        """Passes one event on."""
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
