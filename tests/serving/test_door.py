"""The door `hr.serving`: complete, and without gRPC until a server or a client is named."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hedgerow as hr

ASKS = """
import sys, hedgerow as hr
hr.serving.export, hr.serving.load_bundle, dir(hr.serving)
print([name for name in ("grpc", "google.protobuf") if name in sys.modules])
hr.serving.PredictionServer, hr.serving.PredictionClient
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


def test_the_door_says_the_same_to_type_checkers_and_at_run_time() -> None:
    tree = ast.parse(Path(str(hr.serving.__file__)).read_text())
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.level]
    assert sorted(alias.name for n in imports for alias in n.names) == dir(hr.serving)
    for name in dir(hr.serving):
        assert getattr(hr.serving, name).__name__ == name


def test_other_names_are_not_there() -> None:
    with pytest.raises(AttributeError, match="Nothing"):
        hr.serving.Nothing  # type: ignore[attr-defined]  # noqa: B018
