"""Counts pushes, and writes the counters in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from ..core.counters import Tags
from ..core.process_state import ForkLock
from .pushes import Observe, RowPush

if TYPE_CHECKING:
    from .publisher import PublisherStatus


LATENCY = "parameter_sync_latency"  # a timer, in microseconds
FID_COUNT, BYTE_SIZE = "parameter_sync_fid_count", "parameter_sync_byte_size"
UNKNOWN = "NA"


@dataclass(frozen=True, slots=True)
class PushTags:
    """The tags of a push. `idc` is "<idc>:<cluster>", and `replica_id` is "-1" if unknown.

    >>> PushTags("ps_0", "hashtable_assign", "localhost:1", "OK").idc
    'NA'
    """

    model_name: str
    signature_name: str
    target: str
    status: str
    idc: str = UNKNOWN
    replica_id: str = "-1"


@dataclass(frozen=True, slots=True)
class MetricValue:
    """The number of values of a metric, and their sum."""

    count: int = 0
    total: float = 0.0


class PushMetrics:
    """Timers and counters by name and tags. Owns a lock that survives forks.

    >>> metrics = PushMetrics()
    >>> tags = PushTags("ps_0", "hashtable_assign", "localhost:1", "OK")
    >>> metrics.pushed(tags, micros=250.0, fids=2, sent_bytes=0)
    >>> metrics.read(LATENCY, tags), metrics.read(FID_COUNT, tags).total
    (MetricValue(count=1, total=250.0), 2.0)
    >>> metrics.read(BYTE_SIZE, tags).count  # zeros are not told
    0
    """

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._metrics: dict[tuple[str, Tags], MetricValue] = {}

    def pushed(self, tags: PushTags, *, micros: float, fids: int, sent_bytes: int) -> None:
        """Records a call that ended, with success or not. Zero counts are not recorded."""
        self._add(LATENCY, tags, micros)
        for name, value in ((FID_COUNT, fids), (BYTE_SIZE, sent_bytes)):
            if value:
                self._add(name, tags, float(value))

    def read(self, name: str, tags: PushTags) -> MetricValue:
        """Returns one timer or counter."""
        with self._lock:
            return self._metrics.get((name, _key(tags)), MetricValue())

    def snapshot(self) -> dict[tuple[str, Tags], MetricValue]:
        """Returns all metrics at one moment."""
        with self._lock:
            return dict(sorted(self._metrics.items()))

    def forget(self, target: str) -> None:
        """Removes the metrics of a target that is gone, so that they do not accumulate."""
        with self._lock:
            kept = {k: one for k, one in self._metrics.items() if ("target", target) not in k[1]}
            self._metrics = kept

    def _add(self, name: str, tags: PushTags, value: float) -> None:
        key = name, _key(tags)
        with self._lock:
            old = self._metrics.get(key, MetricValue())
            self._metrics[key] = MetricValue(old.count + 1, old.total + value)


def _key(tags: PushTags) -> Tags:
    return tuple(asdict(tags).items())


class SyncMetrics:
    """The metrics of pushes, as text. `pushes` holds the counters.

    >>> from hedgerow.sync.publisher import PublisherStatus
    >>> metrics = SyncMetrics()
    >>> metrics.observer("host:1")(RowPush("hashtable_assign", 3, b"1234"), "ps_0", 0.002, "OK")
    >>> text = metrics.text(PublisherStatus("p", 1, 0, "", 0, ())).decode()
    >>> [line for line in text.splitlines() if line.startswith("parameter_sync_fid_count{")]
    ['parameter_sync_fid_count{model_name="ps_0",signature_name="hashtable_assign",\
target="host:1",status="OK",idc="NA",replica_id="-1"} 3']
    """

    def __init__(self) -> None:
        self.pushes = PushMetrics()

    def observer(self, target: str) -> Observe:
        """Returns a function that the streams of a replica call after each push."""

        def observe(push: RowPush, model: str, seconds: float, code: str) -> None:
            tags = PushTags(model, push.signature, target, "OK" if code == "OK" else "KO")
            size = len(push.request)
            self.pushes.pushed(tags, micros=seconds * 1e6, fids=push.rows, sent_bytes=size)

        return observe

    def text(self, status: PublisherStatus) -> bytes:
        """Returns all metrics in Prometheus' text format."""
        return "\n".join([*self._theirs(), *_ours(status), ""]).encode()

    def _theirs(self) -> Iterator[str]:
        found = self.pushes.snapshot()
        for name, kind in ((LATENCY, "summary"), (FID_COUNT, "counter"), (BYTE_SIZE, "counter")):
            yield f"# TYPE {name} {kind}"
            for (one, tags), metric in found.items():
                if one != name:
                    continue
                labels = _labels(**dict(tags))
                if kind == "summary":
                    yield f"{name}_sum{labels} {metric.total:.15g}"
                    yield f"{name}_count{labels} {metric.count}"
                else:
                    yield f"{name}{labels} {metric.total:.15g}"


def _ours(status: PublisherStatus) -> Iterator[str]:
    streams = [
        (_labels(target=target.address, model=one.model, shard=str(one.shard)), one)
        for target in status.targets
        for one in target.streams
    ]
    for name, kind, values in (
        ("pending_rows", "gauge", [(at, one.pending_rows) for at, one in streams]),
        ("oldest_unsynced_seconds", "gauge", [(at, one.oldest_s) for at, one in streams]),
        ("sequence", "gauge", [(at, one.seq) for at, one in streams]),
        ("live", "gauge", [(at, int(one.phase == "live")) for at, one in streams]),
        ("unswept", "gauge", [(at, int(one.unswept)) for at, one in streams]),
        ("retried_rows", "counter", [(at, one.retried_rows) for at, one in streams]),
        ("full_syncs", "counter", [(at, one.full_syncs) for at, one in streams]),
        ("passes", "counter", [("", status.passes)]),
        ("source_failures", "counter", [("", status.source_failures)]),
        ("dropped_keys", "counter", [("", status.dropped)]),
    ):
        yield f"# TYPE hedgerow_sync_{name} {kind}"
        for labels, value in values:
            yield f"hedgerow_sync_{name}{labels} {value:.15g}"


def _labels(**tags: str) -> str:
    quoted = (
        '{}="{}"'.format(key, text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n"))
        for key, text in tags.items()
    )
    return "{" + ",".join(quoted) + "}"
