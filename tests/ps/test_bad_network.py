"""Connections that are cut, halved, delayed and played again under keys: every sum is exact."""

from __future__ import annotations

import os
import random
import signal
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from hedgerow.ps.curve import ClientKeys, new_keys
from hedgerow.ps.errors import DeadlineError, ServerAwayError
from hedgerow.ps.pending_requests import WaitPolicy
from hedgerow.ps.remote_shard import RemoteShard, connect
from hedgerow.ps.server_tables import ServerTables
from hedgerow.ps.transports import UnixTransport
from hedgerow.tables.store import TableKeys

from .servers import server, until
from .tables import counting_table
from .tcp_proxy import TcpProxy

IDS = 64
FAULTS = ("cut", "half", "delay", "twice", "stall", "replay")


class Pushers:
    """Threads that push over connections of their own, and count what was answered."""

    def __init__(self, address: str, keys: Path | None, threads: int) -> None:
        self.pushed = torch.zeros(IDS)
        self.pushes = 0
        self.errors: list[BaseException] = []
        self._lock, self._stopping = threading.Lock(), False
        self.shards = [
            RemoteShard(address, counting_table(), keys=keys, deadline_s=120, retry_s=0.1)
            for _ in range(threads)
        ]
        self._threads = [
            threading.Thread(target=self._push, args=(i, shard), daemon=True)
            for i, shard in enumerate(self.shards)
        ]
        for thread in self._threads:
            thread.start()

    def _push(self, seed: int, shard: RemoteShard) -> None:
        made = torch.Generator().manual_seed(seed)
        try:
            while not self._stopping:
                ids = torch.randint(0, IDS, (int(torch.randint(1, 400, (1,), generator=made)),))
                keys, ones = TableKeys.of_one(ids), torch.ones(len(ids))
                under_way = [shard.start_apply_gradients(keys, -ones) for _ in range(2)]
                assert shard.start_lookup(keys).wait().rows.shape == ids.shape
                for answer in under_way:
                    answer.wait()
                with self._lock:
                    self.pushed.index_add_(0, ids, 2 * ones)
                    self.pushes += 2
        except BaseException as error:
            self.errors.append(error)

    def go_on(self, pushes: int) -> None:
        goal = self.pushes + pushes
        until(lambda: self.pushes >= goal or self.errors, 120)
        assert self.errors == []

    def stop(self) -> None:
        self._stopping = True
        for thread in self._threads:
            thread.join(150)
        assert not any(thread.is_alive() for thread in self._threads)
        assert self.errors == []

    def close(self) -> None:
        self._stopping = True
        for shard in self.shards:
            shard.close()


def sums_after(faults: int, folder: Path, seed: int) -> None:
    new_keys(folder)
    with server(keys=folder) as started:
        proxy = TcpProxy(started.address, seed)
        pushers = Pushers(proxy.address, folder, 3)
        chosen = random.Random(seed)
        try:
            for turn in range(faults):
                kind = FAULTS[turn % len(FAULTS)]
                proxy.order(kind, "in" if kind == "replay" else chosen.choice(("in", "out", "any")))
                until(lambda: proxy.is_done() or pushers.errors, 60)
                pushers.go_on(chosen.randint(0, 4))
            pushers.stop()
            check = RemoteShard(started.address, keys=folder)
            found = check.start_lookup(TableKeys.of_one(torch.arange(IDS))).wait().rows
            assert found.tolist() == pushers.pushed.tolist()
            told = check.server_counters()
            assert told["writes_applied"] == pushers.pushes
            assert told["writes_repeated"] > 0
            assert told.get("faults", 0) == 0
            check.close()
            assert all(proxy.done[kind] >= faults // len(FAULTS) for kind in FAULTS)
        finally:
            pushers.close()
            proxy.close()


def test_sixty_faults_of_the_network_under_keys(tmp_path: Path) -> None:
    sums_after(60, tmp_path / "keys", seed=1)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_five_hundred_faults_of_the_network_under_keys(tmp_path: Path) -> None:
    sums_after(500, tmp_path / "keys", seed=2)


KEYS = TableKeys.of_one(torch.tensor([7]))


def test_an_answer_that_is_lost_is_not_a_second_write(tmp_path: Path) -> None:
    new_keys(tmp_path)
    with server(keys=tmp_path) as started:
        proxy = TcpProxy(started.address)
        shard = RemoteShard(proxy.address, counting_table(), keys=tmp_path, retry_s=0.1)
        for _ in range(20):
            proxy.order("cut", "out")  # after the write was done
            shard.start_apply_gradients(KEYS, -torch.ones(1)).wait()
        assert shard.start_lookup(KEYS).wait().rows.tolist() == [20.0]
        assert proxy.done["cut out"] == 20
        told = shard.server_counters()
        assert told["writes_applied"] == 20
        assert told["writes_repeated"] >= 10  # a sign of life may be what was lost
        shard.close()
        proxy.close()


class Fleet:
    """Three servers, the second of which is reached through a proxy."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        new_keys(folder)
        started = [stack.enter_context(server(i, 3, keys=folder)) for i in range(3)]
        self.proxy = TcpProxy(started[1].address)
        stack.callback(self.proxy.close)
        addresses = [started[0].address, self.proxy.address, started[2].address]
        self.shards = connect(addresses, counting_table(), keys=folder)
        self.tables = ServerTables(self.shards, counting_table())
        for shard in self.shards:
            stack.callback(shard.close)


def test_one_of_three_servers_is_cut_off_again_and_again(tmp_path: Path) -> None:
    ids = torch.arange(30)
    with ExitStack() as stack:
        fleet = Fleet(stack, tmp_path)
        for turn in range(24):
            fleet.proxy.order(FAULTS[turn % 2], ("in", "out")[turn // 2 % 2])
            fleet.tables.apply_gradients(ids, -torch.ones(30, 1))
        assert fleet.tables.lookup(ids).rows.tolist() == [24.0] * 30


def test_the_deadline_says_which_servers_did_it_and_how_to_go_on(tmp_path: Path) -> None:
    ids = torch.arange(30)
    with ExitStack() as stack:
        fleet = Fleet(stack, tmp_path)
        fleet.tables.apply_gradients(ids, -torch.ones(30, 1))
        fleet.shards[1].connection.patience = WaitPolicy(4.0, 1.0)
        fleet.proxy.order("cut", "out")
        fleet.proxy.refuses = True
        with pytest.raises(DeadlineError) as raised:
            fleet.tables.apply_gradients(ids, -torch.ones(30, 1))
        assert raised.value.may_have_happened
        for words in (
            "no answer to apply_gradients from server 1/3",
            "the write may have happened or not",
            "it accepted this client before",
            "go on with the next batch",
            "0, 2 did their part; 1 may have: do not repeat it",
        ):
            assert words in str(raised.value)
        assert "keys do not fit" not in str(raised.value)
        with pytest.raises(DeadlineError) as raised:  # nothing leaves any more
            fleet.tables.apply_gradients(ids, -torch.ones(30, 1))
        assert not raised.value.may_have_happened
        assert "0, 2 did their part; 1 did not" in str(raised.value)
        with pytest.raises(DeadlineError) as raised:
            fleet.tables.lookup(ids)
        assert "did their part" not in str(raised.value)
        fleet.proxy.refuses = False
        fleet.shards[1].connection.patience = WaitPolicy()
        fleet.tables.apply_gradients(ids, -torch.ones(30, 1))
        found = fleet.tables.lookup(ids).rows.view(10, 3)
        assert found[:, [0, 2]].tolist() == [[4.0, 4.0]] * 10
        assert found[:, 1].tolist() == [3.0] * 10  # the one whose answer was lost was done once


def test_a_server_that_comes_back_with_other_keys_is_no_refusal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The client waits, since a supervisor may correct it; deadline and log say what is wrong."""
    own, others = tmp_path / "own", tmp_path / "others"
    new_keys(own)
    new_keys(others)
    rows = {"checkpoint": tmp_path / "rows", "durability": "log"}
    with server(keys=own, **rows) as started:
        address = started.address
        proxy = TcpProxy(address)
        shard = RemoteShard(proxy.address, counting_table(), keys=own, retry_s=0.2)
        shard.start_apply_gradients(KEYS, -torch.ones(1)).wait()
        shard.connection.patience = WaitPolicy(6.0, 0.2)
        started.terminate()
        with server(keys=others, listen=address, **rows):
            for _ in range(2):
                before = proxy.accepted
                with pytest.raises(DeadlineError, match="accepted this client before") as raised:
                    shard.start_lookup(KEYS).wait()
                assert "perhaps with other keys" in str(raised.value)
                assert proxy.accepted - before < 40, "a storm"
        with server(keys=own, listen=address, **rows):
            shard.connection.patience = WaitPolicy(60.0, 0.2)
            shard.start_apply_gradients(KEYS, -torch.ones(1)).wait()
            assert shard.start_lookup(KEYS).wait().rows.tolist() == [2.0]
        shard.close()
        proxy.close()
    assert any("waiting for" in line and "other keys" in line for line in caplog.messages)


def test_a_server_that_comes_back_with_keys_is_no_refusal_of_what_was_sent(tmp_path: Path) -> None:
    """Over the local socket of a server without keys, where no greeting was needed."""
    new_keys(tmp_path / "keys")
    rows = {"checkpoint": tmp_path / "rows", "durability": "log"}
    with server(**rows) as started:
        address = started.address
        shard = RemoteShard(address, counting_table(), deadline_s=3, retry_s=0.2)
        assert isinstance(shard.connection._transport, UnixTransport)
        shard.start_apply_gradients(KEYS, -torch.ones(1)).wait()
        os.kill(started.pid, signal.SIGSTOP)
        write = shard.start_apply_gradients(KEYS, -torch.ones(1))
        started.kill()
        with server(keys=tmp_path / "keys", listen=address, **rows):
            with pytest.raises(DeadlineError, match="accepted this client before") as raised:
                write.wait()
            assert raised.value.may_have_happened
        shard.connection.patience = WaitPolicy()
        with server(listen=address, **rows):
            assert shard.start_lookup(KEYS).wait().rows.tolist() == [1.0]
        shard.close()


def test_wrong_keys_are_said_at_the_start_and_not_at_the_deadline(tmp_path: Path) -> None:
    ours, others = tmp_path / "ours", tmp_path / "others"
    new_keys(ours)
    new_keys(others)
    mine, theirs = ClientKeys.read(ours), ClientKeys.read(others)
    unknown = ClientKeys(theirs.secret, theirs.public, mine.server)
    wrong_server = ClientKeys(mine.secret, mine.public, theirs.server)
    told = {
        "client*.pub": unknown,
        "server.pub is not that of the server": wrong_server,
        "only one side has keys": None,
    }
    with server(keys=ours) as started, server() as plain:
        for words, keys in told.items():
            with pytest.raises(ServerAwayError, match="the keys do not fit") as raised:
                RemoteShard(started.address, counting_table(), keys=keys, deadline_s=300)
            assert not isinstance(raised.value, DeadlineError)
            assert words in str(raised.value)
            assert "Nothing was sent" in str(raised.value)
        with pytest.raises(ServerAwayError, match="only one side has keys"):
            RemoteShard(plain.address, counting_table(), keys=mine, deadline_s=300)


def test_a_bad_network_at_the_start_is_no_refusal(tmp_path: Path) -> None:
    new_keys(tmp_path)
    with server(keys=tmp_path) as started:
        proxy = TcpProxy(started.address)
        proxy.refuses = True
        stop = threading.Timer(0.3, lambda: setattr(proxy, "refuses", False))
        stop.start()
        shard = RemoteShard(proxy.address, counting_table(), keys=tmp_path)
        shard.start_apply_gradients(KEYS, -torch.ones(1)).wait()
        assert proxy.accepted > 1
        stop.join()
        shard.close()
        proxy.close()
