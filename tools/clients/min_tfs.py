"""min-tfs-client against our server; run by its own environment as `min_tfs.py HOST:PORT`."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import sys

import numpy as np
from min_tfs_client.requests import TensorServingClient
from min_tfs_client.tensors import tensor_proto_to_ndarray

host, port = sys.argv[1].split(":")
client = TensorServingClient(host, int(port))
x = np.array([[1.0, 2.0], [3.0, 4.0], [0.5, -1.0]], dtype=np.float32)
response = client.predict_request(model_name="demo", model_version=3, input_dict={"x": x})
found = tensor_proto_to_ndarray(response.outputs["y"])
assert np.array_equal(np.reshape(found, x.shape), 2 * x), found
assert response.model_spec.version.value == 3
print("min-tfs-client: predict")
