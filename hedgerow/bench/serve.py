"""`hedgerow bench serve`: our server against a grpcio echo of the same message sizes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from importlib import metadata
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from ..data import clicks
from ..models import DLRM
from ..serving.client import predict_request
from ..serving.export import export
from ..tables.table import Table
from ..wire.codec import from_bytes, to_bytes
from ..wire.messages import tf_serving
from ..wire.tensors import to_torch
from .progress import Progress
from .report import machine
from .serve_load import Clients, Load
from .serve_servers import DIM, serve_bundle, serve_echo, serve_rows, server_process

CLIENTS = (1, 16, 64)
_IDS, _ROWS, _QUICK_ROWS = 1_000, 1_000_000, 10_000
_SAMPLES = 64
_CLOSE = 1e-6  # rows are exact; sums of a dense layer may be in another order
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
    seconds = _QUICK_SECONDS if quick else _SECONDS
    with TemporaryDirectory() as folder:
        works = [raw_lookup(_QUICK_ROWS if quick else _ROWS), dlrm_entry(folder)]
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


def dlrm_entry(folder: str) -> Work:
    """Predictions of an exported DLRM for 64 samples of three features."""
    tables = [Table("user", DIM), Table("item", DIM, features=["item", "history"])]
    model = DLRM(tables, dense=4)
    for dense, ids, clicked in clicks(batch_size=256, steps=8):
        binary_cross_entropy_with_logits(model(dense, ids), clicked.float()).backward()
    dense, ids, _ = next(iter(clicks(batch_size=_SAMPLES, steps=1)))
    bundle = export(model, folder, example=(dense, ids), version=1)
    inputs = {"dense": dense}
    for name in ids.names:
        feature = ids.feature(name)
        inputs |= {name: feature.values, f"{name}_lengths": feature.lengths()}
    request = predict_request("entry", "serving_default", inputs, (), None)
    with torch.no_grad():
        expected = {"output": model.eval()(dense, ids)}
    case = f"DLRM entry, {_SAMPLES} samples"
    return Work(case, serve_bundle, (str(bundle), "entry"), to_bytes(request), expected)


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
        torch.allclose(to_torch(outputs[name]), value, rtol=0, atol=_CLOSE)
        for name, value in expected.items()
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
