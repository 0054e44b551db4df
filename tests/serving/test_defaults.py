"""What a server refuses unless it is told: pushes, strangers' pages, addresses in the open."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

import hedgerow as hr
from hedgerow.core.errors import ConfigError, InputError
from hedgerow.serving.client import PredictionClient
from hedgerow.serving.http_server import OriginCheck
from hedgerow.serving.model import ServingError
from hedgerow.serving.process import Access
from hedgerow.serving.registry import Registry
from hedgerow.serving.rest import RestServer
from hedgerow.serving.row_signatures import ps_model
from hedgerow.serving.server import PredictionServer
from hedgerow.sync.link import ReplicaLink, TargetError
from hedgerow.sync.protocol import ATTACH, BEAT, DENSE, DESCRIBE, REPLICA_SERVICE, SWEEP
from hedgerow.wire import infer_tensors, rpc
from hedgerow.wire.messages import kserve

from .models import demo
from .serving import TIMEOUT_S, Caller, host_tables, refused

ROWS = {"a_id": torch.tensor([7]), "a_value": torch.tensor([[1.0, 2.0]])}
RAW = {
    "id": torch.tensor([7]),
    "id_split": torch.tensor([0, 1]),
    "flat_value": torch.tensor([1.0, 2.0]),
}
PUSHES = {
    "hashtable_assign": ROWS,
    "ps_0/raw_assign": RAW,
    "hashtable_remove": {"a_id": torch.tensor([7])},
}


@pytest.fixture
def tables() -> Any:
    found = host_tables(a=2)
    found.tables[0].assign(torch.tensor([7]), torch.tensor([[5.0, 6.0]]))
    return found


@pytest.fixture
def servers(tables: Any) -> Iterator[tuple[PredictionServer, RestServer]]:
    """Both servers as they are by default."""
    registry = Registry()
    registry.add(ps_model("ps_0", tables, removes=True))
    registry.add(demo(3))
    with ExitStack() as stack:
        server = stack.enter_context(PredictionServer(registry))
        yield server, stack.enter_context(RestServer(registry))
    registry.close()


def ask(address: str, method: str, path: str, body: bytes | None = None, **head: str) -> Any:
    """The status and the JSON of an answer; heads are named with _ for -."""
    connection = HTTPConnection(address, timeout=60)
    connection.putrequest(method, path, skip_host="Host" in head)
    for name, value in head.items():
        if value:
            connection.putheader(name.replace("_", "-"), value)
    if body is not None:
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)
    response = connection.getresponse()
    found = response.status, response.read()
    connection.close()
    return found


# ---- pushes


@pytest.mark.parametrize("signature", PUSHES)
def test_pushes_are_off_over_every_protocol(
    signature: str, servers: tuple[PredictionServer, RestServer], tables: Any
) -> None:
    server, rest = servers
    inputs = PUSHES[signature]
    with Caller(server.address) as caller:
        code, text = refused(lambda: caller.predict("ps_0", inputs, signature=signature))
    assert (code, "--accept-pushes" in text) == ("PERMISSION_DENIED", True)
    asked = kserve.ModelInferRequest(model_name="ps_0")
    asked.parameters["signature_name"].string_param = signature
    infer_tensors.write_inputs(asked, inputs)
    with Caller(server.address, rpc.KSERVE_SERVICE) as caller:
        assert refused(lambda: caller.call("ModelInfer", asked))[0] == "PERMISSION_DENIED"
    plain = {"signature_name": signature, "inputs": {n: t.tolist() for n, t in inputs.items()}}
    body = json.dumps(plain).encode()
    kind = {"Content_Type": "application/json"}
    status, answer = ask(rest.address, "POST", "/v1/models/ps_0:predict", body, **kind)
    assert (status, b"--accept-pushes" in answer) == (403, True)
    assert tables.tables[0].lookup(torch.tensor([7])).rows_of().tolist() == [[5.0, 6.0]]
    assert tables.size() == 1


def test_publishers_are_refused_with_the_reason(
    servers: tuple[PredictionServer, RestServer],
) -> None:
    link = ReplicaLink(servers[0].address)
    for method in (ATTACH, SWEEP, BEAT):
        with pytest.raises(TargetError, match="--accept-pushes") as error:
            link.ask(REPLICA_SERVICE, method, {"model": "ps_0"}, TIMEOUT_S)
        assert error.value.code == "PERMISSION_DENIED"
    with pytest.raises(TargetError, match="--accept-pushes"):
        link.send(f"/{REPLICA_SERVICE}/{DENSE}", b"", TIMEOUT_S)
    assert "models" in link.ask(REPLICA_SERVICE, DESCRIBE, {}, TIMEOUT_S)
    link.close()


def test_with_accept_pushes_they_work(tables: Any) -> None:
    registry = Registry(accept_pushes=True)
    registry.add(ps_model("ps_0", tables, removes=True))
    with PredictionServer(registry) as server, PredictionClient(server.address) as client:
        client.predict("ps_0", "hashtable_assign", ROWS)
        found = client.predict("ps_0", "lookup", {"a": torch.tensor([7])})
        assert found["a"].tolist() == [[1.0, 2.0]]
    registry.close()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> tuple[hr.EmbeddingBags, Path]:
    model = hr.EmbeddingBags([hr.Table("user", 2)], init=hr.Zeros(), optimizer=hr.Sgd(lr=1.0))
    base = tmp_path_factory.mktemp("base") / "ctr"
    hr.serving.export(model, base, example=hr.IdBatch.from_lists({"user": [[7], [8]]}))
    return model, base


@pytest.mark.parametrize(
    ("more", "accepts"), [((), False), (("--accept-pushes",), True), (("--follow", "L"), True)]
)
def test_serve_accepts_pushes_only_when_told(
    more: tuple[str, ...], accepts: bool, bundle: tuple[hr.EmbeddingBags, Path]
) -> None:
    model, base = bundle
    with ExitStack() as stack:
        listening = stack.enter_context(hr.publish(model, listen="127.0.0.1:0", every="50ms"))
        command = [sys.executable, "-m", "hedgerow", "serve", str(base), "--http", "off"]
        command += ["--grpc", "127.0.0.1:0"]
        command += [str(listening.address) if one == "L" else one for one in more]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        stack.callback(process.wait, 60)
        stack.callback(process.terminate)
        assert process.stdout is not None
        stack.callback(process.stdout.close)
        address = process.stdout.readline().split()[-1]
        client = stack.enter_context(PredictionClient(address))
        push = {"user_id": torch.tensor([7]), "user_value": torch.tensor([[3.0, 4.0]])}
        if accepts:
            assert int(client.predict("ctr", "hashtable_assign", push)["user_result"]) == 1
            return
        with pytest.raises(ServingError, match="--accept-pushes") as error:
            client.predict("ctr", "hashtable_assign", push)
        assert error.value.code == "PERMISSION_DENIED"
        publisher = stack.enter_context(hr.publish(model, address, every="50ms"))
        assert not publisher.flush(1.0)
        assert "--accept-pushes" in publisher.status().targets[0].error


# ---- HTTP


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:80", 200),
        ("127.0.0.1", 200),
        ("[::1]:8501", 200),
        ("LOCALHOST.", 200),
        ("evil.example", 403),
        ("evil.example:8501", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("10.1.2.3", 403),
        ("0.0.0.0", 403),
        ("[::1].evil", 403),
        ("", 400),
    ],
)
def test_a_wrong_host_is_refused(
    host: str, status: int, servers: tuple[PredictionServer, RestServer]
) -> None:
    """DNS rebinding: a page of evil.example whose name leads to 127.0.0.1 sends that Host."""
    address, body = servers[1].address, b'{"instances": [1.0]}'
    assert ask(address, "GET", "/healthz", Host=host)[0] == status
    kind = {"Content_Type": "application/json"}
    assert ask(address, "POST", "/v1/models/demo:predict", body, Host=host, **kind)[0] == status


@pytest.mark.parametrize(
    ("authority", "status"),
    [("LOCALHOST:1", 200), ("evil.example", 403), ("localhost@evil.example", 403), ("[", 400)],
)
def test_a_whole_address_in_the_first_line_goes_before_host(
    authority: str, status: int, servers: tuple[PredictionServer, RestServer]
) -> None:
    """As a browser sends it that takes this server for its proxy."""
    address, target = servers[1].address, f"http://{authority}/v1/models/demo"
    assert ask(address, "GET", target, Host="localhost")[0] == status
    body, kind = b'{"instances": [1.0]}', {"Content_Type": "application/json"}
    assert ask(address, "POST", target + ":predict", body, Host="localhost", **kind)[0] == status


def test_names_that_are_allowed(tables: Any) -> None:
    registry = Registry()
    registry.add(demo(3))
    with RestServer(registry, hosts=("ctr.internal",)) as rest:
        assert ask(rest.address, "GET", "/healthz", Host="CTR.internal:80")[0] == 200
        assert ask(rest.address, "GET", "/healthz", Host="other.internal")[0] == 403
    with RestServer(registry, hosts=("*",)) as rest:
        assert ask(rest.address, "GET", "/healthz", Host="other.internal")[0] == 200
    registry.close()
    wide = OriginCheck.of("0.0.0.0:80", ())
    assert not wide.refusal("10.1.2.3:80", None)
    assert wide.refusal("evil.example", None)


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://evil.example", 403),
        ("null", 403),
        ("http://localhost:1", 403),
        ("http://[", 403),
        ("file://", 403),
        ("http://localhost:8501", 200),
    ],
)
def test_a_foreign_origin_is_refused(
    origin: str, status: int, servers: tuple[PredictionServer, RestServer]
) -> None:
    head = {"Host": "localhost:8501", "Origin": origin, "Content_Type": "application/json"}
    body = b'{"instances": [1.0]}'
    address = servers[1].address
    assert ask(address, "POST", "/v1/models/demo:predict", body, **head)[0] == status
    assert ask(address, "GET", "/v1/models/demo", **head)[0] == status


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("", 415),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 400),
        ("text/plain; application/json", 415),
    ],
)
def test_a_body_must_be_typed_as_json(
    kind: str, status: int, servers: tuple[PredictionServer, RestServer]
) -> None:
    body = b'{"instances": [1.0]}'
    found = ask(servers[1].address, "POST", "/v1/models/demo:predict", body, Content_Type=kind)
    assert found[0] == status


# ---- addresses


@pytest.mark.parametrize("kind", [PredictionServer, RestServer])
@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "example.com:0"])
def test_off_loopback_tls_or_insecure_is_needed(kind: Any, address: str) -> None:
    with pytest.raises(ConfigError, match="--insecure"):
        kind(Registry(), address)


def test_http_does_not_take_a_host_named_unix_for_a_socket() -> None:
    """For gRPC `unix:` begins the name of a file; here it would be a host, maybe a far one."""
    for address in ("unix:0", "unix-abstract:0"):
        with pytest.raises(InputError, match="give HOST:PORT"):
            RestServer(Registry(), address)


@pytest.mark.parametrize("option", ["--grpc", "--http"])
def test_serve_says_so_and_does_not_start(
    option: str, bundle: tuple[hr.EmbeddingBags, Path]
) -> None:
    command = [sys.executable, "-m", "hedgerow", "serve", str(bundle[1]), "--http", "off"]
    command += ["--grpc", "127.0.0.1:0", option, "0.0.0.0:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "can be reached from other machines" in done.stderr
    assert "--insecure" in done.stderr


def test_a_replica_off_loopback_must_be_told(bundle: tuple[hr.EmbeddingBags, Path]) -> None:
    with pytest.raises(ConfigError, match="insecure"):
        hr.serving.Replica(bundle[1], grpc="0.0.0.0:0").start()
    access = Access(insecure=True, trust_unsigned=True)
    with hr.serving.Replica(bundle[1], grpc="0.0.0.0:0", access=access) as replica:
        port = replica.address.rpartition(":")[2]
        channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        answer = channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=TIMEOUT_S)
        assert answer == b"\x08\x01"
        channel.close()
