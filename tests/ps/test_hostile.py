"""Garbage, absurd lengths and wrong keys: refused in words, and they harm nobody."""

from __future__ import annotations

import random
import resource
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import zmq

from hedgerow.core.errors import ConfigError, FileDamagedError
from hedgerow.ps import messages
from hedgerow.ps.curve import ClientKeys, ServerKeys, new_keys
from hedgerow.ps.errors import FrameError, ServerAwayError
from hedgerow.ps.messages import (
    Options,
    RequestOrigin,
    ServerAnswer,
    ServerRequest,
    Verb,
    read_answer,
)
from hedgerow.ps.remote_shard import RemoteShard
from hedgerow.ps.server import Server
from hedgerow.tables.store import TableKeys

from .servers import server, server_thread
from .tables import counting_table

KEYS = TableKeys.of_one(torch.tensor([7]))
GOOD = ServerRequest(
    Verb.APPLY_GRADIENTS,
    RequestOrigin(client=1, sequence=9),
    Options(),
    (0, 2),
    (1.0,),
    [bytes(16), bytes(8)],
)


@pytest.fixture
def started() -> Iterator[Server]:
    with server_thread() as made:
        yield made


def works(address: str) -> None:
    shard = RemoteShard(address, counting_table(), deadline_s=20)
    assert shard.start_lookup(KEYS).wait().rows.tolist() == [0.0]
    shard.close()


def asked(address: str, message: list[bytes], deadline_ms: int = 5000) -> list[bytes]:
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.connect(address)
    try:
        dealer.send_multipart(message)
        return dealer.recv_multipart() if dealer.poll(deadline_ms) else []
    finally:
        dealer.close()
        context.term()


def with_field(at: int, form: str, value: int) -> list[bytes]:
    head = bytearray(GOOD.head())
    struct.pack_into(form, head, at, value)
    return [bytes(head), *GOOD.frames]


MESSAGES = {
    "no head": [b""],
    "a short head": [b"HRPS"],
    "another magic": [b"HTTP" + GOOD.head()[4:], *GOOD.frames],
    "another version": with_field(4, "<H", 2),
    "an unknown verb": with_field(6, "<B", 99),
    "unknown flags": with_field(7, "<B", 255),
    "an unknown wire": with_field(8, "<B", 3),
    "more tables than told": with_field(10, "<H", 60000),
    "more rates than told": with_field(12, "<H", 60000),
    "splits that fall": with_field(len(GOOD.head()) - 24, "<q", 5),
    "an absurd number of ids": with_field(len(GOOD.head()) - 16, "<q", 2**62),
    "a negative number of ids": with_field(len(GOOD.head()) - 16, "<q", -1),
    "ids that are missing": [GOOD.head()],
    "ids of another length": [GOOD.head(), bytes(15), bytes(8)],
    "gradients of another length": [GOOD.head(), bytes(16), bytes(12)],
    "gradients that are missing": [GOOD.head(), bytes(16)],
    "too many frames": [GOOD.head(), *([bytes(16)] * 500)],
}


@pytest.mark.parametrize("kind", list(MESSAGES))
def test_what_is_no_request_is_refused_in_words(started: Server, kind: str) -> None:
    works(started.address)
    (whole,) = asked(started.address, MESSAGES[kind])
    answer, _ = read_answer(whole)
    assert answer.status == messages.Status.FAILED
    assert b"FrameError" in bytes(messages.behind_head(whole))
    works(started.address)
    assert started.scheduler.service.store.size() == 0


def test_random_bytes_and_bytes_that_are_no_zeromq(started: Server) -> None:
    chosen = random.Random(3)
    works(started.address)
    for _ in range(60):
        head = bytearray(GOOD.head())
        for _ in range(chosen.randint(1, 4)):
            head[chosen.randrange(4, len(head))] = chosen.randrange(256)
        head[32:40] = bytes(8)  # what a client has acknowledged is not answered again
        answer = asked(started.address, [bytes(head), *GOOD.frames])
        assert read_answer(answer[0])[0].status in messages.Status
    host, port = started.address.removeprefix("tcp://").split(":")
    for data in (b"GET / HTTP/1.1\r\n\r\n", bytes(4096), chosen.randbytes(4096)):
        with socket.create_connection((host, int(port))) as plain:
            plain.sendall(data)
    works(started.address)


def test_a_frame_beyond_the_limit_takes_no_memory() -> None:
    """The length of a frame comes before its bytes; the socket ends such a connection."""
    with server() as started:
        works(started.address)
        host, port = started.address.removeprefix("tcp://").split(":")
        for _ in range(4):
            with socket.create_connection((host, int(port))) as plain:
                greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
                plain.sendall(greeting)
                ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
                plain.sendall(b"\x04" + bytes([len(ready)]) + ready)
                plain.sendall(b"\x02" + struct.pack(">Q", 2**40) + bytes(1000))
        works(started.address)
        limits = resource.prlimit(started.pid, resource.RLIMIT_AS)
        assert limits  # the process lives
        status = Path(f"/proc/{started.pid}/status").read_text()
        peak_kb = int(status.split("VmHWM:")[1].split()[0])
        assert peak_kb < 2 * 2**20


def test_an_answer_that_is_none_is_refused() -> None:
    with pytest.raises(FrameError, match="not that of an answer"):
        read_answer(b"nothing")
    with pytest.raises(FrameError, match="version 7"):
        read_answer(b"HRPS\x07\x00" + ServerAnswer(Verb.SIZES).head(1, 1)[6:])


def test_keys_open_and_wrong_keys_do_not(tmp_path: Path) -> None:
    ours, others = tmp_path / "ours", tmp_path / "others"
    for folder in (ours, others):
        new_keys(folder)
    assert {p.stat().st_mode & 0o777 for p in ours.glob("*.key")} == {0o600}
    mine, theirs = ClientKeys.read(ours), ClientKeys.read(others)
    unknown = ClientKeys(theirs.secret, theirs.public, mine.server)
    wrong_server = ClientKeys(mine.secret, mine.public, theirs.server)
    with server(keys=ours) as started:
        shard = RemoteShard(started.address, counting_table(), keys=ours, deadline_s=30)
        shard.start_apply_gradients(KEYS, -torch.ones(1)).wait()
        for keys in (unknown, wrong_server, None):
            with pytest.raises(ServerAwayError, match=r"tcp://.*"):
                RemoteShard(started.address, counting_table(), keys=keys, deadline_s=1)
        assert shard.start_lookup(KEYS).wait().rows.tolist() == [1.0]
        shard.close()


def test_a_key_that_is_not_known_is_said_at_once(tmp_path: Path) -> None:
    ours, others = tmp_path / "ours", tmp_path / "others"
    for folder in (ours, others):
        new_keys(folder)
    theirs = ClientKeys.read(others)
    unknown = ClientKeys(theirs.secret, theirs.public, ClientKeys.read(ours).server)
    with (
        server_thread(keys=ServerKeys.read(ours)) as started,
        pytest.raises(ServerAwayError, match="the keys do not fit"),
    ):
        RemoteShard(started.address, counting_table(), keys=unknown, deadline_s=60)


def test_keys_of_files(tmp_path: Path) -> None:
    new_keys(tmp_path)
    with pytest.raises(ConfigError, match="never replaced"):
        new_keys(tmp_path)
    (tmp_path / "client.key").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        ClientKeys.read(tmp_path)
    (tmp_path / "server.pub").write_text("short")
    (tmp_path / "client.key").chmod(0o600)
    with pytest.raises(FileDamagedError, match="holds no key"):
        ClientKeys.read(tmp_path)
    with pytest.raises(ConfigError, match="from other machines"):
        Server(None, listen="tcp://0.0.0.0:0")  # pyright: ignore[reportArgumentType]
