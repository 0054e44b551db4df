"""The log: what was accepted is there, what was cut off goes, other damage is an error."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import torch

from hedgerow.core.clock import ManualClock
from hedgerow.ps.errors import LogError
from hedgerow.ps.messages import RequestOrigin, ServerRequest, Status, Verb, read_answer
from hedgerow.ps.recovery import Log, LogClock, replay, segment_path, segments
from hedgerow.ps.remote_shard import RemoteShard
from hedgerow.ps.service import TableService
from hedgerow.tables.multi.several_tables import MultiConfig
from hedgerow.tables.store import TableKeys

from .servers import server, server_thread
from .tables import counting_table
from .test_hostile import asked

GROUPS = [[[b"head", b"ids" * 9]], [[b"one", b""], [b"two", bytes(1000)]], [[b"last"]]]


def written(folder: Path) -> list[int]:
    """A log of three records, and where each ends."""
    clock = LogClock()
    log = Log(folder, 1, clock=clock, time=ManualClock(77))
    ends = []
    for group in GROUPS:
        log.append(group)
        ends.append(log.file_bytes)
    assert clock.now_s() == 77
    log.close()
    return ends


def read(folder: Path, first: int = 1) -> list[list[list[bytes]]]:
    found = list(replay(folder, first))
    assert all(record.now_s == 77 for record in found)
    return [[[bytes(frame) for frame in one] for one in record.requests] for record in found]


def test_what_was_appended_is_read_back_over_segments(tmp_path: Path) -> None:
    log = Log(tmp_path, 1, clock=LogClock(), time=ManualClock(77))
    for group in GROUPS:
        log.append(group)
        log.rotate()
    assert segments(tmp_path) == [1, 2, 3, 4]
    assert read(tmp_path) == GROUPS
    log.remove_before(3)
    assert read(tmp_path, 3) == GROUPS[2:]
    with pytest.raises(LogError, match=r"segments \[3, 4\]; 2 and all after it"):
        read(tmp_path, 2)
    log.close()


@pytest.mark.parametrize("lost", [1, 5, 20, 21])
def test_a_record_that_was_cut_off_goes_and_the_log_goes_on(tmp_path: Path, lost: int) -> None:
    ends = written(tmp_path)
    path = segment_path(tmp_path, 1)
    path.write_bytes(path.read_bytes()[: ends[2] - lost])
    assert read(tmp_path) == GROUPS[:2]
    assert path.stat().st_size == ends[1]
    log = Log(tmp_path, 1, clock=LogClock(), time=ManualClock(77))
    log.append(GROUPS[0])
    log.close()
    assert read(tmp_path) == [*GROUPS[:2], GROUPS[0]]


@pytest.mark.parametrize("at", [0, 5, 9, 17, 40, 70])
def test_damage_before_the_last_record_is_an_error(tmp_path: Path, at: int) -> None:
    written(tmp_path)
    path = segment_path(tmp_path, 1)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(LogError, match=r"log-000000000001 is damaged at byte"):
        read(tmp_path)
    assert path.read_bytes() == data


def test_a_cut_in_an_older_segment_is_an_error(tmp_path: Path) -> None:
    written(tmp_path)
    path = segment_path(tmp_path, 1)
    path.write_bytes(path.read_bytes()[:-3])
    segment_path(tmp_path, 2).touch()
    with pytest.raises(LogError, match="damaged"):
        read(tmp_path)


def test_a_full_disk_accepts_nothing_and_harms_nothing(tmp_path: Path) -> None:
    keys = TableKeys.of_one(torch.arange(1000))
    with server(checkpoint=tmp_path, durability="log") as started:
        shard = RemoteShard(started.address, counting_table(), deadline_s=60)
        ones = -torch.ones(1000)
        shard.start_apply_gradients(keys, ones).wait()
        (log,) = tmp_path.glob("*/log-*")
        before = log.stat().st_size
        most = resource.prlimit(started.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(started.pid, resource.RLIMIT_FSIZE, (before + 1500, most[1]))
        for _ in range(2):
            with pytest.raises(LogError, match=r"cannot be written: File too large.*not accepted"):
                shard.start_apply_gradients(keys, ones).wait()
        assert log.stat().st_size == before
        assert shard.start_lookup(keys).wait().rows.unique().tolist() == [1.0]
        few = TableKeys.of_one(torch.arange(10))
        shard.start_apply_gradients(few, -torch.ones(10)).wait()  # for this one there is room
        resource.prlimit(started.pid, resource.RLIMIT_FSIZE, most)
        shard.start_apply_gradients(keys, ones).wait()
        started.crash()
        found = shard.start_lookup(keys).wait().rows
        assert (found[:10].unique().tolist(), found[10:].unique().tolist()) == ([3.0], [2.0])
        shard.close()


class FullOnce:
    """A log that takes nothing the first time."""

    def __init__(self) -> None:
        self.asked = 0

    def append(self, requests: object) -> None:
        self.asked += 1
        if self.asked == 1:
            raise LogError("no room; the write was not accepted.")


def test_a_late_copy_of_a_write_that_was_refused_is_not_done() -> None:
    log = FullOnce()
    service = TableService()
    service.open(MultiConfig.of(counting_table()))
    with server_thread(service=service, journal=log) as started:
        write = ServerRequest(
            Verb.APPLY_GRADIENTS,
            RequestOrigin(client=7, sequence=2),
            splits=(0, 1),
            rates=(1.0,),
            frames=[bytes(8), bytes(4)],
        )
        for _ in range(2):
            (answer,) = asked(started.address, [write.head(), *write.frames])
            assert read_answer(answer)[0].status == Status.FAILED
        assert (log.asked, started.scheduler.service.store.size()) == (1, 0)


def test_a_damaged_log_keeps_the_server_from_starting(tmp_path: Path) -> None:
    keys = TableKeys.of_one(torch.arange(10))
    with server(checkpoint=tmp_path, durability="log") as started:
        shard = RemoteShard(started.address, counting_table(), deadline_s=60)
        for _ in range(3):
            shard.start_apply_gradients(keys, -torch.ones(10)).wait()
        shard.close()
        started.kill()
        (log,) = tmp_path.glob("*/log-*")
        data = bytearray(log.read_bytes())
        data[len(data) // 2] ^= 1
        log.write_bytes(data)
        with pytest.raises(LogError, match="damaged at byte"):
            started.restart()
