"""The door `hr.serving`: without gRPC until a server or a client is made."""

from __future__ import annotations

import subprocess
import sys

ASKS = """
import sys, hedgerow as hr
[getattr(hr.serving, name) for name in hr.serving.__all__]
print([name for name in ("grpc", "google.protobuf") if name in sys.modules])
with hr.serving.PredictionServer(hr.serving.Registry()) as server:
    with hr.serving.PredictionClient(server.address) as client:
        try:
            client.model_status("none")
        except hr.serving.ServingError as error:
            print(error.code)
"""


def test_grpc_comes_with_the_first_server_or_client() -> None:
    command = [sys.executable, "-c", ASKS]
    done = subprocess.run(command, check=True, timeout=120, capture_output=True, text=True)
    assert done.stdout.split("\n")[:2] == ["[]", "NOT_FOUND"]
