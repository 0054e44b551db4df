"""Traces warmed-up steps of a device table: kernels, their times and floors, and any waiting.

    python -m tools.trace_device [--out FOLDER] [--rows 1000000] [--dim 64]

A step is a lookup and an update at it. Writes trace.txt, trace.json and the profiler's own traces
into FOLDER. Exits 1 unless it saw that the host never waited inside a step. The floor of a part is
the bytes it cannot avoid, everything it touches once, over COPY_BYTES_PER_S.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from hedgerow.kernels.layout import LANES, PIECE, group
from hedgerow.kernels.placement import place
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.device import DeviceTable
from hedgerow.tables.initializers import Uniform
from hedgerow.tables.optimizers import Sgd

COPY_BYTES_PER_S = 4.3e12  # a large copy on one H200, bytes read and written
SETS, STEPS, TRACED = 8, 24, 4  # batches in turn, steps that are timed, steps that are traced
STEP = "one step"
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")
Batches = list[Tensor]


def _filled(rows: int, dim: int, device: torch.device) -> tuple[DeviceTable, Tensor]:
    """A table of `rows` rows, four fifths full, and their ids."""
    config = TableConfig("traced", (Segment(dim, Uniform(0.05), Sgd(lr=0.1)),))
    table = DeviceTable(config, capacity_rows=rows * 5 // 4, device=device)
    ids = torch.randint(-(2**63), 2**63 - 1, (rows,), device=device)
    refused = 0
    for part in ids.split(1 << 18):
        refused += table.apply_gradients(part, torch.zeros(len(part), dim, device=device)).refused
    print(f"{table}: {table.size()} rows, {refused} refused")
    return table, ids


def _batches(ids: Tensor, n: int, skew: float | None) -> Batches:
    """Batches of n known ids, uniform or with Zipf's law of exponent `skew`."""
    if skew is None:
        return [ids[torch.randint(len(ids), (n,), device=ids.device)] for _ in range(SETS)]
    weight = torch.arange(1, len(ids) + 1, dtype=torch.float64, device=ids.device) ** -skew
    edges = weight.cumsum(0)
    draws = torch.rand(SETS, n, dtype=torch.float64, device=ids.device) * edges[-1]
    return [ids[torch.searchsorted(edges, d).clamp(max=len(ids) - 1)] for d in draws]


def _milliseconds(call: Callable[[int], object], device: torch.device) -> float:
    """Median time of a call, after three to warm up."""
    for i in range(3):
        call(i)
    if device.type != "cuda":
        start = time.perf_counter()
        call(3)
        return 1e3 * (time.perf_counter() - start)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(STEPS + 1)]
    marks[0].record()
    for i in range(STEPS):
        call(i)
        marks[i + 1].record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in pairwise(marks))


def _floors(table: DeviceTable, ids: Tensor) -> dict[str, int]:
    """Bytes that each part of a step must move: what it touches, once."""
    n, row = len(ids), 4 * table.config.dim
    distinct, counts = torch.unique(ids, return_counts=True)
    lines = len(torch.unique(place(distinct, table.capacity_rows // LANES)[0]))
    rows, deep = len(distinct), int((counts - PIECE).clamp(min=0).sum())
    pieces = -(-deep // PIECE)
    return {
        "_lookup": n * (8 + 8 + row) + lines * 128 + rows * row,
        "sort": n * (8 + 8 + 8),
        "_sum_pieces": deep * (8 + 8 + row) + pieces * row + n // PIECE * 8,
        "_apply": n * (8 + 8) + (n - deep + pieces) * row + rows * (8 + 2 * row + 8),
    }


def _part(kernel: str) -> str:
    """The part of a step that a kernel belongs to."""
    if kernel in ("_lookup", "_sum_pieces", "_apply"):
        return kernel
    return "sort" if "sort" in kernel.lower() else "other"


def _profiled(step: Callable[[int], object], path: Path, device: torch.device) -> dict[str, Any]:
    """Microseconds of each kernel a step, and what made the host wait inside one."""
    on_gpu = [ProfilerActivity.CUDA] if device.type == "cuda" else []
    with profile(activities=[ProfilerActivity.CPU, *on_gpu]) as traced:
        for i in range(TRACED):
            with record_function(STEP):
                step(i)
        if on_gpu:
            torch.cuda.synchronize()
    traced.export_chrome_trace(str(path))
    events = [e for e in json.loads(path.read_text())["traceEvents"] if e.get("ph") == "X"]
    mine = [e for e in events if (e["name"], e.get("cat")) == (STEP, "user_annotation")]
    steps = [(e["ts"], e["ts"] + e["dur"]) for e in mine]
    kernels: dict[str, list[float]] = defaultdict(list)
    calls: dict[str, int] = defaultdict(int)
    for event in events:
        name, kind = event["name"], event.get("cat")
        if kind in ("kernel", "gpu_memcpy", "gpu_memset"):
            kernels[name].append(event["dur"])
        elif kind in ("cuda_runtime", "cuda_driver") and any(
            start <= event["ts"] <= stop for start, stop in steps
        ):
            calls[name] += 1
    return {
        "kernels": [
            {
                "kernel": name,
                "part": _part(name),
                "launches": len(us) / TRACED,
                "us": sum(us) / TRACED,
            }
            for name, us in sorted(kernels.items(), key=lambda item: -sum(item[1]))
        ],
        "host_calls": dict(calls),
        "waits": [name for name in (*calls, *kernels) if name in WAITS or "DtoH" in name],
    }


def _parts(kernels: list[dict[str, Any]], floors: dict[str, int]) -> list[dict[str, Any]]:
    """Time of each part of a step against its floor."""
    parts = []
    for part in (*floors, "other"):
        us, floor = sum(k["us"] for k in kernels if k["part"] == part), floors.get(part, 0)
        frac = 1e6 * floor / COPY_BYTES_PER_S / us if us else 0.0
        parts.append({"part": part, "us": us, "floor_bytes": floor, "floor_frac": frac})
    return parts


def _case(table: DeviceTable, ids: Tensor, n: int, skew: float | None, out: Path) -> dict[str, Any]:
    device, batches = table.device, _batches(ids, n, skew)
    grads = torch.randn(n, table.config.dim, device=device) * 1e-3
    rows = torch.empty_like(grads)
    found = [table.lookup(batch) for batch in batches]
    law = "uniform" if skew is None else f"zipf {skew}"

    def step(i: int) -> object:
        return table.apply_gradients(table.lookup(batches[i % SETS], out=rows), grads, ts=i)

    timed = {
        "step": _milliseconds(step, device),
        "_lookup": _milliseconds(lambda i: table.lookup(batches[i % SETS], out=rows), device),
        "sort": _milliseconds(lambda i: group(batches[i % SETS]), device),
        "sort and _apply": _milliseconds(
            lambda i: table.apply_gradients(found[i % SETS], grads), device
        ),
    }
    told = _profiled(step, out / f"profile_{law.replace(' ', '_')}_{n}.json", device)
    floors = _floors(table, batches[0])
    most = int(torch.unique(batches[0], return_counts=True)[1].max())
    return {
        "case": f"{n} ids, {law}",
        "distinct": len(torch.unique(batches[0])),
        "most_occurrences": most,
        "timed_ms": timed,
        "step_floor_ms": 1e3 * sum(floors.values()) / COPY_BYTES_PER_S,
        "parts": _parts(told["kernels"], floors),
        **told,
    }


def _lines(cases: list[dict[str, Any]]) -> Iterator[str]:
    for case in cases:
        yield (
            f"{case['case']}: {case['distinct']} distinct, one of them {case['most_occurrences']} "
            f"times; floor of the step {case['step_floor_ms']:.3f} ms"
        )
        for part, ms in case["timed_ms"].items():
            yield f"  by events    {ms:9.4f} ms  {part}"
        for p in case["parts"]:
            yield (
                f"  by profiler  {p['us'] / 1e3:9.4f} ms  {p['part']:12}"
                f"{p['floor_bytes'] / 1e6:9.1f} MB must move, {p['floor_frac']:6.1%} of the floor"
            )
        for k in case["kernels"]:
            yield f"    {k['us']:9.1f} us  {k['launches']:4.1f} x {k['kernel'][:100]}"
        yield f"  host calls in {TRACED} steps: {case['host_calls']}"
        if not case["host_calls"]:
            yield "  NOTHING IS SHOWN: the profiler saw no CUDA calls"
        else:
            yield f"  WAITED: {case['waits']}" if case["waits"] else "  the host never waited"


def main() -> int:
    """Traces, writes, prints; 1 unless no step waited."""
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--out", type=Path, default=Path("build/trace"))
    ask.add_argument("--rows", type=int, default=1_000_000)
    ask.add_argument("--dim", type=int, default=64)
    ask.add_argument("--batch", type=int, nargs="+", default=[65_536, 1_048_576])
    ask.add_argument("--device", default="cuda")
    given = ask.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    table, ids = _filled(given.rows, given.dim, torch.device(given.device))
    cases = [_case(table, ids, n, skew, given.out) for skew in (None, 1.05) for n in given.batch]
    on = torch.cuda.get_device_name() if table.device.type == "cuda" else "CPU, interpreted"
    about = {"machine": on, "torch": torch.__version__, "rows": given.rows, "dim": given.dim}
    text = "\n".join([json.dumps(about), *_lines(cases)])
    (given.out / "trace.txt").write_text(text + "\n")
    (given.out / "trace.json").write_text(json.dumps({**about, "cases": cases}, indent=1))
    print(text)
    return 1 if any(case["waits"] or not case["host_calls"] for case in cases) else 0


if __name__ == "__main__":
    sys.exit(main())
