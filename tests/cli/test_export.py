"""`hedgerow export`: a run becomes a bundle, whose server hashes strings as training did."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from hedgerow.cli.app import app
from hedgerow.core.errors import HedgerowError, UnknownNameError
from hedgerow.core.hashing import id64
from hedgerow.serving.bundle import load_bundle
from hedgerow.serving.calls import checked
from hedgerow.serving.client import PredictionClient
from hedgerow.serving.rest import read_json

pytestmark = pytest.mark.xdist_group("cli_export")
JOB = """
[data]
source = "parquet"
files = ["rows.parquet"]
test_files = ["rows.parquet"]
features = ["user", "item", "history"]
label = "click"
batch_size = 32
fields = {history = "item"}

[model]
dim = 4

[train]
epochs = 2
"""
USERS, ITEMS = ["ann", "böb", "cid"], ["pen", "ink", "cup", "hat"]


def _rows(count: int) -> dict[str, list[Any]]:
    draw = np.random.default_rng(0)
    return {
        "user": [USERS[i] for i in draw.integers(3, size=count)],
        "item": [ITEMS[i] for i in draw.integers(4, size=count)],
        "history": [
            [ITEMS[i] for i in draw.integers(4, size=n)] for n in draw.integers(0, 4, count)
        ],
        "click": draw.integers(0, 2, size=count).tolist(),
    }


def invoke(*arguments: str) -> str:
    done = CliRunner().invoke(app, [*arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run on strings, without dense columns, and its predictions."""
    folder = tmp_path_factory.mktemp("job")
    pq.write_table(pa.table(_rows(200)), folder / "rows.parquet")
    (folder / "job.toml").write_text(JOB)
    invoke("train", str(folder / "job.toml"), "--out", str(folder / "first run"), "--json")
    invoke("predict", str(folder / "first run"), "--json")
    return folder / "first run"


@contextmanager
def serving(folder: Path, *more: str) -> Iterator[dict[str, str]]:
    """The addresses of a `hedgerow serve`, by protocol; what it logs is under "log"."""
    command = [sys.executable, "-m", "hedgerow", "serve", str(folder), "--grpc", "127.0.0.1:0"]
    command += ["--http", "127.0.0.1:0", *more]
    log = folder.parent / "serve.log"
    with (
        log.open("w") as error,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=error, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            found = dict(process.stdout.readline().split() for _ in range(2))
            yield {**found, "log": log.read_text()}
        finally:
            process.terminate()
            process.wait(60)


def _ask(address: str, name: str, plain: dict[str, Any]) -> Any:
    url, body = f"http://{address}/v1/models/{name}:predict", json.dumps(plain).encode()
    with urlopen(Request(url, body, {"Content-Type": "application/json"}), timeout=60) as response:
        return json.loads(response.read())


def _wanted(run: Path, count: int) -> list[float]:
    found = pq.read_table(run / "predictions.parquet").column("prediction").to_pylist()
    return found[:count]


def test_a_run_is_served_and_takes_the_strings_of_its_data(run: Path, tmp_path: Path) -> None:
    told = json.loads(invoke("export", str(run), "--out", str(tmp_path), "--sigmoid", "--json"))
    assert told["name"] == "first_run"
    assert Path(told["path"]) == tmp_path / "first_run" / str(told["version"])
    assert told["strings"] == {"user": "user", "item": "item", "history": "item"}
    assert (told["outputs"], told["rows"]) == ("probabilities", 7)
    rows, wanted = _rows(200), _wanted(run, 20)
    few = {name: rows[name][:20] for name in ("user", "item", "history")}
    instances = [dict(zip(few, values, strict=True)) for values in zip(*few.values(), strict=True)]
    with serving(tmp_path) as server:
        answer = _ask(server["http"], "first_run", {"instances": instances})
        assert answer["predictions"] == pytest.approx(wanted, abs=1e-5)
        answer = _ask(server["http"], "first_run", {"inputs": few})
        assert answer["outputs"] == pytest.approx(wanted, abs=1e-5)
        numbers = {n: [id64(v, n) for v in few[n]] for n in ("user", "item")}
        numbers["history"] = [[id64(v, "item") for v in own] for own in few["history"]]
        answer = _ask(server["http"], "first_run", {"inputs": numbers})
        assert answer["outputs"] == pytest.approx(wanted, abs=1e-5)
        with PredictionClient(server["grpc"]) as client:
            ones = np.ones(20, np.int64)
            inputs = {n: np.array(few[n], dtype=object) for n in ("user", "item")}
            flat = [one for own in few["history"] for one in own]
            inputs |= {"history": np.array(flat, dtype=object)}
            lengths = np.array([len(own) for own in few["history"]], np.int64)
            inputs |= {"user_lengths": ones, "item_lengths": ones, "history_lengths": lengths}
            found = client.predict("first_run", "serving_default", inputs)["output"]
            assert found.tolist() == pytest.approx(wanted, abs=1e-5)
        asked = tmp_path / "ask.json"
        asked.write_text(json.dumps({"instances": instances}))
        ask = ("predict", "--server", server["grpc"], "--inputs", str(asked))
        for named in ((), ("--model", "first_run")):  # the only model needs no name
            answer = json.loads(invoke(*ask, *named))
            assert answer["predictions"] == pytest.approx(wanted, abs=1e-5)
        with pytest.raises(UnknownNameError, match=r"no model 'other'.*--model"):
            invoke(*ask, "--model", "other")
        words = f"loaded version {told['version']} of model first_run: 7 rows in "
        assert words in server["log"]
        assert f"from {tmp_path}" in server["log"]


def test_without_sigmoid_the_answers_are_logits(run: Path, tmp_path: Path) -> None:
    told = json.loads(
        invoke("export", str(run), "--out", str(tmp_path), "--json", "--version", "7")
    )
    assert (told["outputs"], told["version"]) == ("logits", 7)
    served = load_bundle(told["path"], "m")
    rows = {name: values[:1] for name, values in _rows(200).items()}
    columns = {name: rows[name] for name in ("user", "item", "history")}
    signature = served.signatures["serving_default"]
    asked = read_json(json.dumps({"inputs": columns}).encode()).tensors(signature.inputs)
    inputs = {name: checked("k", name, signature, value) for name, value in asked.items()}
    logit = float(signature.run(inputs)["output"])
    assert 1 / (1 + math.exp(-logit)) == pytest.approx(_wanted(run, 1)[0], abs=1e-5)


def test_the_text_says_how_to_serve_it(run: Path) -> None:
    text = invoke("export", str(run), "--name", "ctr", "--version", "3", "--rows", "fp16")
    assert "answers logits" in text
    assert f"hedgerow serve {run / 'bundles' / 'ctr'}" in text
    assert (run / "bundles" / "ctr" / "3" / "bundle.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "holds no run"),
        (["RUN", "--rows", "fp8"], "rows"),
        (["RUN", "--name", "a/b"], "name is 'a/b'"),
        (["RUN", "--sign", "nowhere"], "hedgerow keys bundle"),
    ],
)
def test_wrong_arguments_are_told(run: Path, arguments: list[str], words: str) -> None:
    given = [str(run) if one == "RUN" else one for one in arguments]
    with pytest.raises(HedgerowError, match=words):
        CliRunner().invoke(app, ["export", *given], catch_exceptions=False)


def test_a_version_that_is_there_is_not_written_again(run: Path, tmp_path: Path) -> None:
    given = ["export", str(run), "--out", str(tmp_path), "--version", "3", "--json"]
    invoke(*given)
    with pytest.raises(HedgerowError, match="version 3 of first_run is there already"):
        CliRunner().invoke(app, [*given, "--sigmoid"], catch_exceptions=False)
