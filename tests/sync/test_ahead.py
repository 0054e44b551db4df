"""Items made ahead in a thread: in order, one at a time, and none after the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from hedgerow.sync.stream import BackgroundIterator

from .replicas import wait_for


def _named() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == "make ahead"]


def test_items_come_in_their_order() -> None:
    with BackgroundIterator(iter(range(500))) as items:
        assert list(items) == list(range(500))
    assert not _named()


def test_one_item_is_made_ahead_and_no_more() -> None:
    made: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(20):
            made.append(number)
            yield number

    with BackgroundIterator(numbers()) as items:
        for number in items:
            wait_for(lambda number=number: len(made) >= min(20, number + 2))
            assert len(made) <= number + 2


def test_what_an_item_raises_is_raised_where_it_would_come() -> None:
    def numbers() -> Iterator[int]:
        yield 1
        yield 2
        raise MemoryError("no room")

    found: list[int] = []
    with pytest.raises(MemoryError, match="no room"), BackgroundIterator(numbers()) as items:
        found.extend(items)
    assert found == [1, 2]
    assert not _named()


def test_leaving_waits_for_the_item_at_hand_and_makes_no_more() -> None:
    made: list[int] = []
    making, may_go_on = threading.Event(), threading.Event()

    def numbers() -> Iterator[int]:
        for number in range(20):
            if number == 3:
                making.set()
                assert may_go_on.wait(60)
            made.append(number)
            yield number

    def use() -> None:
        with BackgroundIterator(numbers()) as items:
            for number in items:
                if number == 2:
                    assert making.wait(60)
                    raise ConnectionError("a push failed")

    def leave() -> None:
        with pytest.raises(ConnectionError):
            use()

    leaving = threading.Thread(target=leave)
    leaving.start()
    assert making.wait(60)
    leaving.join(0.05)
    assert leaving.is_alive()  # it waits: item 3 is being made
    may_go_on.set()
    leaving.join(60)
    assert not leaving.is_alive()
    assert made == [0, 1, 2, 3]
    assert not _named()
