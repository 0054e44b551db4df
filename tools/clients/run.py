"""Runs every client that has an environment; `python -m tools.clients.run ENVIRONMENTS`.

Each environment is a folder with the client's name. One that is missing, because the package index
did not have its packages, is told loudly; the exit status is 1 if a client fails or none ran.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from hedgerow.monolith.distributed_serving_ops import Replicas, remote_predict
from hedgerow.serving.model import Model, Signature, TensorSpec
from hedgerow.serving.registry import Registry
from hedgerow.serving.server import PredictionServer

HERE = Path(__file__).parent
CLIENTS = ("min_tfs", "ovms", "triton", "tf_serving")
READ_TYPED_VALUES_ONLY = ("min_tfs",)
STUB_SERVER = "tf_serving"


def demo() -> Model:
    """y = 2 x, of two columns."""
    spec = TensorSpec(torch.float32, (None, 2))
    double = Signature({"x": spec}, {"y": spec}, lambda inputs: {"y": inputs["x"] * 2})
    return Model("demo", 3, {"serving_default": double})


def asks_us(python: Path, client: str) -> bool:
    """Whether a client gets the right answers of our server."""
    registry = Registry()
    registry.add(demo())
    compat = "typed" if client in READ_TYPED_VALUES_ONLY else None
    with PredictionServer(registry, compat=compat) as server:
        command = [python, HERE / f"{client}.py", server.address]
        return subprocess.run(command, check=False, timeout=300).returncode == 0


def is_asked(python: Path) -> bool:
    """Whether our remote_predict gets the right answers of a server of the official stubs."""
    command = [python, HERE / f"{STUB_SERVER}.py", "serve"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        with Replicas({"ps:0": [address]}):
            (found,) = remote_predict(
                ["x"], [x], ["y"], "demo", 0, None, max_rpc_deadline_millis=60_000
            )
        process.communicate()
    print("remote_predict: a server of the official stubs")
    return torch.equal(found, 2 * x)


def main() -> int:
    """Runs all; 1 if one fails or none could run."""
    base, results = Path(sys.argv[1]), {}
    for client in CLIENTS:
        python = base / client / "bin" / "python"
        if not (base / client / ".installed").exists():
            print(f"SKIPPED {client}: its packages could not be installed", file=sys.stderr)
            continue
        results[client] = asks_us(python, client)
        if client == STUB_SERVER:
            results["remote_predict"] = is_asked(python)
    failed = [name for name, good in results.items() if not good]
    print(f"{len(results) - len(failed)} of {len(results)} clients work", *failed)
    return 1 if failed or not results else 0


if __name__ == "__main__":
    sys.exit(main())
