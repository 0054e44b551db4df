"""`hedgerow bench quality`: what collisions cost, with the same model, optimizer and seeds."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from .. import native
from ..core import checks
from ..core.errors import InputError
from ..data.batch import Batch
from ..train.evaluate import evaluate
from .ours import Ours
from .progress import Progress
from .quality_variants import Variant, collisionless, hashed, known_ids, vocabulary
from .quality_works import RATE, WORKS, QualityWork
from .report import machine

DIVISORS = (2, 4, 10)


def run(
    progress: Progress,
    *,
    seeds: int = 5,
    cases: Sequence[str] = (),
    quick: bool = False,
    png: Path | None = None,
) -> dict[str, Any]:
    """AUC of every variant over the seeds; one report, and a picture where `png` says."""
    checks.count("seeds", seeds, least=1)
    chosen = [n for n in WORKS if not cases or any(fnmatchcase(n, c) for c in cases)]
    if not chosen:
        raise InputError(f"cases is {list(cases)}; known: {', '.join(WORKS)}.")
    works = [WORKS[name](quick) for name in chosen]
    total, done, results = len(works) * seeds * (2 + len(DIVISORS)), 0, []
    for work in works:
        aucs: dict[str, list[dict[str, float]]] = {}
        for seed in range(seeds):
            for variant, found in _of_seed(work, seed):
                done += 1
                aucs.setdefault(variant, []).append(found)
                progress(f"{work.name}, {variant}, seed {seed}", done, total)
        results += [_summed(work.name, variant, runs) for variant, runs in aucs.items()]
    if png is not None:
        _picture(results, png)
    return {
        "bench": "quality",
        "work": {**machine(), "seeds": seeds, "quick": quick, "threads": native.threads()},
        "versions": Ours.versions(),
        "results": results,
    }


def _of_seed(work: QualityWork, seed: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Every variant on the same batches."""
    source = work.train(seed)
    epochs = [list(source) for _ in range(work.epochs)]
    test = list(work.test(seed))
    tables = work.table_of()
    known = known_ids([batch.ids for batch in epochs[0]], tables)
    best = {} if work.best_auc is None else {"best_auc": work.best_auc(seed)}
    for variant in (
        collisionless(),
        *(hashed(divisor, tables, seed) for divisor in DIVISORS),
        vocabulary(),
    ):
        found = trained(work, variant, epochs, test, known, seed)
        yield variant.name, {**found, **best, "rows": variant.rows(known)}


def trained(
    work: QualityWork,
    variant: Variant,
    epochs: Sequence[Sequence[Batch]],
    test: Sequence[Batch],
    known: dict[str, torch.Tensor],
    seed: int,
) -> dict[str, float]:
    """Metrics on the test data after training on every epoch."""
    torch.manual_seed(seed)
    model = work.model(seed)
    model.bags = variant.bags(model.bags, known)  # pyright: ignore[reportAttributeAccessIssue]
    rows = list(model.bags.parameters())  # none, where rows are in tables
    optimizers: list[torch.optim.Optimizer] = [torch.optim.Adam(model.over.parameters(), lr=1e-3)]
    if rows:
        optimizers.append(torch.optim.Adagrad(rows, lr=RATE))

    def changed(batch: Batch) -> Batch:
        return Batch(batch.dense, variant.ids(batch.ids, known), batch.labels)

    with torch.sparse.check_sparse_tensor_invariants(False):  # or torch warns that it is off
        for batch in (changed(batch) for epoch in epochs for batch in epoch):
            logits = model(batch.dense, batch.ids)
            loss = functional.binary_cross_entropy_with_logits(logits, batch.labels)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
    return evaluate(model, map(changed, test))


def _summed(case: str, variant: str, runs: Sequence[dict[str, float]]) -> dict[str, Any]:
    aucs, losses = [run["auc"] for run in runs], [run["loss"] for run in runs]
    best = [run["best_auc"] for run in runs if "best_auc" in run]
    more = {"best_auc": round(statistics.mean(best), 5)} if best else {}
    return {
        "case": case,
        "variant": variant,
        "rows": round(statistics.mean(run["rows"] for run in runs)),
        "auc": round(statistics.mean(aucs), 5),
        "spread": round(statistics.stdev(aucs), 5) if len(aucs) > 1 else 0.0,
        "loss": round(statistics.mean(losses), 5),
        "aucs": [round(auc, 5) for auc in aucs],
        **more,
    }


def _picture(results: Sequence[dict[str, Any]], path: Path) -> None:
    from ..train.plot import bars

    rows = [(r["case"], r["variant"], r["auc"], r["spread"]) for r in results]
    bars(rows, path, title="What collisions cost", unit="AUC on test data", start=0.5)
