"""Server processes of `bench serve`: ours, and a grpcio echo that answers the same bytes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from ..serving.batching import Batching
from ..serving.metrics import Metrics
from ..serving.model import Model
from ..serving.ps_model import ps_model
from ..serving.registry import Registry
from ..serving.server import PredictionServer
from ..tables.compressors import Fp32
from ..tables.config import Segment, TableConfig
from ..tables.multi.host_tables import HostTables

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
    from ..serving.bundle import load_bundle

    serve_model(parent, load_bundle(Path(folder), name))


def serve_model(parent: Connection, model: Model, *, accept_pushes: bool = False) -> None:
    """Serves a model until the parent goes."""
    torch.set_num_threads(1)
    registry = Registry(
        batching=Batching(), accept_pushes=accept_pushes
    )  # as `hedgerow serve` has it, with its metrics
    registry.add(model)
    with PredictionServer(registry, observe=Metrics(registry).observe) as server:
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
