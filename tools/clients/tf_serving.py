"""tensorflow-serving-api against our server, and a server of its stubs for our client.

Run by its own environment: `tf_serving.py HOST:PORT`, or `tf_serving.py serve`, which prints its
address and answers twice its input until its standard input ends.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)


def ask(address: str) -> None:
    """Asks our server everything the stubs know."""
    channel = grpc.insecure_channel(address)
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    x = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "demo"
    request.inputs["x"].CopyFrom(tf.make_tensor_proto(x))
    response = stub.Predict(request, timeout=60)
    assert np.array_equal(tf.make_ndarray(response.outputs["y"]), 2 * x)
    assert response.model_spec.version.value == 3
    about = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    about.model_spec.name = "demo"
    packed = stub.GetModelMetadata(about, timeout=60).metadata["signature_def"]
    described = get_model_metadata_pb2.SignatureDefMap()
    assert packed.Unpack(described)
    assert (
        described.signature_def["serving_default"].inputs["x"].dtype == tf.float32.as_datatype_enum
    )
    states = model_service_pb2_grpc.ModelServiceStub(channel)
    status = get_model_status_pb2.GetModelStatusRequest()
    status.model_spec.name = "demo"
    assert states.GetModelStatus(status, timeout=60).model_version_status[0].version == 3
    request.model_spec.name = "ghost"
    code = None
    try:
        stub.Predict(request, timeout=60)
    except grpc.RpcError as error:
        code = error.code()
    assert code is grpc.StatusCode.NOT_FOUND, code
    print("tensorflow-serving-api: predict, metadata, status, errors")


class Doubles(prediction_service_pb2_grpc.PredictionServiceServicer):
    """Answers y = 2 x, in typed values as a stock server does."""

    def Predict(self, request: Any, context: Any) -> Any:  # noqa: N802 - the stub's name
        """Twice the input."""
        x = tf.make_ndarray(request.inputs["x"])
        response = predict_pb2.PredictResponse()
        tensor = response.outputs["y"]
        tensor.dtype = tf.float32.as_datatype_enum
        for size in x.shape:
            tensor.tensor_shape.dim.add(size=size)
        tensor.float_val.extend((2 * x).reshape(-1).tolist())
        response.model_spec.CopyFrom(request.model_spec)
        return response


def serve() -> None:
    """A server of the stubs, until the standard input ends."""
    server = grpc.server(ThreadPoolExecutor(4))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Doubles(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"127.0.0.1:{port}", flush=True)
    sys.stdin.read()
    server.stop(None).wait()


if sys.argv[1] == "serve":
    serve()
else:
    ask(sys.argv[1])
