"""What is counted of pushes, under the original's names and with its tags."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ..core.forklock import ForkLock
from ..core.timings import Tags

LATENCY = "parameter_sync_latency"  # a timer, in microseconds
FID_COUNT, BYTE_SIZE = "parameter_sync_fid_count", "parameter_sync_byte_size"
UNKNOWN = "NA"


@dataclass(frozen=True, slots=True)
class PushTags:
    """Which push: `idc` is "<idc>:<cluster>", `replica_id` "-1" where it is unknown.

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
class Metric:
    """How often something was told, and all of it together."""

    count: int = 0
    total: float = 0.0


class PushMetrics:
    """Timers and counters by name and tags; owns a lock that survives forks.

    >>> metrics = PushMetrics()
    >>> tags = PushTags("ps_0", "hashtable_assign", "localhost:1", "OK")
    >>> metrics.pushed(tags, micros=250.0, fids=2, sent_bytes=0)
    >>> metrics.read(LATENCY, tags), metrics.read(FID_COUNT, tags).total
    (Metric(count=1, total=250.0), 2.0)
    >>> metrics.read(BYTE_SIZE, tags).count  # zeros are not told
    0
    """

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._metrics: dict[tuple[str, Tags], Metric] = {}

    def pushed(self, tags: PushTags, *, micros: float, fids: int, sent_bytes: int) -> None:
        """One call that ended, well or not."""
        self._add(LATENCY, tags, micros)
        for name, value in ((FID_COUNT, fids), (BYTE_SIZE, sent_bytes)):
            if value:
                self._add(name, tags, float(value))

    def read(self, name: str, tags: PushTags) -> Metric:
        """One timer or counter."""
        with self._lock:
            return self._metrics.get((name, _key(tags)), Metric())

    def snapshot(self) -> dict[tuple[str, Tags], Metric]:
        """All of them at one moment."""
        with self._lock:
            return dict(sorted(self._metrics.items()))

    def forget(self, target: str) -> None:
        """Drops what was counted of a target that is gone for good: others come, and go too."""
        with self._lock:
            kept = {k: one for k, one in self._metrics.items() if ("target", target) not in k[1]}
            self._metrics = kept

    def _add(self, name: str, tags: PushTags, value: float) -> None:
        key = name, _key(tags)
        with self._lock:
            old = self._metrics.get(key, Metric())
            self._metrics[key] = Metric(old.count + 1, old.total + value)


def _key(tags: PushTags) -> Tags:
    return tuple(asdict(tags).items())
