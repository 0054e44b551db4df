"""grpcio's own stubs of health and reflection, which tell all else: `stubs.py HOST:PORT CASES`.

The messages of a prediction are built from what reflection told, from nothing of ours.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# pyright: reportImplicitRelativeImport=false
from __future__ import annotations

import sys
from typing import Any

import cases
import grpc
import numpy as np
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

TIMEOUT_S = 60
DTYPES = {"float32": 1, "int64": 9}  # TensorFlow's numbers
SERVICES = {
    "tensorflow.serving.PredictionService",
    "tensorflow.serving.ModelService",
    "inference.GRPCInferenceService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1alpha.ServerReflection",
}


def ask_health(channel: Any) -> None:
    """Check and Watch, of the whole, of a service, of one that is not there."""
    stub = health_pb2_grpc.HealthStub(channel)
    serving = health_pb2.HealthCheckResponse.SERVING
    for service in ("", "tensorflow.serving.PredictionService"):
        request = health_pb2.HealthCheckRequest(service=service)
        cases.expect("health", stub.Check(request, timeout=TIMEOUT_S).status, serving)
    watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
    cases.expect("the first of Watch", next(watch).status, serving)
    watch.cancel()
    code = None
    try:
        stub.Check(health_pb2.HealthCheckRequest(service="ghost"), timeout=TIMEOUT_S)
    except grpc.RpcError as error:
        code = error.code()
    cases.expect("an unknown service", code, grpc.StatusCode.NOT_FOUND)


def ask_reflection(channel: Any) -> DescriptorPool:
    """A pool of what the server tells."""
    database = ProtoReflectionDescriptorDatabase(channel)
    cases.expect("services", set(database.get_services()), SERVICES)
    return DescriptorPool(database)


def predict(channel: Any, pool: DescriptorPool, folder: str) -> None:
    """A prediction whose messages are those that reflection described."""
    service = pool.FindServiceByName("tensorflow.serving.PredictionService")
    method = service.FindMethodByName("Predict")
    request = GetMessageClass(method.input_type)()
    request.model_spec.name = cases.MODEL
    inputs, expected = cases.read(folder)
    for name, value in inputs.items():
        tensor = request.inputs[name]
        tensor.dtype, tensor.tensor_content = DTYPES[str(value.dtype)], value.tobytes()
        for size in value.shape:
            tensor.tensor_shape.dim.add(size=size)
    call = channel.unary_unary(
        f"/{service.full_name}/{method.name}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )
    outputs = call(request, timeout=TIMEOUT_S).outputs
    found = {
        name: np.frombuffer(tensor.tensor_content, np.float32).reshape(
            [dim.size for dim in tensor.tensor_shape.dim]
        )
        for name, tensor in outputs.items()
    }
    cases.check(found, expected)


with grpc.insecure_channel(sys.argv[1]) as opened:
    ask_health(opened)
    predict(opened, ask_reflection(opened), sys.argv[2])
print("health Check and Watch, reflection, predict from reflected messages, values")
