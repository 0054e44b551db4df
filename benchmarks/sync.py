"""`hedgerow bench sync`: rows pushed to a replica against a grpcio echo of the same bytes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import metadata
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import torch

from hedgerow.serving.client import PredictionClient
from hedgerow.serving.live_model import LiveModel
from hedgerow.serving.model import Model
from hedgerow.serving.row_signatures import multi_name, row_signatures
from hedgerow.sync.link import ReplicaLink
from hedgerow.sync.publisher import Publisher
from hedgerow.sync.pushes import parts_of, pushes_of
from hedgerow.sync.source import HostSource
from hedgerow.tables.compressors import Fp32
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.host import HostTable
from hedgerow.tables.initializers import Zeros
from hedgerow.tables.multi.host_tables import HostTables
from hedgerow.tables.optimizers import Sgd

from .rounds import Progress, machine
from .serve import serve_echo, serve_model, server_process

TABLE, MODEL = "item", "ps_0"
_ROWS, _QUICK_ROWS = 500_000, 20_000
_DIMS = (16, 64)
_TIMEOUT_S = 60.0


def run(progress: Progress, *, rounds: int, quick: bool) -> dict[str, Any]:
    """Every case; medians over the rounds, in which both sides take turns."""
    rows = _QUICK_ROWS if quick else _ROWS
    results = []
    for dim in _DIMS:
        progress(f"rows of {dim}", len(results), len(_DIMS))
        results += _measure(rows, dim, rounds)
    names = ("torch", "grpcio", "protobuf")
    return {
        "bench": "sync",
        "work": {**machine(), "threads": 1, "rounds": rounds, "rows": rows, "quick": quick},
        "versions": {name: metadata.version(name) for name in names},
        "results": results,
    }


def followed_model(dim: int) -> Model:
    """Empty tables that take pushes in sessions."""
    config = TableConfig(TABLE, (Segment(dim, compressor=Fp32()),), serving=True)
    store = HostTables({TABLE: config})
    followed = LiveModel(store)
    signatures = followed.guarded(row_signatures(store, multi_name(0), followed.stamp))
    return Model(MODEL, 1, signatures, followed=followed)


def serve_followed(parent: Connection, dim: int) -> None:
    """Serves empty tables until the parent goes."""
    serve_model(parent, followed_model(dim), accept_pushes=True)


@dataclass(frozen=True, slots=True)
class _Round:
    ours_s: float
    sink_s: float
    echo_s: float


def _measure(rows: int, dim: int, rounds: int) -> list[dict[str, Any]]:
    table = HostTable(TableConfig(TABLE, (Segment(dim, Zeros(), Sgd(lr=1.0)),)))
    ids = torch.randperm(rows, generator=torch.Generator().manual_seed(0))
    table.apply_gradients(ids, torch.randn(rows, dim))
    with ExitStack() as stack:
        ours = stack.enter_context(server_process(serve_followed, dim))
        sink = stack.enter_context(server_process(serve_echo, b""))
        echo = stack.enter_context(server_process(serve_echo, None))
        source = HostSource([table])
        publisher = stack.enter_context(Publisher([source], ours, every="1h"))
        _flush(publisher)
        requests = _requests(source, dim, ids)
        links = [ReplicaLink(address) for address in (sink, echo)]
        for link in links:
            stack.callback(link.close)
        found: list[_Round] = []
        for number in range(rounds + 1):
            table.apply_gradients(ids, torch.full((rows, dim), 0.125))
            start_s = time.perf_counter()
            _flush(publisher)
            ours_s = time.perf_counter() - start_s
            times = [_send(link, requests) for link in links]
            if number:  # the first is to warm up
                found.append(_Round(ours_s, *times))
        equal = _equal(ours, table, ids)
    sent = sum(len(one) for one in requests)
    return [_row(rows, dim, sent, peer, found, equal) for peer in ("sink", "echo")]


def _flush(publisher: Publisher) -> None:
    if not publisher.flush(_TIMEOUT_S):
        raise TimeoutError(f"the replica did not get its rows: {publisher.status()}")


def _requests(source: HostSource, dim: int, ids: torch.Tensor) -> list[bytes]:
    """The very bytes that the publisher sends."""
    dims = {TABLE: dim}
    return [
        push.request
        for part in parts_of({TABLE: ids}, dims)
        for push in pushes_of(source, MODEL, [TABLE], dims, part)
    ]


def _send(link: ReplicaLink, requests: Sequence[bytes]) -> float:
    start_s = time.perf_counter()
    for request in requests:
        link.begin_predict(request, _TIMEOUT_S).answer()
    return time.perf_counter() - start_s


def _equal(address: str, table: HostTable, ids: torch.Tensor) -> bool:
    some = ids[:10_000]
    with PredictionClient(address) as client:
        rows = client.predict(MODEL, "lookup", {TABLE: some})[TABLE]
    return torch.equal(rows, table.lookup(some).rows_of())


def _row(
    rows: int, dim: int, sent: int, peer: str, found: list[_Round], equal: bool
) -> dict[str, Any]:
    """One line of the report; `ratio` is our part of the peer's rows per second."""
    theirs = [one.sink_s if peer == "sink" else one.echo_s for one in found]
    return {
        "case": f"{rows:,} rows x {dim}",
        "peer": f"grpcio {peer}",
        "ours_rows_per_s": round(median(rows / one.ours_s for one in found)),
        "peer_rows_per_s": round(median(rows / one_s for one_s in theirs)),
        "ratio": round(median(t / one.ours_s for t, one in zip(theirs, found, strict=True)), 3),
        "sent_bytes": sent,
        "equal": equal,
    }
