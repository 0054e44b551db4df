"""TLS and mTLS through our own clients, and what they say when a certificate does not fit."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
import torch

from hedgerow.core.errors import InputError
from hedgerow.monolith.remote_predict import remote_predict
from hedgerow.serving.channels import ClientTls, Replicas
from hedgerow.serving.client import PredictionClient
from hedgerow.serving.model import ServingError
from hedgerow.serving.registry import Registry
from hedgerow.serving.rest import RestServer
from hedgerow.serving.server import PredictionServer
from hedgerow.serving.tls import Tls

from .serving import adding

X = torch.tensor([[1.0, 2.0]])
SERVERS = {"server": "DNS:localhost", "elsewhere": "DNS:elsewhere.test", "expired": "DNS:localhost"}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two CAs; servers that are good, misnamed and expired; a client of each CA."""
    folder = tmp_path_factory.mktemp("keys")
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl makes the certificates, and is not here")

    def run(*words: str) -> None:
        subprocess.run([openssl, *words], cwd=folder, check=True, capture_output=True)

    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    for ca in ("ca", "stranger"):
        out = ("-keyout", f"{ca}.key", "-out", f"{ca}.pem")
        run(*new, "-x509", "-days", "2", "-subj", f"/CN={ca}", *out)
    signers = {**dict.fromkeys((*SERVERS, "client"), "ca"), "strange": "stranger"}
    for name, ca in signers.items():
        run(*new, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        (folder / "san").write_text(f"subjectAltName={SERVERS.get(name, 'DNS:client')}")
        days = "-1" if name == "expired" else "2"
        signed = ("-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-CAcreateserial", "-days", days)
        ext = ("-extfile", "san", "-out", f"{name}.pem")
        run("x509", "-req", "-in", f"{name}.csr", *signed, *ext)
    return folder


def client_tls(keys: Path, own: str | None = None, ca: str = "ca") -> ClientTls:
    root = (keys / f"{ca}.pem").read_bytes()
    if own is None:
        return ClientTls(ca=root)
    return ClientTls(root, (keys / f"{own}.pem").read_bytes(), (keys / f"{own}.key").read_bytes())


@contextmanager
def serving(keys: Path, name: str, mutual: bool) -> Iterator[tuple[str, str]]:
    """The addresses of gRPC and HTTP of one model under a certificate."""
    registry = Registry()
    registry.add(adding(1, name="ps_0"))
    tls = Tls(keys / f"{name}.pem", keys / f"{name}.key", keys / "ca.pem" if mutual else None)
    with (
        PredictionServer(registry, "localhost:0", tls=tls) as server,
        RestServer(registry, "localhost:0", tls=tls) as rest,
    ):
        yield server.address, rest.address
    registry.close()


def ask(address: str, tls: ClientTls | None) -> Any:
    with PredictionClient(address, tls=tls) as client:
        return client.predict("ps_0", "serving_default", {"x": X}, timeout=20)["y"]


def refusal(address: str, tls: ClientTls | None) -> str:
    """What a client is told that cannot get through."""
    with pytest.raises(ServingError) as error:
        ask(address, tls)
    assert error.value.code == "UNAVAILABLE"
    return str(error.value)


@pytest.mark.parametrize("mutual", [False, True])
def test_our_clients_over_tls(keys: Path, mutual: bool) -> None:
    tls = client_tls(keys, "client" if mutual else None)
    with serving(keys, "server", mutual) as (address, _):
        assert torch.equal(ask(address, tls), X + 1)
        with Replicas({"ps:0": [address]}, tls=tls):
            (found,) = remote_predict(
                ["x"], [X], ["y"], "ps_0", 0, None, max_rpc_deadline_millis=20_000
            )
        assert torch.equal(found, X + 1)


@pytest.mark.parametrize(
    ("name", "word"), [("elsewhere", "for another name"), ("expired", "or renew it")]
)
def test_a_server_that_is_not_who_it_should_be(keys: Path, name: str, word: str) -> None:
    with serving(keys, name, mutual=False) as (address, _):
        assert word in refusal(address, client_tls(keys))


def test_a_server_that_the_client_does_not_know(keys: Path) -> None:
    with serving(keys, "server", mutual=False) as (address, _):
        assert "certificate is not trusted" in refusal(address, client_tls(keys, ca="stranger"))
        assert "wants TLS" in refusal(address, None)
        assert torch.equal(ask(address, client_tls(keys)), X + 1)


@pytest.mark.parametrize("own", [None, "strange"])
def test_a_client_that_the_server_does_not_know(keys: Path, own: str | None) -> None:
    with serving(keys, "server", mutual=True) as (address, _):
        assert "a certificate of the client" in refusal(address, client_tls(keys, own))
        assert torch.equal(ask(address, client_tls(keys, "client")), X + 1)


def test_certificates_that_are_none(keys: Path) -> None:
    (keys / "rubbish.pem").write_text("no certificate")
    for tls in (
        Tls(keys / "rubbish.pem", keys / "server.key"),
        Tls(keys / "server.pem", keys / "rubbish.pem"),
        Tls(keys / "server.pem", keys / "client.key"),
    ):
        for make in (PredictionServer, RestServer):
            with pytest.raises(InputError):
                make(Registry(), tls=tls)


def context(keys: Path, own: str | None = None, ca: str = "ca") -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(keys / f"{ca}.pem"))
    if own is not None:
        made.load_cert_chain(keys / f"{own}.pem", keys / f"{own}.key")
    return made


def test_http_over_tls(keys: Path) -> None:
    with serving(keys, "server", mutual=True) as (_, address):
        url = f"https://{address}/v1/models/ps_0:predict"
        body = json.dumps({"inputs": [[1, 2]]}).encode()
        asked = Request(url, body, {"Content-Type": "application/json"})
        with urlopen(asked, timeout=20, context=context(keys, "client")) as response:
            assert json.loads(response.read())["outputs"]["y"] == [[2.0, 3.0]]
        for wrong in (context(keys), context(keys, "client", "stranger"), context(keys, "strange")):
            with pytest.raises((URLError, OSError)):
                urlopen(asked, timeout=20, context=wrong)
        with pytest.raises((URLError, OSError)):
            urlopen(f"http://{address}/healthz", timeout=20)
        with urlopen(asked, timeout=20, context=context(keys, "client")) as response:
            assert response.status == 200
