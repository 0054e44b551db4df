"""`hedgerow bench table`: the host table against every peer, stage by stage."""

from __future__ import annotations

from typing import Any

from .. import native
from .alone import insert_calls, memory
from .cases import FULL, INSERT_CALLS, MEMORY, QUICK, all_stages, choose
from .progress import Counter, Progress
from .report import growth_factors, machine
from .settings import Settings
from .stages import run_stages


def run(settings: Settings, progress: Progress) -> dict[str, Any]:
    """Measures everything that was chosen; one report, in the form all our benchmarks have."""
    sizes = QUICK if settings.quick else FULL
    stages, alone = choose(all_stages(sizes), settings.cases, settings.peers)
    counter = Counter(progress, stages, settings.rounds)
    versions, results = run_stages(settings, stages, counter)
    before = native.threads()
    native.set_threads(settings.threads)
    try:
        if MEMORY in alone:
            counter.say(MEMORY)
            results += [memory(rows, sizes.batch_ids) for rows in sizes.memory_rows()]
        if INSERT_CALLS in alone:
            counter.say(INSERT_CALLS)
            results.append(insert_calls(sizes.w2_rows, sizes.batch_ids, settings.rounds))
    finally:
        native.set_threads(before)
    return {
        "bench": "table",
        "work": {
            **machine(),
            "threads": settings.threads,
            "rounds": settings.rounds,
            "quick": settings.quick,
            **{stage.plan.name: stage.plan.summary() for stage in stages},
        },
        "versions": versions,
        "results": growth_factors(results),
    }
