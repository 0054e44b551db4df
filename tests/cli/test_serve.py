"""`hedgerow serve` and `hedgerow predict --server`, as processes."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
import torch
from typer.testing import CliRunner

import hedgerow as hr
from hedgerow.cli.app import app
from hedgerow.core.errors import (
    FileMissingError,
    InputError,
    JobFailedError,
    UnknownNameError,
)
from hedgerow.serving.client import PredictionClient
from hedgerow.serving.export import export
from hedgerow.serving.process import ServePlan, find_models, serve

IDS = hr.IdBatch.from_lists({"user": [[7], [8, 9]]})


def trained() -> hr.EmbeddingBags:
    bags = hr.EmbeddingBags([hr.Table("user", 2)], init=hr.Zeros(), optimizer=hr.Sgd(lr=1.0))
    bags(IDS)["user"].sum().backward()
    return bags


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for version in (3, 5):
        export(trained(), folder / "whole", example=IDS, version=version)
    export(trained(), folder / "split", example=IDS, version=1, servers=2)
    return folder


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """A server process and its addresses by protocol; it is ended and reaped."""
    command = [sys.executable, "-m", "hedgerow", "serve", *arguments, "--grpc", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        addresses: dict[str, str] = {}
        while "grpc" not in addresses:
            assert process.stdout is not None
            assert process.stderr is not None
            line = process.stdout.readline()
            assert line, process.stderr.read()
            protocol, address = line.split()
            addresses[protocol] = address
        yield process, addresses
    finally:
        process.kill()
        process.communicate()


def asked(*arguments: str, stdin: str | None = None) -> object:
    done = CliRunner().invoke(app, ["predict", *arguments], input=stdin)
    if done.exception is not None:
        raise done.exception
    return json.loads(done.stdout)


def test_serve_answers_over_both_protocols_and_sigterm_ends_it(base: Path, tmp_path: Path) -> None:
    with serving(str(base / "whole"), "--http", "127.0.0.1:0") as (process, addresses):
        with urlopen(f"http://{addresses['http']}/healthz", timeout=60) as health:
            assert json.load(health) == {"status": "SERVING"}
        file = tmp_path / "ask.json"
        file.write_text(json.dumps({"user": [7, 1, 8], "user_lengths": [1, 2]}))
        server = ["--server", addresses["grpc"]]
        found = asked(*server, "--inputs", str(file))
        assert found == {"outputs": [[-1.0, -1.0], [-1.0, -1.0]]}
        assert asked(*server, "--version", "5", stdin=file.read_text()) == found
        with pytest.raises(UnknownNameError, match="has no signature 'x'"):
            asked(*server, "--signature", "x", "--inputs", str(file))
        with urlopen(f"http://{addresses['http']}/metrics", timeout=60) as metrics:
            text = metrics.read().decode()
        assert 'method="/tensorflow.serving.PredictionService/Predict",model="whole"' in text
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


_SIGNALLED = """
import signal, sys, threading, time
from hedgerow.serving.process import stop_by_signals
stop = stop_by_signals()
def send():
    time.sleep(0.5)  # until the main thread sleeps
    for _ in range(int(sys.argv[1])):
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        time.sleep(0.5)
threading.Thread(target=send, daemon=True).start()
stop.wait()
time.sleep(2 if sys.argv[1] == "2" else 0)
"""


@pytest.mark.parametrize(("signals", "status"), [(1, 0), (2, -signal.SIGTERM)])
def test_a_signal_that_another_thread_gets_ends_a_server(signals: int, status: int) -> None:
    """The system may give it to any; the main one slept on, and a second signal ends at once."""
    command = [sys.executable, "-c", _SIGNALLED, str(signals)]
    assert subprocess.run(command, timeout=60, check=False).returncode == status


@contextmanager
def served_here(folder: Path, *row_servers: str) -> Iterator[str]:
    """The gRPC address of a folder that threads of this process serve."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    stop = threading.Event()
    plan = ServePlan(
        models=find_models(folder),
        grpc="127.0.0.1:0",
        row_servers=tuple((address,) for address in row_servers),
    )
    thread = threading.Thread(target=serve, args=(plan, lines.put, stop))
    thread.start()
    try:
        yield lines.get(timeout=120).removeprefix("grpc ")
    finally:
        stop.set()
        thread.join()


def test_entry_asks_the_servers_of_its_rows(base: Path) -> None:
    split = base / "split"
    inputs = {"user": torch.tensor([7, 8, 9]), "user_lengths": torch.tensor([1, 2])}
    with (
        served_here(split / "ps_0") as zero,
        served_here(split / "ps_1" / "1") as one,
        served_here(split / "entry", zero, one) as entry,
        PredictionClient(entry) as client,
    ):
        found = client.predict("entry", "serving_default", inputs, timeout=60)
    assert torch.equal(found["user"], trained().eval()(IDS)["user"])


def test_which_models_a_folder_holds(base: Path) -> None:
    def names(folder: Path, name: str | None = None) -> list[str]:
        return [found for found, _, _ in find_models(folder, name)]

    assert names(base / "whole") == ["whole"]
    assert names(base / "whole" / "entry", "ctr") == ["ctr"]
    assert names(base / "whole" / "entry" / "3") == ["whole"]
    assert names(base / "split") == ["split", "ps_0", "ps_1"]
    with pytest.raises(InputError, match="several models"):
        find_models(base / "split", "x")
    with pytest.raises(InputError, match="is one version"):
        find_models(base / "whole" / "entry" / "3", policy="latest_once")
    with pytest.raises(FileMissingError, match="holds no version"):
        find_models(base / "whole" / "entry" / "3" / "rows")


def test_arguments_that_do_not_fit_are_refused(base: Path, tmp_path: Path) -> None:
    folder = str(base / "whole")
    for arguments, kind, word in (
        (["serve", folder, "--grpc", "127.0.0.1:0", "--follow", "x"], InputError, "HOST:PORT"),
        (["serve", folder, "--client-ca", "x"], InputError, "--tls"),
        (["predict"], InputError, "--server"),
        (["predict", folder, "--server", "127.0.0.1:1"], InputError, "one of them"),
        (
            ["predict", "--server", "127.0.0.1:1", "--inputs", str(tmp_path / "none")],
            FileMissingError,
            "cannot be read",
        ),
    ):
        done = CliRunner().invoke(app, arguments)
        assert isinstance(done.exception, kind)
        assert word in str(done.exception)


def test_a_broken_bundle_alone_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "entry" / "1").mkdir(parents=True)
    plan = ServePlan(models=find_models(tmp_path), grpc="127.0.0.1:0")
    lines: list[str] = []
    with pytest.raises(JobFailedError, match=r"no version of model \w+ could be loaded"):
        serve(plan, lines.append, threading.Event())
    assert not lines
