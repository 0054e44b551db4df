"""A server in use: new versions under load, many connections, drain, TLS, limits."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from hedgerow.core.errors import FileMissingError, InputError, StateError
from hedgerow.serving.model import Model
from hedgerow.serving.registry import Registry
from hedgerow.serving.server import PredictionServer
from hedgerow.serving.tls import Tls
from hedgerow.wire.codec import to_bytes

from .serving import TIMEOUT_S, Caller, adding, outputs_of, refused, request, serving

X = torch.tensor([[1.0, 2.0]])
PATH = "/tensorflow.serving.PredictionService/Predict"


class _Load:
    """Threads that ask without a pause, and keep what they were answered."""

    def __init__(self, address: str, threads: int) -> None:
        self.versions: set[int] = set()
        self.faults: list[str] = []
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(address,)) for _ in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def _ask(self, address: str) -> None:
        with Caller(address) as caller:
            while not self._over.is_set():
                try:
                    response = caller.predict("m", {"x": X})
                except grpc.RpcError as error:
                    self.faults.append(str(error))
                    continue
                version = response.model_spec.version.value
                self.versions.add(version)
                if not torch.equal(outputs_of(response)["y"], X + version):
                    self.faults.append(f"version {version} answered wrong")

    def finish(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)


def _closable(version: int, closed: set[int]) -> Model:
    """A model that answers wrong once it was closed."""

    def run(inputs: Any) -> Any:
        found = {"y": inputs["x"] + version, "z": inputs["x"]}
        if version in closed:
            raise RuntimeError(f"version {version} was closed while in use")
        return found

    return adding(version, close=lambda: closed.add(version), run=run)


def test_new_versions_under_load_fail_no_request(tmp_path: Path) -> None:
    closed: set[int] = set()

    def load(folder: Path, name: str) -> Model:
        if (folder / "broken").exists():
            raise InputError("this bundle is broken")
        return _closable(int(folder.name), closed)

    (tmp_path / "1").mkdir()
    registry = Registry(load, poll_s=600)
    registry.watch("m", tmp_path)
    with PredictionServer(registry) as server:
        load_threads = _Load(server.address, 8)
        version, end_s = 1, time.monotonic() + 3
        while time.monotonic() < end_s:
            version += 1
            (tmp_path / str(version)).mkdir()
            if version % 4 == 0:
                (tmp_path / str(version) / "broken").touch()
            registry.refresh()
            threading.Event().wait(0.05)  # so that some requests meet each version
        load_threads.finish()
    assert load_threads.faults == []
    assert len(load_threads.versions) > 3
    assert not any(seen % 4 == 0 for seen in load_threads.versions)
    assert registry.counters.read("versions_refused") == version // 4
    registry.close()
    assert closed == {seen for seen in range(1, version + 1) if seen % 4}


def test_200_connections_are_answered() -> None:
    with serving(adding(1)) as server:
        callers = [Caller(server.address) for _ in range(200)]
        calls = [
            one.channel.unary_unary(PATH).future(to_bytes(request("m", {"x": X})), timeout=60)
            for one in callers
        ]
        answers = [call.result() for call in calls]
        for one in callers:
            one.channel.close()
    assert len(set(answers)) == 1
    assert server._pool.threads <= 512


def test_stop_waits_for_requests_and_takes_no_more() -> None:
    began, go_on = threading.Event(), threading.Event()

    def slow(inputs: Any) -> Any:
        began.set()
        assert go_on.wait(TIMEOUT_S)
        return {"y": inputs["x"], "z": inputs["x"]}

    registry = Registry()
    registry.add(adding(1, run=slow))
    server = PredictionServer(registry).start()
    with Caller(server.address) as caller:
        call = caller.channel.unary_unary(PATH).future(to_bytes(request("m", {"x": X})))
        assert began.wait(TIMEOUT_S)
        stopping = threading.Thread(target=server.stop, args=(TIMEOUT_S,))
        stopping.start()
        go_on.set()
        assert call.result(TIMEOUT_S)
        stopping.join(TIMEOUT_S)
        assert refused(lambda: caller.predict("m", {"x": X}))[0] == "UNAVAILABLE"
    with pytest.raises(StateError, match="stopped"):
        server.start()


def test_stop_ends_what_takes_too_long() -> None:
    began, go_on = threading.Event(), threading.Event()

    def stuck(inputs: Any) -> Any:
        began.set()
        go_on.wait(TIMEOUT_S)
        return {"y": inputs["x"], "z": inputs["x"]}

    registry = Registry()
    registry.add(adding(1, run=stuck))
    server = PredictionServer(registry).start()
    with Caller(server.address) as caller:
        call = caller.channel.unary_unary(PATH).future(to_bytes(request("m", {"x": X})))
        assert began.wait(TIMEOUT_S)
        server.stop(0.05)
        with pytest.raises(grpc.RpcError):
            call.result(TIMEOUT_S)
    go_on.set()


def test_a_server_that_was_never_started_can_be_stopped() -> None:
    server = PredictionServer(Registry())
    server.stop()
    assert not server.registry._listeners


def test_two_servers_do_not_share_a_port() -> None:
    with serving(adding(1)) as server, pytest.raises(InputError, match="cannot be listened on"):
        PredictionServer(Registry(), server.address)


def test_a_message_above_the_limit_is_refused() -> None:
    with serving(adding(1), max_message_bytes=10_000) as server, Caller(server.address) as caller:
        code, _ = refused(lambda: caller.predict("m", {"x": torch.zeros(2000, 2)}))
        assert code == "RESOURCE_EXHAUSTED"
        assert torch.equal(outputs_of(caller.predict("m", {"x": X}))["y"], X + 1)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, and a server's and a client's certificate that it signed."""
    folder = tmp_path_factory.mktemp("keys")
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl makes the certificates, and is not here")

    def run(*words: str) -> None:
        subprocess.run([openssl, *words], cwd=folder, check=True, capture_output=True)

    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    run(*new, "-x509", "-days", "2", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem")
    (folder / "san").write_text("subjectAltName=DNS:localhost")
    for name in ("server", "client"):
        run(*new, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2")
        ext = ("-extfile", "san")
        run("x509", "-req", "-in", f"{name}.csr", *signed, *ext, "-out", f"{name}.pem")
    return folder


def _ask_securely(address: str, credentials: grpc.ChannelCredentials) -> bytes:
    with grpc.secure_channel(address, credentials) as channel:
        return channel.unary_unary(PATH)(to_bytes(request("m", {"x": X})), timeout=20)


@pytest.mark.parametrize("mutual", [False, True])
def test_encrypted_connections(keys: Path, mutual: bool) -> None:
    tls = Tls(keys / "server.pem", keys / "server.key", keys / "ca.pem" if mutual else None)
    root = (keys / "ca.pem").read_bytes()
    own = ((keys / "client.key").read_bytes(), (keys / "client.pem").read_bytes())
    with serving(adding(1), address="localhost:0", tls=tls) as server:
        known = grpc.ssl_channel_credentials(root, *own)
        assert _ask_securely(server.address, known)
        nameless = grpc.ssl_channel_credentials(root)
        if mutual:
            with pytest.raises(grpc.RpcError):
                _ask_securely(server.address, nameless)
        else:
            assert _ask_securely(server.address, nameless)
        with Caller(server.address) as caller:
            assert refused(lambda: caller.predict("m", {"x": X}))[0] == "UNAVAILABLE"


def test_a_certificate_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileMissingError, match=r"Tls\.key"):
        PredictionServer(Registry(), tls=Tls(tmp_path / "a.pem", tmp_path / "a.key"))
