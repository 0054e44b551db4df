"""How many functions of the package a step passes through."""

from __future__ import annotations

from pathlib import Path

import hedgerow as hr
from tests.dist.pool import Pool
from tests.dist.test_placements import on_servers

from . import hops


def test_a_step_over_four_ranks(tmp_path: Path) -> None:
    pool = Pool(4, tmp_path)
    try:
        for forward, backward in pool.run(4, hops.step_over_ranks):
            assert len(forward) <= 70, "\n".join(forward)
            assert len(backward) <= 60, "\n".join(backward)
    finally:
        pool.close()


def test_a_step_of_a_client_of_servers() -> None:
    with on_servers(hops.module(), 2) as spread:
        forward, backward = hops.functions_of_a_step(spread, hr.IdBatch.from_lists(hops.BATCH))
    assert len(forward) <= 70, "\n".join(forward)
    assert len(backward) <= 70, "\n".join(backward)
