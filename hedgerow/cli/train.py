"""`hedgerow train`: runs the job of a configuration file, or of options alone."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import ConfigError, FileMissingError, HedgerowError, InputError, JobFailedError
from ..core.units import format_count
from .log_lines import shown_log
from .options import AsJson, Trusted
from .show_plan import show_plan
from .train_report import finish

if TYPE_CHECKING:
    from ..sharding.agreement import RankGroup
    from ..train.job import Job
    from ..train.job_parts import JobParts
    from ..train.loop import Outcome, Trainer
    from ..train.run_folder import RunFolder
    from .live import Console


@contextmanager
def job_ranks() -> Iterator[RankGroup]:
    """Joins the launcher's other processes inside the `with` block, if there are any.

    An existing process group is used, and not destroyed.
    """
    import torch.distributed as dist

    from ..launch.process_group import process_group
    from ..launch.rank_info import rank_info
    from ..sharding.agreement import RankGroup

    if dist.is_initialized():
        yield RankGroup(dist.group.WORLD)
        return
    if rank_info().world_size == 1:
        yield RankGroup()
        return
    with process_group():
        yield RankGroup(dist.group.WORLD)


_RUNS = Path("runs")


@contextmanager
def _ctrl_c_ends() -> Iterator[None]:
    """Makes Ctrl-C end this part of the job, even if a library swallows `KeyboardInterrupt`."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        pressed.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed.is_set():
        raise KeyboardInterrupt


_Compare = Annotated[
    bool,
    typer.Option(
        "--compare",
        help="Also train with ids hashed to a quarter of the rows, to show the cost of collisions.",
    ),
]
_PrintPlan = Annotated[
    bool,
    typer.Option("--print-plan", help="Show which rank owns which rows, and do not train."),
]


def train(
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="CONFIG.toml", help="The job; see docs/guides/jobs.md.", show_default=False
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="The data: movielens-100k, clicks or wide-clicks.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="deepfm, dlrm or two-tower.")] = None,
    dim: Annotated[int | None, typer.Option(help="Dimension of the tables.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples per step.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of the rows.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of first values and weights.")] = None,
    steps: Annotated[int | None, typer.Option(help="Maximum number of steps.")] = None,
    plan: Annotated[str | None, typer.Option(help="Use the placement of a plan file.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, or cuda for the GPU.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; default: a new one below runs/.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out, bit for bit.")
    ] = False,
    trusted: Trusted = False,
    compare: _Compare = False,
    print_plan: _PrintPlan = False,
    as_json: AsJson = False,
) -> None:
    """Train a model; write checkpoints, logs and learning curves to a folder.

    Options override the file. Ctrl-C saves and prints how to continue. The exit status is 1 if the
    job fails or is interrupted, and 2 if its configuration is wrong.

    Under torchrun, mpirun or srun all processes run the job together: docs/guides/distributed.md.
    Try `hedgerow train --data clicks --steps 500`.
    """
    sizes = {"dim": dim, "epochs": epochs, "batch_size": batch_size, "lr": lr, "steps": steps}
    where = {"plan": _located(plan), "device": device, "data": data}
    options = _given(model=model, seed=seed, **where, **sizes)
    if print_plan:
        show_plan(_job(config, options, out, resume=resume), as_json=as_json)
        return
    how = _RunFlags(resume=resume, trusted=trusted, compare=compare, as_json=as_json)
    with _console() as console, ExitStack() as stack:
        job = _job(config, options, out, resume=resume)
        why = _run(job, out, config, _joined(stack), console, how).why
    if why == "interrupted":
        raise typer.Exit(1)


def _check_compare(*, compare: bool) -> None:
    from ..launch.job_variables import server_list

    if compare and server_list() is not None:
        raise ConfigError(
            "--compare trains a second model, and the servers of this job hold the rows of one; "
            "leave --compare out, or run the job without servers."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunFlags:
    """Options of the command line that are not part of the job."""

    resume: bool
    trusted: bool
    compare: bool
    as_json: bool


def _run(
    job: Job,
    out: Path | None,
    config: Path | None,
    ranks: RankGroup,
    console: Console,
    how: _RunFlags,
) -> Outcome:
    """Runs the job on this rank and reports its result.

    A function of its own, so that model and trainer are freed before the process group is
    destroyed: freed process groups wait for their peers.
    """
    name = config.stem if config else f"{job.data.word}-{job.model.word}"
    job, run, parts = _begun(job, out, name, ranks, console, how)
    trainer, outcome = _trained(job, parts, run, ranks, console, how)
    console.close()
    with _failures_are_the_jobs():
        finish(job, parts, run, trainer, outcome, ranks, compare=how.compare, as_json=how.as_json)
    return outcome


@contextmanager
def _failures_are_the_jobs() -> Iterator[None]:
    """Turns errors into JobFailedError: after the configuration is accepted, the job has failed."""
    try:
        yield
    except HedgerowError as error:
        raise JobFailedError(str(error)) from error


def _located(plan: str | None) -> str | None:
    """Returns a path relative to the working directory; paths in a job are relative to its file."""
    return plan if plan in (None, "auto") else str(Path(plan).absolute())


def _given(**values: object) -> dict[str, Any]:
    """Returns the given options by their names on the command line."""
    return {f"--{n.replace('_', '-')}": v for n, v in values.items() if v is not None}


@_ctrl_c_ends()
def _job(config: Path | None, options: Mapping[str, Any], out: Path | None, *, resume: bool) -> Job:
    from ..train.job import job_of, read_job
    from ..train.run_folder import RunFolder

    if resume:
        if out is None:
            raise InputError("--resume needs --out, the folder of the run to go on with.")
        run = RunFolder(out)
        threads = run.read().train.threads
        job = read_job(config or run.job, options)
        if job.train.threads is None:  # use the number that the run chose at its start
            job = replace(job, train=replace(job.train, threads=threads))
        return job
    if config is None and "--data" not in options:
        raise InputError(
            "nothing to train on; give a CONFIG.toml, or --data (movielens-100k, clicks, "
            "wide-clicks): `hedgerow train --data clicks`."
        )
    return read_job(config, options) if config else job_of({}, "the command line", options)


@_ctrl_c_ends()
def _joined(stack: ExitStack) -> RankGroup:
    """Joins the ranks of the job until the stack is closed."""
    return stack.enter_context(job_ranks())


@contextmanager
def _console() -> Iterator[Console]:
    """Yields rank 0's display, which is closed in any case."""
    from ..launch.rank_info import rank_info
    from .live import Console

    console = Console()
    try:
        if rank_info().rank == 0:
            console.begin("starting")
        yield console
    finally:
        console.close()


@_ctrl_c_ends()
def _begun(
    job: Job, out: Path | None, name: str, ranks: RankGroup, console: Console, how: _RunFlags
) -> tuple[Job, RunFolder, JobParts]:
    """Returns the job with its threads, the folder that rank 0 chose, and the job's parts."""
    from ..train.run_folder import RunFolder, free_folder

    _check_compare(compare=how.compare)
    first = ranks.rank == 0
    given = RunFolder(out) if out else None
    run = (
        given
        or ranks.together(
            "the choice of a folder",
            lambda: free_folder(_RUNS, name) if first else RunFolder(_RUNS),
        )[0]
    )
    what = f"{job.model.word} on {job.data.word}, into {run.path}"
    if first:
        console.begin(f"{what}: opening data, building the model")
    parts = _built(job, measure_threads=not how.resume)
    if not how.resume:  # a resumed run uses the same number: float sums may depend on it
        job = replace(job, train=replace(job.train, threads=parts.threads))
    begin = run.go_on if how.resume else run.begin
    ranks.together("the start of the run", lambda: begin(job) if first else None)
    if first:
        console.say(what)
        console.say(_banner(job, parts, ranks.count))
        console.total_steps = parts.total_steps
        console.begin("the first step")
    return job, run, parts


def _banner(job: Job, parts: JobParts, ranks: int) -> str:
    """Returns a line about the model, the steps and the device."""
    import torch

    from ..nn.embedding_modules import collections_of

    tables = sum(len(one.tables) for one in collections_of(parts.model))
    weights = format_count(sum(p.numel() for p in parts.model.parameters()))
    steps = "steps" if parts.total_steps is None else f"{format_count(parts.total_steps)} steps"
    said = [
        f"{tables} tables and {weights} dense weights",
        f"{steps} of {format_count(job.data.batch_size)} samples",
        f"{job.train.device}, {torch.get_num_threads()} threads",
        *([f"{ranks} ranks"] if ranks > 1 else []),
    ]
    return "; ".join(said)


def _built(job: Job, *, measure_threads: bool) -> JobParts:
    from ..train.job_parts import build

    try:
        with shown_log():
            return build(job, measure_threads=measure_threads)
    except FileMissingError as error:
        if job.data.is_files:
            raise
        raise FileMissingError(
            f"{error} Without a package index, train on synthetic clicks: "
            f"`hedgerow train --data clicks`."
        ) from error


def _trained(
    job: Job, parts: JobParts, run: RunFolder, ranks: RankGroup, console: Console, how: _RunFlags
) -> tuple[Trainer, Outcome]:
    trainer = _ready(job, parts, run, ranks, console, how)
    try:
        with _failures_are_the_jobs():
            return trainer, trainer.run()
    finally:
        for sink in trainer.sinks:
            sink.close()


@_ctrl_c_ends()
def _ready(
    job: Job, parts: JobParts, run: RunFolder, ranks: RankGroup, console: Console, how: _RunFlags
) -> Trainer:
    """Returns a trainer that is ready to run."""
    from ..train.checkpoints import Checkpoints
    from ..train.events import JsonLines, TensorBoard, WithSpeed
    from ..train.job_parts import schedule
    from ..train.loop import Trainer

    keep = Checkpoints(
        run.checkpoints,
        every_steps=job.checkpoint.every_steps,
        keep=job.checkpoint.keep,
        trusted=how.trusted,
    )
    trainer = Trainer(
        parts.model,
        parts.optimizer,
        parts.train,
        test=parts.test,
        schedule=schedule(job),
        checkpoints=keep,
    )
    goes_on = how.resume and trainer.resume()
    at = trainer.progress
    if ranks.rank == 0:
        trainer.sinks += [
            JsonLines(run.log, at.events if goes_on else None),
            WithSpeed(TensorBoard(run.tensorboard, at.step if goes_on else None), resumed=goes_on),
            console,
        ]
        trainer.hooks.append(console)
    return trainer
