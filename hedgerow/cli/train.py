"""`hedgerow train`: runs the job of a configuration file, or of options alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import FileMissingError, HedgerowError, InputError, JobFailedError
from .options import AsJson

if TYPE_CHECKING:
    from ..train.job import Job
    from ..train.job_parts import Parts
    from ..train.loop import Outcome, Trainer
    from ..train.run_folder import RunFolder

_RUNS = Path("runs")


def train(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG.toml", help="The job: docs/jobs.md.", show_default=False),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="The source: movielens-100k, clicks, wide-clicks.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="deepfm, dlrm or two-tower.")] = None,
    dim: Annotated[int | None, typer.Option(help="Width of the tables.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples of a step.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of the rows.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of first values and weights.")] = None,
    steps: Annotated[int | None, typer.Option(help="At most so many steps.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; one below runs/ if not given.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, to the same bits.")
    ] = False,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Train once more with ids hashed to a quarter of the rows, to see what collisions "
            "cost.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model; write checkpoints, logs and learning curves into a folder.

    Options win over the file. Ctrl-C saves and says how to go on. The exit status is 1 if the job
    fails or is interrupted, 2 if its configuration is wrong.

    Try: `hedgerow train --data clicks --steps 500`
    """
    from .train_report import finish

    given: dict[str, Any] = {
        "--data": data,
        "--model": model,
        "--dim": dim,
        "--epochs": epochs,
        "--batch-size": batch_size,
        "--lr": lr,
        "--seed": seed,
        "--steps": steps,
    }
    options = {name: value for name, value in given.items() if value is not None}
    job, run = _resumed(config, options, out) if resume else _new(config, options, out)
    parts = _built(job)
    (run.go_on if resume else run.begin)(job)
    trainer, outcome = _trained(job, parts, run, resume)
    finish(job, parts, run, trainer, outcome, compare=compare, as_json=as_json)
    if outcome.why == "interrupted":
        raise typer.Exit(1)


def _new(
    config: Path | None, options: Mapping[str, Any], out: Path | None
) -> tuple[Job, RunFolder]:
    from ..train.job import job_of, read_job
    from ..train.run_folder import RunFolder, free_folder

    if config is None and "--data" not in options:
        raise InputError(
            "nothing to train on; give a CONFIG.toml, or --data (movielens-100k, clicks, "
            "wide-clicks): `hedgerow train --data clicks`."
        )
    job = read_job(config, options) if config else job_of({}, "the command line", options)
    name = config.stem if config else f"{job.data.word}-{job.model.word}"
    return job, RunFolder(out) if out else free_folder(_RUNS, name)


def _resumed(
    config: Path | None, options: Mapping[str, Any], out: Path | None
) -> tuple[Job, RunFolder]:
    from ..train.job import read_job
    from ..train.run_folder import RunFolder

    if out is None:
        raise InputError("--resume needs --out, the folder of the run to go on with.")
    run = RunFolder(out)
    run.read()
    return read_job(config or run.job, options), run


def _built(job: Job) -> Parts:
    from ..train.job_parts import build

    try:
        return build(job)
    except FileMissingError as error:
        if job.data.is_files:
            raise
        raise FileMissingError(
            f"{error} Without a package index, train on synthetic clicks: "
            f"`hedgerow train --data clicks`."
        ) from error


def _trained(job: Job, parts: Parts, run: RunFolder, resume: bool) -> tuple[Trainer, Outcome]:
    from ..train.checkpoints import Checkpoints
    from ..train.job_parts import schedule
    from ..train.loop import Trainer
    from ..train.sinks import JsonLines, TensorBoard
    from .live import Console

    keep = Checkpoints(
        run.checkpoints, every_steps=job.checkpoint.every_steps, keep=job.checkpoint.keep
    )
    trainer = Trainer(
        parts.model,
        parts.optimizer,
        parts.train,
        test=parts.test,
        schedule=schedule(job),
        checkpoints=keep,
    )
    goes_on = resume and trainer.resume()
    at = trainer.progress
    trainer.sinks += [
        JsonLines(run.log, at.events if goes_on else None),
        TensorBoard(run.tensorboard, at.step if goes_on else None),
        Console(parts.total_steps),
    ]
    try:
        return trainer, trainer.run()
    except HedgerowError as error:  # the configuration was right: what fails now is the job
        raise JobFailedError(str(error)) from error
    finally:
        for sink in trainer.sinks:
            sink.close()
