"""Monolith's two communication benchmarks, the function that runs them, and their measures."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TextIO

import torch
from torch import Tensor

from ...core.errors import ConfigError, InputError, LaunchError
from ...launch import env
from ...launch.env import Environ
from ...launch.process_group import get_device
from ...launch.rank_info import rank_info
from .transports import Transport, asked_for

WINDOW = 20  # iterations timed together
LEAST_ITERATIONS = 2 * WINDOW  # the first window warms up and is dropped
_ON_CPU_DIVISOR = 8  # divides the length if both ends are in host memory


def sent_elements(kind: str, total_len: int) -> float:
    """Returns how many elements a process sends for `total_len`.

    May be a fraction, which is invalid.

    >>> sent_elements("c2c", 8192000), sent_elements("g2g", 8192000)
    (1024000.0, 8192000)
    """
    return total_len / _ON_CPU_DIVISOR if kind == "c2c" else total_len


@dataclass(frozen=True, slots=True)
class Windows:
    """The measured windows of one run.

    >>> run = Windows(65536000, (1.0, 0.5))
    >>> run.latency_ms, run.goodputs_gbps[0]
    ([50.0, 25.0], 41.94304)
    >>> run.kept
    [83.88608]
    """

    elements: float
    seconds: Sequence[float]

    @property
    def latency_ms(self) -> list[float]:
        """Latency of one iteration in each window."""
        return [seconds / WINDOW * 1000 for seconds in self.seconds]

    @property
    def goodputs_gbps(self) -> list[float]:
        """Bits of all float32 elements divided by the time, per window.

        It is not the wire bandwidth.
        """
        return [self.elements * 32 / ms / 1e6 for ms in self.latency_ms]

    @property
    def kept(self) -> list[float]:
        """Goodput of every window except the first."""
        return self.goodputs_gbps[1:]

    @property
    def kept_latency_ms(self) -> float:
        """Median latency without the first window."""
        return statistics.median(self.latency_ms[1:])


def summary(total_len: int, kept: Sequence[float]) -> tuple[int, float | None]:
    """Returns the requested length and the mean goodput, None if no window is left.

    >>> summary(8192, [])
    (8192, None)
    """
    return total_len, (sum(kept) / len(kept) if kept else None)


def bus_factor(kind: str, size: int) -> float:
    """Returns the factor from goodput to bus bandwidth, the load of the busiest link.

    >>> bus_factor("ar", 4), bus_factor("c2c", 4)
    (1.5, 0.75)
    """
    return (2 if kind == "ar" else 1) * (size - 1) / size


_A2A_OPS = {"c2g": "alltoall_cpu2gpu", "g2c": "alltoall_gpu2cpu"}  # the others use "alltoall"
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
    """Averages a float32 tensor over all processes.

    Returns the goodput of all windows but the first.

    `op` is Monolith's name, "pushpull" or "allreduce". The transport has only one operation for
    both.
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
    """Sends equal parts to every process. Returns the goodput of all windows but the first.

    Between host memories an eighth of `total_len` is sent, as in Monolith.
    """
    kind = f"{'g' if src_gpu else 'c'}2{'g' if dst_gpu else 'c'}"
    return measure_a2a(total_len, total_niter, kind, stream, _ready(transport, environ)).kept


def _ready(transport: Transport | None, environ: Environ | None) -> Transport:
    """Returns a started transport. A given transport must already be running."""
    if transport is not None:
        return transport
    chosen = asked_for(environ)
    chosen.init()
    return chosen


def measure_ar(
    total_len: int, total_niter: int, use_cpu: bool, stream: TextIO | None, carrier: Transport
) -> Windows:
    """Measures averages as windows, and checks the values after the last one."""
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
    """Measures all-to-all exchanges as windows, and checks the values after the last one."""
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
        if carrier.name == "torch":  # copies between devices, inside the timing
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
    """Times windows of 20 iterations between two barriers, after one untimed iteration."""
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


KINDS = ("c2g", "g2g", "c2c", "g2c", "ar")  # in the order of `all`
_LENGTH = 65536000
_HALVINGS = 3
Summaries = dict[str, list[tuple[int, float | None]]]


def bps_comm_benchmark(
    *,
    stream: TextIO | None = None,
    transport: Transport | None = None,
    environ: Environ | None = None,
) -> Summaries:
    """Runs the benchmarks that MONOLITH_BENCHMARK_BPS names: c2g, g2g, c2c, g2c, ar, or all.

    Returns the mean goodput by length. MONOLITH_BENCHMARK_ITERS, MONOLITH_BENCHMARK_BPS_AR_LEN and
    MONOLITH_BENCHMARK_BPS_A2A_LEN set iterations and lengths. With `all`, benchmarks that need a
    GPU are skipped with a message if there is none.
    """
    environ = env.current() if environ is None else environ
    kinds, iterations = _kinds(environ), _iterations(environ)
    lengths = {
        kind: env.whole(f"MONOLITH_BENCHMARK_BPS_{kind}_LEN", environ, default=_LENGTH)
        for kind in ("AR", "A2A")
    }
    carrier = transport or asked_for(environ)
    if transport is None:
        carrier.init()
    out = stream or sys.stdout
    found: Summaries = {}
    for kind in kinds:
        if len(kinds) > 1 and "g" in kind and not torch.cuda.is_available():
            _tell(carrier, out, f"{kind}_summary: left out, there is no GPU here")
            continue
        found[kind] = (
            _averages(lengths["AR"], iterations, carrier, out)
            if kind == "ar"
            else _exchanges(kind, lengths["A2A"], iterations, carrier, out)
        )
        _tell(carrier, out, f"{kind}_summary: {found[kind]}")
    return found


def _kinds(environ: Environ) -> tuple[str, ...]:
    asked = environ.get("MONOLITH_BENCHMARK_BPS", "none")
    if asked == "all":
        return KINDS
    if asked not in KINDS:
        raise ConfigError(
            f"MONOLITH_BENCHMARK_BPS is {asked!r}; set it to one of {', '.join(KINDS)}, all."
        )
    return (asked,)


def _iterations(environ: Environ) -> int:
    iterations = env.whole("MONOLITH_BENCHMARK_ITERS", environ, default=200)
    if iterations < LEAST_ITERATIONS:
        raise ConfigError(
            f"MONOLITH_BENCHMARK_ITERS is {iterations}; at least {LEAST_ITERATIONS} are needed: "
            f"the first window of 20 is dropped."
        )
    return iterations


def _averages(
    length: int, iterations: int, carrier: Transport, out: TextIO
) -> list[tuple[int, float | None]]:
    """Runs the averages in host memory, then on the GPU if there is one."""
    places = (True, False) if torch.cuda.is_available() else (True,)
    if len(places) == 1:
        _tell(carrier, out, "ar: on the CPU alone, there is no GPU here")
    return [
        summary(length, measure_ar(length, iterations, use_cpu, out, carrier).kept)
        for use_cpu in places
    ]


def _exchanges(
    kind: str, length: int, iterations: int, carrier: Transport, out: TextIO
) -> list[tuple[int, float | None]]:
    lengths = [length // 2**i for i in range(_HALVINGS)]
    return [
        summary(asked, measure_a2a(asked, iterations, kind, out, carrier).kept) for asked in lengths
    ]


def _tell(carrier: Transport, out: TextIO, text: str) -> None:
    if carrier.rank() == 0:
        out.write(text + "\n")
