"""Counters and histograms of a server, as Prometheus reads them. Owns its collectors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.errors import MissingExtraError
from .model import DEFAULT_SIGNATURE, Model, ServingError
from .sync_service import SyncService

if TYPE_CHECKING:
    from ..wire.pool import Message
    from .registry import Registry

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LATENCIES_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_ROWS = tuple(4.0**power for power in range(10))
_FRESH = {
    "seq": "The number of the last push that was applied.",
    "rows": "Rows that pushes assigned.",
    "removed": "Rows that pushes removed.",
    "synced": "1 once every row of the trainer's shard is here.",
    "age_seconds": "Every change of the shard that is older is here.",
}
_FRESH_FIELDS = {"age_seconds": "age_s"}
_PREDICTS = ("/Predict", "/ModelInfer", ":predict")


class _Cells(NamedTuple):
    """Where requests of one kind are counted."""

    requests: Any
    latency: Any
    rows: Any  # None where the request asked for no prediction


class Metrics:
    """What a registry's servers did. `observe` fits the servers' argument of that name.

    Names that clients send become labels only where the registry knows them: nobody can fill the
    memory with names of their own.

    >>> from hedgerow.serving.registry import Registry
    >>> metrics = Metrics(Registry())
    >>> metrics.observe("/tensorflow.serving.PredictionService/Predict", "NOT_FOUND", 0.1, None)
    >>> b'code="NOT_FOUND"' in metrics.text()
    True
    """

    def __init__(self, registry: Registry) -> None:
        library = _library()
        self._registry = registry
        self._collectors = library.CollectorRegistry()
        self._requests = library.Counter(
            "hedgerow_serving_requests",
            "Requests by what they asked for and how they ended.",
            ("method", "model", "version", "signature", "code"),
            registry=self._collectors,
        )
        self._latency = library.Histogram(
            "hedgerow_serving_request_seconds",
            "From a request's last byte to its answer.",
            ("method", "model"),
            buckets=_LATENCIES_S,
            registry=self._collectors,
        )
        self._rows = library.Histogram(
            "hedgerow_serving_request_rows",
            "Rows of a request: its samples, or the first size of the signature's first input.",
            ("model",),
            buckets=_ROWS,
            registry=self._collectors,
        )
        self._cells: dict[tuple[str, ...], _Cells] = {}  # to find a label takes longer
        self._collectors.register(_Loaded(registry))

    def observe(self, path: str, code: str, seconds: float, request: Message | None) -> None:
        """Counts a request that ended: its method, its code, its time, and what was asked."""
        model, version, signature, row_input = self._labels(request)
        key = (path, model, version, signature, code)
        cells = self._cells.get(key)
        if cells is None:  # at most so many as there are labels
            counted = bool(model) and code == "OK" and path.endswith(_PREDICTS)
            cells = self._cells[key] = _Cells(
                self._requests.labels(*key),
                self._latency.labels(path, model),
                self._rows.labels(model) if counted else None,
            )
        cells.requests.inc()
        cells.latency.observe(seconds)
        if cells.rows is not None:
            cells.rows.observe(_rows(request, row_input))

    def text(self) -> bytes:
        """All of it, in Prometheus' text form."""
        return _library().generate_latest(self._collectors)

    def _labels(self, request: Any) -> tuple[str, str, str, str]:
        """Model, version and signature, empty where unknown; and the input that tells its rows."""
        name, asked, label, signature = _asked(request)
        if not name:
            return "", "", "", ""
        for version, by in ((asked, label), (None, None)):  # an unknown one counts for the newest
            try:
                with self._registry.find(name, version, by) as model:
                    known = signature if signature in model.signatures else ""
                    return name, str(model.version), known, _row_input(model, signature)
            except ServingError:
                continue
        return "", "", "", ""


class _Loaded:
    """Reads, at each scrape, which versions answer."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Any]:
        """One sample for each version that answers, and the registry's own counters."""
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
        """How fresh rows and weights are that publishers send."""
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
    """The model, the version and the label if one was named, and the signature of a request."""
    if request is None:
        return "", None, None, ""
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


def _row_input(model: Model, key: str) -> str:
    """The input with one entry a sample; of a signature that says none, the first."""
    signature = model.signatures.get(key or DEFAULT_SIGNATURE)
    if signature is None:
        return ""
    joining = signature.joining
    return joining.samples if joining else next(iter(signature.inputs), "")


def _rows(request: Any, name: str) -> int:
    """The first size of an input; 1 of a scalar, 0 where it did not come."""
    if not hasattr(request, "model_spec"):
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
