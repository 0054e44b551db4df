"""A session: jobs that fail, polls, its end, and what is said where kazoo is missing."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss

from hedgerow.core.errors import HedgerowError
from hedgerow.discovery.zookeeper import Session
from tests.zookeeper import wait_for

from .memory_zookeeper import MemoryZooKeeper


def test_a_job_that_fails_is_counted_and_tried_again() -> None:
    runs: list[int] = []

    def job() -> None:
        runs.append(len(runs))
        if len(runs) in (2, 3):
            raise ConnectionLoss if len(runs) == 2 else ValueError("broken")

    with Session(MemoryZooKeeper().client()).start() as session:
        session.follow(job)
        session.wake()
        assert wait_for(lambda: len(runs) >= 4)
        assert session.counters.read("failed_refreshes") == 2


def test_a_poll_finds_what_no_watch_told() -> None:
    server = MemoryZooKeeper()
    found: list[bytes | None] = []
    with Session(server.client(), poll_s=0.05).start() as session:
        session.follow(lambda: found.append(session.reads.data("/a")))
        server.watches.clear()  # a watch that got lost
        session.client.create("/a", b"1")
        assert wait_for(lambda: found[-1] == b"1")


def test_only_what_changed_is_read_again() -> None:
    server = MemoryZooKeeper()
    client = server.client()
    with Session(client).start() as session:
        for name in "abc":
            client.create(f"/{name}", b"1")
        asked: list[str] = []
        get = client.get
        client.get = lambda path, watch=None: asked.append(path) or get(path, watch)  # type: ignore[method-assign]
        session.follow(lambda: [session.reads.data(f"/{name}") for name in "abc"] and None)
        client.set("/b", b"2")
        assert session.settle()
        assert asked == ["/a", "/b", "/c", "/b"]
        assert session.reads.data("/b") == b"2"


def test_nodes_are_gone_at_the_end_and_a_second_end_is_harmless() -> None:
    server = MemoryZooKeeper()
    session = Session(server.client()).start()
    session.own.put("/demo/me", b"1")
    assert "/demo/me" in server.nodes
    session.stop()
    session.stop()
    assert "/demo/me" not in server.nodes


def test_equal_content_is_not_sent_again() -> None:
    server = MemoryZooKeeper()
    with Session(server.client()).start() as session:
        session.own.put("/me", b"1")
        sent: list[Any] = []
        session.client.set = lambda *given: sent.append(given)
        session.own.put("/me", b"1")
        assert sent == []
        session.own.put("/me", b"2")
        assert sent == [("/me", b"2")]


def test_content_that_did_not_arrive_is_sent_again() -> None:
    server = MemoryZooKeeper()
    with Session(server.client()).start() as session:
        session.own.put("/me", b"1")
        keep = session.client.set
        session.client.set = refuse
        with pytest.raises(ConnectionLoss):
            session.own.put("/me", b"2")
        session.client.set = keep
        session.wake()
        assert session.settle()
        assert server.nodes["/me"].data == b"2"


def test_a_node_that_could_not_be_removed_is_removed_later() -> None:
    server = MemoryZooKeeper()
    with Session(server.client()).start() as session:
        session.own.put("/me", b"1")
        keep = session.client.delete
        session.client.delete = refuse
        with pytest.raises(ConnectionLoss):
            session.own.remove("/me")
        session.client.delete = keep
        session.wake()
        assert session.settle()
        assert "/me" not in server.nodes


def refuse(*_: object) -> None:
    raise ConnectionLoss


def test_without_kazoo_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kazoo", None)
    monkeypatch.setitem(sys.modules, "kazoo.client", None)
    with pytest.raises(HedgerowError, match=r"hedgerow\[zookeeper\]"):
        Session.connect("127.0.0.1:1")
