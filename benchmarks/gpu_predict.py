"""Whether plans tell how long a step takes: what a calibration says against what steps took.

`python -m benchmarks.gpu_predict calibration.json` measures the tables of `gpu_tiers` in all
four modes on one GPU, and compares.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from hedgerow.calibration.gpu import card
from hedgerow.calibration.power_law import Batches, PowerLawWork, module_steps
from hedgerow.core.errors import InputError
from hedgerow.planner.make_plan import plan
from hedgerow.planner.problem.table_spec import Feature, TableSpec
from hedgerow.planner.problem.topology import Topology
from hedgerow.planner.times.calibration import Calibration
from hedgerow.planner.times.key_model import EXPONENT, touched, zipf

from .gpu_tiers import steps_of, stores

CASES = ("HBM_ONLY", "HYBRID@0.1", "CACHING@0.8", "HOST_ONLY")
WITHIN = 0.25
_MISSES = {"HYBRID": "slow_hits", "CACHING": "fetches"}
_PLENTY = 1 << 50  # bytes: the mode is given, not chosen


def planned(calibration: Calibration, work: PowerLawWork, case: str) -> dict[str, float]:
    """What a plan says of a step of all tables, kept in that way."""
    per = float(work.keys // work.tables)
    specs = [
        TableSpec(
            name=f"t{k:02d}",
            rows=work.rows,
            dim=work.dim,
            optimizer="sgd",
            features=[Feature(per)],
        )
        for k in range(work.tables)
    ]
    one = Topology(world=1, hbm_per_device=_PLENTY, ddr_per_machine=_PLENTY)
    pin = dict.fromkeys((spec.name for spec in specs), case)
    found = plan(specs, one, calibration, batch=1, pin=pin, thrashing=True)
    hits = found.tables[0].forecast.hit_rate
    distinct = touched(zipf(work.rows, EXPONENT), per).distinct
    return {
        "planned_ms": round(found.solver.total_ms, 4),
        "planned_host_keys": round(work.tables * distinct * (1 - hits)),
    }


def measured(work: PowerLawWork, device: torch.device, case: str, rounds: int) -> dict[str, float]:
    """A step of a module with all tables, by the clock after a warm-up; its keys on the host."""
    batches = Batches(work, device)
    store = stores()[case](batches)
    steps, grads = module_steps(store), batches.grads
    batches.start()
    mode = case.partition("@")[0]
    warm_up = work.warm_up if mode == "HYBRID" else 4
    steps.run((batches.next() for _ in range(warm_up)), grads)
    before, drawn = _misses(store, mode), batches.drawn
    rounds = 1 if mode == "HOST_ONLY" else rounds
    found = steps_of(lambda ready: steps.run(ready, grads), batches, rounds)
    line = {"measured_ms": found["ms"], "quiet": found["quiet"]}
    if mode in _MISSES:
        missed = _misses(store, mode) - before
        line["measured_host_keys"] = round(missed / (batches.drawn - drawn))
    return line


def _misses(store: Any, mode: str) -> int:
    """Of all steps until now; a hybrid counts equal ids, of which few are missed."""
    if mode not in _MISSES:
        return 0
    return sum(int(table.stats()[_MISSES[mode]]) for table in store.tables)


def compared(line: dict[str, Any]) -> dict[str, Any]:
    """With the ratio, and whether it is near enough."""
    ratio = line["planned_ms"] / line["measured_ms"]
    return {**line, "ratio": round(ratio, 3), "within": bool(abs(ratio - 1) <= WITHIN)}


def run(
    calibration: Calibration,
    work: PowerLawWork,
    device: torch.device,
    *,
    rounds: int = 5,
    cases: Sequence[str] = CASES,
    told: dict[str, float] | None = None,
    tell: Callable[[str], object] = lambda name: None,
) -> Iterator[dict[str, Any]]:
    """A line of each case; times that were measured elsewhere may be `told`."""
    for case in cases:
        tell(case)
        line: dict[str, Any] = {"case": case, **planned(calibration, work, case)}
        if told is not None:
            line["measured_ms"] = told[case]
        else:
            line |= measured(work, device, case, rounds)
        yield compared(line)
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def main(arguments: Sequence[str] | None = None) -> int:
    """The comparison; 1 if a plan is off by more than a quarter."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_predict", description=main.__doc__
    )
    parser.add_argument("calibration")
    parser.add_argument("--measured", help="of an earlier run, or of gpu_tiers --json")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--quick", action="store_true", help="small works: a check of the tool")
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args(arguments)
    cases = [name.strip() for name in given.cases.split(",") if name.strip()]
    for name in cases:
        if name not in CASES:
            raise InputError(f"case is {name!r}; choose from {', '.join(CASES)}.")
    told = None if given.measured is None else _told(Path(given.measured))
    if told is not None:
        cases = [name for name in cases if name in told]
    found = run(
        Calibration.load(given.calibration),
        PowerLawWork.quick() if given.quick else PowerLawWork(),
        torch.device("cpu") if told is not None else card(given.device),
        rounds=given.rounds,
        cases=cases,
        told=told,
        tell=lambda name: sys.stderr.write(name + "\n"),
    )
    good = True
    for line in found:  # each as soon as it is known
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
        good = good and line["within"]
    return 0 if good else 1


def _told(path: Path) -> dict[str, float]:
    """Times by case."""
    text = path.read_text()
    try:
        lines = json.loads(text)["results"]
    except (json.JSONDecodeError, KeyError):
        lines = [json.loads(line) for line in text.splitlines() if line.strip()]
    return {line["case"]: line.get("measured_ms", line.get("ms")) for line in lines}


if __name__ == "__main__":
    sys.exit(main())
