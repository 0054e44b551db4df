"""`hedgerow bench serve`: our server against a grpcio echo of the same message sizes."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from hedgerow.data import clicks
from hedgerow.models import DLRM
from hedgerow.serving.batching import Batching
from hedgerow.serving.client import predict_request
from hedgerow.serving.export import export
from hedgerow.serving.metrics import ServerMetrics
from hedgerow.serving.model import Model
from hedgerow.serving.registry import Registry
from hedgerow.serving.row_signatures import ps_model
from hedgerow.serving.server import PredictionServer
from hedgerow.tables.compressors import Fp32
from hedgerow.tables.config import Segment, Table, TableConfig
from hedgerow.tables.multi.host_tables import HostTables
from hedgerow.wire.codec import from_bytes, to_bytes
from hedgerow.wire.messages import tf_serving
from hedgerow.wire.tensors import to_torch

from .rounds import Progress, machine

PREDICT = "/tensorflow.serving.PredictionService/Predict"
_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),  # or all clients would share one connection
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
]


@dataclass(frozen=True, slots=True)
class Load:
    """What came of it: requests in a second, the median and the 99th percentile of their times."""

    rps: float
    p50_ms: float
    p99_ms: float


class Clients:
    """So many clients of one server, connected; single-owner."""

    def __init__(self, address: str, count: int) -> None:
        import grpc

        self._channels = [grpc.insecure_channel(address, options=_OPTIONS) for _ in range(count)]
        self._calls: list[Any] = [channel.unary_unary(PREDICT) for channel in self._channels]

    def ask(self, request: bytes) -> bytes:
        """One answer, by the first client."""
        return self._calls[0](request, timeout=60)

    def load(self, request: bytes, seconds: float) -> Load:
        """All clients ask for so long; a failed request ends the measurement."""
        times: list[list[float]] = [[] for _ in self._calls]
        errors: list[Exception] = []
        start = threading.Barrier(len(self._calls) + 1)
        threads = [
            threading.Thread(target=_work, args=(call, request, seconds, start, own, errors))
            for call, own in zip(self._calls, times, strict=True)
        ]
        for thread in threads:
            thread.start()
        start.wait()
        begin_s = time.perf_counter()
        for thread in threads:
            thread.join()
        took_s = time.perf_counter() - begin_s
        if errors:
            raise errors[0]
        spent = sorted(one for own in times for one in own)
        return Load(
            len(spent) / took_s,
            1e3 * spent[len(spent) // 2],
            1e3 * spent[min(len(spent) - 1, len(spent) * 99 // 100)],
        )

    def close(self) -> None:
        """Ends the connections."""
        for channel in self._channels:
            channel.close()


def _work(
    call: Any,
    request: bytes,
    seconds: float,
    start: threading.Barrier,
    times: list[float],
    errors: list[Exception],
) -> None:
    try:
        call(request, timeout=60)  # connects
    except Exception as error:
        errors.append(error)
    start.wait()
    end_s = time.perf_counter() + seconds
    while not errors and time.perf_counter() < end_s:
        begin_s = time.perf_counter()
        try:
            call(request, timeout=60)
        except Exception as error:
            errors.append(error)
            return
        times.append(time.perf_counter() - begin_s)


DIM = 16
_START_S = 120.0
_THREADS = 8  # of the echo; ours has its own rule


@contextmanager
def server_process(serve: Callable[..., None], *arguments: object) -> Iterator[str]:
    """The address of a server in a process of its own, which ends with the `with`."""
    spawned = multiprocessing.get_context("spawn")
    ours, theirs = spawned.Pipe()
    process = spawned.Process(target=serve, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(_START_S):
            raise TimeoutError(f"the server did not start in {_START_S} s")
        yield ours.recv()
    finally:
        ours.close()  # ends it: its wait for us fails
        process.join(_START_S)
        if process.is_alive():
            process.kill()


def rows_model(rows: int) -> Model:
    """A table of so many rows of 16 numbers, as a serving parameter server has it."""
    tables = HostTables(
        {"item": TableConfig("item", (Segment(DIM, compressor=Fp32()),), serving=True)}
    )
    model = ps_model("ps_0", tables)
    ids = torch.arange(rows)
    values = torch.arange(rows * DIM, dtype=torch.float32).reshape(rows, DIM)
    model.signatures["hashtable_assign"].run({"item_id": ids, "item_value": values})
    return model


def serve_rows(parent: Connection, rows: int) -> None:
    """Serves a table until the parent goes."""
    serve_model(parent, rows_model(rows))


def serve_bundle(parent: Connection, folder: str, name: str) -> None:
    """Serves an exported model until the parent goes."""
    from hedgerow.serving.bundle import load_bundle

    serve_model(parent, load_bundle(Path(folder), name))


def serve_model(parent: Connection, model: Model, *, accept_pushes: bool = False) -> None:
    """Serves a model until the parent goes."""
    torch.set_num_threads(1)
    registry = Registry(
        batching=Batching(), accept_pushes=accept_pushes
    )  # as `hedgerow serve` has it, with its metrics
    registry.add(model)
    with PredictionServer(registry, observe=ServerMetrics(registry).observe) as server:
        _until_gone(parent, server.address)
    registry.close()


def serve_echo(parent: Connection, response: bytes | None) -> None:
    """Answers every request with the same bytes, or with its own, until the parent goes."""
    import grpc

    server = grpc.server(
        ThreadPoolExecutor(_THREADS),
        options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)],
    )

    def answer(request: bytes, context: Any) -> bytes:
        return request if response is None else response

    handler = grpc.unary_unary_rpc_method_handler(answer)
    service = "tensorflow.serving.PredictionService"
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {"Predict": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    _until_gone(parent, f"127.0.0.1:{port}")
    server.stop(None).wait()


def _until_gone(parent: Connection, address: str) -> None:
    parent.send(address)
    try:
        parent.recv()
    except (EOFError, OSError):
        return


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
