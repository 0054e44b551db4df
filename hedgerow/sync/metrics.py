"""Counters of a publisher in Prometheus' text form; the original's names, and ours beside them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .flights import Observe
from .push_metrics import BYTE_SIZE, FID_COUNT, LATENCY, PushMetrics, PushTags
from .requests import Push

if TYPE_CHECKING:
    from .publisher import PublisherStatus


class SyncMetrics:
    """What was pushed, as text; `pushes` counts it.

    >>> from hedgerow.sync.publisher import PublisherStatus
    >>> metrics = SyncMetrics()
    >>> metrics.observer("host:1")(Push("hashtable_assign", 3, b"1234"), "ps_0", 0.002, "OK")
    >>> text = metrics.text(PublisherStatus("p", 1, 0, "", 0, ())).decode()
    >>> [line for line in text.splitlines() if line.startswith("parameter_sync_fid_count{")]
    ['parameter_sync_fid_count{model_name="ps_0",signature_name="hashtable_assign",\
target="host:1",status="OK",idc="NA",replica_id="-1"} 3']
    """

    def __init__(self) -> None:
        self.pushes = PushMetrics()

    def observer(self, target: str) -> Observe:
        """What a replica's streams call after each push."""

        def observe(push: Push, model: str, seconds: float, code: str) -> None:
            tags = PushTags(model, push.signature, target, "OK" if code == "OK" else "KO")
            size = len(push.request)
            self.pushes.pushed(tags, micros=seconds * 1e6, fids=push.rows, sent_bytes=size)

        return observe

    def text(self, status: PublisherStatus) -> bytes:
        """All of it."""
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
