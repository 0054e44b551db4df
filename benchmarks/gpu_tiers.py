"""Steps of ten tables whose rows lie in HBM, in host memory or in both, on one GPU.

Each is measured through `EmbeddingBags` and autograd, as users run it, and then through the store
alone. `python -m benchmarks.gpu_tiers --json` runs it: it needs torch, Triton and the
C++ core.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from hedgerow.calibration.power_law import (
    Batches,
    PowerLawWork,
    fill_table,
    in_chunks,
    in_tiers,
    module_steps,
    store_steps,
    table_configs,
)
from hedgerow.calibration.quiet import measured
from hedgerow.core.errors import ConfigError
from hedgerow.tables.multi.device_tables import DeviceTables
from hedgerow.tables.store import TableKeys
from hedgerow.tiers.tier_tables import TierTables

_TOLERANCE = 1e-4  # sums of many gradients of one id are added in another order on the host


def _in_hbm(batches: Batches) -> DeviceTables:
    configs = {config.name: config for config in table_configs(batches.work)}
    room = dict.fromkeys(configs, batches.work.rows)
    store = DeviceTables(configs, device=batches.device, capacity_rows=room)
    for keys in in_chunks(batches.ids):
        zeros = torch.zeros(len(keys.ids) * batches.work.dim, device=batches.device)
        store.apply_gradients(keys, zeros)
    return store


def _on_host(batches: Batches) -> DeviceTables:
    configs = {config.name: config for config in table_configs(batches.work)}
    store = DeviceTables(configs, device=batches.device, on_host=list(configs))
    for table, ids in zip(store.tables, batches.ids, strict=True):
        fill_table(table, ids, batches.work.dim)
    return store


def stores() -> dict[str, Callable[[Batches], Any]]:
    """What makes the store of each case."""
    return {
        "HBM_ONLY": _in_hbm,
        "CACHING@1.0": lambda batches: in_tiers(batches, "CACHING", 1.0),
        "CACHING@0.8": lambda batches: in_tiers(batches, "CACHING", 0.8),
        "HYBRID@0.1": lambda batches: in_tiers(batches, "HYBRID", 0.1),
        "HOST_ONLY": _on_host,
    }


def steps_of(
    run: Callable[[Sequence[TableKeys]], object], batches: Batches, rounds: int, shift: int = 0
) -> dict[str, Any]:
    """The median over rounds of the time of a step, by the clock; whether nobody disturbed them."""

    def one_round() -> float:
        ready = [batches.next(shift) for _ in range(batches.work.steps)]
        _wait(batches.device)
        begun = time.perf_counter()
        run(ready)
        _wait(batches.device)
        return 1e3 * (time.perf_counter() - begun) / len(ready)

    found = measured(one_round, rounds, batches.yardstick)
    return {"ms": round(statistics.median(found.values), 4), "quiet": found.quiet}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _measured(
    name: str, store: Any, batches: Batches, rounds: int
) -> tuple[dict[str, Any], Tensor]:
    """One line of the report, and rows after a few steps that every store takes alike."""
    work, steps, grads = batches.work, module_steps(store), batches.grads
    batches.start()
    steps.run((batches.next() for _ in range(4)), grads)
    rows = store.lookup(batches.next()).rows.clone()
    warm_up = work.warm_up if isinstance(store, TierTables) else 0
    steps.run((batches.next() for _ in range(warm_up)), grads)
    if name.startswith("HOST"):
        rounds = 1
    line: dict[str, Any] = {"case": name, "path": "module", "quiet": True}

    def note(what: str, run: Callable[[Sequence[TableKeys]], object], **how: Any) -> None:
        found = steps_of(run, batches, **{"rounds": rounds, **how})
        line[what], line["quiet"] = round(found["ms"], 3), line["quiet"] and found["quiet"]

    def through_module(**how: Any) -> Callable[[Sequence[TableKeys]], object]:
        return lambda ready: steps.run(ready, grads, **how)

    note("ms", through_module())
    note("store_ms", lambda ready: store_steps(store, ready, grads))
    line["over_store"] = round(line["ms"] / max(1e-9, line["store_ms"]), 3)
    if name.startswith("CACHING"):
        square = torch.ones(work.dense, work.dense, device=batches.device)
        note("ms_prefetched", through_module(ahead=True))
        note("ms_with_dense", through_module(square=square))
        note("ms_with_dense_prefetched", through_module(square=square, ahead=True))
    if name.startswith("HYBRID"):
        moved, later = work.rows // 2, max(0, min(200, work.warm_up) - work.steps)
        steps.run((batches.next(moved) for _ in range(later)), grads)
        note("ms_200_steps_after_the_hot_set_moved", through_module(), rounds=1, shift=moved)
    return line, rows


def _hidden(line: dict[str, Any], without_host: float) -> float:
    """The share of what host memory costs a step with a dense part that prefetching saves."""
    saved = line["ms_with_dense"] - line["ms_with_dense_prefetched"]
    return round(saved / max(1e-9, line["ms_with_dense"] - without_host), 3)


def run(
    work: PowerLawWork | None = None,
    *,
    rounds: int = 5,
    cases: Sequence[str] = (),
    device: str = "cuda",
    tell: Callable[[str], object] = lambda name: None,
) -> dict[str, Any]:
    """Measures steps with every store, one store after the other.

    `ms` is a step through the module, `store_ms` that of the store alone, `over_store` the ratio of
    the two. `over_hbm_only` is a step's time over HBM_ONLY's.
    A line is `quiet` if its times were measured while the core of this thread had its own speed.
    """
    where = torch.empty(0, device=device).device if device != "cuda" else torch.device("cuda", 0)
    if where.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("bench gpu_tiers needs a GPU that torch sees, and there is none here.")
    work = work or PowerLawWork()
    batches, results, first = Batches(work, where), [], None
    for name, make in stores().items():
        if cases and name not in cases:
            continue
        tell(name)
        store = make(batches)
        line, rows = _measured(name, store, batches, rounds)
        first = rows if first is None else first
        line["equal"] = torch.allclose(rows, first, rtol=_TOLERANCE, atol=1e-7)
        results.append(line)
        del store
        gc.collect()
        if where.type == "cuda":
            torch.cuda.empty_cache()
    ms = {line["case"]: line["ms"] for line in results}
    for line in results:
        if line["case"] == "CACHING@0.8" and "CACHING@1.0" in ms:
            whole = next(one for one in results if one["case"] == "CACHING@1.0")
            line["hidden"] = _hidden(line, whole["ms_with_dense"])
        for other in ("HBM_ONLY", "HOST_ONLY"):
            if other in ms:
                line[f"over_{other.lower()}"] = round(line["ms"] / ms[other], 3)
    return {"bench": "gpu_tiers", "work": asdict(work), "results": results}


def main(arguments: Sequence[str] | None = None) -> int:
    """The benchmark without the program."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_tiers", description=run.__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", default="", help="names, separated by commas")
    parser.add_argument("--quick", action="store_true", help="small works: a check of the tool")
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args(arguments)
    chosen = [name.strip() for name in given.cases.split(",") if name.strip()]
    work = PowerLawWork.quick() if given.quick else PowerLawWork()
    settings: dict[str, Any] = {"cases": chosen, "device": given.device}
    report = run(work, rounds=given.rounds, tell=lambda n: sys.stderr.write(n + "\n"), **settings)
    lines = [json.dumps(line) for line in report["results"]]
    sys.stdout.write((json.dumps(report, indent=1) if given.json else "\n".join(lines)) + "\n")
    return 0 if all(line["equal"] for line in report["results"]) else 1


if __name__ == "__main__":
    sys.exit(main())
