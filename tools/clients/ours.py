"""Our client against a server that is built of the official TensorFlow Serving stubs alone."""

from __future__ import annotations

import torch

from hedgerow.core.errors import HedgerowError
from hedgerow.monolith.distributed_serving_ops import Replicas, remote_predict
from hedgerow.serving.client import PredictionClient
from hedgerow.serving.model import ServingError

LATE_VERSION = 7  # of tf_server.py
PATIENT_MS = 60_000


def ask_official_server(address: str) -> bool:
    """Asks all that the server knows; whether every answer was right."""
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0], [0.5, -1.0]])
    wrong: list[str] = []
    with Replicas({"ps:0": [address], "ps:1": [address]}):
        for version in (-1, 0, 3):
            y, n = remote_predict(
                ["x"],
                [x],
                ["y", "n"],
                "ps_0",
                0,
                None,
                model_version=version,
                max_rpc_deadline_millis=PATIENT_MS,
                output_types=[torch.float32, torch.int64],
            )
            if not torch.equal(y, 2 * x) or n.item() != x.numel():
                wrong.append(f"version {version}: {y}, {n}")
        wrong += _refusals(x)
    with PredictionClient(address) as client:
        found = client.predict("ps_0", "serving_default", {"x": x}, timeout=60)
        if not torch.equal(found["y"], 2 * x):
            wrong.append(f"PredictionClient: {found}")
    print(*wrong or ["values of remote_predict and PredictionClient, versions, errors, deadline"])
    return not wrong


def _refusals(x: torch.Tensor) -> list[str]:
    """What is wrong with the codes of an unknown model and of a late answer."""
    wrong = []
    cases = ((1, -1, PATIENT_MS, "NOT_FOUND"), (0, LATE_VERSION, 200, "DEADLINE_EXCEEDED"))
    for task, version, millis, expected in cases:
        code = "OK"
        try:
            remote_predict(["x"], [x], ["y"], f"ps_{task}", task, None, version, True, millis)
        except ServingError as error:
            code = error.code
        except HedgerowError as error:
            code = repr(error)
        if code != expected:
            wrong.append(f"ps_{task}, version {version}: {code}, expected {expected}")
    return wrong
