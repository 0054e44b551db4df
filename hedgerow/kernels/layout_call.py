"""What the layout kernels are told: the tasks of a configuration, and the numbers of a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.shapes import Int64
from .toolchain import columns_of

_TASK_WIDTH = 5  # where a task has its width
_PLACES = slice(4, 9)  # and start, width, strides and column
_MOST_COLUMNS = 128
_TILE = 1024  # values of a block


def _are_fours(numbers: Sequence[int]) -> bool:
    return not any(number % 4 for number in numbers)


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """The tasks of a configuration on a device: tasks that add to one output side by side."""

    tasks: Int64[Tensor, "tasks 10"]
    units: Int64[Tensor, "units 3"]
    columns: int  # of a block
    fours: bool  # all slices begin and end at multiples of 4 values

    @staticmethod
    def of(cells: Sequence[Sequence[Sequence[int]]], device: torch.device) -> Work:
        """From tasks by cell: those of a cell write the same values, in order."""
        tasks, units = [], []
        for cell in cells:
            first, length = len(tasks), cell[0][3]
            tasks += [list(task) for task in cell]
            units += [[first, len(tasks), position] for position in range(length)]
        widest = max((task[_TASK_WIDTH] for task in tasks), default=1)
        return Work(
            torch.tensor(tasks, dtype=torch.int64).view(-1, 10).to(device),
            torch.tensor(units, dtype=torch.int64).view(-1, 3).to(device),
            min(_MOST_COLUMNS, columns_of(widest)),
            _are_fours([number for task in tasks for number in task[_PLACES]]),
        )

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return max(4, min(64, _TILE // self.columns))


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """The index tensors of a call, and its numbers: requests, then lists, then outputs."""

    fids: Int64[Tensor, "ids"]
    offsets: Tensor  # int32 or int64 [entries + 1]
    nfl: Int64[Tensor, "features + 1"]
    numbers: Int64[Tensor, "any"]
    requests: int
    lists: int  # of a request
    most_rows: int  # of a request
    fours: bool  # all lists and outputs begin at multiples of 4 values

    @staticmethod
    def of(
        index: tuple[Tensor, Tensor, Tensor],
        requests: Sequence[Sequence[int]],
        lists: Sequence[tuple[int, int]],
        outputs: Sequence[int],
    ) -> Call:
        """`lists` are begins and lengths, request by request; `outputs` are begins.

        The copy of the numbers is not waited for.
        """
        flat = [n for one in requests for n in one] + [n for one in lists for n in one]
        numbers = torch.tensor([*flat, *outputs], dtype=torch.int64)
        return Call(
            *index,
            numbers.to(index[0].device, non_blocking=True),
            len(requests),
            len(lists) // max(1, len(requests)),
            max((one[6] for one in requests), default=0),
            _are_fours([*(begin for begin, _ in lists), *outputs]),
        )
