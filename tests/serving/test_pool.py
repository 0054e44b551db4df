"""The threads of a server: few while all goes well, more while tasks are stuck, then few again."""

from __future__ import annotations

import threading
import time

import pytest

from hedgerow.serving import server
from hedgerow.serving.server import ElasticPool

TIMEOUT_S = 60


def test_stuck_tasks_do_not_hold_others_up_and_their_threads_end_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "_IDLE_S", 0.02)
    go_on = threading.Event()
    elastic = ElasticPool(2, 8)
    stuck = [elastic.submit(go_on.wait, TIMEOUT_S) for _ in range(6)]
    assert elastic.submit(max, 3, 5).result(TIMEOUT_S) == 5
    assert 7 <= elastic.threads <= 8
    go_on.set()
    assert all(one.result(TIMEOUT_S) for one in stuck)
    end_s = time.monotonic() + TIMEOUT_S
    while elastic.threads > 2:
        assert time.monotonic() < end_s
        threading.Event().wait(0.01)
    assert elastic.submit(max, 3, 5).result(TIMEOUT_S) == 5
    elastic.shutdown()


def test_there_are_never_more_threads_than_allowed() -> None:
    go_on = threading.Event()
    elastic = ElasticPool(1, 3)
    tasks = [elastic.submit(go_on.wait, TIMEOUT_S) for _ in range(10)]
    end_s = time.monotonic() + TIMEOUT_S
    while elastic.threads < 3:
        assert time.monotonic() < end_s
        threading.Event().wait(0.01)
    threading.Event().wait(0.1)  # several more looks
    assert elastic.threads == 3
    go_on.set()
    assert all(task.result(TIMEOUT_S) for task in tasks)
    elastic.shutdown()


def test_errors_are_those_of_the_task() -> None:
    elastic = ElasticPool(1, 1)
    with pytest.raises(ZeroDivisionError):
        elastic.submit(lambda: 1 // 0).result(TIMEOUT_S)
    elastic.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        elastic.submit(max, 1, 2)
