"""Counters of a publisher in Prometheus' text form; the original's names, and ours beside them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from .flights import Observe
from .requests import Push

if TYPE_CHECKING:
    from .publisher import PublisherStatus

_LATENCY, _COUNT, _BYTES = (
    "parameter_sync_latency",
    "parameter_sync_fid_count",
    "parameter_sync_byte_size",
)
_Tags = tuple[str, str, str, str]  # model_name, signature_name, target, status


class SyncMetrics:
    """What was pushed. Owns a lock.

    >>> from hedgerow.sync.publisher import PublisherStatus
    >>> metrics = SyncMetrics()
    >>> metrics.observer("host:1")(Push("hashtable_assign", 3, b"1234"), "ps_0", 0.002, "OK")
    >>> text = metrics.text(PublisherStatus("p", 1, 0, "", 0, ())).decode()
    >>> [line for line in text.splitlines() if line.startswith("parameter_sync_fid_count{")]
    ['parameter_sync_fid_count{model_name="ps_0",signature_name="hashtable_assign",\
target="host:1",status="OK",idc="NA",replica_id="-1"} 3']
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[_Tags, int] = {}
        self._micros: dict[_Tags, float] = {}
        self._rows: dict[_Tags, int] = {}
        self._bytes: dict[_Tags, int] = {}

    def observer(self, target: str) -> Observe:
        """What a replica's streams call after each push."""

        def observe(push: Push, model: str, seconds: float, code: str) -> None:
            tags = (model, push.signature, target, "OK" if code == "OK" else "KO")
            with self._lock:
                self._calls[tags] = self._calls.get(tags, 0) + 1
                self._micros[tags] = self._micros.get(tags, 0.0) + seconds * 1e6
                self._rows[tags] = self._rows.get(tags, 0) + push.rows
                self._bytes[tags] = self._bytes.get(tags, 0) + len(push.request)

        return observe

    def text(self, status: PublisherStatus) -> bytes:
        """All of it."""
        with self._lock:
            lines = [
                f"# TYPE {_LATENCY} summary",
                *_lines(f"{_LATENCY}_sum", self._micros),
                *_lines(f"{_LATENCY}_count", self._calls),
                f"# TYPE {_COUNT} counter",
                *_lines(_COUNT, self._rows),
                f"# TYPE {_BYTES} counter",
                *_lines(_BYTES, self._bytes),
            ]
        return "\n".join([*lines, *_ours(status), ""]).encode()


def _lines(name: str, values: Mapping[_Tags, float]) -> Iterator[str]:
    for (model, signature, target, status), value in sorted(values.items()):
        labels = _labels(
            model_name=model,
            signature_name=signature,
            target=target,
            status=status,
            idc="NA",
            replica_id="-1",
        )
        yield f"{name}{labels} {value:.15g}"


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
