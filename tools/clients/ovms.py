"""ovmsclient against our server; run by its own environment as `ovms.py HOST:PORT`."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import sys

import numpy as np
from ovmsclient import make_grpc_client

# It sends version 0 where none is given, which is a version like others here.
client = make_grpc_client(sys.argv[1])
x = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)
found = client.predict(inputs={"x": x}, model_name="demo", model_version=3)
assert np.array_equal(found, 2 * x), found
status = client.get_model_status(model_name="demo", model_version=3)
assert status[3]["state"] == "AVAILABLE", status
described = client.get_model_metadata(model_name="demo", model_version=3)
assert described["inputs"]["x"] == {"shape": [-1, 2], "dtype": "DT_FLOAT"}, described
print("ovmsclient: predict, status, metadata")
