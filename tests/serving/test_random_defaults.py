"""Random tries to change or read what a server of default settings keeps from strangers."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

import hedgerow as hr
from hedgerow.core.errors import ConfigError, FileDamagedError
from hedgerow.serving.bundle import load_trusted
from hedgerow.serving.process import Access, ServePlan
from hedgerow.serving.registry import Registry
from hedgerow.serving.rest import RestServer
from hedgerow.serving.row_signatures import ps_model
from hedgerow.serving.server import PredictionServer
from hedgerow.serving.tls import is_local
from hedgerow.sync.link import ReplicaLink, TargetError
from hedgerow.sync.protocol import ATTACH, BEAT, DENSE, REPLICA_SERVICE, SWEEP
from hedgerow.wire import infer_tensors, rpc
from hedgerow.wire.messages import kserve

from .models import demo
from .serving import TIMEOUT_S, Caller, host_tables, refused
from .test_defaults import PUSHES, ask

TRIES = 120  # of each kind, the same at each run
OURS = ("localhost", "127.0.0.1", "[::1]", "LocalHost.", "127.9.8.7")
THEIRS = (
    "evil.example",
    "localhost.evil.example",
    "evil.localhost",
    "127.0.0.1.evil.example",
    "0.0.0.0",
    "10.0.0.1",
    "[::]",
    "[::ffff:10.0.0.1]",
    "127.1",
    "2130706433",
    "0x7f.0.0.1",
    "localhost@evil.example",
    "evil.example#localhost",
    "localhost,evil.example",
    "localhost evil.example",
)
JSON = ("application/json", "APPLICATION/JSON", "application/json;charset=utf-8")
NOT_JSON = (
    "",
    "text/plain",
    "text/json",
    "application/jsonp",
    "application/x-www-form-urlencoded",
    "text/plain;application/json",
    "application /json",
    "application/json, text/plain",
)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[PredictionServer, RestServer, Any]]:
    tables = host_tables(a=2)
    tables.tables[0].assign(torch.tensor([7]), torch.tensor([[5.0, 6.0]]))
    registry = Registry()
    registry.add(ps_model("ps_0", tables, removes=True))
    registry.add(demo(3))
    with ExitStack() as stack:
        server = stack.enter_context(PredictionServer(registry))
        yield server, stack.enter_context(RestServer(registry)), tables
    registry.close()


def _unchanged(tables: Any) -> None:
    assert tables.size() == 1
    assert tables.tables[0].lookup(torch.tensor([7])).rows_of().tolist() == [[5.0, 6.0]]


def _push(made: random.Random) -> tuple[str, dict[str, Any]]:
    """A push or a removal, of random ids and values."""
    signature = made.choice(sorted(PUSHES))
    n = made.randint(1, 4)
    ids = torch.tensor([made.choice([7, made.randrange(-(2**63), 2**63)]) for _ in range(n)])
    values = torch.tensor([[made.uniform(-9, 9), made.uniform(-9, 9)] for _ in range(n)])
    inputs = {
        "hashtable_assign": {"a_id": ids, "a_value": values},
        "ps_0/raw_assign": {
            "id": ids,
            "id_split": torch.tensor([0, n]),
            "flat_value": values.reshape(-1),
        },
        "hashtable_remove": {"a_id": ids},
    }
    return signature, inputs[signature]


def _any_port(made: random.Random, host: str) -> str:
    return f"{host}:{made.choice([1, 80, 443, 8501, 65535])}" if made.random() < 0.5 else host


def test_random_pushes_over_grpc_change_nothing(
    served: tuple[PredictionServer, RestServer, Any],
) -> None:
    server, _, tables = served
    made, link = random.Random(30), ReplicaLink(server.address)
    with (
        Caller(server.address) as predict,
        Caller(server.address, rpc.KSERVE_SERVICE) as kserve_caller,
    ):
        for _ in range(TRIES):
            signature, inputs = _push(made)
            way = made.randrange(3)
            if way == 0:
                code, text = refused(
                    lambda s=signature, i=inputs: predict.predict("ps_0", i, signature=s)
                )
            elif way == 1:
                asked = kserve.ModelInferRequest(model_name="ps_0")
                asked.parameters["signature_name"].string_param = signature
                infer_tensors.write_inputs(asked, inputs)
                code, text = refused(lambda a=asked: kserve_caller.call("ModelInfer", a))
            else:
                code, text = _of_link(made, link)
            assert (code, "--accept-pushes" in text) == ("PERMISSION_DENIED", True)
    link.close()
    _unchanged(tables)


def _of_link(made: random.Random, link: ReplicaLink) -> tuple[str, str]:
    """What a publisher is told that sends one of its messages."""
    method = made.choice([ATTACH, SWEEP, BEAT, DENSE])
    about = {"model": made.choice(["ps_0", "demo", "none", ""]), "x": made.random()}
    with pytest.raises(TargetError) as error:
        _send(link, method, about)
    return error.value.code, str(error.value)


def _send(link: ReplicaLink, method: str, about: dict[str, Any]) -> None:
    if method == DENSE:
        link.send(f"/{REPLICA_SERVICE}/{DENSE}", json.dumps(about).encode(), TIMEOUT_S)
    else:
        link.ask(REPLICA_SERVICE, method, about, TIMEOUT_S)


def test_random_requests_of_pages_of_others_are_refused_and_pushes_change_nothing(
    served: tuple[PredictionServer, RestServer, Any],
) -> None:
    """Each part of a request is right or wrong by chance; it passes where all are right."""
    _, rest, tables = served
    made, passed = random.Random(31), 0
    for _ in range(2 * TRIES):
        good = [made.random() < 0.8 for _ in range(4)]
        host = _any_port(made, made.choice(OURS if good[0] else THEIRS))
        head = {"Host": host, "Content_Type": made.choice(JSON if good[1] else NOT_JSON)}
        if made.random() < 0.7:
            other = made.choice(["http://" + one for one in THEIRS] + ["null", "file://", "x"])
            head["Origin"] = f"http://{host}" if good[2] else other
            good[2] = good[2] and good[0]
        else:
            good[2] = True
        model, asked = "demo", {"instances": [made.uniform(-9, 9)]}
        is_push = made.random() < 0.5
        if is_push:
            signature, inputs = _push(made)
            plain = {name: value.tolist() for name, value in inputs.items()}
            model, asked = "ps_0", {"signature_name": signature, "inputs": plain}
        path = f"/v1/models/{model}:predict"
        if made.random() < 0.3 and " " not in host:
            authority = host if good[3] else made.choice([o for o in THEIRS if " " not in o])
            path = f"http://{authority}{path}"
        else:
            good[3] = True
        status, _ = ask(rest.address, "POST", path, json.dumps(asked).encode(), **head)
        may = good[0] and good[1] and good[2] and good[3]
        passed += may and not is_push
        wanted = {403} if may and is_push else {200} if may else {400, 403, 415}
        assert status in wanted, (status, path, head)
    assert passed > TRIES // 4
    _unchanged(tables)


def _random_address(made: random.Random) -> str:
    kind = made.randrange(4)
    if kind == 0:
        return ".".join(str(made.randrange(256)) for _ in range(4))
    if kind == 1:
        return "[" + ":".join(f"{made.randrange(2**16):x}" for _ in range(8)) + "]"
    if kind == 2:
        return "".join(made.choices(string.ascii_lowercase + ".-", k=9)) + ".example"
    return made.choice(["0.0.0.0", "[::]", "", "*", "127.1", "2130706433", "localhost.example"])


def test_unsigned_bundles_are_not_loaded_where_another_machine_reaches_the_server(
    tmp_path: Path,
) -> None:
    model = hr.EmbeddingBags([hr.Table("user", 2)])
    example = hr.IdBatch.from_lists({"user": [[7]]})
    folder = hr.serving.export(model, tmp_path / "ctr", example=example)
    made, allowed = random.Random(33), 0
    for _ in range(TRIES):
        addresses = [made.choice([_random_address(made), *OURS[:3]]) + ":0" for _ in range(2)]
        http = made.choice([addresses[1], None])
        access = Access(insecure=True, trust_old=made.random() < 0.5)
        plan = ServePlan(models=(), grpc=addresses[0], http=http, access=access)
        if all(is_local(one) for one in (addresses[0], http) if one is not None):
            allowed += 1
            assert plan.trust.unsigned
            continue
        with pytest.raises(FileDamagedError, match="--trust KEY"):
            load_trusted(folder, "ctr", plan.trust)
    assert 0 < allowed < TRIES - 20
    load_trusted(folder, "ctr", ServePlan(models=(), grpc="127.0.0.2:0").trust).close()


def test_random_addresses_off_loopback_are_refused() -> None:
    made, registry = random.Random(32), Registry()
    for _ in range(TRIES):
        host = _random_address(made)
        address = f"{host}:{made.randrange(2**16)}"
        if host.startswith("127.") and host.count(".") == 3:
            assert is_local(address)
            continue
        for kind in (PredictionServer, RestServer):
            with pytest.raises(ConfigError, match="--insecure"):
                kind(registry, address)
    for kind in (PredictionServer, RestServer):
        with kind(registry, "127.0.0.2:0") as server:
            assert server.address.startswith("127.0.0.2:")
    registry.close()
