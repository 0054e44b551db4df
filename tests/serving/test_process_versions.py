"""A serving process under load: new versions come, broken ones are refused, no request fails."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest
import torch
from torch import nn

import hedgerow as hr
from hedgerow.serving.bundle_files import read_manifest
from hedgerow.serving.client import PredictionClient
from hedgerow.serving.model import ServingError

from . import trained

CLIENTS = 16
WAIT_S = 120


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a `hedgerow serve`."""
    command = [sys.executable, "-m", "hedgerow", "serve", str(folder), "--http", "off"]
    command += ["--grpc", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        kind, _, address = process.stdout.readline().strip().partition(" ")
        assert kind == "grpc"
        yield address
    finally:
        process.terminate()
        process.communicate(timeout=WAIT_S)
    assert process.returncode == 0


class Load:
    """Clients that ask without a pause; every answer must be one that a good version gives."""

    def __init__(self, address: str, inputs: dict[str, Any], right: dict[int, Any]) -> None:
        self._address, self._inputs, self._right = address, inputs, right
        self.seen: dict[int, int] = {}
        self.faults: list[str] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        with PredictionClient(self._address) as client:
            while not self._over.is_set():
                try:
                    found = client.predict("entry", "serving_default", self._inputs, timeout=WAIT_S)
                except ServingError as error:
                    self.faults.append(f"{error.code}: {error}")
                    continue
                version = self._version(found["output"])
                self.seen[version] = self.seen.get(version, 0) + 1

    def _version(self, output: torch.Tensor) -> int:
        for version, right in self._right.items():
            if torch.allclose(output, right, rtol=0, atol=1e-6):
                return version
        self.faults.append(f"no version answers {output.tolist()}")
        return -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(WAIT_S)


def wait_for(is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def states(client: PredictionClient) -> dict[int, str]:
    return {one.version: one.state for one in client.model_status("entry", timeout=WAIT_S)}


def _truncate(folder: Path) -> None:
    path = folder / "graph.json"
    path.write_bytes(path.read_bytes()[:-100])


def _flip(folder: Path) -> None:
    path = next((folder / "rows").glob("*.arrow"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _edit(folder: Path) -> None:
    path = folder / "bundle.json"
    plain = json.loads(path.read_text())
    plain["files"]["graph.json"]["sha256"] = "0" * 64
    path.write_text(json.dumps(plain, indent=1) + "\n")


def _replace(name: str, how: Callable[[Path], None]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        how(folder / name)

    return change


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)  # no block of it is written


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut off": (_truncate, "graph.json is damaged"),
    "a bit of a row": (_flip, "rows"),
    "checksum": (_edit, "its checksum is wrong"),
    "no program": (lambda folder: (folder / "graph.json").unlink(), "graph.json is missing"),
    "no manifest": (lambda folder: (folder / "bundle.json").unlink(), "no bundle.json"),
    "no rows": (lambda folder: shutil.rmtree(folder / "rows"), "is missing; the manifest names it"),
    "huge manifest": (_replace("bundle.json", _huge), "no file of its kind is so large"),
    "endless manifest": (
        _replace("bundle.json", lambda path: path.symlink_to("/dev/zero")),
        "bundle.json cannot be read",
    ),
    "program elsewhere": (
        _replace("graph.json", lambda path: path.symlink_to("/etc/hostname")),
        "graph.json is no plain file",
    ),
    "rows manifest": (
        lambda folder: (folder / "rows" / "manifest.json").write_text("{}"),
        "manifest.json is damaged",
    ),
}


def _copied(folder: Path, to: Path, version: int) -> None:
    """A good bundle under another number."""
    shutil.copytree(folder, to)
    manifest = dataclasses.replace(read_manifest(folder), version=version)
    (to / "bundle.json").write_text(manifest.to_text())


def exported(base: Path, versions: int) -> tuple[dict[str, Any], dict[int, Any]]:
    """Versions of a model that trains on; a question, and what each answers."""
    model: nn.Module = hr.models.DLRM(trained.tables(), dense=4)
    batch = trained.batch(6)
    right: dict[int, Any] = {}
    for version in range(1, versions + 1):
        trained.trained(model.train(), steps=3)
        hr.serving.export(model, base, example=batch, version=version)
        with torch.no_grad():
            right[version] = model(*batch)
    return trained.request(*batch), right


@pytest.mark.long
def test_no_request_fails_while_versions_come_and_broken_ones_are_refused(tmp_path: Path) -> None:
    inputs, right = exported(tmp_path / "made", 4)
    base = tmp_path / "entry"
    shutil.copytree(tmp_path / "made" / "entry" / "1", base / "1")

    def publish(folder: Path, version: int) -> None:
        folder.rename(tmp_path / "next")
        (tmp_path / "next").rename(base / str(version))

    with (
        served(base) as address,
        PredictionClient(address) as client,
        Load(address, inputs, right) as load,
    ):
        wait_for(lambda: 1 in load.seen)
        for version in range(2, 5):
            publish(tmp_path / "made" / "entry" / str(version), version)
            wait_for(lambda now=version: now in load.seen)
        for version, (kind, (spoil, word)) in enumerate(BROKEN.items(), 5):
            _copied(base / "4", tmp_path / "spoiled", version)
            spoil(tmp_path / "spoiled")
            publish(tmp_path / "spoiled", version)
            wait_for(lambda now=version: states(client).get(now) == "END")
            (told,) = client.model_status("entry", version, timeout=WAIT_S)
            assert (told.error_code, word in told.error_message) == ("INVALID_ARGUMENT", True), (
                kind,
                told.error_message,
            )
            assert states(client)[4] == "AVAILABLE", kind
        answers, last = sum(load.seen.values()), 5 + len(BROKEN)
        _copied(base / "4", tmp_path / "whole", last)  # else nothing would tell that it could
        publish(tmp_path / "whole", last)
        wait_for(lambda: states(client).get(last) == "AVAILABLE")
        wait_for(lambda: sum(load.seen.values()) > answers)
    assert load.faults == []
    assert sorted(load.seen) == [1, 2, 3, 4]
