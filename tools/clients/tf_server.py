"""A server of the official TensorFlow Serving stubs alone, for our client: `tf_server.py`.

Prints its address, answers twice its input until its standard input ends. Version 7 never
answers; all models but `ps_0` are refused as a stock server refuses them.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

LATE_VERSION = 7


class Doubles(prediction_service_pb2_grpc.PredictionServiceServicer):
    """Answers y = 2 x in typed values as a stock server does, and n, how many there are."""

    def __init__(self, over: threading.Event) -> None:
        self._over = over

    def Predict(self, request: Any, context: Any) -> Any:  # noqa: N802 - the stub's name
        """Twice the input."""
        spec = request.model_spec
        if spec.name != "ps_0":
            text = f"Servable not found for request: Latest({spec.name})"
            context.abort(grpc.StatusCode.NOT_FOUND, text)
        if spec.version.value == LATE_VERSION:
            self._over.wait()
        x = tf.make_ndarray(request.inputs["x"])
        response = predict_pb2.PredictResponse()
        response.model_spec.CopyFrom(spec)
        tensor = response.outputs["y"]
        tensor.dtype = tf.float32.as_datatype_enum
        for size in x.shape:
            tensor.tensor_shape.dim.add(size=size)
        tensor.float_val.extend((2 * x).reshape(-1).tolist())
        response.outputs["n"].CopyFrom(tf.make_tensor_proto(x.size, dtype=tf.int64))
        return response


def serve() -> None:
    """Until the standard input ends."""
    over = threading.Event()
    server = grpc.server(ThreadPoolExecutor(4))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Doubles(over), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"127.0.0.1:{port}", flush=True)
    sys.stdin.read()
    over.set()
    server.stop(None).wait()


serve()
