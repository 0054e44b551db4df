"""Hostile requests on every way into a server: each gets an answer in words, and harms nobody.

They come over TCP and the local socket, with keys and without; a client beside them counts.
"""

from __future__ import annotations

import json
import os
import random
import resource
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
import zmq

from hedgerow.core import errors as core_errors
from hedgerow.core.errors import HedgerowError
from hedgerow.ps import errors as own_errors
from hedgerow.ps.curve import ClientKeys, new_keys
from hedgerow.ps.messages import (
    Buffer,
    Options,
    RequestOrigin,
    ServerAnswer,
    ServerRequest,
    Status,
    Verb,
    behind_head,
    read_answer,
)
from hedgerow.ps.remote_shard import RemoteShard
from hedgerow.ps.unix_messages import (
    SLOTS,
    SharedBlock,
    connected_socket,
    from_head,
    is_plain,
    packet_of,
    read_packet,
    shared_packet,
    spans_of,
)
from hedgerow.routing.router import Router
from hedgerow.tables.checkpoint.manifest import FileEntry
from hedgerow.tables.store import TableKeys

from .servers import ServerProcess, server, until
from .tables import counting_table

KEYS = TableKeys.of_one(torch.arange(8))
LARGE = (0, 1, -1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, -(2**63), 2**64 - 1)
FLOATS = (0.0, -1.0, float("nan"), float("inf"), -float("inf"), 1e38, 1e-45)
WORDS = (
    None,
    True,
    -1,
    2**70,
    1.5,
    "",
    "x" * 300,
    [],
    {},
    [[]],
    {"a": 1},
    "../..",
    "\0",
    float("nan"),
)
FILE = FileEntry("rows", "count", 0, "rows", 1, 1, "0")
FILES = [{"files": [{**asdict(FILE), "file": 7}], "blobs": []}]
ANSWER_S = 30.0
ROUTERS = {"count": Router("roundrobin", 1).to_dict()}
Ask = Callable[[list[bytes]], tuple[ServerAnswer, bytes] | None]
"""Sends a message; the first answer and its text, None if there is none by design."""


def number(chosen: random.Random, bits: int, *, signed: bool) -> int:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return min(max(chosen.choice((*LARGE, chosen.randint(0, 5))), low), high)


def order_of(chosen: random.Random, folder: Path) -> bytes:
    """The text of an order: what is asked for, of a wrong kind here and there, or no JSON."""
    known = {
        "phase": chosen.choice(("open", "write", "finish", "close", "bring", "never")),
        "number": chosen.choice(("a", "b")),
        "step": 3,
        "path": str(folder / chosen.choice("ab")),
        "routers": chosen.choice(({}, ROUTERS, {"count": {"kind": "router", "shards": "x"}})),
        "mark": "m",
        "newest_s": chosen.choice(({}, {"count": 1})),
        "written": chosen.choice(
            ([], [{"files": [{"file": 1}], "blobs": []}], [{"files": 3}], FILES)
        ),
        "brought": chosen.choice(([], [{"count": 0}], [{"other": 1}], [3])),
        "consumer": "c",
        "life": 1,
        "capacity": 10,
        "most": 5,
    }
    for name in list(known):
        fate = chosen.random()
        if fate < 0.25:
            del known[name]
        elif fate < 0.5:
            known[name] = chosen.choice(WORDS)
    text = json.dumps(chosen.choice((known, known, known, chosen.choice(WORDS)))).encode()
    if chosen.random() < 0.1:
        return chosen.choice((b"", b"\xff\xfe", b"[" * 100_000, b"1" * 10_000, text[:-1]))
    return text


def configs_of(chosen: random.Random) -> bytes:
    """The tables of an `open`, spoilt in one place or some."""
    document = [config.to_dict() for config in counting_table().values()]

    def spoil(value: object) -> object:
        if chosen.random() < 0.08:
            return chosen.choice(WORDS)
        if isinstance(value, dict):
            return {k: spoil(v) for k, v in value.items() if chosen.random() > 0.03}
        if isinstance(value, list):
            return [spoil(v) for v in value]
        return value

    return json.dumps(spoil(document)).encode()


def message_of(chosen: random.Random, folder: Path) -> list[bytes]:
    """A request that is nearly right: a wrong number, buffer or length in some place."""
    verb, n = chosen.choice(list(Verb)), chosen.randint(0, 6)
    has_counts = chosen.random() < 0.4
    options = Options(
        wire=chosen.choice((0, 0, 0, 1, 2)),
        missing=chosen.choice((0, 1, 2)),
        step=chosen.choice((None, number(chosen, 64, signed=True))),
        ts=number(chosen, 64, signed=True) if chosen.random() < 0.3 else 0,
        per_occurrence=chosen.random() < 0.3,
        has_counts=has_counts,
        table=number(chosen, 16, signed=False) if chosen.random() < 0.4 else 0,
        rows=number(chosen, 32, signed=False),
        cursor=number(chosen, 64, signed=False),
    )
    rates = tuple(chosen.choice(FLOATS) for _ in range(chosen.choice((0, 1, 1, 1, 3))))
    origin = RequestOrigin(chosen.getrandbits(64), 1, 0, 0, chosen.choice((0, 0, 2**32 - 1)))
    splits = chosen.choice(((0, n), (0, n), (0, n), (), (0, n, n), (0,) * 900))
    ids = np.array([chosen.choice((*LARGE[:4], i)) for i in range(n)], dtype=np.int64)
    rows = np.array([chosen.choice(FLOATS) for _ in range(n)], dtype=np.float32)
    counts = np.array([number(chosen, 64, signed=True) for _ in range(n)], dtype=np.int64)
    frames = [ids.tobytes(), rows.tobytes(), counts.tobytes()][: chosen.randint(1, 3)]
    if verb in (Verb.CHECKPOINT, Verb.SAVE, Verb.LOAD) or verb.name.startswith("TOUCHED"):
        splits, rates, frames = (), (), [order_of(chosen, folder), *frames[: chosen.randint(0, 1)]]
    elif verb is Verb.OPEN:
        splits, rates, frames = (), (), [configs_of(chosen)]
    if chosen.random() < 0.3 and frames:
        at = chosen.randrange(len(frames))
        frames[at] = chosen.choice((b"", frames[at][:-1], frames[at] * 3, bytes(70_000)))
    head = bytearray(ServerRequest(verb, origin, options, splits, rates).head())
    for _ in range(chosen.choice((0, 0, 0, 1, 3))):
        head[chosen.randrange(4, len(head))] = chosen.randrange(256)
    struct.pack_into("<QQ", head, 24, 1, 0)  # what was acknowledged is not answered again
    struct.pack_into("<Q", head, 40, 0)  # nor is one from before a restart done
    return [bytes(head[: chosen.choice((len(head),) * 9 + (20,))]), *frames]


def told(head: Buffer, rest: bytes) -> tuple[ServerAnswer, bytes]:
    answer, _ = read_answer(head)
    return answer, rest


@contextmanager
def by_tcp(address: str, keys: Path | None) -> Iterator[Ask]:
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 0)
    if keys is not None:
        ClientKeys.read(keys).protect(dealer)
    dealer.connect(address)

    def ask(message: list[bytes]) -> tuple[ServerAnswer, bytes]:
        dealer.send_multipart(message)
        assert dealer.poll(int(1000 * ANSWER_S)), f"no answer to {message!r:.300}"
        head, *rest = dealer.recv_multipart()
        found = told(head, rest[0] if rest else bytes(behind_head(head)))
        for _ in range(found[0].parts - 1):
            dealer.recv_multipart()
        return found

    try:
        yield ask
    finally:
        dealer.close()
        context.term()


@contextmanager
def by_local_socket(address: str, _keys: Path | None) -> Iterator[Ask]:
    chosen, open_now = random.Random(7), [connected_socket(address)]
    blocks = [SharedBlock(SLOTS + i, 2**20) for i in range(SLOTS)]

    def ask(message: list[bytes]) -> tuple[ServerAnswer, bytes] | None:
        head, *buffers = message
        rights, fds = [], []
        if chosen.random() < 0.5:  # through shared memory, often not as it should be
            block = chosen.choice(blocks)
            spans = spans_of([len(b) for b in buffers], chosen.choice((0, 0, 0, 2**20, 2**63)))
            for span, buffer in zip(spans, buffers, strict=True):
                if span.stop <= 2**20:
                    block.view[span] = buffer
            number = chosen.choice((block.number, block.number, 0, 2**64 - 1))
            pieces = shared_packet(head, number, spans)
            fds = chosen.choice(([], [block.fd], [block.fd], [block.fd] * 2, [0]))
        else:
            pieces = packet_of(head, buffers)
            fds = chosen.choice(([], [], [blocks[0].fd], [0]))
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))]
        line = open_now[0]
        assert line is not None
        line.settimeout(ANSWER_S)
        line.sendmsg(pieces, rights if fds else [])
        packet = memoryview(line.recv(2**22))
        assert packet, "the server ended the connection"
        if is_plain(packet):
            return told(packet, bytes(behind_head(packet)))
        found = read_packet(packet)
        return told(from_head(packet), bytes(found.buffers[0]) if found.buffers else b"")

    try:
        yield ask
    finally:
        assert open_now[0] is not None
        open_now[0].close()
        for block in blocks:
            block.passed()


def is_ours(name: str) -> bool:
    kind = getattr(core_errors, name, None) or getattr(own_errors, name, None)
    return isinstance(kind, type) and issubclass(kind, HedgerowError)


def open_files(started: ServerProcess) -> int:
    return len(os.listdir(f"/proc/{started.pid}/fd"))


def memory_kb(started: ServerProcess) -> int:
    status = Path(f"/proc/{started.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


WAYS = {"tcp": (by_tcp, False), "tcp with keys": (by_tcp, True), "local": (by_local_socket, False)}


@pytest.mark.parametrize("way", list(WAYS))
def test_hostile_requests(tmp_path: Path, way: str) -> None:
    hostile(tmp_path, way, tries=250, seed=11)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", list(WAYS))
def test_many_hostile_requests(tmp_path: Path, way: str) -> None:
    hostile(tmp_path, way, tries=6000, seed=12)


def hostile(tmp_path: Path, way: str, *, tries: int, seed: int) -> None:
    opened, has_keys = WAYS[way]
    keys = tmp_path / "keys" if has_keys else None
    if keys is not None:
        new_keys(keys)
    chosen = random.Random(seed)
    with server(keys=keys, checkpoint=tmp_path / "rows") as started:
        counting = RemoteShard(started.address, counting_table(), keys=keys)
        counting.start_apply_gradients(KEYS, -torch.ones(8)).wait()
        with opened(started.address, keys) as ask:
            ask([ServerRequest(Verb.HEALTH, RequestOrigin(1, 1)).head()])
            files, memory = open_files(started), memory_kb(started)
            for at in range(tries):
                message = message_of(chosen, tmp_path / "orders")
                answer, text = ask(message) or (None, b"")
                if answer is not None and answer.status == Status.FAILED:
                    name = json.loads(text)["error"]
                    assert is_ours(name), (at, message, text)
            until(lambda: open_files(started) <= files + 4 * SLOTS)
            assert memory_kb(started) < memory + 2**18, "it grows"
        found = counting.server_counters()
        assert found.get("faults", 0) == 0, found
        assert all(part.rows.isfinite().all() for part in counting.scan(0))
        counting.start_assign(KEYS, torch.zeros(8)).wait()
        for _ in range(3):
            counting.start_apply_gradients(KEYS, -torch.ones(8)).wait()
        assert counting.start_lookup(KEYS).wait().rows.tolist() == [3.0] * 8
        counting.close()
        assert started.terminate() == 0


def raw_bytes(chosen: random.Random, *, keys: bool) -> bytes:
    """The bytes of a connection: right up to some point, and then not."""
    mechanism = chosen.choice((b"CURVE", b"NULL\0", b"PLAIN", b"\xff" * 5))
    if chosen.random() < 0.8:
        mechanism = b"CURVE" if keys else b"NULL\0"
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32)
    ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
    hello = b"\x05HELLO\x01\x00" + bytes(72) + chosen.randbytes(32 + 8 + 80)
    command = hello if keys else ready
    name = b"\x04" + bytes([len(command)]) + command
    request = ServerRequest(Verb.HEALTH, RequestOrigin(5, 1)).head()
    frames = chosen.choice(
        (
            b"\x00" + bytes([len(request)]) + request,
            b"\x01\x00" * chosen.randint(1, 3000) + b"\x00\x00",  # parts without end
            b"\x02" + struct.pack(">Q", chosen.choice((2**30 + 1, 2**40, 2**63, 2**64 - 1))),
            b"\x02" + struct.pack(">Q", 2**29) + bytes(5000),  # a large frame that does not come
            b"\x04\x05\x04PING" + bytes(300),
            b"\x04\x16\x04PING\x00\x01" + chosen.randbytes(15),
            b"\x04\x0a\x09SUBSCRIBE",
            b"\x04\x06\x05ERROR",
            b"\x06" + struct.pack(">Q", 2**62),
            chosen.randbytes(chosen.randint(0, 400)),
        )
    )
    whole = bytearray(greeting + name + frames * chosen.randint(1, 3))
    for _ in range(chosen.choice((0, 0, 1, 5))):
        whole[chosen.randrange(len(whole))] = chosen.randrange(256)
    return bytes(whole[: chosen.choice((len(whole), chosen.randrange(1, len(whole))))])


@pytest.mark.parametrize("has_keys", [False, True])
def test_bytes_that_are_no_connection_of_ours(tmp_path: Path, has_keys: bool) -> None:
    keys = tmp_path / "keys" if has_keys else None
    if keys is not None:
        new_keys(keys)
    chosen = random.Random(21)
    with server(keys=keys) as started:
        counting = RemoteShard(started.address, counting_table(), keys=keys)
        host, _, port = started.address.removeprefix("tcp://").partition(":")
        files, memory = open_files(started), memory_kb(started)
        held: list[socket.socket] = []
        for at in range(300):
            plain = socket.create_connection((host, int(port)))
            with suppress(OSError):  # it may end the connection at any byte
                data = raw_bytes(chosen, keys=has_keys)
                for start in range(0, len(data), chosen.choice((7, 64, len(data)))):
                    plain.sendall(data[start : start + 64])
            held.append(plain)
            if len(held) > 20:
                held.pop(chosen.randrange(20)).close()
            if at % 50 == 0:
                counting.start_apply_gradients(KEYS, -torch.ones(8)).wait()
        for plain in held:
            plain.close()
        until(lambda: open_files(started) <= files + 1)
        assert memory_kb(started) < memory + 2**18
        assert counting.start_lookup(KEYS).wait().rows.tolist() == [6.0] * 8
        assert counting.server_counters().get("faults", 0) == 0
        counting.close()
        assert started.terminate() == 0


def _command(name: bytes, data: bytes) -> bytes:
    """A command of ZeroMQ's protocol."""
    return bytes([4, len(name) + len(data) + 1, len(name)]) + name + data


def test_a_connection_that_breaks_with_much_under_way_ends_no_server() -> None:
    """Where a limit made ZeroMQ stop reading a client, a sign of life that came before the end of
    its connection aborted the process: `Assertion failed: !_io_error`."""
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
    kind = b"\x0bSocket-Type" + len(b"DEALER").to_bytes(4, "big") + b"DEALER"
    beginning = greeting + _command(b"READY", kind)
    some = b"\0\x05hello" * 70 + _command(b"PING", bytes(2))
    with server() as started:
        counting = RemoteShard(started.address, counting_table())
        host, _, port = started.address.removeprefix("tcp://").partition(":")
        for turn in range(100):
            with socket.create_connection((host, int(port))) as plain, suppress(OSError):
                plain.sendall(beginning)
                plain.sendall(some * (1 + turn % 20))
                reset = struct.pack("ii", 1, 0)
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            if turn % 10 == 0:
                counting.start_apply_gradients(KEYS, -torch.ones(8)).wait()
        assert counting.start_lookup(KEYS).wait().rows.tolist() == [10.0] * 8
        counting.close()
        assert started.terminate() == 0


def test_a_server_without_descriptors_left_goes_on_and_lets_clients_in_later(
    tmp_path: Path,
) -> None:
    with server(checkpoint=tmp_path, durability="log") as started:
        counting = RemoteShard(started.address, counting_table())
        counting.start_apply_gradients(KEYS, -torch.ones(8)).wait()
        before = open_files(started)
        most = resource.prlimit(started.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(started.pid, resource.RLIMIT_NOFILE, (before + 40, most[1]))
        host, _, port = started.address.removeprefix("tcp://").partition(":")
        held = [socket.create_connection((host, int(port))) for _ in range(100)]
        until(lambda: open_files(started) >= before + 39)
        held += [made for _ in range(20) if (made := connected_socket(started.address)) is not None]
        counting.start_apply_gradients(KEYS, -torch.ones(8)).wait()
        with pytest.raises(HedgerowError, match="Too many open files"):
            counting.checkpoint()
        for one in held:
            one.close()
        until(lambda: open_files(started) <= before + 2)
        assert counting.checkpoint() == 0
        other = RemoteShard(started.address, counting_table())  # by the local socket
        other.start_apply_gradients(KEYS, -torch.ones(8)).wait()
        assert other.start_lookup(KEYS).wait().rows.tolist() == [3.0] * 8
        for shard in (counting, other):
            shard.close()
        assert started.terminate() == 0
