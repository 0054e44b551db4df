"""Runs the clients of other projects: `python -m tools.clients.run ENVIRONMENTS [--missing-ok]`.

A small model is trained, exported and served by `hedgerow serve`; each client, in the environment
that has its name, must be given the model's own predictions. An environment that is missing,
because the package index did not have its packages, is a failure unless `--missing-ok` is given.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

import hedgerow as hr

from . import cases
from .ours import ask_official_server

HERE = Path(__file__).parent
CLIENTS = ("min_tfs", "ovms", "triton", "stubs", "tf_serving")
OFFICIAL_STUBS = "tf_serving"
TIMEOUT_S = 300  # of one client; importing TensorFlow alone may take half a minute
SAMPLES = 5


def prepare(folder: Path) -> Path:
    """Trains and exports a model, and keeps its predictions; the folder to serve."""
    tables = [hr.Table("user", 8), hr.Table("item", 8, features=["item", "history"])]
    model = hr.models.DLRM(tables, dense=4)
    batches = list(hr.data.clicks(batch_size=64, steps=4))
    for dense, ids, clicked in batches:
        loss = torch.nn.functional.binary_cross_entropy_with_logits
        loss(model(dense, ids), clicked.float()).backward()
    dense, ids, _ = next(iter(hr.data.clicks(batch_size=SAMPLES, steps=1)))
    model.eval()
    with torch.no_grad():
        output = model(dense, ids)
    inputs = {"dense": dense.numpy()}
    for name in ids.names:
        inputs[name] = ids.feature(name).values.numpy()
        inputs[f"{name}_lengths"] = ids.feature(name).lengths().numpy()
    cases.write(folder, cases.DEFAULT, inputs, {"output": output.numpy()})
    asked = {name: ids.feature(name).values for name in ("user", "item")}
    rows = {
        name: model.bags.table(name).lookup(wanted).rows_of(0) for name, wanted in asked.items()
    }
    cases.write(
        folder,
        cases.LOOKUP,
        {name: values.numpy() for name, values in asked.items()},
        {name: values.numpy() for name, values in rows.items()},
    )
    hr.serving.export(model, folder, example=(dense, ids), version=cases.VERSION, name=cases.MODEL)
    return folder / cases.MODEL


@contextmanager
def serving(bundle: Path) -> Iterator[str]:
    """The address of a `hedgerow serve` of a bundle."""
    command = [sys.executable, "-m", "hedgerow", "serve", str(bundle), "--http", "off"]
    command += ["--grpc", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            kind, _, address = process.stdout.readline().strip().partition(" ")
            if kind != "grpc":
                raise SystemExit("hedgerow serve did not start")
            yield address
        finally:
            process.terminate()


def asks_us(python: Path, client: str, address: str, folder: Path) -> bool:
    """Whether a client gets the right answers of our server."""
    command = [str(python), str(HERE / f"{client}.py"), address, str(folder)]
    return subprocess.run(command, check=False, timeout=TIMEOUT_S).returncode == 0


def is_asked(python: Path) -> bool:
    """Whether our client gets the right answers of a server of the official stubs."""
    command = [str(python), str(HERE / "tf_server.py")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            return ask_official_server(process.stdout.readline().strip())
        finally:
            process.communicate()


def report(name: str, ask: Callable[[], bool]) -> str:
    """Runs one check; the line of the summary about it."""
    print(f"--- {name}", flush=True)
    begin_s, good = time.monotonic(), False
    try:
        good = ask()
    except Exception:  # one that breaks is told, and the others still run
        traceback.print_exc()
    return f"{'ok' if good else 'FAILED':8}{name} ({time.monotonic() - begin_s:.0f} s)"


def run_all(environments: Path, folder: Path) -> list[str]:
    """Runs every client that has an environment; the lines of the summary."""
    lines = []
    bundle = prepare(folder)
    with serving(bundle) as address:
        for client in CLIENTS:
            python = environments / client / "bin" / "python"
            if not (environments / client / ".installed").exists():
                lines.append(f"MISSING {client}: its packages could not be installed; see above")
                continue
            lines.append(report(client, partial(asks_us, python, client, address, folder)))
            if client == OFFICIAL_STUBS:
                name = "remote_predict against the official stubs"
                lines.append(report(name, partial(is_asked, python)))
    return lines


def main() -> int:
    """Runs all; 1 if one fails, or is missing and that was not allowed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("environments", type=Path)
    parser.add_argument("--missing-ok", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lines = run_all(given.environments, Path(folder))
    print("=== clients of other projects", *lines, sep="\n")
    bad = ("FAILED",) if given.missing_ok else ("FAILED", "MISSING")
    worked = any(line.startswith("ok") for line in lines)
    return 0 if worked and not any(line.startswith(bad) for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
