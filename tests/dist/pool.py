"""Processes that serve a whole test module: the first n of them form a gloo world of n ranks."""

from __future__ import annotations

import datetime
import multiprocessing
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

Work = Callable[..., Any]


class Pool:
    """Importing torch takes seconds, joining a group takes none: so processes stay."""

    def __init__(self, processes: int, folder: Path) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._folder, self._worlds = folder, 0
        self._ends: list[Connection] = []
        self._processes: list[Any] = []
        for _ in range(processes):
            mine, its = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(its,), daemon=True)
            process.start()
            its.close()
            self._ends.append(mine)
            self._processes.append(process)

    def run(self, ranks: int, work: Work, *args: Any) -> list[Any]:
        """What `work(*args)` gives on every rank; what it raised fails the test."""
        self._worlds += 1
        store = self._folder / f"store-{self._worlds}"
        for rank, end in enumerate(self._ends[:ranks]):
            end.send((rank, ranks, store, work, args))
        said = [end.recv() for end in self._ends[:ranks]]
        problems = [f"rank {rank}: {text}" for rank, (text, _) in enumerate(said) if text]
        assert not problems, "\n".join(problems)
        return [answer for _, answer in said]

    def close(self) -> None:
        """Ends them all."""
        for end in self._ends:
            end.close()
        for process in self._processes:
            process.join(10)
            if process.exitcode is None:
                process.kill()


def _serve(end: Connection) -> None:
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    while True:
        try:
            rank, ranks, store, work, args = end.recv()
        except EOFError:
            return
        patience = datetime.timedelta(seconds=60)
        try:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{store}",
                rank=rank,
                world_size=ranks,
                timeout=patience,
            )
            end.send(("", work(*args)))
        except BaseException:
            end.send((traceback.format_exc(), None))
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
