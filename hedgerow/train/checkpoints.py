"""Writes, keeps and finds the checkpoints of a run."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..core import checks
from ..core.errors import CheckpointError, CheckpointMissingError
from ..core.files import local_path
from ..nn.checkpoints import load, save
from ..nn.distribute import workers_of
from ..nn.embedding_modules import collections_of, dense_only, dense_state, servers_of
from ..nn.saving import Stateful
from ..tables.checkpoint.chain import newest
from ..tables.checkpoint.manifest_reader import read_manifest

_TEST_LOSS = "test_loss"


class Checkpoints:
    """The checkpoints of one run, in folders named after their steps. Single-owner.

    A checkpoint is written every `every_steps` steps and at each new lowest test loss. The newest
    `keep` checkpoints and the best one are kept.

    >>> import tempfile, hedgerow as hr
    >>> model = hr.EmbeddingBags([hr.Table("user", 2)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     kept = Checkpoints(folder, keep=1)
    ...     for step, loss in ((1, 0.4), (2, 0.3), (3, 0.5)):
    ...         _ = kept.save(model, None, {}, step=step, test_loss=loss)
    ...     kept.newest().name, kept.best().name
    ('step-000000003', 'step-000000002')
    """

    def __init__(
        self,
        folder: str | PathLike[str],
        *,
        every_steps: int | None = None,
        keep: int = 2,
        trusted: bool = False,
    ) -> None:
        self.folder, self._trusted = local_path(folder), trusted
        if every_steps is not None:
            checks.count("every_steps", every_steps, least=1)
        self._every_steps, self._keep = every_steps, checks.count("keep", keep, least=1)

    def due(self, step: int) -> bool:
        """Whether a checkpoint is due after this step."""
        return self._every_steps is not None and step % self._every_steps == 0

    def save(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        extras: Mapping[str, Stateful],
        *,
        step: int,
        test_loss: float | None = None,
    ) -> Path:
        """Writes a checkpoint and removes old ones. All ranks of a model must call it together.

        If the rows are on servers, the first worker writes the checkpoint and the others wait.
        """
        path = self.folder / step_name(step)
        known = _test_loss(path) if test_loss is None else test_loss  # maybe saved at this step
        metadata = {} if known is None else {_TEST_LOSS: known}
        ranks, by_one = workers_of(model), servers_of(model) is not None

        def write() -> None:
            save(
                model,
                path,
                optimizer=optimizer,
                extras=extras,
                step=step,
                metadata=metadata,
                overwrite=True,
            )

        if not by_one:  # the save synchronizes the ranks itself
            write()
        else:
            ranks.together("the save", write if ranks.rank == 0 else _nothing)
        if ranks.rank == 0:
            self._remove_old()
        return path

    def newest(self) -> Path:
        """Returns the checkpoint of the highest step."""
        return newest(self.folder)

    def best(self) -> Path:
        """Returns the checkpoint of the lowest test loss, or the newest one if none was tested."""
        tested = {path: loss for path in self._every() if (loss := _test_loss(path)) is not None}
        return min(tested, key=lambda path: (tested[path], path)) if tested else self.newest()

    def any(self) -> bool:
        """Whether there is a checkpoint."""
        return bool(self._every())

    def load_newest(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        extras: Mapping[str, Stateful],
    ) -> Path:
        """Restores everything from the newest checkpoint, which rank 0 chooses."""
        ranks = workers_of(model)
        choose = self.newest if ranks.rank == 0 else (lambda: self.folder)
        path = ranks.together("the choice of a checkpoint", choose)[0]
        if servers_of(model) is None:
            load(model, path, optimizer=optimizer, extras=extras, trusted=self._trusted)
            return path

        def bring() -> dict[str, Any] | None:  # servers load their rows once, not once per worker
            if ranks.rank:
                return None
            load(model, path, optimizer=optimizer, extras=extras, trusted=self._trusted)
            return _state_of(model, optimizer, extras)

        state = ranks.together("the load", bring)[0]
        if ranks.rank and state is not None:
            _take_state(state, model, optimizer, extras)
        return path

    def _every(self) -> list[Path]:
        found = [path for path in self.folder.glob("step-*") if _is_complete(path)]
        return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))

    def _remove_old(self) -> None:
        every = self._every()
        for path in set(every[: -self._keep]) - {self.best()}:
            shutil.rmtree(path)


def _nothing() -> None:
    """Does nothing, on the other workers."""


def _state_of(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, extras: Mapping[str, Stateful]
) -> dict[str, Any]:
    """Returns all state except the rows, which one worker sends to the others."""
    return {
        "weights": dense_state(model),
        "optimizer": None if optimizer is None else optimizer.state_dict(),
        "extras": {name: one.state_dict() for name, one in extras.items()},
        "updates": [one.updates.step for one in collections_of(model)],
    }


def _take_state(
    state: Mapping[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    extras: Mapping[str, Stateful],
) -> None:
    if optimizer is not None:
        optimizer.load_state_dict(state["optimizer"])
    for name, one in extras.items():
        one.load_state_dict(state["extras"][name])
    with dense_only(model) as inner:
        inner.load_state_dict(state["weights"])
    for one, step in zip(collections_of(model), state["updates"], strict=True):
        one.updates.step = step


def step_name(step: int) -> str:
    """Returns the name of a checkpoint's folder."""
    return f"step-{step:09d}"


def _is_complete(path: Path) -> bool:
    try:
        read_manifest(path)
    except CheckpointMissingError:
        return False
    return path.name.removeprefix("step-").isdecimal()


def _test_loss(path: Path) -> float | None:
    try:
        about = read_manifest(path).metadata
    except CheckpointMissingError:
        return None
    user = about.get("user", {})
    if not isinstance(user, dict):
        raise CheckpointError(f"{path}: metadata.user is {user!r}; it must be an object.")
    loss = user.get(_TEST_LOSS)
    if loss is not None and not isinstance(loss, float | int):
        raise CheckpointError(f"{path} has the test loss {loss!r}; it must be a number.")
    return loss
