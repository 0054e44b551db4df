"""The table vectors that a table on a device can run, and how they run there.

The handlers are those of the host table; only the tables they make differ. What is left out is
listed here: rules that learn otherwise than a device can, and cases about other things than a table
(servers, files of Monolith, filters by themselves).
"""

from __future__ import annotations

from typing import Any

import torch

from hedgerow.tables.config import TableConfig
from hedgerow.tables.device import DeviceTable

from . import (  # noqa: F401  (they register handlers)
    tables_eviction,
    tables_filters,
    tables_optimizers,
    tables_rows,
    tables_touched,
    tables_values,
)
from .runner import Case
from .tables_area import AREA, tables_of_kind

# Monolith's names of the rules, and torch's: the seven optimizers and AdamW.
LEARNS = {
    *("sgd", "momentum", "adagrad", "adam", "ftrl", "rmsprop"),
    *("Sgd", "Momentum", "Adagrad", "RowAdagrad", "Adam", "AdamW", "Ftrl", "RmsProp"),
}
OTHERS = {
    *("adadelta", "amsgrad", "batch_softmax", "dynamic_wd_adagrad", "group_adagrad", "group_ftrl"),
    *("moving_average", "rmspropv2", "AmsGrad"),
}
SECTIONS = {
    *(("optimizers", section) for section in ("cases", "edges", "roundtrip")),
    *(("torch_optimizers", "cases"), ("quirks", "cases"), ("initializers", "cases")),
    *(("tables", "cases"), ("tables", "must_raise"), ("duplicates", "cases")),
    *(("eviction", "cases"), ("filters", "cases"), ("schedules", "dense_adagrad_upstream")),
    *(("touched", section) for section in ("upstream", "default_capacity", "product_rule")),
}
RAISES = (
    "number of learning-rate functions differs from number of segments",
    "apply_gradients on a serving table",
    "lookup with a dim other than the table's",
)
FILTERS_ALONE = ("counter-saturates-at-15", "sliding-window")


def of_devices(case: Case) -> bool:
    """Whether a table on a device can run a case."""
    if (case.file, case.section) not in SECTIONS:
        return False
    if (case.file, case.section) == ("tables", "must_raise"):
        return case.value["why"] in RAISES
    value: dict[str, Any] = case.value if isinstance(case.value, dict) else {}
    if "servers" in value or case.label in FILTERS_ALONE:
        return False
    rule = value.get("optimizer")
    assert rule is None or rule in LEARNS | OTHERS, f"{case}: unknown optimizer {rule!r}"
    return rule is None or rule in LEARNS


def device_cases() -> list[Case]:
    return [case for case in AREA.cases() if of_devices(case)]


def run_on(device: torch.device, case: Case) -> None:
    """Runs a case with tables on a device, where the handlers then put what they make."""

    def make(config: TableConfig, **settings: Any) -> DeviceTable:
        return DeviceTable(config, capacity_rows=128, device=device, full="grow", **settings)

    with tables_of_kind(make), device:
        case.run()
