"""A job of any size: adds up shares of the same numbers; `--kill RANK` lets one process die."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist

from hedgerow.launch.process_group import process_group
from hedgerow.launch.rank_info import rank_zero_printer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kill", type=int, default=-1)
    given = parser.parse_args()
    with process_group() as info:
        say = rank_zero_printer(info)
        text = json.dumps(dataclasses.asdict(info))
        (given.folder / f"rank{info.rank}.json").write_text(text)
        numbers = torch.arange(12, dtype=torch.float64)
        for step in range(10 if given.kill < 0 else 10**9):
            total = numbers[info.rank :: info.world_size].sum()
            dist.all_reduce(total)
            if step == 5 and info.rank == given.kill:
                (given.folder / "killed").write_text(str(time.monotonic()))
                os.kill(os.getpid(), signal.SIGKILL)
        say("total", total.item())


if __name__ == "__main__":
    main()
