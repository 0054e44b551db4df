"""Pushes of many calls: made ahead, in order, nothing lost when one fails on its way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from hedgerow.routing.router import Router
from hedgerow.serving import tensorflow_serving
from hedgerow.serving.model import ServingError
from hedgerow.serving.request_context import marked
from hedgerow.sync import stream
from hedgerow.sync.link import ReplicaLink, TargetError
from hedgerow.sync.protocol import ASSIGN, PushMark
from hedgerow.sync.publisher import Publisher
from hedgerow.sync.pushes import InFlightPushes, RowPush, parts_of, pushes_of
from hedgerow.sync.source import HostSource
from hedgerow.tables.host import HostTable
from hedgerow.wire.messages import tf_serving
from hedgerow.wire.predict import PlainRequest, request_bytes
from hedgerow.wire.tensors import fill

from .replicas import DIMS, Served, rows_of, served, train, trainer_tables

ROWS = 1500


@pytest.fixture
def many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of few rows, so that a push of little takes many."""
    monkeypatch.setattr(stream, "parts_of", lambda ids, dims: parts_of(ids, dims, 1000))


class Reading(HostSource):
    """Reads row by row as other sources do; fails at the `fail_at`th part."""

    fail_at = read_parts = 0

    def message(self, shares: Any) -> None:
        """As of rows that lie elsewhere."""

    def read(self, table: str, ids: torch.Tensor) -> Any:
        """Counts the parts."""
        self.read_parts += 1
        if self.read_parts == self.fail_at:
            raise RuntimeError("out of memory, say")
        return super().read(table, ids)


@pytest.mark.parametrize("kind", [HostSource, Reading])
def test_pushes_arrive_in_order_and_few_are_under_way(
    many_parts: None, kind: type[HostSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    most: list[int] = []
    send = InFlightPushes.send

    def sent(self: InFlightPushes, link: ReplicaLink, push: RowPush) -> None:
        send(self, link, push)
        begun.append(self.seq)
        most.append(len(self._flying))

    tables = trainer_tables()
    train(tables, torch.arange(ROWS))
    with (
        served() as (one, address),
        Publisher([kind(tables)], address, every="1h") as publisher,
    ):
        assert publisher.flush()
        monkeypatch.setattr(InFlightPushes, "send", sent)
        train(tables, torch.arange(0, ROWS, 2))
        assert publisher.flush()
        assert len(begun) > 20
        assert begun == list(range(begun[0], begun[0] + len(begun)))
        assert max(most) == 2
        assert rows_of(one.store.tables) == rows_of(tables)


@pytest.mark.parametrize("failing", [1, 2, 3, 9])
def test_a_push_that_fails_in_mid_air_loses_nothing(
    many_parts: None, failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = 0
    land = InFlightPushes._land

    def landed(self: InFlightPushes) -> None:
        nonlocal answered
        answered += 1
        if answered == failing:
            self._flying.popleft()
            raise TargetError("replica", "UNAVAILABLE", "cut")
        land(self)

    tables = trainer_tables()
    train(tables, torch.arange(ROWS))
    with (
        served() as (one, address),
        Publisher([HostSource(tables)], address, every="20ms") as publisher,
    ):
        assert publisher.flush()
        monkeypatch.setattr(InFlightPushes, "_land", landed)
        train(tables, torch.arange(0, ROWS, 2))
        tables[0].erase(torch.arange(7))
        assert publisher.flush()
        assert answered > failing
        assert publisher.status().targets[0].streams[0].retried_rows
        assert rows_of(one.store.tables) == rows_of(tables)


@pytest.mark.parametrize("failing", [1, 2, 5])
def test_a_source_that_fails_while_a_request_is_made_ahead_loses_nothing(
    many_parts: None, failing: int
) -> None:
    tables = trainer_tables()
    source = Reading(tables)
    train(tables, torch.arange(ROWS))
    with served() as (one, address), Publisher([source], address, every="20ms") as publisher:
        assert publisher.flush()
        source.fail_at = source.read_parts + failing
        train(tables, torch.arange(0, ROWS, 2))
        assert publisher.flush()
        assert source.read_parts > source.fail_at
        assert rows_of(one.store.tables) == rows_of(tables)


def test_a_publisher_that_ends_in_the_middle_of_a_push_ends(many_parts: None) -> None:
    tables = trainer_tables()
    source = Reading(tables)
    train(tables, torch.arange(ROWS))
    with served() as (_, address):
        publisher = Publisher([source], address, every="1h").start()
        assert publisher.flush()
        train(tables, torch.arange(ROWS))
        publisher.flush(timeout_s=0.0)
        publisher.stop(timeout_s=0.0)
        ended = source.read_parts
        assert not publisher._reached[address]._thread.is_alive()
        assert source.read_parts == ended


# ---- the same bytes by the short way


def _tables_with_zeros() -> Iterator[tuple[list[HostTable], dict[str, torch.Tensor]]]:
    tables = trainer_tables()
    train(tables, torch.arange(40))
    for table in tables:  # rows that read as if they were absent
        table.assign(torch.arange(5), torch.zeros(5, table.layout.dim))
    yield tables, {"item": torch.arange(40)}
    yield tables, {"user": torch.arange(30, -1, -3)}
    yield tables, {"item": torch.tensor([7]), "user": torch.arange(4)}


def test_a_push_made_in_one_piece_is_what_rows_and_ids_make() -> None:
    for tables, part in _tables_with_zeros():
        pushes = list(pushes_of(HostSource(tables), "ps_0", [*DIMS], DIMS, part))
        assert [push.signature for push in pushes] == [ASSIGN]
        given = {}
        for table in tables:
            name = table.config.name
            ids = part.get(name, torch.empty(0, dtype=torch.int64))
            given |= {f"{name}_id": ids, f"{name}_value": table.lookup(ids).rows_of()}
        spec = {"name": "ps_0", "signature_name": ASSIGN}
        request = tf_serving.PredictRequest(model_spec=spec)
        assert pushes[0].request == request_bytes(request, given)
        assert pushes[0].rows == sum(map(len, part.values()))


def test_a_push_with_rows_that_are_gone_assigns_and_removes() -> None:
    tables = trainer_tables()
    train(tables, torch.arange(10))
    tables[0].erase(torch.arange(4))
    part = {"item": torch.arange(10), "user": torch.arange(10)}
    pushes = list(pushes_of(HostSource(tables), "ps_0", [*DIMS], DIMS, part))
    assert [(push.signature, push.rows) for push in pushes] == [
        ("hashtable_assign", 16),
        ("hashtable_remove", 4),
    ]


# ---- a replica's short way from the bytes to the rows


def _attached(one: Served) -> str:
    router = Router("roundrobin", 1).to_dict()
    asked = {"shard": 0, "shards": 1, "routers": dict.fromkeys(DIMS, router)}
    plain = {**asked, "incarnation": one.followed.incarnation, "publisher": "p1"}
    return str(one.followed.attach(plain)["session"])


def _assign(one: Served, mark: PushMark, data: bytes) -> bytes:
    request = PlainRequest.read(data)
    assert request is not None
    with marked(mark.metadata()):
        return tensorflow_serving.predict(one.registry, request)


def _message(value: float) -> bytes:
    """An assign of two ids to each table."""
    spec = {"name": "ps_0", "signature_name": ASSIGN}
    request = tf_serving.PredictRequest(model_spec=spec)
    given: dict[str, torch.Tensor] = {}
    for name, dim in DIMS.items():
        given |= {f"{name}_id": torch.tensor([1, 2]), f"{name}_value": torch.full((2, dim), value)}
    return request_bytes(request, given)


def test_a_push_is_counted_once_and_refused_twice() -> None:
    one = Served()
    session = _attached(one)
    mark = PushMark(session, 1, 0, "p1")
    _assign(one, mark, _message(3.0))
    assert rows_of(one.store.tables)["user"] == {1: (3.0, 3.0), 2: (3.0, 3.0)}
    assert [(s.seq, s.rows) for s in one.followed.shards()] == [(1, 4)]
    with pytest.raises(ServingError, match="comes after 1"):
        _assign(one, mark, _message(4.0))
    assert rows_of(one.store.tables)["user"][1] == (3.0, 3.0)


def test_what_the_short_way_leaves_is_let_in_once() -> None:
    """A value that is not finite: refused as a whole, and the push after it is let in."""
    one = Served()
    session = _attached(one)
    with pytest.raises(ServingError, match="not finite"):
        _assign(one, PushMark(session, 1, 0, "p1"), _message(float("nan")))
    assert one.store.size() == 0
    assert one.followed.shards()[0].seq == 1
    _assign(one, PushMark(session, 2, 0, "p1", after=1), _message(5.0))
    assert [(s.seq, s.rows) for s in one.followed.shards()] == [(2, 4)]
    assert rows_of(one.store.tables)["item"][2] == (5.0, 5.0, 5.0)


def test_both_ways_answer_alike() -> None:
    one = Served()
    data = _message(2.0)
    request = PlainRequest.read(data)
    assert request is not None
    short = tensorflow_serving.predict(one.registry, request)
    assert short == tensorflow_serving.predict(
        one.registry, tf_serving.PredictRequest.FromString(data)
    )
    short_rows = rows_of(one.store.tables)
    one.store.clear()
    tensorflow_serving.predict(one.registry, tf_serving.PredictRequest.FromString(data))
    assert rows_of(one.store.tables) == short_rows


@pytest.mark.parametrize("shift", range(1, 9))
def test_numbers_may_stand_at_any_byte_of_a_message(shift: int) -> None:
    """Other clients do not pad: what stands beside its place is copied first."""
    one = Served()
    spec = {"name": "ps_0", "signature_name": ASSIGN}
    request = tf_serving.PredictRequest(model_spec=spec)
    for name, dim in DIMS.items():
        fill(request.inputs[f"{name}_id"], torch.tensor([1, 2]))
        fill(request.inputs[f"{name}_value"], torch.full((2, dim), 6.0))
    blank = bytes([0x32, shift]) + bytes(shift)  # a client_id: it moves all that follows
    asked = PlainRequest.read(blank + request.SerializeToString())
    assert asked is not None
    tensorflow_serving.predict(one.registry, asked)
    assert rows_of(one.store.tables)["item"] == {1: (6.0,) * 3, 2: (6.0,) * 3}
