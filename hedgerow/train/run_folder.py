"""The folder of a run: its job, checkpoints and logs, and the model in its checkpoints."""

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

# The settings that may change when a run is resumed. They do not change what it computes.
_MAY_CHANGE = {
    *("train.epochs", "train.steps", "train.log_every", "train.eval_every", "train.early_stop"),
    *("checkpoint.every_steps", "checkpoint.keep", "data.keys"),
}


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The paths of a run's files.

    >>> RunFolder(Path("runs/first")).log.as_posix()
    'runs/first/log.jsonl'
    """

    path: Path

    def __post_init__(self) -> None:
        local_path(self.path)  # raises for a URL

    @property
    def job(self) -> Path:
        """The job with the value of every key."""
        return self.path / "job.json"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints, with one folder each."""
        return self.path / "checkpoints"

    @property
    def log(self) -> Path:
        """The log, with one line per event."""
        return self.path / "log.jsonl"

    @property
    def tensorboard(self) -> Path:
        """The folder of the TensorBoard files."""
        return self.path / "tensorboard"

    @property
    def curves(self) -> Path:
        """The plot of the learning curves."""
        return self.path / "curves.png"

    def is_used(self) -> bool:
        """Whether the folder has a run."""
        return self.job.exists() or Checkpoints(self.checkpoints).any()

    def check_plain(self) -> None:
        """Raises if the job or the log is a link, a pipe or a device.

        A resumed run truncates its log. Through a link this would truncate a file elsewhere.
        """
        for path in (self.job, self.log):
            if path.is_symlink() or (path.exists() and not path.is_file()):
                raise FileDamagedError(
                    f"{path} is no plain file. Move it away, or choose another --out."
                )

    def begin(self, job: Job) -> None:
        """Starts a new run in this folder. Raises if it has a run already."""
        self.check_plain()
        if self.is_used():
            raise CheckpointExistsError(
                f"{self.path} holds a run already; continue it with --resume, or choose another "
                f"--out."
            )
        job.save(self.job)

    def go_on(self, job: Job) -> None:
        """Resumes the run with `job`. Raises if `job` would compute something else."""
        old = self.read()
        for key, before, now in _differences(old.to_dict(), job.to_dict()):
            if key not in _MAY_CHANGE:
                raise ConfigError(
                    f"{key} is {now!r}, and the run in {self.path} has {before!r}: a run cannot "
                    f"change it. Set it back, or start a new run with another --out."
                )
        job.save(self.job)

    def read(self) -> Job:
        """Reads the job of the run."""
        self.check_plain()
        if not self.job.is_file():
            raise CheckpointMissingError(f"{self.path} holds no run: it has no {self.job.name}.")
        return read_job(self.job)


def free_folder(root: Path, name: str) -> RunFolder:
    """Returns the first of NAME, NAME-2, NAME-3 and so on without a run."""
    folder, number = RunFolder(root / name), 1
    while folder.is_used():
        number += 1
        folder = RunFolder(root / f"{name}-{number}")
    return folder


@dataclass(frozen=True, slots=True, eq=False)
class LoadedRun:
    """The model and job of a run, loaded from a checkpoint."""

    job: Job
    model: nn.Module
    step: int
    checkpoint: Path


def load_run(path: Path, *, best: bool = False, trusted: bool = False) -> LoadedRun:
    """Loads the model of a run from its newest checkpoint, or from the one of the lowest test loss.

    `trusted` is passed to `hr.load`.
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
    """Returns the keys whose values differ, by path."""
    found: list[tuple[str, object, object]] = []
    for name in [*old, *(name for name in new if name not in old)]:
        before, now, path = old.get(name), new.get(name), f"{key}.{name}" if key else name
        if isinstance(before, dict) and isinstance(now, dict):
            found += _differences(before, now, path)
        elif before != now:
            found.append((path, before, now))
    return found
