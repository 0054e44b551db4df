"""A configuration as a table of tasks: each fills one slice of one output from one feature."""

from __future__ import annotations

import atexit
import functools
import json
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from ... import native
from ...core.errors import InputError
from .config import FeatureConfigs, OutConfig, by_name

_KEPT = 256  # configurations; a program has a few
POOLING_NUMBERS = {"SUM": 0, "MEAN": 1, "FIRSTN": 3}


@dataclass(frozen=True)
class Task:
    """Where one slice comes from and where it goes; strides and columns count values."""

    feature: int
    output: int
    pooling: int
    length: int  # positions of FIRSTN, else 1
    start: int
    width: int
    row_stride: int
    column: int
    position_stride: int
    adds: bool  # an earlier task has set the values

    def numbers(self) -> list[int]:
        """As the core takes it."""
        return [int(value) for value in vars(self).values()]


@dataclass(frozen=True)
class Plan:
    """The tasks by feature, and the sizes of the outputs without the batch."""

    config: FeatureConfigs
    tasks: list[Task]
    sizes: list[tuple[int, ...]]
    batches: list[tuple[str, int]]  # layouts that name the rows of a batch

    @functools.cached_property
    def core(self) -> native.LayoutPlan:
        """The tasks as the core keeps them; other devices need no core."""
        numbers = [value for task in self.tasks for value in task.numbers()]
        return native.LayoutPlan(len(self.config.names), numbers)

    @functools.cached_property
    def kept(self) -> dict[torch.device, Any]:
        """What the kernels of each device keep of it."""
        return {}

    def shapes(self, rows: int) -> list[tuple[int, ...]]:
        """The shape of each output."""
        return [(rows, *size) for size in self.sizes]

    def check_rows(self, rows: int) -> None:
        """Layouts that name the rows of a batch get them."""
        for name, wanted in self.batches:
            if rows != wanted:
                raise InputError(
                    f"batch_size is {rows}; the shape of layout {name!r} says {wanted}: pass that, "
                    f"or write -1 there."
                )


@functools.lru_cache(maxsize=_KEPT)
def plan_of(text: str) -> Plan:
    """The plan of a configuration's text, made once."""
    config = FeatureConfigs.from_json(json.loads(text))
    numbers = {name: number for number, name in enumerate(config.names)}
    tasks: list[Task] = []
    sizes: list[tuple[int, ...]] = []
    batches: list[tuple[str, int]] = []
    for name in by_name(config.outs):
        out = config.outs[name]
        tasks += _tasks(out, config, numbers, len(sizes))
        sizes += out.sizes(config.features)
        batches += [(name, dims[0]) for dims in out.shape if dims[0] != -1]
    tasks.sort(key=lambda task: task.feature)  # stable: a feature's slices in the layouts' order
    return Plan(config, _first_sets(tasks), sizes, batches)


# The registered ops keep this module to the very end; the core's objects must be gone before.
atexit.register(plan_of.cache_clear)


def _tasks(
    out: OutConfig, config: FeatureConfigs, numbers: dict[str, int], first_output: int
) -> list[Task]:
    """The tasks of one layout, in the order of its slices."""
    widths = [one.width for one in out.slices]
    before = list(accumulate(widths, initial=0))
    tasks = []
    for place, one in enumerate(out.slices):
        feature = config.features[one.feature]
        length = feature.length or 1
        output, column, across = first_output, 0, one.width
        row = length * one.width
        if out.out_type == "NONE":
            output += place
        elif out.out_type == "CONCAT":
            column, across, row = before[place], before[-1], length * before[-1]
        elif out.out_type == "STACK":
            column, row = place * row, len(widths) * row
        tasks.append(
            Task(
                feature=numbers[one.feature],
                output=output,
                pooling=POOLING_NUMBERS[feature.pooling],
                length=length,
                start=one.start,
                width=one.width,
                row_stride=row,
                column=column,
                position_stride=across,
                adds=out.out_type == "ADDN",
            )
        )
    return tasks


def _first_sets(tasks: list[Task]) -> list[Task]:
    """Of the tasks that add to one output the first sets it, so that nobody must clear it."""
    begun: set[int] = set()
    found = []
    for task in tasks:
        found.append(Task(**{**vars(task), "adds": task.adds and task.output in begun}))
        begun.add(task.output)
    return found
