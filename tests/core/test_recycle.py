"""Memory of results is used again only when nobody can see it any more."""

from __future__ import annotations

import threading

import pytest
import torch

from hedgerow.core.recycle import Recycler

LARGE = 1 << 20


def test_memory_that_is_held_is_never_given_again() -> None:
    recycler = Recycler()
    held = [recycler.take(LARGE)[0] for _ in range(3)]
    assert len({tensor.data_ptr() for tensor in held}) == 3
    address = held[0].data_ptr()
    view = held[0][5:7]
    del held[0]
    assert recycler.kept_bytes() == 0  # the view holds it
    held.append(recycler.take(LARGE)[0])
    assert held[-1].data_ptr() != address
    del view
    again, used = recycler.take(LARGE)
    assert used
    assert again.data_ptr() == address


def test_autograd_holds_memory_until_backward() -> None:
    recycler = Recycler()
    rows = recycler.take(LARGE)[0].fill_(2.0)
    weight = torch.ones((), requires_grad=True)
    loss = (rows * weight).sum()
    del rows
    assert recycler.take(LARGE)[1] is False
    loss.backward()
    assert float(weight.grad) == 2.0 * LARGE  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("floats", [LARGE, LARGE - 1, LARGE // 2])
def test_smaller_results_fit(floats: int) -> None:
    recycler = Recycler()
    recycler.take(LARGE)
    tensor, used = recycler.take(floats)
    assert used
    assert tensor.shape == (floats,)


@pytest.mark.parametrize("floats", [LARGE + 1, LARGE // 2 - 1, 1000, 0])
def test_others_do_not(floats: int) -> None:
    recycler = Recycler()
    recycler.take(LARGE)
    tensor, used = recycler.take(floats)
    assert not used
    assert tensor.shape == (floats,)


def test_little_is_kept() -> None:
    recycler = Recycler()
    held = [recycler.take(16 << 20)[0] for _ in range(4)]  # 256 MiB, untouched
    held.clear()
    assert recycler.kept_bytes() == 128 << 20


def test_threads_never_share() -> None:
    recycler = Recycler()
    wrong: list[int] = []

    def work(mark: int) -> None:
        for _ in range(200):
            tensor = recycler.take(LARGE // 4)[0]
            tensor[::4096] = mark
            if not bool((tensor[::4096] == mark).all()):
                wrong.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_memory_of_many_sizes_is_thrown_away_the_oldest_first(
    recwarn: pytest.WarningsRecorder,
) -> None:
    recycler = Recycler()
    sizes = [LARGE, 20 * LARGE, 3 * LARGE, 20 * LARGE]
    held = [recycler.take(size)[0] for size in sizes]
    while held:
        del held[0]  # oldest first, so that the first two no longer fit beside the last
    assert recycler.kept_bytes() == 4 * (20 + 3) * LARGE
    assert not recwarn.list
