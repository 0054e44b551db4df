"""Optimizer vectors: Monolith's, torch's, resumed ones, and the numbers of known defects."""

from __future__ import annotations

import math
from typing import Any

import torch

import hedgerow.tables.optimizers as user_level
from hedgerow import native
from hedgerow.monolith.gradient_rules import delay_compensation
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.host import HostTable
from hedgerow.tables.initializers import Zeros
from hedgerow.tables.store import Entries

from .runner import Case, take
from .tables_area import AREA, close, one_segment, original, row_and_state, same_state


def _key() -> torch.Tensor:
    return torch.tensor([0])  # where torch puts new tensors at the time


def _started(optimizer: user_level.Optimizer, row: list[float]) -> HostTable:
    table = one_segment(optimizer, len(row))
    table.assign(_key(), torch.tensor([row]))
    return table


def _step(table: HostTable, grad: list[float], lr: float, step: int = 0) -> None:
    table.apply_gradients(_key(), torch.tensor([grad]), rates=[lr], step=step)


@AREA.handles("optimizers", "cases")
def trace(case: Case) -> None:
    c = case.take(
        ("id", "optimizer", "config", "dim", "initial_row", "initial_state", "steps"),
        ("source", "atol", "rtol"),
    )
    tolerance = {"atol": c.get("atol", 2e-6), "rtol": c.get("rtol", 2e-5)}
    table = _started(original(c["optimizer"], c["config"]), c["initial_row"])
    assert table.layout.dim == c["dim"]
    same_state(row_and_state(table)[1], c["initial_state"], **tolerance)
    for step in c["steps"]:
        s = take(
            step,
            ("grad", "lr", "row", "state"),
            ("global_step", "row_f32", "asserted_upstream"),
        )
        _step(table, s["grad"], s["lr"], s.get("global_step", 0))
        row, state = row_and_state(table)
        for form in ("row", "row_f32", "asserted_upstream"):
            if form in s:
                close(row, s[form], what=form, **tolerance)
        same_state(state, s["state"], **tolerance)


@AREA.handles("optimizers", "edges")
def edge(case: Case) -> None:
    c = case.take(("optimizer", "config", "initial_row", "grad", "lr", "row", "state"))
    table = _started(original(c["optimizer"], c["config"]), c["initial_row"])
    _step(table, c["grad"], c["lr"])
    row, state = row_and_state(table)
    close(row, c["row"])
    same_state(state, c["state"])


@AREA.handles("optimizers", "roundtrip")
def resumed(case: Case) -> None:
    c = case.take(
        (
            *("id", "optimizer", "config", "dim", "initial_row", "steps", "save_after_step"),
            *("saved_row", "saved_state", "row_after_all", "state_after_all"),
        )
    )
    optimizer = original(c["optimizer"], c["config"])
    table = _started(optimizer, c["initial_row"])
    for number, step in enumerate(c["steps"], start=1):
        s = take(step, ("grad", "lr"), ("global_step",))
        _step(table, s["grad"], s["lr"], s.get("global_step", 0))
        if number == c["save_after_step"]:
            (saved,) = table.scan()
            table = one_segment(optimizer, c["dim"])
            table.restore(saved)
            row, state = row_and_state(table)
            close(row, c["saved_row"])
            same_state(state, c["saved_state"])
    row, state = row_and_state(table)
    close(row, c["row_after_all"])
    same_state(state, c["state_after_all"])


@AREA.handles("optimizers", "delay_compensation")
def compensated(case: Case) -> None:
    c = case.take(("id", "base", "config", "lam", "lr", "steps"))
    dim = len(c["steps"][0]["grad"])
    table = _started(original(c["base"], c["config"]), [0.0] * dim)
    for step in c["steps"]:
        s = take(step, ("grad", "latest", "compensated", "row", "state"))
        w = table.lookup(_key()).rows_of()[0]
        g = delay_compensation(torch.tensor(s["grad"]), w, torch.tensor(s["latest"]), c["lam"])
        close(g, s["compensated"])
        _step(table, g.tolist(), c["lr"])
        row, state = row_and_state(table)
        close(row, s["row"])
        same_state(state, s["state"])


@AREA.handles("optimizers", "stochastic_rounding_fp16")
def rounded_to_half(case: Case) -> None:
    c = case.take(("value", "down", "up", "probability_up"))
    value, down, up, chance = c["value"], c["down"], c["up"], c["probability_up"]
    assert native.half_neighbours(value) == (down, up)
    close(torch.tensor((value - down) / (up - down) if up > down else 0.0), chance, atol=1e-6)
    # A step of rate 0 leaves the row as it is: only the rounding shows; every id draws for itself.
    n = 40_000
    segment = Segment(1, Zeros(), user_level.Sgd(), stochastic_rounding_float16=True)
    table = HostTable(TableConfig("golden", (segment,), seed=7))
    ids = torch.arange(n)
    table.assign(ids, torch.full((n, 1), value))
    table.apply_gradients(ids, torch.ones(n, 1), rates=[0.0], step=3)
    rows = table.lookup(ids).rows
    went_up = (rows == up) & (up > down)
    assert bool((went_up | (rows == down)).all())
    spread = math.sqrt(chance * (1 - chance) / n)
    assert abs(float(went_up.double().mean()) - chance) <= 5 * spread


@AREA.handles("torch_optimizers", "cases")
def torch_trace(case: Case) -> None:
    c = case.take(("id", "optimizer", "config", "initial_row", "grads", "rows"), ("state_after",))
    settings: dict[str, Any] = dict(c["config"])
    if c["optimizer"] == "AmsGrad":
        assert settings.pop("amsgrad", True) is True  # torch's switch; our class is the switch
    if "betas" in settings:
        settings["betas"] = tuple(settings["betas"])
    table = _started(getattr(user_level, c["optimizer"])(**settings), c["initial_row"])
    assert len(c["grads"]) == len(c["rows"])
    for grad, expected in zip(c["grads"], c["rows"], strict=True):
        table.apply_gradients(_key(), torch.tensor([grad]))
        close(row_and_state(table)[0], expected, atol=1e-6, rtol=1e-5)
    if "state_after" in c:
        (state,) = row_and_state(table)[1].values()
        close(state, c["state_after"], atol=1e-6, rtol=1e-5)


@AREA.handles("quirks", "cases")
def not_the_defect(case: Case) -> None:
    if "saved" in case.value:
        return adam_resumes_both_powers(case)
    c = case.take(
        ("id", "optimizer", "config", "initial_row", "steps", "correct_rows"),
        ("upstream_rows", "why"),
    )
    table = _started(original(c["optimizer"], c["config"]), c["initial_row"])
    for step, expected in zip(c["steps"], c["correct_rows"], strict=True):
        s = take(step, ("grad", "lr"), ("global_step",))
        _step(table, s["grad"], s["lr"], s.get("global_step", 0))
        close(row_and_state(table)[0], expected)
    return None


def adam_resumes_both_powers(case: Case) -> None:
    c = case.take(("id", "saved", "grad", "lr", "correct_next_row"), ("upstream_next_row", "why"))
    saved = take(c["saved"], ("row", "state"))
    state = {name: torch.tensor([value]) for name, value in saved["state"].items()}
    table = one_segment(original("adam", {}), len(saved["row"]))
    rows = torch.tensor([saved["row"]])
    table.restore(Entries(_key(), torch.tensor([True]), rows, [state], torch.tensor([0])))
    _step(table, c["grad"], c["lr"])
    close(row_and_state(table)[0], c["correct_next_row"])
