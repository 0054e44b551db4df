"""The local socket beside a server's address, and memory that both sides share."""

from __future__ import annotations

import array
import os
import random
import socket
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from hedgerow.core.errors import ConfigError
from hedgerow.ps.curve import ServerKeys, new_keys
from hedgerow.ps.messages import RequestOrigin, ServerRequest, Status, Verb, read_answer
from hedgerow.ps.remote_shard import RemoteShard
from hedgerow.ps.server import Server
from hedgerow.ps.service import TableService
from hedgerow.ps.transports import UnixTransport, ZmqTransport
from hedgerow.ps.unix_messages import (
    SLOTS,
    ClientBlocks,
    SharedBlock,
    connected_socket,
    from_head,
    packet_of,
    shared_packet,
    spans_of,
    unix_name,
)
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.initializers import Zeros
from hedgerow.tables.multi.host_tables import HostTables
from hedgerow.tables.optimizers import Sgd
from hedgerow.tables.store import TableKeys

from .servers import server, server_thread, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="names of sockets are Linux's")
CONFIGS = {"item": TableConfig("any", (Segment(2, Zeros(), Sgd(lr=1.0)),))}
MANY = TableKeys.of_one(torch.arange(600_000))
FEW = TableKeys.of_one(torch.arange(10))
LOOKUP = ServerRequest(
    Verb.LOOKUP, RequestOrigin(client=1, sequence=9), splits=(0, 4), frames=[bytes(32)]
)


def line_of(shard: RemoteShard) -> ZmqTransport | UnixTransport:
    return shard.connection._transport


def rows_of(keys: TableKeys) -> torch.Tensor:
    return torch.stack([keys.ids, -keys.ids], 1).float().view(-1)


def works(shard: RemoteShard, keys: TableKeys = FEW) -> None:
    shard.start_assign(keys, rows_of(keys)).wait()
    assert shard.start_lookup(keys).wait().rows.equal(rows_of(keys))


@pytest.mark.parametrize(
    "address", ["tcp://10.0.0.1:7000", "tcp://localhost:7000", "ipc:///tmp/x", "nothing", ""]
)
def test_only_loopback_addresses_have_one(address: str) -> None:
    assert unix_name(address) is None
    assert connected_socket(address) is None


def test_a_name_that_somebody_else_has_is_refused_as_a_taken_port_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    name = unix_name(address)
    assert name is not None
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind("\0" + name)
        with pytest.raises(ConfigError, match="cannot listen at hedgerow-ps-"):
            Server(TableService(), listen=address)


def test_every_verb_with_much_and_with_little() -> None:
    local = HostTables(CONFIGS)
    with server_thread() as started:
        shard = RemoteShard(started.address, CONFIGS)
        assert isinstance(line_of(shard), UnixTransport)
        for keys in (MANY, FEW, TableKeys.of_one(torch.empty(0, dtype=torch.int64))):
            local.assign(keys, rows_of(keys))
            local.apply_gradients(keys, torch.ones(2 * len(keys.ids)))
            shard.start_assign(keys, rows_of(keys)).wait()
            shard.start_apply_gradients(keys, torch.ones(2 * len(keys.ids))).wait()
            assert shard.start_lookup(keys).wait().rows.equal(local.lookup(keys).rows)
            assert shard.start_contains(keys).wait().all()
            found = shard.start_entries(0, keys.ids).wait()
            assert found.rows.view(-1).equal(local.lookup(keys).rows)
        assert sum(len(part) for part in shard.scan(0)) == local.size()
        for wire in (torch.float16, torch.bfloat16):
            narrow = RemoteShard(started.address, CONFIGS, wire=wire)
            rows = local.lookup(MANY).rows.to(wire).float()
            assert narrow.start_lookup(MANY).wait().rows.equal(rows)
            narrow.close()
        shard.close()
        address = started.address
    assert connected_socket(address) is None


def test_more_large_requests_at_once_than_there_are_blocks() -> None:
    with server_thread() as started:
        shard = RemoteShard(started.address, CONFIGS)
        works(shard, MANY)
        parts = [TableKeys.of_one(part) for part in MANY.ids[:400_000].split(40_000)]
        under_way = [shard.start_lookup(part) for part in parts]
        for part, one in zip(parts, under_way, strict=True):
            assert one.wait().rows.equal(rows_of(part))
        assert len(list(Path("/proc/self/fd").iterdir())) < 200
        shard.close()


def test_who_has_keys_does_not_take_it(tmp_path: Path) -> None:
    new_keys(tmp_path)
    with server_thread(keys=ServerKeys.read(tmp_path)) as started:
        assert connected_socket(started.address) is None
        shard = RemoteShard(started.address, CONFIGS, keys=tmp_path)
        assert isinstance(line_of(shard), ZmqTransport)
        works(shard)
        shard.close()


def test_a_client_without_memory_to_share_goes_on_by_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, flags: int = 0) -> int:
        raise OSError(24, "Too many open files")

    with server_thread() as started:
        monkeypatch.setattr(os, "memfd_create", refuse)
        shard = RemoteShard(started.address, CONFIGS)
        works(shard, MANY)
        assert isinstance(line_of(shard), ZmqTransport)
        shard.close()


def test_another_user_is_not_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    with server_thread() as started:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert connected_socket(started.address) is None
        name = unix_name(started.address)
        assert name is not None
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
            other.connect("\0" + name)
            other.settimeout(20)
            assert other.recv(1) == b""  # the server looks, too
        shard = RemoteShard(started.address, CONFIGS)
        assert isinstance(line_of(shard), ZmqTransport)
        works(shard)
        shard.close()


def test_a_server_that_comes_back_is_met_there_again(tmp_path: Path) -> None:
    with server(checkpoint=tmp_path, durability="log") as started:
        shard = RemoteShard(started.address, CONFIGS, deadline_s=60)
        works(shard)
        started.crash()
        works(shard)
        assert isinstance(line_of(shard), UnixTransport)
        shard.close()


def test_a_block_whose_request_was_sent_twice_or_given_up_is_not_used_again() -> None:
    blocks = ClientBlocks()
    first = blocks.take(1, 100, once=True)
    second = blocks.take(1, 100, once=False)  # asked again
    assert second is not first
    blocks.give(1, again=True)
    third = blocks.take(2, 100, once=True)
    assert third is not second
    blocks.give(2, again=False)  # given up
    fourth = blocks.take(3, 100, once=True)
    assert fourth is not third
    blocks.give(3, again=True)
    assert blocks.take(4, 100, once=True) is fourth
    for sequence in range(5, 4 + SLOTS):
        assert blocks.take(sequence, 100, once=True) is not None
    assert blocks.take(99, 100, once=True) is None
    blocks.close()


def asked(address: str, pieces: list[bytes], fds: tuple[int, ...] = ()) -> bytes:
    """What a server says to a packet; nothing if it ends the connection."""
    plain = connected_socket(address)
    assert plain is not None
    with plain:
        plain.settimeout(20)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        plain.sendmsg(pieces, rights)
        return plain.recv(2**17)


def refused(address: str, pieces: list[bytes], fds: tuple[int, ...] = ()) -> bool:
    told = asked(address, pieces, fds)
    return read_answer(told)[0].status == Status.FAILED and b"FrameError" in told


def test_memory_that_is_none_is_refused_in_words(tmp_path: Path) -> None:
    ours = SharedBlock(SLOTS, 4096)
    plain_file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.ftruncate(plain_file, 4096)
    loose = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
    os.ftruncate(loose, 4096)
    head, one = LOOKUP.head(), spans_of([32])
    with server_thread() as started:
        shard = RemoteShard(started.address, CONFIGS)
        at = started.address
        assert refused(at, shared_packet(head, SLOTS, one))  # never shared
        assert refused(at, shared_packet(head, SLOTS, one), (plain_file,))
        assert refused(at, shared_packet(head, SLOTS, one), (loose,))  # could shrink under us
        assert refused(at, shared_packet(head, SLOTS, spans_of([2**20])), (ours.fd,))
        assert refused(at, shared_packet(head, SLOTS, [slice(2**63, 2**63 + 32)]), (ours.fd,))
        found = asked(at, shared_packet(head, SLOTS, one), (ours.fd,))
        assert read_answer(from_head(memoryview(found)))[0].status == Status.DONE
        assert asked(at, shared_packet(head, SLOTS, one), (ours.fd, loose, loose)) == b""
        works(shard)
        shard.close()
        assert started.counters.snapshot()["frames_refused"] == 5
    for fd in (ours.fd, plain_file, loose):
        os.close(fd)


@pytest.mark.parametrize("verb", ["lookup", "assign"])
def test_memory_that_was_shared_goes_with_its_client(verb: str) -> None:
    """Also where its large request was the last that a thread of the server has done."""
    with server() as started:
        first = RemoteShard(started.address, CONFIGS)
        works(first)
        before = open_files(started.pid)
        shard = RemoteShard(started.address, CONFIGS)
        if verb == "lookup":
            shard.start_lookup(MANY).wait()
        else:
            shard.start_assign(MANY, rows_of(MANY)).wait()
        assert open_files(started.pid) > before
        shard.close()
        until(lambda: open_files(started.pid) <= before)
        first.close()


def test_an_answer_for_which_there_is_no_room_is_refused_and_no_fault() -> None:
    ours = SharedBlock(SLOTS, 2**20)
    many = ServerRequest(Verb.LOOKUP, RequestOrigin(client=1, sequence=9), splits=(0, 100_000))
    spans = spans_of([8 * 100_000])
    with server_thread() as started:
        shard = RemoteShard(started.address, CONFIGS)
        assert refused(started.address, shared_packet(many.head(), SLOTS, spans), (ours.fd,))
        works(shard)
        shard.close()
        assert started.counters.snapshot().get("faults", 0) == 0
    os.close(ours.fd)


def test_random_packets_harm_nobody() -> None:
    chosen = random.Random(5)
    pieces = packet_of(LOOKUP.head(), [bytes(32), bytes(8)])
    with server_thread() as started:
        shard = RemoteShard(started.address, CONFIGS)
        for _ in range(200):
            packet = bytearray(b"".join(pieces))
            for _ in range(chosen.randint(1, 4)):
                packet[chosen.randrange(4, len(packet))] = chosen.randrange(256)
            asked(started.address, [bytes(packet[: chosen.randint(1, len(packet))])])
        works(shard)
        shard.close()


def test_one_who_reads_no_answers_holds_up_nobody() -> None:
    ids = torch.arange(4000)
    request = ServerRequest(Verb.LOOKUP, RequestOrigin(client=1, sequence=9), splits=(0, 4000))
    with server_thread() as started:
        shard = RemoteShard(started.address, CONFIGS)
        plain = connected_socket(started.address)
        assert plain is not None
        with plain:
            plain.settimeout(20)
            for _ in range(400):  # 13 MB of answers, more than any buffer
                plain.sendall(request.head() + ids.numpy().tobytes())
            works(shard, MANY)
            assert started.counters.snapshot()["answers_dropped"] > 0
        shard.close()


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.parametrize("kind", ["plain", "small buffers", "garbage", "empty", "never shared"])
def test_descriptors_that_come_with_a_packet_are_closed(kind: str) -> None:
    ids = np.arange(4).tobytes()
    packet = {
        "plain": [LOOKUP.head(), ids],
        "small buffers": packet_of(LOOKUP.head(), [ids, bytes(8)]),
        "garbage": [b"nothing"],
        "empty": [b""],
        "never shared": shared_packet(LOOKUP.head(), 0, spans_of([32])),
    }[kind]
    with server() as started:
        shard = RemoteShard(started.address, CONFIGS)
        works(shard)
        before = open_files(started.pid)
        mine = os.memfd_create("mine")
        for _ in range(50):
            for fds in ((mine,), (mine, mine)):
                asked(started.address, packet, fds)
        works(shard)
        until(lambda: open_files(started.pid) <= before)
        os.close(mine)
        shard.close()
