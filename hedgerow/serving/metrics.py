"""Counters and histograms of a server, in Prometheus' format."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..core.errors import MissingExtraError
from ..wire.predict import PlainRequest
from .live_model import SyncService
from .model import DEFAULT_SIGNATURE

if TYPE_CHECKING:
    from ..wire.pool import Message
    from .registry import Registry


_LATENCIES_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_ROWS = tuple(4.0**power for power in range(10))


_LABELS = ("method", "model", "version", "signature", "code")
Kind = tuple[str, str, int | None, str, str]
"""The values of _LABELS, in order; a version of None means no version."""


class _Histogram:
    """Counts of values per bucket, and the sum of the values."""

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
        """Returns each bound with the number of values up to it, as Prometheus expects."""
        below, found = 0, []
        for bound, count in zip([*map(str, self.bounds), "+Inf"], self.counts, strict=True):
            below += count
            found.append((bound, float(below)))
        return found


class RequestCounts:
    """Request counts and histograms. Safe from many threads; owns a lock.

    prometheus_client's own metrics take a lock and several calls per number. A request changes
    six numbers, which took a third of the time of a small request.

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
        """Counts a request; `rows` is None if it is not a prediction."""
        with self._lock:
            cells = self._kinds.get(kind)
            if cells is None:
                cells = self._kinds[kind] = _Histogram(_LATENCIES_S), _Histogram(_ROWS)
            cells[0].add(seconds)
            if rows is not None:
                cells[1].add(rows)

    def collect(self) -> Iterator[Any]:
        """Yields the metric families for prometheus_client."""
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
    """Returns a histogram family, in which histograms with equal labels are joined."""
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


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_FRESH = {
    "seq": "The number of the last push that was applied.",
    "rows": "Rows that pushes assigned.",
    "removed": "Rows that pushes removed.",
    "synced": "1 once every row of the trainer's shard is here.",
    "age_seconds": "Every change of the shard that is older than this is applied.",
}
_FRESH_FIELDS = {"age_seconds": "age_s"}
_PREDICTS = ("/Predict", "/ModelInfer", ":predict")


class ServerMetrics:
    """Metrics of a registry's servers; pass `observe` to the servers' argument of that name.

    A name that a client sends becomes a label only if the registry knows it, so clients cannot
    fill the memory with made-up names.

    >>> from hedgerow.serving.registry import Registry
    >>> metrics = ServerMetrics(Registry())
    >>> metrics.observe("/tensorflow.serving.PredictionService/Predict", "NOT_FOUND", 0.1, None)
    >>> b'code="NOT_FOUND"' in metrics.text()
    True
    """

    def __init__(self, registry: Registry) -> None:
        library = _library()
        self._registry = registry
        self._collectors = library.CollectorRegistry()
        self._counts = RequestCounts()
        self._collectors.register(self._counts)
        self._collectors.register(_ModelCollector(registry))

    def observe(
        self, path: str, code: str, seconds: float, request: Message | PlainRequest | None
    ) -> None:
        """Counts a request by its method, code, duration in seconds and content."""
        name, version, label, key = _asked(request)
        model = self._registry.known(name, version, label)
        if model is None and name:
            model = self._registry.known(name, None, None)  # an unknown version: count its model
        if model is None:
            self._counts.add((path, "", None, "", code), seconds, None)
            return
        signature = model.signatures.get(key)
        kind = (path, model.name, model.version, "" if signature is None else key, code)
        rows = None
        if code == "OK" and path.endswith(_PREDICTS):
            signature = signature or model.signatures.get(DEFAULT_SIGNATURE)
            rows = 0 if signature is None else _rows(request, signature.row_input())
        self._counts.add(kind, seconds, rows)

    def text(self) -> bytes:
        """Returns all metrics in Prometheus' text format."""
        return _library().generate_latest(self._collectors)


class _ModelCollector:
    """Collects, at each scrape, the versions that answer."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Any]:
        """Yields one sample per version that answers, and the registry's counters."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        loaded = GaugeMetricFamily(
            "hedgerow_serving_loaded_version",
            "1 for each version of a model that answers.",
            labels=("model", "version"),
        )
        for name in self._registry.names():
            for version in self._registry.versions(name):
                loaded.add_metric((name, str(version)), 1)
        yield loaded
        events = CounterMetricFamily(
            "hedgerow_serving_events", "What happened to versions and requests.", labels=("event",)
        )
        for event, count in sorted(self._registry.counters.snapshot().items()):
            events.add_metric((event,), count)
        yield events
        yield from self._fresh()

    def _fresh(self) -> Iterator[Any]:
        """Yields how fresh the pushed rows and weights are."""
        from prometheus_client.core import GaugeMetricFamily

        told = SyncService(self._registry).status()["models"]
        for key, text in _FRESH.items():
            gauge = GaugeMetricFamily(
                f"hedgerow_replica_{key}", text, labels=("model", "shard", "shards")
            )
            for model in told:
                for one in model["shards"]:
                    labels = (model["name"], str(one["shard"]), str(one["shards"]))
                    gauge.add_metric(labels, float(one[_FRESH_FIELDS.get(key, key)]))
            yield gauge
        dense = GaugeMetricFamily(
            "hedgerow_replica_dense_number",
            "Which weights answer; 0: the bundle's.",
            labels=["model"],
        )
        for model in told:
            dense.add_metric((model["name"],), model["dense"]["number"])
        yield dense


def _asked(request: Any) -> tuple[str, int | None, str | None, str]:
    """Returns the model, the version and label if given, and the signature of a request."""
    if request is None:
        return "", None, None, ""
    if isinstance(request, PlainRequest):
        return request.model, request.version, None, request.signature or DEFAULT_SIGNATURE
    spec = getattr(request, "model_spec", None)
    if spec is not None:
        version = spec.version.value if spec.HasField("version") else None
        asks_signature = hasattr(request, "output_filter")
        signature = (spec.signature_name or DEFAULT_SIGNATURE) if asks_signature else ""
        label = spec.version_label if spec.HasField("version_label") else None
        return spec.name, version, label, signature
    name = getattr(request, "model_name", "") or getattr(request, "name", "")
    version = getattr(request, "model_version", "") or getattr(request, "version", "")
    told = version.isascii() and version.isdecimal() and len(version) < 20
    return name, int(version) if told else None, None, ""


def _rows(request: Any, name: str) -> int:
    """Returns the first size of an input; 1 for a scalar, 0 if the input is absent."""
    if isinstance(request, PlainRequest):
        sizes = request.inputs[name][1] if name in request.inputs else (0,)
    elif not hasattr(request, "model_spec"):
        sizes = next((list(one.shape) for one in request.inputs if one.name == name), [0])
    elif name in request.inputs:
        sizes = [dim.size for dim in request.inputs[name].tensor_shape.dim]
    else:
        sizes = [0]
    return sizes[0] if sizes else 1


def _library() -> Any:
    try:
        import prometheus_client
    except ImportError as error:
        raise MissingExtraError(
            f"metrics need prometheus-client ({error}); pip install hedgerow[serving]."
        ) from error
    return prometheus_client
