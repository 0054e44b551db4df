"""What is written behind caches is told to whoever reads there, cache by cache."""

from __future__ import annotations

import numpy as np

from hedgerow.tiers.cache_moves import WriteLog

IDS = np.arange(6)


def _kept(book: WriteLog, notes: object, cache: object) -> list[bool]:
    which = np.array([True] * 5 + [False])
    book.keep_unchanged(notes, cache, IDS, which)  # pyright: ignore[reportArgumentType]
    return which.tolist()


def test_each_cache_has_its_own_ids_and_each_reader_those_since_it_began() -> None:
    book, one, other = WriteLog(), object(), object()
    first = book.begin(7)
    assert not book.is_written(first)
    book.write(one, np.array([1]))
    second = book.begin(5)
    book.write(other, np.array([], np.int64))
    assert not book.is_written(second)
    changing = np.array([2])
    book.write(other, changing)
    changing[0] = 4
    assert book.since() == 5
    assert _kept(book, first, one) == [True, False, True, True, True, False]
    assert _kept(book, first, other) == [True, True, False, True, True, False]
    assert _kept(book, second, one) == [True] * 5 + [False]
    book.end(second)
    assert book.since() == 7
    assert (book.is_written(second), len(book)) == (True, 1)
    assert _kept(book, second, one) == [False] * 6


def test_nobody_gets_rows_that_were_read_before_all_were_replaced() -> None:
    book, cache = WriteLog(), object()
    notes = book.begin()
    book.replaced()
    later = book.begin()
    assert (book.is_written(notes), book.is_written(later)) == (True, False)
    assert _kept(book, notes, cache) == [False] * 6
    assert _kept(book, later, cache) == [True] * 5 + [False]
