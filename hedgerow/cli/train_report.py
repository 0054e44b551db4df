"""The report at the end of `hedgerow train`: metrics, files, next steps, cost of collisions."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import typer

from ..core.errors import MissingExtraError
from ..core.units import format_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from ..core.id_batch import IdBatch
    from ..data.source import Batch, Source
    from ..sharding.agreement import RankGroup
    from ..train.job import Job
    from ..train.job_parts import JobParts
    from ..train.loop import Outcome, Trainer
    from ..train.run_folder import RunFolder


DIVISOR = 4


def hashed_baseline(job: Job, model: nn.Module, steps: int, ranks: RankGroup) -> dict[str, float]:
    """Returns test metrics of the job if each table has a quarter of the rows and ids collide.

    The model is trained for as many steps. Returns nothing without test data, or after Ctrl-C.
    All ranks of the job take part.
    """
    import torch

    from ..data.source import Batch
    from ..nn.embedding_modules import collections_of
    from ..nn.model_tables import tables_of
    from ..train.evaluate import evaluate
    from ..train.job_parts import build
    from ..train.loop import LoopSchedule, Trainer

    own = {
        name: torch.cat([part.ids for part in table.scan()] or [torch.empty(0, dtype=torch.int64)])
        for name, table in tables_of(model).items()
    }
    told = ranks.tell(own)
    known = {name: torch.cat([one[name] for one in told]) for name in own}
    tables = {f: t.name for c in collections_of(model) for t in c.tables for f in t.features}
    parts = build(job)

    def rows(feature: str) -> int:
        return shared_rows(len(known[tables[feature]]), DIVISOR)

    def change(batch: Batch) -> Batch:
        return Batch(batch.dense, hashed_ids(batch.ids, rows), batch.labels, batch.weights)

    if parts.test is None:
        return {}
    schedule = LoopSchedule(epochs=job.train.epochs, steps=steps)
    train = _ChangedSource(parts.train, change)
    outcome = Trainer(parts.model, parts.optimizer, train, schedule=schedule).run()
    if outcome.why == "interrupted":  # a partly trained model is no baseline
        return {}
    return evaluate(parts.model, _ChangedSource(parts.test, change))


def shared_rows(ids: int, divisor: int) -> int:
    """Returns how many rows `ids` ids share: 1 / `divisor` of them, at least one.

    >>> shared_rows(10, 4), shared_rows(3, 4)
    (2, 1)
    """
    return max(1, ids // divisor)


def hashed_ids(batch: IdBatch, rows: Callable[[str], int], seed: int = 0) -> IdBatch:
    """Returns the batch with each id replaced by its hash modulo the `rows` of its feature."""
    import torch

    from ..core.hashing import mix64
    from ..core.id_batch import IdBatch
    from ..core.ids import Ragged

    columns: dict[str, Ragged | torch.Tensor] = {}
    for name in batch.names:
        column = batch.feature(name)
        shared = torch.remainder(mix64(column.values ^ seed), rows(name))
        columns[name] = Ragged.trusted(shared, column.row_splits)
    return IdBatch.from_dict(columns)


class _ChangedSource:
    """A source whose batches are passed through a function."""

    def __init__(self, source: Source, change: Callable[[Batch], Batch]) -> None:
        self._source, self._change = source, change

    def __iter__(self) -> Iterator[Batch]:
        return map(self._change, self._source)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the source."""
        return self._source.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads the state of the source."""
        self._source.load_state_dict(state)


def finish(
    job: Job,
    parts: JobParts,
    run: RunFolder,
    trainer: Trainer,
    outcome: Outcome,
    ranks: RankGroup,
    *,
    compare: bool,
    as_json: bool,
) -> None:
    """Tests the model if needed, draws the curves, and prints the report on rank 0."""
    report = _report(parts, run, outcome, _test(parts, trainer, outcome))
    if compare and outcome.why != "interrupted":
        if ranks.rank == 0:
            typer.echo(
                f"training once more, with ids hashed to 1/{DIVISOR} of the rows ...", err=True
            )
        if found := hashed_baseline(job, parts.model, outcome.step, ranks):
            report["baselines"]["hashed table"] = found

    def show() -> None:
        if ranks.rank == 0:
            _show(job, run, outcome, report, as_json=as_json)

    # All ranks wait: a launcher may take an early end as a failure, and stop rank 0.
    ranks.together("the report", show)


def _show(
    job: Job, run: RunFolder, outcome: Outcome, report: dict[str, Any], *, as_json: bool
) -> None:
    title = f"{job.model.word} on {job.data.word}"
    report["curves"] = _curves(run, title, report)
    if as_json:
        typer.echo(json.dumps(finite(report), indent=1, allow_nan=False))
        return
    for line in [*_lines(title, report), *_next(job, run, outcome)]:
        typer.echo(line)


def _test(parts: JobParts, trainer: Trainer, outcome: Outcome) -> dict[str, float]:
    from ..train.loop import evaluate

    is_fresh = outcome.test and trainer.progress.evaluated_at == outcome.step
    if is_fresh or parts.test is None or outcome.why == "interrupted":
        return outcome.test
    return evaluate(parts.model, parts.test)


def _report(
    parts: JobParts, run: RunFolder, outcome: Outcome, test: dict[str, float]
) -> dict[str, Any]:
    return {
        "why": outcome.why,
        "step": outcome.step,
        "epoch": outcome.epoch,
        "samples": outcome.samples,
        "test": test,
        "baselines": baselines(parts, test),
        "run": str(run.path),
        "checkpoint": str(outcome.checkpoint) if outcome.checkpoint else None,
        "log": str(run.log),
        "tensorboard": str(run.tensorboard),
    }


def baselines(parts: JobParts, test: dict[str, float]) -> dict[str, dict[str, float]]:
    """Returns baselines of the test metrics, each an AUC and, if known, a log loss.

    "majority" predicts the share of positives for every sample. "best reachable", for synthetic
    clicks, predicts the true probabilities.
    """
    found: dict[str, dict[str, float]] = {}
    if test and test["ne"]:
        # Normalized entropy is the loss over that of the best constant.
        found["majority"] = {"auc": 0.5, "loss": test["loss"] / test["ne"]}
    if parts.best_auc is not None:
        found["best reachable"] = {"auc": parts.best_auc}
    return found


def _curves(run: RunFolder, title: str, report: dict[str, Any]) -> str | None:
    """Returns the path of the plot, or None (with a message) if it could not be drawn."""
    from ..train.events import read_events
    from ..train.plot import learning_curves

    lines = {name: values["auc"] for name, values in report["baselines"].items()}
    try:
        learning_curves(read_events(run.log), run.curves, title=title, baselines=lines)
    except MissingExtraError as error:
        typer.echo(f"no learning curves: {error}", err=True)
        return None
    return str(run.curves)


def _lines(title: str, report: dict[str, Any]) -> list[str]:
    count = format_count(report["samples"])
    lines = [f"{title}: {report['why']} after {report['step']} steps, {count} samples", ""]
    rows = {"this model": report["test"], **report["baselines"]}
    if report["test"]:
        lines += ["test            AUC     log loss"]
        lines += [
            f"{name:<15} {_number(v, 'auc')}  {_number(v, 'loss')}".rstrip()
            for name, v in rows.items()
        ]
        lines += [""]
    for name in ("checkpoint", "log", "tensorboard", "curves"):
        if report[name]:
            lines.append(f"{name:<12} {report[name]}")
    return lines


def _number(values: dict[str, float], name: str) -> str:
    return f"{values[name]:.4f}" if name in values else ""


def _next(job: Job, run: RunFolder, outcome: Outcome) -> list[str]:
    if outcome.why == "interrupted":
        return ["", f"go on with:  hedgerow train --resume --out {run.path}"]
    longer = {
        "done": f"--epochs {job.train.epochs + 1}",
        "step limit": f"--steps {2 * outcome.step}",
    }.get(outcome.why)  # none after an early stop, which would stop again at once
    on = [f"  hedgerow train --resume --out {run.path} {longer}"] if longer else []
    return [
        "",
        "try next:",
        f"  hedgerow predict {run.path}",
        *on,
        f"  tensorboard --logdir {run.tensorboard}",
    ]


def finite(value: Any) -> Any:
    """Returns the value with None for NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {name: finite(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
