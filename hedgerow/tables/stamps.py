"""Times of writes that can be trusted: those of the future are taken as now."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..core import checks
from ..core.clock import Clock
from ..core.counters import Counters
from ..core.shapes import Int64

_FUTURE_S = 3600  # how far clocks of other machines may run ahead


class Stamps:
    """The part of a table that looks at times. One bogus stamp would expire all other rows."""

    _clock: Clock
    _events: Counters

    def _time(self, ts: int) -> int:
        """The time of a write."""
        ts = checks.count("ts", ts)
        now_s = self._clock.now_s() if ts else 0
        if ts <= now_s + _FUTURE_S:
            return ts
        self._events.add("clamped_ts")
        return now_s

    def _times(self, ts: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """The times of restored rows."""
        now_s, times = self._clock.now_s(), ts.numpy()
        beyond = times > now_s + _FUTURE_S
        if not beyond.any():
            return ts
        self._events.add("clamped_ts", int(beyond.sum()))
        return torch.from_numpy(np.where(beyond, now_s, times))
