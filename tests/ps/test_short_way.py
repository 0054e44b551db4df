"""The short way of small lookups: the same bytes as the long way, or none."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch

from hedgerow.ps.errors import FrameError
from hedgerow.ps.messages import (
    Options,
    RequestOrigin,
    ServerRequest,
    Verb,
    buffer_of,
    message,
    read_request,
)
from hedgerow.ps.request_scheduler import SmallLookupPath
from hedgerow.ps.server import Server
from hedgerow.ps.service import TableService
from hedgerow.tables.compressors import Fp16
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.initializers import Uniform
from hedgerow.tables.multi.several_tables import MultiConfig
from hedgerow.tables.optimizers import Sgd

DIMS = {"a": 3, "b": 1}


def config(dim: int) -> TableConfig:
    return TableConfig("any", (Segment(dim, Uniform(0.1), Sgd(lr=0.1)),), seed=7)


@pytest.fixture
def server() -> Iterator[Server]:
    service = TableService()
    service.open(MultiConfig.of({name: config(dim) for name, dim in DIMS.items()}))
    ids = torch.arange(50)
    rows = torch.arange(200.0)
    asked = ServerRequest(
        Verb.ASSIGN, splits=(0, 50, 100), frames=[buffer_of(ids.repeat(2)), buffer_of(rows)]
    )
    service.write(asked)
    server = Server(service)
    yield server
    server.scheduler.close()
    server.close()


def short_answer(server: Server, sent: bytes) -> bytes | None:
    way = SmallLookupPath(server.scheduler)
    way.room[: len(sent)] = sent
    found = way.answer(len(sent))
    return None if found is None else bytes(found)


def long_answer(server: Server, sent: bytes) -> bytes | None:
    try:
        request = read_request([sent])
    except FrameError:
        return None
    if request.verb != Verb.LOOKUP:
        return None
    (answer,) = server.scheduler.service.read(request)
    (found,) = message(
        answer.head(request.origin.sequence, server.scheduler.incarnation), answer.frames
    )
    return bytes(found)


def lookup(rng: random.Random) -> bytes:
    counts = rng.randint(0, 9), rng.randint(0, 9)
    ids = torch.tensor([rng.randint(-5, 60) for _ in range(sum(counts))], dtype=torch.int64)
    options = Options(missing=rng.randint(0, 2), step=rng.choice([None, 0, 9]))
    splits = (0, counts[0], sum(counts))
    origin = RequestOrigin(client=rng.getrandbits(64), sequence=rng.randint(1, 99))
    request = ServerRequest(Verb.LOOKUP, origin, options, splits)
    (sent,) = message(request.head(), [buffer_of(ids)])
    return bytes(sent)


def test_it_answers_as_the_long_way_does(server: Server) -> None:
    rng, taken = random.Random(1), 0
    for _ in range(300):
        sent = lookup(rng)
        found = short_answer(server, sent)
        taken += found is not None
        assert found is None or found == long_answer(server, sent)
    assert taken > 250  # without ids there is nothing to hurry for


def test_a_damaged_request_is_for_the_long_way_or_means_the_same(server: Server) -> None:
    rng = random.Random(2)
    for _ in range(3000):
        sent = bytearray(lookup(rng))
        for _ in range(rng.randint(1, 3)):
            sent[rng.randrange(min(len(sent), 104))] = rng.randrange(256)
        cut = bytes(sent[: rng.choice([len(sent), rng.randrange(len(sent) + 1)])])
        found = short_answer(server, cut)
        assert found is None or found == long_answer(server, cut)


def test_a_client_with_a_write_under_way_is_not_overtaken(server: Server) -> None:
    sent = lookup(random.Random(3))
    client = read_request([sent]).origin.client
    assert short_answer(server, sent) is not None
    server.scheduler.clients.admit(RequestOrigin(client=client, sequence=5), "here")
    assert short_answer(server, sent) is None


def test_a_client_of_an_earlier_life_goes_the_long_way(server: Server) -> None:
    origin = RequestOrigin(client=1, sequence=1, incarnation=server.scheduler.incarnation ^ 2)
    ids = torch.tensor([1])
    request = ServerRequest(Verb.LOOKUP, origin, splits=(0, 1, 1))
    (sent,) = message(request.head(), [buffer_of(ids)])
    assert short_answer(server, bytes(sent)) is None


def test_what_a_table_refuses_is_told_on_the_long_way() -> None:
    service = TableService()
    serving = TableConfig("any", (Segment(3, compressor=Fp16()),), serving=True)
    service.open(MultiConfig.of({"a": serving}))
    server = Server(service)
    try:
        request = ServerRequest(Verb.LOOKUP, options=Options(missing=1), splits=(0, 1))
        (sent,) = message(request.head(), [buffer_of(torch.tensor([1]))])
        assert short_answer(server, bytes(sent)) is None
        told = long_answer(server, bytes(sent))
        assert told is not None
        assert b"ServingTableError" in told
    finally:
        server.scheduler.close()
        server.close()
