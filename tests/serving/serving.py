"""What the tests of serving share: small models, tables, a running server and its calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import grpc
import torch
from torch import Tensor

from hedgerow.serving.model import Model, Signature, Tensors, TensorSpec
from hedgerow.serving.registry import Registry
from hedgerow.serving.row_signatures import ps_model
from hedgerow.serving.server import PredictionServer
from hedgerow.tables.compressors import Fp32
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.multi.host_tables import HostTables
from hedgerow.wire import rpc, tensors
from hedgerow.wire.codec import to_bytes
from hedgerow.wire.messages import tf_serving

TIMEOUT_S = 60
FLOATS = TensorSpec(torch.float32, (None, 2))


def adding(
    version: int,
    name: str = "m",
    close: Callable[[], None] = lambda: None,
    run: Callable[[Tensors], Tensors] | None = None,
) -> Model:
    """A model that adds its version; it has a second output and a second signature."""

    def add(inputs: Tensors) -> Tensors:
        return {"y": inputs["x"] + version, "z": -inputs["x"]}

    one = Signature({"x": FLOATS}, {"y": FLOATS, "z": FLOATS}, run or add)
    ids = TensorSpec(torch.int64, (None,))
    two = Signature({"a": ids, "b": ids}, {"s": ids}, lambda i: {"s": i["a"] + i["b"]})
    return Model(name, version, {"serving_default": one, "sum": two}, close)


def host_tables(**dims: int) -> HostTables:
    """Empty serving tables."""
    return HostTables(
        {
            name: TableConfig(name, (Segment(dim, compressor=Fp32()),), serving=True)
            for name, dim in dims.items()
        }
    )


@contextmanager
def serving(*models: Model, **settings: Any) -> Iterator[PredictionServer]:
    """A server of models, on a free port."""
    registry = Registry(accept_pushes=True)
    for model in models:
        registry.add(model)
    with PredictionServer(registry, **settings) as server:
        yield server
    registry.close()


@contextmanager
def serving_tables(tables: HostTables, **settings: Any) -> Iterator[PredictionServer]:
    with serving(ps_model("ps_0", tables, removes=True, **settings)) as server:
        yield server


class Caller:
    """Calls of one service over one connection, with messages of our pool."""

    def __init__(self, address: str, service: str = rpc.PREDICTION_SERVICE) -> None:
        self.channel = grpc.insecure_channel(
            address, options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self._methods = rpc.methods(service)

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def call(self, name: str, request: Any) -> Any:
        """The answer's message; bytes are sent as they are."""
        method = self._methods[name]
        data = request if isinstance(request, bytes) else to_bytes(request)
        stub = self.channel.unary_unary(method.path)
        return method.response.FromString(stub(data, timeout=TIMEOUT_S))

    def predict(self, model: str, inputs: Mapping[str, Tensor], **spec: Any) -> Any:
        return self.call("Predict", request(model, inputs, **spec))


def request(
    model: str,
    inputs: Mapping[str, Any],
    signature: str = "",
    version: int | None = None,
    label: str | None = None,
    outputs: tuple[str, ...] = (),
    compat: Any = None,
) -> Any:
    made = tf_serving.PredictRequest(output_filter=outputs)
    made.model_spec.name, made.model_spec.signature_name = model, signature
    if version is not None:
        made.model_spec.version.value = version
    if label is not None:
        made.model_spec.version_label = label
    for alias, value in inputs.items():
        tensors.fill(made.inputs[alias], value, compat=compat)
    return made


def outputs_of(response: Any) -> dict[str, Tensor]:
    return {alias: tensors.to_torch(value) for alias, value in response.outputs.items()}


def refused(call: Callable[[], Any]) -> tuple[str, str]:
    """The code and the text that a call ends with."""
    try:
        call()
    except grpc.RpcError as error:
        return error.code().name, error.details() or ""  # type: ignore[attr-defined]
    raise AssertionError("the call was not refused")
