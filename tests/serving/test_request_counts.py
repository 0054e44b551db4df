"""The server's own counters tell what prometheus_client's would, and lose nothing."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import generate_latest

from hedgerow.serving import metrics as request_counts
from hedgerow.serving.metrics import Kind, RequestCounts, ServerMetrics
from hedgerow.serving.registry import Registry
from hedgerow.wire.messages import tf_serving

from .serving import adding

Added = tuple[Kind, float, int | None]


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Threads take turns very often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def _theirs(added: list[Added]) -> CollectorRegistry:
    """The same in prometheus_client's own objects."""
    registry = CollectorRegistry()
    labels = ("method", "model", "version", "signature", "code")
    name, about = "hedgerow_serving_request", "Requests by what they asked for and how they ended."
    requests = Counter(f"{name}s", about, labels, registry=registry)
    about = "From a request's last byte to its answer."
    bounds = request_counts._LATENCIES_S
    seconds = Histogram(f"{name}_seconds", about, labels[:2], registry=registry, buckets=bounds)
    about = "Rows of a request: its samples, or the first size of the signature's first input."
    rows = Histogram(
        f"{name}_rows",
        about,
        labels[1:2],
        registry=registry,
        buckets=request_counts._ROWS,
    )
    for (method, model, version, signature, code), took_s, count in added:
        told = "" if version is None else str(version)
        requests.labels(method, model, told, signature, code).inc()
        seconds.labels(method, model).observe(took_s)
        if count is not None:
            rows.labels(model).observe(count)
    return registry


def _lines(registry: CollectorRegistry) -> list[str]:
    """Of the text, without the times when their objects were made: those we do not tell."""
    lines = generate_latest(registry).decode().splitlines()
    return sorted(line for line in lines if "_created" not in line)


def _ours(counts: RequestCounts) -> list[str]:
    registry = CollectorRegistry()
    registry.register(counts)
    return _lines(registry)


def test_the_text_is_that_of_prometheus_client() -> None:
    draw = random.Random(3)
    added: list[Added] = []
    for _ in range(400):
        model, version = draw.choice([("", None), ("ctr", 1), ("ctr", 2), ('"a\\b\n', 1)])
        kind = (draw.choice(["/a", "/b"]), model, version, draw.choice(["", "x"]), "OK")
        took_s = draw.choice([0.0, 0.0005, 0.001, 10.0, 11.0, 0.25, 0.75])  # bounds: sums are exact
        added.append((kind, took_s, draw.choice([None, 0, 1, 4, 5, 4**9, 4**9 + 1])))
    counts = RequestCounts()
    for one in added:
        counts.add(*one)
    ours, theirs = _ours(counts), _lines(_theirs(added))
    assert [line.rpartition(" ")[0] for line in ours] == [
        line.rpartition(" ")[0] for line in theirs
    ]
    for our, their in zip(ours, theirs, strict=True):
        if not our.startswith("#"):
            numbers = [float(line.rpartition(" ")[2]) for line in (our, their)]
            assert numbers[0] == pytest.approx(numbers[1]), our


@pytest.mark.usefixtures("quick_switches")
def test_threads_lose_no_count() -> None:
    counts = RequestCounts()

    def add(_: int) -> None:
        for i in range(500):
            counts.add(("/a", "m", i % 3, "", "OK"), 0.5, 2)
            if i % 100 == 0:
                list(counts.collect())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(8)))
    told = dict(line.rsplit(" ", 1) for line in _ours(counts))
    assert told['hedgerow_serving_request_seconds_count{method="/a",model="m"}'] == "4000.0"
    assert told['hedgerow_serving_request_rows_sum{model="m"}'] == "8000.0"


def test_names_that_clients_invent_take_no_memory() -> None:
    registry = Registry()
    registry.add(adding(1))
    metrics = ServerMetrics(registry)

    def lines() -> int:
        return len(metrics.text().splitlines())

    def ask(name: str, version: int, signature: str, label: str) -> None:
        request = tf_serving.PredictRequest(model_spec={"name": name, "signature_name": signature})
        if label:
            request.model_spec.version_label = label
        else:
            request.model_spec.version.value = version
        metrics.observe("/Predict", "NOT_FOUND", 0.001, request)

    ask("m", 0, "s", "")
    ask("x", 0, "s", "")
    before = lines()
    for i in range(50):
        ask("m", i + 2, f"s{i}", "")
        ask("m", 1, f"s{i}", f"l{i}")
        ask(f"m{i}", 1, "", "")
    assert lines() == before
