"""min-tfs-client against our server; run by its own environment as `min_tfs.py HOST:PORT CASES`."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# pyright: reportImplicitRelativeImport=false
from __future__ import annotations

import sys
from typing import Any

import cases
import grpc
from min_tfs_client.requests import TensorServingClient
from min_tfs_client.tensors import tensor_proto_to_ndarray

host, port = sys.argv[1].split(":")
client = TensorServingClient(host, int(port))
inputs, expected = cases.read(sys.argv[2])


def ask(model: str, version: int | None) -> Any:
    """The answer of a version, or of the newest."""
    return client.predict_request(model_name=model, model_version=version, input_dict=inputs)


for asked in (cases.VERSION, None):
    response = ask(cases.MODEL, asked)
    cases.check({n: tensor_proto_to_ndarray(t) for n, t in response.outputs.items()}, expected)
    cases.expect("version", response.model_spec.version.value, cases.VERSION)
code = None
try:
    ask("ghost", None)
except grpc.RpcError as error:
    code = error.code()
cases.expect("an unknown model", code, grpc.StatusCode.NOT_FOUND)
print("predict by version and newest, values, an unknown model")
