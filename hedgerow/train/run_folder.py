"""The folder of a run: where its job, checkpoints and logs are, and the model they give back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from ..core.errors import (
    CheckpointExistsError,
    CheckpointMissingError,
    ConfigError,
    FileDamagedError,
)
from ..core.files import local_path
from ..nn.checkpoints import load
from .checkpoints import Checkpoints
from .job import Job, read_job
from .job_parts import build_model

# A run that goes on may last longer and speak more often; what it computes stays the same.
_MAY_CHANGE = {
    *("train.epochs", "train.steps", "train.log_every", "train.eval_every", "train.early_stop"),
    *("checkpoint.every_steps", "checkpoint.keep", "data.keys"),
}


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Where everything of a run lies.

    >>> RunFolder(Path("runs/first")).log.as_posix()
    'runs/first/log.jsonl'
    """

    path: Path

    def __post_init__(self) -> None:
        local_path(self.path)  # refuses a URL

    @property
    def job(self) -> Path:
        """The job with every key spelled out."""
        return self.path / "job.json"

    @property
    def checkpoints(self) -> Path:
        """One folder a checkpoint."""
        return self.path / "checkpoints"

    @property
    def log(self) -> Path:
        """One line an event."""
        return self.path / "log.jsonl"

    @property
    def tensorboard(self) -> Path:
        """The events for TensorBoard."""
        return self.path / "tensorboard"

    @property
    def curves(self) -> Path:
        """The picture."""
        return self.path / "curves.png"

    def is_used(self) -> bool:
        """Whether a run has begun here."""
        return self.job.exists() or Checkpoints(self.checkpoints).any()

    def check_plain(self) -> None:
        """Raises where a link, a pipe or a device stands for one of its files.

        A log is cut where a run goes on: through a link that would be a file elsewhere.
        """
        for path in (self.job, self.log):
            if path.is_symlink() or (path.exists() and not path.is_file()):
                raise FileDamagedError(
                    f"{path} is no plain file, and a run has no others. Move it away, or choose "
                    f"another --out."
                )

    def begin(self, job: Job) -> None:
        """Makes it the folder of a new run; one with a run in it is refused."""
        self.check_plain()
        if self.is_used():
            raise CheckpointExistsError(
                f"{self.path} holds a run already; go on with it with --resume, or choose another "
                f"--out."
            )
        job.save(self.job)

    def go_on(self, job: Job) -> None:
        """Takes up the run with `job`, which must compute what the run's own does."""
        old = self.read()
        for key, before, now in _differences(old.to_dict(), job.to_dict()):
            if key not in _MAY_CHANGE:
                raise ConfigError(
                    f"{key} is {now!r}, and the run in {self.path} has {before!r}: it could not go "
                    f"on as it began. Set it back, or start a new run with another --out."
                )
        job.save(self.job)

    def read(self) -> Job:
        """The job of the run that is here."""
        self.check_plain()
        if not self.job.is_file():
            raise CheckpointMissingError(f"{self.path} holds no run: it has no {self.job.name}.")
        return read_job(self.job)


def free_folder(root: Path, name: str) -> RunFolder:
    """The first of NAME, NAME-2, NAME-3 without a run."""
    folder, number = RunFolder(root / name), 1
    while folder.is_used():
        number += 1
        folder = RunFolder(root / f"{name}-{number}")
    return folder


@dataclass(frozen=True, slots=True, eq=False)
class LoadedRun:
    """A run as a checkpoint has it."""

    job: Job
    model: nn.Module
    step: int
    checkpoint: Path


def load_run(path: Path, *, best: bool = False, trusted: bool = False) -> LoadedRun:
    """The model of a run: from its newest checkpoint, or from that of the lowest test loss.

    `trusted` is that of `hr.load`.
    """
    folder = RunFolder(path)
    job, kept = folder.read(), Checkpoints(folder.checkpoints)
    if not kept.any():
        raise CheckpointMissingError(
            f"{path} has no checkpoint yet; go on with `hedgerow train --resume --out {path}`."
        )
    checkpoint = kept.best() if best else kept.newest()
    model = build_model(job)
    loaded = load(model, checkpoint, trusted=trusted)
    return LoadedRun(job, model.eval(), loaded.step, checkpoint)


def _differences(old: dict, new: dict, key: str = "") -> list[tuple[str, object, object]]:
    """Keys whose values differ, by path."""
    found: list[tuple[str, object, object]] = []
    for name in [*old, *(name for name in new if name not in old)]:
        before, now, path = old.get(name), new.get(name), f"{key}.{name}" if key else name
        if isinstance(before, dict) and isinstance(now, dict):
            found += _differences(before, now, path)
        elif before != now:
            found.append((path, before, now))
    return found
