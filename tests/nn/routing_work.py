"""What a rank counts while its model steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch.distributed as dist

import hedgerow as hr
from hedgerow.sharding import all_to_all_tables

from . import max_pooling_work as work


def counted(module: Any, name: str, steps: Callable[[], None]) -> int:
    """How often a function of a module is called in these steps."""
    with mock.patch.object(module, name, wraps=getattr(module, name)) as called:
        steps()
    return called.call_count


def one_routing_a_step_over_ranks() -> None:
    """Keys are sorted by owner once in a step: the gradients follow the rows."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    many = work.model()
    hr.distribute(many, reduce="sum")

    def steps() -> None:
        for step in range(3):
            work.loss(many(work.batch(step, rank, ranks)), step, rank, ranks).backward()

    assert counted(all_to_all_tables, "pack", steps) == 3
