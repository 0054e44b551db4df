"""All that events can be written to: `Sink` and the files that are one."""

from __future__ import annotations

from .event_files import TensorBoard as TensorBoard
from .events import Event as Event
from .events import Sink as Sink
from .events import WithSpeed as WithSpeed
from .json_lines import JsonLines as JsonLines
from .json_lines import read_events as read_events

__all__ = ["Event", "JsonLines", "Sink", "TensorBoard", "WithSpeed", "read_events"]
