"""Runs the communication benchmarks that the environment asks for, and sums them up."""

from __future__ import annotations

import sys
from typing import TextIO

import torch

from ..core.errors import ConfigError
from . import env
from .comm_bench import measure_a2a, measure_ar
from .env import Environ
from .transports import Transport, asked_for
from .windows import LEAST_ITERATIONS, summary

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
    """What MONOLITH_BENCHMARK_BPS names: c2g, g2g, c2c, g2c, ar, or all; mean goodput by length.

    MONOLITH_BENCHMARK_ITERS, _BPS_AR_LEN and _BPS_A2A_LEN set iterations and lengths. Under `all`,
    what needs a GPU is left out, and said so, where there is none.
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
    """In host memory, then on the GPU where there is one."""
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
