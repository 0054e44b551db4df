"""tensorflow-serving-api against our server; `tf_serving.py HOST:PORT CASES` in its environment."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# pyright: reportImplicitRelativeImport=false
from __future__ import annotations

import sys
from typing import Any

import cases
import grpc
import tensorflow as tf
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

TIMEOUT_S = 60


def request_of(signature: str, inputs: dict[str, Any], typed: bool) -> Any:
    """A request as TensorFlow makes it: raw content from arrays, typed values from lists."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = cases.MODEL, signature
    for name, value in inputs.items():
        made = (
            tf.make_tensor_proto(value.tolist(), dtype=value.dtype.name, shape=value.shape)
            if typed
            else tf.make_tensor_proto(value)
        )
        request.inputs[name].CopyFrom(made)
    return request


def ask_predictions(stub: Any, folder: str) -> None:
    """Two signatures, raw and typed, and a filter of outputs."""
    for signature in (cases.DEFAULT, cases.LOOKUP):
        inputs, expected = cases.read(folder, signature)
        for typed in (False, True):
            request = request_of(signature, inputs, typed)
            response = stub.Predict(request, timeout=TIMEOUT_S)
            found = {name: tf.make_ndarray(value) for name, value in response.outputs.items()}
            cases.check(found, expected)
            cases.expect("version", response.model_spec.version.value, cases.VERSION)
        first = next(iter(expected))
        request.output_filter.append(first)
        cases.expect("filtered", list(stub.Predict(request, timeout=TIMEOUT_S).outputs), [first])


def ask_about(channel: Any, stub: Any, folder: str) -> None:
    """Signatures and states."""
    inputs, expected = cases.read(folder)
    about = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    about.model_spec.name = cases.MODEL
    packed = stub.GetModelMetadata(about, timeout=TIMEOUT_S).metadata["signature_def"]
    described = get_model_metadata_pb2.SignatureDefMap()
    cases.expect("signature_def unpacks", packed.Unpack(described), True)
    default = described.signature_def[cases.DEFAULT]
    cases.expect("inputs", sorted(default.inputs), sorted(inputs))
    cases.expect("outputs", sorted(default.outputs), sorted(expected))
    cases.expect("dense", default.inputs["dense"].dtype, tf.float32.as_datatype_enum)
    states = model_service_pb2_grpc.ModelServiceStub(channel)
    status = get_model_status_pb2.GetModelStatusRequest()
    status.model_spec.name = cases.MODEL
    (found,) = states.GetModelStatus(status, timeout=TIMEOUT_S).model_version_status
    available = get_model_status_pb2.ModelVersionStatus.AVAILABLE
    cases.expect("state", (found.version, found.state), (cases.VERSION, available))


def ask_wrong(stub: Any, folder: str) -> None:
    """The codes of a stock server."""
    inputs, _ = cases.read(folder)
    ghost, signature, fewer = (request_of(cases.DEFAULT, inputs, typed=False) for _ in range(3))
    ghost.model_spec.name = "ghost"
    signature.model_spec.signature_name = "ghost"
    del fewer.inputs["dense"]
    codes = grpc.StatusCode
    wanted = (codes.NOT_FOUND, codes.FAILED_PRECONDITION, codes.INVALID_ARGUMENT)
    for request, code in zip((ghost, signature, fewer), wanted, strict=True):
        found = None
        try:
            stub.Predict(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            found = error.code()
        cases.expect("code", found, code)


with grpc.insecure_channel(sys.argv[1]) as opened:
    predictions = prediction_service_pb2_grpc.PredictionServiceStub(opened)
    ask_predictions(predictions, sys.argv[2])
    ask_about(opened, predictions, sys.argv[2])
    ask_wrong(predictions, sys.argv[2])
print("predict of two signatures, raw and typed, values, filter, metadata, status, three errors")
