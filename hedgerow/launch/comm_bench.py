"""The original's two communication benchmarks: averages, and equal parts to everybody."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

import torch
from torch import Tensor

from ..core.errors import InputError, LaunchError
from .device import get_device
from .env import Environ
from .rank_info import rank_info
from .transports import Transport, asked_for
from .windows import WINDOW, Windows, sent_elements

_A2A_OPS = {"c2g": "alltoall_cpu2gpu", "g2c": "alltoall_gpu2cpu"}  # the others: "alltoall"
_AR_OPS = ("pushpull", "allreduce")


def byteps_benchmark_ar(
    total_len: int,
    total_niter: int = 10000,
    use_cpu: bool = False,
    op: str = "pushpull",
    *,
    stream: TextIO | None = None,
    transport: Transport | None = None,
    environ: Environ | None = None,
) -> list[float]:
    """Averages a float32 tensor over all processes; the goodput of every window but the first.

    `op` is the original's name of the operation, "pushpull" or "allreduce"; the transport has one.
    """
    if op not in _AR_OPS:
        raise InputError(f"op is {op!r}; it must be 'pushpull' or 'allreduce'.")
    return measure_ar(total_len, total_niter, use_cpu, stream, _ready(transport, environ)).kept


def byteps_benchmark_a2a(
    total_len: int,
    total_niter: int = 10000,
    dst_gpu: bool = True,
    src_gpu: bool = True,
    *,
    stream: TextIO | None = None,
    transport: Transport | None = None,
    environ: Environ | None = None,
) -> list[float]:
    """Sends equal parts to every process; the goodput of every window but the first.

    From host memory to host memory an eighth of `total_len` is sent, as in the original.
    """
    kind = f"{'g' if src_gpu else 'c'}2{'g' if dst_gpu else 'c'}"
    return measure_a2a(total_len, total_niter, kind, stream, _ready(transport, environ)).kept


def _ready(transport: Transport | None, environ: Environ | None) -> Transport:
    """A transport that is given is a running one."""
    if transport is not None:
        return transport
    chosen = asked_for(environ)
    chosen.init()
    return chosen


def measure_ar(
    total_len: int, total_niter: int, use_cpu: bool, stream: TextIO | None, carrier: Transport
) -> Windows:
    """The averages, as windows; checks the values after the last one."""
    _check_counts(total_len, total_niter)
    device = torch.device("cpu") if use_cpu else _gpu()
    value, size = float(carrier.rank() + 1), carrier.size()
    work = torch.empty(total_len, 1, device=device)

    def refill() -> None:
        work.fill_(value)

    def step() -> Tensor:
        return carrier.average(work)

    place = "CPU" if use_cpu else "GPU"
    run, out = _timed(f"ar {place}", total_len, total_niter, refill, step, carrier, stream)
    _check_values("all-reduce", out, torch.full_like(work, (size + 1) / 2))
    return run


def measure_a2a(
    total_len: int, total_niter: int, kind: str, stream: TextIO | None, carrier: Transport
) -> Windows:
    """The exchange, as windows; checks the values after the last one."""
    _check_counts(total_len, total_niter)
    size = carrier.size()
    sent = sent_elements(kind, total_len)
    if sent % size:
        raise InputError(
            f"total_len {total_len} means {sent} elements to send, which {size} processes cannot "
            f"share equally; choose a multiple of {round(size * total_len / sent)}."
        )
    source = _gpu() if kind[0] == "g" else torch.device("cpu")
    target = _gpu() if kind[2] == "g" else torch.device("cpu")
    mine = torch.full((int(sent),), float(carrier.rank() + 1), device=source)
    if source != target and source.type == "cpu":
        mine = mine.pin_memory()
    named, splits = _A2A_OPS.get(kind, "alltoall"), [int(sent) // size] * size

    def step() -> Tensor:
        if carrier.name == "torch":  # it has no op between two places: a copy, timed with it
            return carrier.all_to_all(mine.to(target, non_blocking=True), splits, named)
        return carrier.all_to_all(mine, splits, named)

    run, out = _timed(kind, sent, total_niter, lambda: None, step, carrier, stream)
    ranks = torch.arange(1, size + 1, dtype=torch.float32, device=out.device)
    _check_values("all-to-all", out, ranks.repeat_interleave(int(sent) // size))
    return run


def _check_counts(total_len: int, total_niter: int) -> None:
    for name, value in (("total_len", total_len), ("total_niter", total_niter)):
        if value < 1:
            raise InputError(f"{name} is {value}; it must be at least 1.")


def _gpu() -> torch.device:
    device = get_device(rank_info())
    if device.type != "cuda":
        raise InputError(
            "there is no GPU here; measure between host memories: use_cpu=True, or "
            "dst_gpu=False and src_gpu=False."
        )
    return device


def _timed(
    name: str,
    elements: float,
    total_niter: int,
    refill: Callable[[], None],
    step: Callable[[], Tensor],
    carrier: Transport,
    stream: TextIO | None,
) -> tuple[Windows, Tensor]:
    """Windows of 20 iterations between two barriers, after one iteration that is not timed."""
    seconds: list[float] = []
    refill()
    out = step()
    for _ in range(total_niter // WINDOW):
        refill()
        _settle(carrier)
        start = time.perf_counter()
        for _ in range(WINDOW):
            out = step()
        _settle(carrier)
        seconds.append(time.perf_counter() - start)
        _report(name, Windows(elements, seconds[-1:]), carrier, stream)
    return Windows(elements, tuple(seconds)), out


def _settle(carrier: Transport) -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    carrier.barrier()


def _report(name: str, last: Windows, carrier: Transport, stream: TextIO | None) -> None:
    if carrier.rank() == 0:
        (stream or sys.stdout).write(
            f"{name}: total_len {last.elements}, latency {last.latency_ms[0]:.3f} ms, "
            f"goodput {last.goodputs_gbps[0]:.3f} Gb/s\n"
        )


def _check_values(what: str, out: Tensor, wanted: Tensor) -> None:
    if not torch.equal(out.reshape(-1), wanted.reshape(-1)):
        wrong = int((out.reshape(-1) != wanted.reshape(-1)).sum())
        raise LaunchError(
            f"{what} gave {wrong} of {wanted.numel()} wrong values; the transport is broken."
        )
