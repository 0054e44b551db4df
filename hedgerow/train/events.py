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
