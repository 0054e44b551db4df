"""tritonclient against our KServe service; `triton.py HOST:PORT CASES` in its environment."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# pyright: reportImplicitRelativeImport=false
from __future__ import annotations

import sys
from typing import Any

import cases
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

client = InferenceServerClient(sys.argv[1])
version = str(cases.VERSION)


def asked(inputs: dict[str, Any]) -> list[Any]:
    """The inputs in the client's own form."""
    made = []
    for name, value in inputs.items():
        one = InferInput(name, value.shape, np_to_triton_dtype(value.dtype))
        one.set_data_from_numpy(value)
        made.append(one)
    return made


cases.expect("live", client.is_server_live(), True)
cases.expect("ready", client.is_server_ready(), True)
cases.expect("model ready", client.is_model_ready(cases.MODEL, version), True)
cases.expect("another version ready", client.is_model_ready(cases.MODEL, "4"), False)
cases.expect("server", client.get_server_metadata().name, "hedgerow")
for signature in (cases.DEFAULT, cases.LOOKUP):
    inputs, expected = cases.read(sys.argv[2], signature)
    wanted = [InferRequestedOutput(name) for name in expected]
    found = client.infer(
        cases.MODEL,
        asked(inputs),
        outputs=wanted,
        request_id="7",
        parameters={"signature_name": signature},
    )
    cases.check({name: found.as_numpy(name) for name in expected}, expected)
    answer = found.get_response()
    cases.expect("version and id", (answer.model_version, answer.id), (version, "7"))
inputs, expected = cases.read(sys.argv[2])
described = client.get_model_metadata(cases.MODEL)
cases.expect("versions", list(described.versions), [version])
cases.expect("inputs", sorted(one.name for one in described.inputs), sorted(inputs))
dense = next(one for one in described.inputs if one.name == "dense")
cases.expect("dense", (dense.datatype, list(dense.shape)), ("FP32", [-1, 4]))
code = ""
try:
    client.infer("ghost", asked(inputs))
except InferenceServerException as error:
    code = str(error.status())
cases.expect("an unknown model", code, "StatusCode.NOT_FOUND")
print("live, ready, metadata, infer of two signatures, values, an unknown model")
