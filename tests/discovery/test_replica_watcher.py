"""The first generation: registrations, their loss and return, and nodes of others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hedgerow.discovery.paths import ReplicaPaths
from hedgerow.discovery.payloads import AVAILABLE, UNKNOWN, ReplicaMeta
from hedgerow.discovery.replicas import ReplicaRegistration, ReplicaWatcher
from hedgerow.discovery.targets import SubGraphTargets, TargetInfo
from hedgerow.discovery.zookeeper import Session

from .memory_zookeeper import MemoryZooKeeper

SERVICE = ReplicaPaths("demo", "ffm")
META = ReplicaMeta("h:1", None, AVAILABLE, server_type="ps", task=1, replica=0)


@pytest.fixture
def server() -> MemoryZooKeeper:
    return MemoryZooKeeper()


@pytest.fixture
def session(server: MemoryZooKeeper) -> Iterator[Session]:
    with Session(server.client()).start() as session:
        yield session


@pytest.fixture
def other(server: MemoryZooKeeper) -> Iterator[Session]:
    with Session(server.client()).start() as other:
        yield other


def watching(session: Session, service: ReplicaPaths = SERVICE) -> ReplicaWatcher:
    watcher = ReplicaWatcher(session, service)
    watcher.start()
    return watcher


def test_states_and_addresses_are_followed(session: Session, other: Session) -> None:
    watcher = watching(session)  # before anything is there
    registration = ReplicaRegistration(other, SERVICE, META)
    registration.register()
    assert session.settle()
    assert watcher.replicas("ps", 1) == {"h:1": TargetInfo(replica_id=0)}
    registration.update(address="h:2")
    assert session.settle()
    targets = SubGraphTargets(watcher, "ps_1")
    assert targets.current() == ["h:2"]
    registration.update(stat=UNKNOWN)
    assert session.settle()
    assert targets.current() == []
    assert watcher.metas(f"{SERVICE.root}/ps:1")["0"].stat == UNKNOWN
    registration.withdraw()
    assert session.settle()
    assert watcher.metas(f"{SERVICE.root}/ps:1") == {}


def test_own_nodes_come_back_after_a_lost_session(session: Session, other: Session) -> None:
    registration = ReplicaRegistration(other, SERVICE, META)
    registration.register()
    watcher = watching(session)
    other.client.lose_session()
    assert other.settle()
    assert session.settle()
    assert list(watcher.replicas("ps", 1)) == ["h:1"]
    assert other.counters.read("sessions_lost") == 1
    assert other.counters.read("nodes_renewed") == 1


def test_a_watcher_sees_what_changed_while_its_session_was_lost(
    session: Session, other: Session
) -> None:
    ReplicaRegistration(other, SERVICE, META).register()
    watcher = watching(session)
    session.client.state = "SUSPENDED"  # a connection that is away
    ReplicaRegistration(
        other, SERVICE, ReplicaMeta("h:9", None, AVAILABLE, None, "ps", 1, 9)
    ).register()
    assert session.settle()
    assert list(watcher.replicas("ps", 1)) == ["h:1"]  # what was known stays
    session.client.lose_session()
    assert session.settle()
    assert list(watcher.replicas("ps", 1)) == ["h:1", "h:9"]


def test_the_node_of_an_old_session_is_taken_over(session: Session, other: Session) -> None:
    ReplicaRegistration(other, SERVICE, META).register()  # the process before its restart
    ReplicaRegistration(session, SERVICE, META).register()
    other.stop()
    stat = session.client.exists(f"{SERVICE.root}/ps:1/0")
    assert stat.ephemeralOwner == session.client.client_id[0]


def test_a_node_that_another_took_over_is_left_to_it(session: Session, other: Session) -> None:
    ReplicaRegistration(session, SERVICE, META).register()
    ReplicaRegistration(other, SERVICE, META).register()
    session.wake()
    assert session.settle()
    assert session.counters.read("nodes_of_others") == 1
    stat = session.client.exists(f"{SERVICE.root}/ps:1/0")
    assert stat.ephemeralOwner == other.client.client_id[0]


def test_entries_without_a_number_get_the_next_one(session: Session) -> None:
    meta = ReplicaMeta("h:1", None, AVAILABLE, server_type="entry", task=0)
    paths = [ReplicaRegistration(session, SERVICE, meta).register() for _ in range(2)]
    assert paths == [f"{SERVICE.root}/entry:0/{i:011d}" for i in range(2)]
    numbered = ReplicaMeta("h:2", None, AVAILABLE, server_type="entry", task=0, replica=7)
    path = ReplicaRegistration(session, SERVICE, numbered).register()
    assert path == f"{SERVICE.root}/entry:0/00000000007"
    assert set(watching(session).metas(f"{SERVICE.root}/entry:0")) == {"0", "1", "7"}


def test_nodes_that_nobody_can_read_are_skipped_and_counted(session: Session) -> None:
    for name, data in (("0", b"{"), ("x", b"{}"), ("1", b'{"stat": "30"}'), ("2", b"[1]")):
        session.client.create(f"{SERVICE.root}/ps:1/{name}", data, makepath=True)
    session.client.create(f"{SERVICE.root}/ps:1/3", META.to_bytes())
    watcher = watching(session)
    assert list(watcher.replicas("ps", 1).values()) == [TargetInfo(replica_id=3)]
    assert session.counters.read("damaged_nodes") == 4


def test_places(session: Session) -> None:
    service = ReplicaPaths("demo", "ffm", dc_aware=True)
    for place, address in ((("lf", "a"), "h:1"), (("hl", "b"), "h:2")):
        meta = ReplicaMeta(address, None, AVAILABLE, server_type="ps", task=1, replica=0)
        ReplicaRegistration(session, service, meta, *place).register()
    watcher = watching(session, service)
    assert watcher.addresses("ps") == {"ps:1": ["h:1", "h:2"]}
    assert watcher.addresses("ps", "hl", "b") == {"ps:1": ["h:2"]}


@pytest.mark.parametrize("name", ["ps", "ps_x", "entry_1", "1", "ps_-1"])
def test_a_sub_graph_is_ps_and_a_number(session: Session, name: str) -> None:
    with pytest.raises(ValueError, match="no sub graph"):
        watching(session).get_sync_targets(name)


@pytest.mark.parametrize(
    ("family", "archon", "wanted"),
    [
        ("ipv4", False, "a:1"),
        ("ipv6", False, "[b]:1"),
        ("ipv4", True, "c:1"),
        ("ipv6", True, "c:1"),
    ],
)
def test_the_address_of_the_wanted_family(family: str, archon: bool, wanted: str) -> None:
    meta = ReplicaMeta("a:1", "[b]:1", archon_address="c:1", archon_address_ipv6="[::]:1")
    assert meta.choose(family, archon) == wanted  # pyright: ignore[reportArgumentType]
