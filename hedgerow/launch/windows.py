"""Times of a communication benchmark as latency and goodput."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

WINDOW = 20  # iterations that are timed as one
LEAST_ITERATIONS = 2 * WINDOW  # the first window warms up and is dropped
_ON_CPU_DIVISOR = 8  # of the length, where both ends are in host memory


def sent_elements(kind: str, total_len: int) -> float:
    """How many elements a process sends when asked for `total_len`; a fraction cannot be sent.

    >>> sent_elements("c2c", 8192000), sent_elements("g2g", 8192000)
    (1024000.0, 8192000)
    """
    return total_len / _ON_CPU_DIVISOR if kind == "c2c" else total_len


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of one run.

    >>> run = Windows(65536000, (1.0, 0.5))
    >>> run.latency_ms, run.goodputs_gbps[0]
    ([50.0, 25.0], 41.94304)
    >>> run.kept
    [83.88608]
    """

    elements: float
    seconds: Sequence[float]

    @property
    def latency_ms(self) -> list[float]:
        """Of one iteration, window by window."""
        return [seconds / WINDOW * 1000 for seconds in self.seconds]

    @property
    def goodputs_gbps(self) -> list[float]:
        """Bits of all float32 elements over the time; not what the wires carry."""
        return [self.elements * 32 / ms / 1e6 for ms in self.latency_ms]

    @property
    def kept(self) -> list[float]:
        """Goodput of every window but the first."""
        return self.goodputs_gbps[1:]

    @property
    def kept_latency_ms(self) -> float:
        """The median without the first window."""
        return statistics.median(self.latency_ms[1:])


def summary(total_len: int, kept: Sequence[float]) -> tuple[int, float | None]:
    """The length as it was asked for and the mean goodput, None where no window is left.

    >>> summary(8192, [])
    (8192, None)
    """
    return total_len, (sum(kept) / len(kept) if kept else None)


def bus_factor(kind: str, size: int) -> float:
    """What the busiest wire carries, over the goodput: the bandwidth of the bus.

    >>> bus_factor("ar", 4), bus_factor("c2c", 4)
    (1.5, 0.75)
    """
    return (2 if kind == "ar" else 1) * (size - 1) / size
