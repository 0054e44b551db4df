"""Launches of several threads do not meet, also in Triton's interpreter, which has one state."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from hedgerow.kernels import placement
from tests.twins import kernels_table

from .cases import same_bits, some_ids


@pytest.fixture
def often_switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("often_switching")
def test_launches_of_two_threads_do_not_meet(device: torch.device) -> None:
    def place(seed: int) -> None:
        ids = some_ids(20 if seed % 2 else 2000, seed)  # of one program, and of many
        for got, wanted in zip(
            placement.place(ids.to(device), 1000), kernels_table.place(ids, 1000), strict=True
        ):
            same_bits(got, wanted)

    with ThreadPoolExecutor(2) as threads:
        assert len(list(threads.map(place, range(30)))) == 30
