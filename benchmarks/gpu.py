"""`hedgerow bench gpu`: tables, steps and ops on one GPU against the bytes they must move.

Needs torch and Triton alone: `python -m benchmarks.gpu --json` runs it without the program.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch

from hedgerow.core.errors import ConfigError

from .gpu_module_cases import module_cases
from .gpu_ops_cases import ops_cases
from .gpu_step_cases import step_cases
from .gpu_table_cases import table_cases
from .gpu_timer import COPY_BYTES_PER_S, Case, Peer, Timer, copy_rate

Progress = Callable[[str, int, int], None]
Maker = Callable[[torch.device, bool], Iterable[Case]]


def makers() -> dict[str, Maker]:
    """The groups of cases, each made when its turn comes: their tables do not fit side by side.

    What users run comes first, what it is made of below.
    """
    return {
        "module": module_cases,
        "step": step_cases,
        "table": table_cases,
        "ops": ops_cases,
    }


def run(
    progress: Progress | None = None,
    *,
    rounds: int = 20,
    cases: Sequence[str] = (),
    quick: bool = False,
    device: torch.device | str = "cuda",
) -> dict[str, Any]:
    """Measures the cases that match one of the patterns `cases`, or all; one report.

    A pattern may name a group: `module/*`, `ops/*`, `table/find*`, `step/*`; groups that none
    names are not made. Times are medians, of CUDA events with the L2 cache flushed before, and of
    the wall clock around a call that is waited for. `floor_frac` is the time that `bytes` need at
    4.3 TB/s, the rate of a large copy, over the time by events. `in_a_row_ms` is the wall clock of
    calls that follow each other, host included: what a training loop gets.
    """
    where = torch.device(device)
    if where.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("bench gpu needs a GPU that torch sees, and there is none here.")
    tell = progress or (lambda text, done, total: None)
    timer = Timer(where, rounds)
    results = []
    for case in _chosen(where, quick, cases):
        tell(case.name, len(results), 0)
        results.append(_measured(case, timer))
    return {
        "bench": "gpu",
        "work": {
            "gpu": torch.cuda.get_device_name(where) if where.type == "cuda" else "interpreter",
            "copy_tb_s": copy_rate(timer),
            "floor_tb_s": COPY_BYTES_PER_S / 1e12,
            "rounds": rounds,
            "quick": quick,
        },
        "versions": _versions(),
        "results": results,
    }


def _chosen(device: torch.device, quick: bool, wanted: Sequence[str]) -> Iterator[Case]:
    patterns = [p if "/" in p else f"*/{p}" for p in wanted] or ["*/*"]
    for group, make in makers().items():
        mine = [p for p in patterns if fnmatchcase(group, p.split("/", 1)[0])]
        for case in make(device, quick) if mine else ():
            if any(fnmatchcase(f"{group}/{case.name.strip()}", p) for p in mine):
                yield case


def _measured(case: Case, timer: Timer) -> dict[str, Any]:
    """One line of the report; a peer is torch's own way to the same result, or another library."""
    result: dict[str, Any] = {"case": case.name, "bytes": case.moved_bytes}
    if case.missing is not None:
        return result | {"missing": case.missing}
    if case.equal is not None:
        result["equal"] = case.equal()
    found = timer.times(case.run, case.restore)
    floor_ms = 1e3 * case.moved_bytes / COPY_BYTES_PER_S
    result |= {
        "ms": round(found.events_ms, 4),
        "wall_ms": round(found.wall_ms, 4),
        "floor_ms": round(floor_ms, 4),
        "floor_frac": round(floor_ms / found.events_ms, 3) if found.events_ms else None,
    }
    if case.items:
        result["g_items_s"] = round(case.items / found.events_ms / 1e6, 3)
        result["wall_g_items_s"] = round(case.items / found.wall_ms / 1e6, 3)
    if case.by_torch is not None:
        theirs = timer.times(case.by_torch, case.restore)
        result |= {
            "peer": "torch",
            "peer_ms": round(theirs.events_ms, 4),
            "ratio": round(theirs.events_ms / found.events_ms, 2),
        }
    if case.in_a_row:
        result["in_a_row_ms"] = round(timer.in_a_row(case.run, case.in_a_row), 4)
    if case.peer is not None:
        result |= _of_peer(case.peer, case, timer, result)
    return result


def _of_peer(peer: Peer, case: Case, timer: Timer, ours: dict[str, Any]) -> dict[str, Any]:
    """What the peer takes for the same calls: one after the other where we were measured so."""
    if peer.run is None:
        return {"peer": peer.name, "missing": peer.missing}
    theirs = timer.times(peer.run)
    found = {"peer": peer.name, "peer_events_ms": round(theirs.events_ms, 4)}
    if case.in_a_row:
        spent = timer.in_a_row(peer.run, case.in_a_row)
        return {
            **found,
            "peer_ms": round(spent, 4),
            "ratio": round(spent / ours["in_a_row_ms"], 2),
        }
    ratio = round(theirs.events_ms / ours["ms"], 2)
    return {**found, "peer_ms": found["peer_events_ms"], "ratio": ratio}


def _versions() -> dict[str, str]:
    import triton

    cuda = torch.version.cuda or "none"
    return {"torch": torch.__version__, "triton": triton.__version__, "cuda": cuda}


def main(arguments: Sequence[str] | None = None) -> int:
    """The benchmark without the program: a machine may have torch and Triton and nothing else."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=run.__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cases", default="", help="names or patterns, separated by commas")
    parser.add_argument("--quick", action="store_true", help="small works: a check of the tool")
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args(arguments)
    chosen = [name.strip() for name in given.cases.split(",") if name.strip()]
    report = run(rounds=given.rounds, cases=chosen, quick=given.quick, device=given.device)
    text = json.dumps(report, indent=1) if given.json else "\n".join(lines(report))
    sys.stdout.write(text + "\n")
    return 1 if any(result.get("equal") is False for result in report["results"]) else 0


def lines(report: dict[str, Any]) -> list[str]:
    """The report as text: one line a case."""
    found = [f"{report['work']['gpu']}, copy {report['work']['copy_tb_s']} TB/s"]
    for one in report["results"]:
        if "ms" not in one:
            found.append(f"{one['case']}: missing, {one['missing']}")
            continue
        rate = f", {one['g_items_s']} G/s" if "g_items_s" in one else ""
        row = f", {one['in_a_row_ms']} in a row" if "in_a_row_ms" in one else ""
        peer = f", {one['peer']} {one['peer_ms']} ms" if "peer_ms" in one else ""
        equal = {True: ", equal", False: ", NOT EQUAL", None: ""}[one.get("equal")]
        found.append(
            f"{one['case']}: {one['ms']} ms (wall {one['wall_ms']}{row}), "
            f"{one['floor_frac']} of the floor{rate}{peer}{equal}"
        )
    return found


if __name__ == "__main__":
    sys.exit(main())
