"""Requests counted by what they asked for, with their times and rows. Owns a lock."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

_LATENCIES_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_ROWS = tuple(4.0**power for power in range(10))


_LABELS = ("method", "model", "version", "signature", "code")
Kind = tuple[str, str, int | None, str, str]
"""What requests are told apart by: _LABELS, in order; None is no version."""


class _Histogram:
    """How many values lie below each bound, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def join(self, other: _Histogram) -> None:
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

    def buckets(self) -> list[tuple[str, float]]:
        """As Prometheus has them: each bound with all values up to it."""
        below, found = 0, []
        for bound, count in zip([*map(str, self.bounds), "+Inf"], self.counts, strict=True):
            below += count
            found.append((bound, float(below)))
        return found


class RequestCounts:
    """Counts that many threads add to, and that a scrape reads.

    prometheus_client's own take a lock and several calls for each number, and a request changes
    six of them: a third of the time that a small one takes in all.

    >>> counts = RequestCounts()
    >>> counts.add(("/Predict", "ctr", 1, "", "OK"), 0.002, 64)
    >>> [family.name for family in counts.collect()]
    ['hedgerow_serving_requests', 'hedgerow_serving_request_seconds', \
'hedgerow_serving_request_rows']
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: dict[Kind, tuple[_Histogram, _Histogram]] = {}  # seconds and rows

    def add(self, kind: Kind, seconds: float, rows: int | None) -> None:
        """One request; `rows` is None where it was no prediction."""
        with self._lock:
            cells = self._kinds.get(kind)
            if cells is None:
                cells = self._kinds[kind] = _Histogram(_LATENCIES_S), _Histogram(_ROWS)
            cells[0].add(seconds)
            if rows is not None:
                cells[1].add(rows)

    def collect(self) -> Iterator[Any]:
        """All of it, for prometheus_client."""
        from prometheus_client.core import CounterMetricFamily

        with self._lock:
            kinds = {kind: (_copy(s), _copy(r)) for kind, (s, r) in self._kinds.items()}
        requests = CounterMetricFamily(
            "hedgerow_serving_requests",
            "Requests by what they asked for and how they ended.",
            labels=_LABELS,
        )
        for (method, model, version, *others), (seconds, _) in kinds.items():
            told = "" if version is None else str(version)
            requests.add_metric((method, model, told, *others), sum(seconds.counts))
        yield requests
        yield _family(
            "hedgerow_serving_request_seconds",
            "From a request's last byte to its answer.",
            ("method", "model"),
            ((kind[:2], seconds) for kind, (seconds, _) in kinds.items()),
        )
        yield _family(
            "hedgerow_serving_request_rows",
            "Rows of a request: its samples, or the first size of the signature's first input.",
            ("model",),
            ((kind[1:2], rows) for kind, (_, rows) in kinds.items() if any(rows.counts)),
        )


def _copy(histogram: _Histogram) -> _Histogram:
    made = _Histogram(histogram.bounds)
    made.join(histogram)
    return made


def _family(
    name: str,
    text: str,
    labels: Sequence[str],
    parts: Iterable[tuple[tuple[str, ...], _Histogram]],
) -> Any:
    """Histograms with the same labels are joined."""
    from prometheus_client.core import HistogramMetricFamily

    joined: dict[tuple[str, ...], _Histogram] = {}
    for values, histogram in parts:
        if values in joined:
            joined[values].join(histogram)
        else:
            joined[values] = histogram
    family = HistogramMetricFamily(name, text, labels=labels)
    for values, histogram in joined.items():
        family.add_metric(values, histogram.buckets(), histogram.total)
    return family
