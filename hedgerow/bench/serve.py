"""`hedgerow bench serve`: our server against a grpcio echo of the same message sizes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from importlib import metadata
from statistics import median
from typing import Any

import torch
from torch import Tensor

from ..serving.client import predict_request
from ..wire.codec import from_bytes, to_bytes
from ..wire.messages import tf_serving
from ..wire.tensors import to_torch
from .progress import Progress
from .report import machine
from .serve_load import Clients, Load
from .serve_servers import DIM, serve_echo, serve_rows, server_process

CLIENTS = (1, 16, 64)
_IDS, _ROWS, _QUICK_ROWS = 1_000, 1_000_000, 10_000
_SECONDS, _QUICK_SECONDS = 2.0, 0.1


@dataclass(frozen=True, slots=True)
class Work:
    """A request, who serves it, and what must come back."""

    name: str
    serve: Callable[..., None]
    arguments: tuple[object, ...]
    request: bytes
    expected: dict[str, Tensor]


def run(progress: Progress, *, rounds: int, quick: bool) -> dict[str, Any]:
    """Every work with 1, 16 and 64 clients; medians over the rounds, which take turns."""
    works = [raw_lookup(_QUICK_ROWS if quick else _ROWS)]
    seconds = _QUICK_SECONDS if quick else _SECONDS
    results = [row for work in works for row in _measure(work, rounds, seconds, progress)]
    names = ("torch", "grpcio", "protobuf")
    return {
        "bench": "serve",
        "work": {
            **machine(),
            "threads": 1,
            "rounds": rounds,
            "seconds": seconds,
            "quick": quick,
        },
        "versions": {name: metadata.version(name) for name in names},
        "results": results,
    }


def raw_lookup(rows: int) -> Work:
    """1,000 ids of a table with rows of 16 numbers."""
    ids = torch.randperm(rows, generator=torch.Generator().manual_seed(0))[:_IDS]
    inputs = {"id": ids, "id_split": torch.tensor([0, _IDS])}
    request = predict_request("ps_0", "raw_lookup", inputs, (), None)
    values = ids[:, None] * DIM + torch.arange(DIM)
    expected = {"flat_emb": values.to(torch.float32).reshape(-1)}
    return Work(f"raw_lookup {_IDS:,} x {DIM}", serve_rows, (rows,), to_bytes(request), expected)


def _measure(work: Work, rounds: int, seconds: float, progress: Progress) -> list[dict[str, Any]]:
    with ExitStack() as stack:
        ours = stack.enter_context(server_process(work.serve, *work.arguments))
        with closing(Clients(ours, 1)) as one:
            response = one.ask(work.request)
        echo = stack.enter_context(server_process(serve_echo, response))
        found: list[dict[str, Any]] = []
        for count in CLIENTS:
            progress(f"{work.name}, {count} clients", len(found), len(CLIENTS))
            sides = [stack.enter_context(closing(Clients(a, count))) for a in (ours, echo)]
            _load(sides, work.request, seconds / 4)  # to warm up
            loads = [_load(sides, work.request, seconds) for _ in range(rounds)]
            equal = _equal(sides[0].ask(work.request), work.expected)
            found.append(_row(f"{work.name}, {count} clients", loads, equal))
    sizes = {"request_bytes": len(work.request), "response_bytes": len(response)}
    return [{**row, **sizes} for row in found]


def _load(sides: list[Clients], request: bytes, seconds: float) -> list[Load]:
    return [side.load(request, seconds) for side in sides]


def _equal(response: bytes, expected: dict[str, Tensor]) -> bool:
    outputs = from_bytes(tf_serving.PredictResponse, response).outputs
    return outputs.keys() == expected.keys() and all(
        torch.equal(to_torch(outputs[name]), value) for name, value in expected.items()
    )


def _row(case: str, loads: list[list[Load]], equal: bool) -> dict[str, Any]:
    """One line of the report; `ratio` is our part of the echo's requests per second."""
    row: dict[str, Any] = {"case": case, "peer": "grpcio echo"}
    for who, place in (("ours", 0), ("peer", 1)):
        side = [pair[place] for pair in loads]
        row[f"{who}_rps"] = round(median(load.rps for load in side), 1)
        row[f"{who}_ms"] = round(median(load.p50_ms for load in side), 4)
        row[f"{who}_p99_ms"] = round(median(load.p99_ms for load in side), 4)
    row["ratio"] = round(median(a.rps / b.rps for a, b in loads), 3)
    return {**row, "equal": equal}
