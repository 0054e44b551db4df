"""How many of torch's threads a job takes, where its configuration does not say: a measurement.

Small steps are many times slower with all threads of a large machine than with one, because
starting threads costs more than their work.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from ..core.id_batch import IdBatch
from .job import Job

_log = logging.getLogger(__name__)
_ROUNDS = 3
_GAIN = 1.5  # what fewer threads must gain to be taken: equal jobs should choose alike


def choose(default: int, measure: Callable[[int], float]) -> int:
    """`default`, or the fastest of fewer threads if a step then takes two thirds of the time.

    `measure` gives the seconds of a step with a number of threads. Counts take turns, and the
    fastest round of each counts, so that other work on the machine disturbs little.

    >>> choose(16, lambda threads: {1: 0.002, 4: 0.003, 16: 0.02}[threads])
    1
    >>> choose(16, lambda threads: {1: 0.2, 4: 0.05, 16: 0.04}[threads])
    16
    """
    counts = [default]
    fewer = 1
    while fewer < default:
        counts.append(fewer)
        fewer *= 4
    if len(counts) == 1:
        return default
    best_s = {
        count: min(times)
        for count, times in zip(
            counts,
            zip(*([measure(count) for count in counts] for _ in range(_ROUNDS)), strict=True),
            strict=True,
        )
    }
    fastest = min(counts, key=lambda count: best_s[count])
    chosen = fastest if best_s[fastest] * _GAIN < best_s[default] else default
    _log.info(
        "torch takes %d of %d threads: a step took %s; train.threads sets another number",
        chosen,
        default,
        ", ".join(f"{best_s[count] * 1e3:.2f} ms with {count}" for count in sorted(counts)),
    )
    return chosen


def threads_for(job: Job, model: nn.Module) -> int:
    """The number of threads for a job whose model, on the CPU, is not distributed yet.

    The model is called and its dense weights differentiated, with made-up samples. No row is
    born and no weight, state or random number changes.

    >>> from hedgerow.train.job import job_of
    >>> from hedgerow.train.job_parts import build_model
    >>> job = job_of({"data": {"source": "clicks", "batch_size": 8}})
    >>> 1 <= threads_for(job, build_model(job)) <= torch.get_num_threads()
    True
    """
    default, random = torch.get_num_threads(), torch.get_rng_state()
    samples = job.data.batch_size
    ids = IdBatch.from_dict({name: torch.arange(samples) for name in job.data.feature_names()})
    dense, labels = torch.zeros(samples, job.data.dense_columns()), torch.zeros(samples)
    weights = [weight for weight in model.parameters() if weight.requires_grad]

    def step() -> None:
        loss = functional.binary_cross_entropy_with_logits(model(dense, ids), labels)
        if weights and loss.requires_grad:
            torch.autograd.grad(loss, weights, allow_unused=True)

    def measure(threads: int) -> float:
        torch.set_num_threads(threads)
        step()  # threads that start now are not timed
        began_s = time.perf_counter()
        step()
        return time.perf_counter() - began_s

    try:
        return choose(default, measure)
    finally:
        torch.set_num_threads(default)
        torch.set_rng_state(random)
