"""tritonclient against our KServe service; run by its own environment as `triton.py HOST:PORT`."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import sys

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

client = InferenceServerClient(sys.argv[1])
assert client.is_server_live()
assert client.is_server_ready()
assert client.is_model_ready("demo", "3")
x = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)
asked = InferInput("x", x.shape, "FP32")
asked.set_data_from_numpy(x)
found = client.infer("demo", [asked], outputs=[InferRequestedOutput("y")])
assert np.array_equal(found.as_numpy("y"), 2 * x)
assert found.get_response().model_version == "3"
described = client.get_model_metadata("demo")
assert [(one.name, one.datatype, list(one.shape)) for one in described.inputs] == [
    ("x", "FP32", [-1, 2])
], described
code = ""
try:
    client.infer("ghost", [asked])
except InferenceServerException as error:
    code = str(error.status())
assert "NOT_FOUND" in code, code
print("tritonclient: live, ready, metadata, infer, errors")
