"""ovmsclient against our server; run by its own environment as `ovms.py HOST:PORT CASES`."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# pyright: reportImplicitRelativeImport=false
from __future__ import annotations

import sys

import cases
from ovmsclient import make_grpc_client
from ovmsclient.tfs_compat.base.errors import ModelNotFoundError

# It sends version 0 where none is given, which is a version like others here.
client = make_grpc_client(sys.argv[1])
named = {"model_name": cases.MODEL, "model_version": cases.VERSION}
inputs, expected = cases.read(sys.argv[2])
found = client.predict(inputs=inputs, **named)
cases.check(found if isinstance(found, dict) else {next(iter(expected)): found}, expected)
cases.expect("state", client.get_model_status(**named)[cases.VERSION]["state"], "AVAILABLE")
described = client.get_model_metadata(**named)
cases.expect("inputs", sorted(described["inputs"]), sorted(inputs))
cases.expect("dense", described["inputs"]["dense"], {"shape": [-1, 4], "dtype": "DT_FLOAT"})
cases.expect("user", described["inputs"]["user"], {"shape": [-1], "dtype": "DT_INT64"})
error = None
try:
    client.predict(inputs=inputs, model_name="ghost", model_version=1)
except ModelNotFoundError as refusal:
    error = refusal
cases.expect("an unknown model is refused", error is not None, True)
print("predict, values, status, metadata, an unknown model")
