"""The services over a real socket: calls with our messages, and reflection of the private pool."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from hedgerow.wire import rpc, tensors
from hedgerow.wire.codec import to_bytes
from hedgerow.wire.messages import tf_serving
from hedgerow.wire.pool import new_pool


def _double(request: tf_serving.PredictRequest, _: object) -> tf_serving.PredictResponse:
    response = tf_serving.PredictResponse()
    for alias, value in request.inputs.items():
        response.outputs[alias].CopyFrom(tensors.to_message(tensors.to_torch(value) * 2))
    return response


@pytest.fixture
def address() -> Iterator[str]:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    method = rpc.methods(rpc.PREDICTION_SERVICE)["Predict"]
    handler = grpc.unary_unary_rpc_method_handler(
        _double, method.request.FromString, lambda message: message.SerializeToString()
    )
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(rpc.PREDICTION_SERVICE, {"Predict": handler})]
    )
    names = (rpc.PREDICTION_SERVICE, "grpc.health.v1.Health")
    reflection.enable_server_reflection(names, server, pool=new_pool([health_pb2.DESCRIPTOR]))
    port = server.add_insecure_port("localhost:0")
    server.start()
    yield f"localhost:{port}"
    server.stop(0).wait(30)


def test_a_call_carries_tensors_both_ways(address: str) -> None:
    method = rpc.methods(rpc.PREDICTION_SERVICE)["Predict"]
    request = tf_serving.PredictRequest()
    request.inputs["x"].CopyFrom(tensors.to_message(torch.arange(6.0).reshape(2, 3)))
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(method.path, to_bytes, method.response.FromString)
        response = call(request, timeout=30)
    assert torch.equal(
        tensors.to_torch(response.outputs["x"]), torch.arange(0, 12, 2.0).reshape(2, 3)
    )


@pytest.mark.parametrize(
    ("symbol", "file"),
    [
        (rpc.PREDICTION_SERVICE, "tf_serving.proto"),
        ("tensorflow.TensorProto", "tensor.proto"),
        ("grpc.health.v1.Health", "grpc_health/v1/health.proto"),
    ],
)
def test_reflection_tells_our_files_and_others(address: str, symbol: str, file: str) -> None:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    question = reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol)
    with grpc.insecure_channel(address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        (answer,) = stub.ServerReflectionInfo(iter([question]), timeout=30)
    found = answer.file_descriptor_response.file_descriptor_proto
    assert FileDescriptorProto.FromString(found[0]).name == file
