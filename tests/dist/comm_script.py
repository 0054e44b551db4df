"""One process of the communication benchmarks' test: runs all checks, writes what it found."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from hedgerow.launch.process_group import process_group
from hedgerow.monolith import distribution_utils as utils
from hedgerow.monolith.launch.transports import TorchTransport


def told_by(call: Callable[[], Any]) -> str:
    try:
        return f"returned {call()}"
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"


class Broken(TorchTransport):
    """Gives zeros instead of what others sent."""

    def average(self, tensor: Any) -> Any:
        return super().average(tensor).mul_(0)

    def all_to_all(self, tensor: Any, splits: Any, op: str = "alltoall") -> Any:
        return super().all_to_all(tensor, splits, op).mul_(0)


def driver(**environ: str) -> dict[str, Any]:
    stream = io.StringIO()
    found = utils.bps_comm_benchmark(stream=stream, environ=environ)
    return {"found": found, "lines": stream.getvalue().splitlines()}


def main(out: Path) -> None:
    with process_group() as info:
        found: dict[str, Any] = {}
        ar, a2a = utils.byteps_benchmark_ar, utils.byteps_benchmark_a2a
        stream = io.StringIO()
        found["ar"] = ar(1000, 65, use_cpu=True, stream=stream)
        found["ar lines"] = stream.getvalue().splitlines()
        stream = io.StringIO()
        found["c2c"] = a2a(1600, 60, dst_gpu=False, src_gpu=False, stream=stream)
        found["c2c lines"] = stream.getvalue().splitlines()
        few = io.StringIO()
        found["few"] = [
            ar(100, 39, use_cpu=True, stream=few),
            a2a(160, 20, False, False, stream=few),
            ar(100, 5, use_cpu=True, stream=few),
        ]
        found["bad"] = {
            "odd": told_by(lambda: a2a(1608, 40, False, False)),
            "fraction": told_by(lambda: a2a(1601, 40, False, False)),
            "none": told_by(lambda: ar(0, 40, use_cpu=True)),
            "op": told_by(lambda: ar(8, 40, True, "pull")),
            "g2g": told_by(lambda: a2a(1600, 40)),
            "c2g": told_by(lambda: a2a(1600, 40, src_gpu=False)),
            "g2c": told_by(lambda: a2a(1600, 40, dst_gpu=False)),
            "broken ar": told_by(lambda: ar(8, 40, True, stream=few, transport=Broken())),
            "broken a2a": told_by(
                lambda: a2a(32, 40, False, False, stream=few, transport=Broken())
            ),
            "unset": told_by(lambda: driver()),
            "unknown": told_by(lambda: driver(MONOLITH_BENCHMARK_BPS="c2d")),
            "iters": told_by(
                lambda: driver(MONOLITH_BENCHMARK_BPS="c2c", MONOLITH_BENCHMARK_ITERS="39")
            ),
            "text": told_by(
                lambda: driver(MONOLITH_BENCHMARK_BPS="c2c", MONOLITH_BENCHMARK_BPS_A2A_LEN="x")
            ),
        }
        lengths = {
            "MONOLITH_BENCHMARK_ITERS": "60",
            "MONOLITH_BENCHMARK_BPS_AR_LEN": "500",
            "MONOLITH_BENCHMARK_BPS_A2A_LEN": "6400",
        }
        found["drivers"] = {
            kind: driver(MONOLITH_BENCHMARK_BPS=kind, **lengths) for kind in ("ar", "c2c", "all")
        }
        found["still together"] = dist.get_world_size()
        (out / f"found{info.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
