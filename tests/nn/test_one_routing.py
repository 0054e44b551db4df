"""A step of a module over servers or ranks looks once for the owners of its keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch import nn

from hedgerow.ps import server_tables
from tests.dist.pool import Pool
from tests.dist.test_placements import on_servers

from . import max_pooling_work as work
from . import routing_work


def test_one_routing_a_step_on_servers() -> None:
    with on_servers(nn.ModuleList([work.model()]), 2) as spread:
        bags: Any = spread

        def steps() -> None:
            for step in range(3):
                work.loss(bags[0](work.batch(step)), step).backward()

        assert routing_work.counted(server_tables, "route", steps) == 3


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    made = Pool(2, tmp_path_factory.mktemp("one_routing"))
    yield made
    made.close()


def test_one_routing_a_step_over_ranks(pool: Pool) -> None:
    pool.run(2, routing_work.one_routing_a_step_over_ranks)
