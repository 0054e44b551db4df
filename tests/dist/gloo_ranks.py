"""Real processes of one gloo group, for tests: each runs a function and says how it ended."""

from __future__ import annotations

import datetime
import multiprocessing
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

Work = Callable[[int], None]


def run_ranks(ranks: int, work: Work, folder: Path, *, may_die: bool = False) -> list[str]:
    """What each rank's `work(rank)` raised, "" if nothing; "died" if it ended without a word."""
    context = multiprocessing.get_context("spawn")
    ends, processes = [], []
    for rank in range(ranks):
        mine, its = context.Pipe(duplex=False)
        arguments = (rank, ranks, work, folder / "store", its)
        process = context.Process(target=_rank, args=arguments, daemon=True)
        process.start()
        its.close()
        ends.append(mine)
        processes.append(process)
    said = [_word(end) for end in ends]
    for process in processes:
        process.join(60)
        assert process.exitcode is not None
    if not may_die:
        assert "died" not in said
    return said


def _word(end: Connection) -> str:
    try:
        return end.recv()
    except EOFError:
        return "died"


def _rank(rank: int, ranks: int, work: Work, store: Path, end: Connection) -> None:
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=ranks,
            timeout=datetime.timedelta(seconds=60),
        )
        work(rank)
        end.send("")
    except BaseException:
        end.send(traceback.format_exc())
    finally:
        end.close()
