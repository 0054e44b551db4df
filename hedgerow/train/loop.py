"""The training loop: steps, logs, evaluations, checkpoints, and resuming."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol

import torch
from torch import nn

from ..core import checks
from ..core.errors import CheckpointError, ConfigError, StateError
from ..data.source import Batch, Source
from ..nn.embedding_modules import collections_of
from ..nn.saving import Stateful
from .checkpoints import Checkpoints, step_name
from .evaluate import device_of, evaluate
from .events import Sink
from .metrics import BinaryMetrics, DeferredMetrics
from .run_ranks import RunRanks


class RunHook(Protocol):
    """A hook that the training loop calls on every rank, in the same order.

    >>> class Counts:
    ...     steps = 0
    ...     def on_start(self, model, optimizer, step): self.steps = step
    ...     def after_step(self, step, samples): self.steps = step
    >>> import torch, hedgerow as hr
    >>> from hedgerow.train.loop import Trainer
    >>> model, counts = hr.models.DeepFM([hr.Table("user", 4)], dense=4), Counts()
    >>> optimizer = torch.optim.Adam(model.parameters())
    >>> source = hr.data.clicks(batch_size=64, steps=3)
    >>> _ = Trainer(model, optimizer, source, hooks=[counts]).run()
    >>> counts.steps
    3
    """

    def on_start(self, model: nn.Module, optimizer: Any, step: int) -> None:
        """Called before the first step of `Trainer.run`.

        `step` is the number of steps taken before.
        """
        ...

    def after_step(self, step: int, samples: int) -> object:
        """Called after each step. `step` and `samples` count over the whole training.

        The training loop ignores the result.
        """
        ...


@dataclass(slots=True)
class TrainingProgress:
    """The counters of the loop, and the best evaluation so far.

    >>> one, two = TrainingProgress(step=3, best_loss=0.5), TrainingProgress()
    >>> two.load_state_dict(one.state_dict())
    >>> two.step, two.best_loss
    (3, 0.5)
    """

    step: int = 0
    epoch: int = 0
    samples: int = 0
    evaluated_at: int = -1  # the step of the last evaluation
    best_loss: float | None = None
    worse: int = 0  # evaluations since the best one
    events: int = 0  # events written to the sinks

    def state_dict(self) -> dict[str, Any]:
        """Returns the fields."""
        return asdict(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the result of `state_dict`."""
        names = {field.name for field in fields(self)}
        if set(state_dict) != names:
            raise CheckpointError(f"{state_dict!r} is not a progress; it must have {names}.")
        for name, value in state_dict.items():
            of_loss = name == "best_loss"
            if not (type(value) is int or (of_loss and (value is None or type(value) is float))):
                kind = "a number or None" if of_loss else "a whole number"
                raise CheckpointError(f"progress: {name} is {value!r:.80}; it must be {kind}.")
        for name, value in state_dict.items():
            setattr(self, name, value)

    def note(self, loss: float) -> bool:
        """Records the loss of an evaluation and returns whether it is the best so far."""
        self.evaluated_at = self.step
        better = loss == loss and (self.best_loss is None or loss < self.best_loss)
        self.best_loss = loss if better else self.best_loss
        self.worse = 0 if better else self.worse + 1
        return better


class RandomState:
    """The state of torch's default generator, which dropout and other modules draw from."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the generator."""
        return {"torch": torch.get_rng_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the result of `state_dict`."""
        torch.set_rng_state(state_dict["torch"])


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignal:
    """Catches the first SIGINT or SIGTERM in its `with` block and sets `wanted`.

    A second signal has its usual effect. Outside the main thread, where Python catches no signals,
    it does nothing.

    >>> with StopSignal() as stop:
    ...     stop.wanted
    False
    """

    def __init__(self) -> None:
        self.wanted = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._stop) for number in _SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.wanted = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}


@dataclass(frozen=True, slots=True)
class LoopSchedule:
    """The length of a run, and how often it logs and evaluates.

    `steps` limits the steps over all epochs. An evaluation runs every `eval_every` steps and at the
    end of every epoch. The run ends after `early_stop` evaluations in a row without a lower test
    loss; 0 disables this.
    """

    epochs: int = 1
    steps: int | None = None
    log_every: int = 100
    eval_every: int | None = None
    early_stop: int = 0

    def __post_init__(self) -> None:
        checks.whole("Schedule", "epochs", self.epochs, least=1)
        checks.whole("Schedule", "log_every", self.log_every, least=1)
        checks.whole("Schedule", "early_stop", self.early_stop)
        for name in ("steps", "eval_every"):
            if getattr(self, name) is not None:
                checks.whole("Schedule", name, getattr(self, name), least=1)

    def check_test(self, there: bool) -> None:
        """Raises `ConfigError` if a setting needs test data and there is none."""
        for name in ("early_stop", "eval_every"):
            if getattr(self, name) and not there:
                raise ConfigError(
                    f"{name} is {getattr(self, name)}, and there is no test data; give "
                    f"some, or leave {name} out."
                )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run. `why` is "done", "step limit", "early stop" or "interrupted"."""

    why: str
    step: int
    epoch: int
    samples: int
    test: dict[str, float]  # of the last evaluation of this process
    checkpoint: Path | None


class Trainer:
    """Trains a model on a source. Single-owner.

    After any interruption, `resume` continues the run from its newest checkpoint. The run then ends
    with the same bits as a run without interruption: rows, weights, states and metrics.

    For a distributed model (`hr.distribute`), every rank creates a trainer with the same source and
    takes its share of every batch. Sinks are written on rank 0, and all ranks end together. `hooks`
    (`hedgerow.train.loop.RunHook`) are called on every rank, before the first step and after each
    step.

    >>> import hedgerow as hr
    >>> model = hr.models.DeepFM([hr.Table("user", 4), hr.Table("item", 4)], dense=4)
    >>> optimizer = torch.optim.Adam(model.parameters())
    >>> trainer = Trainer(model, optimizer, hr.data.clicks(batch_size=64, steps=20))
    >>> outcome = trainer.run()
    >>> outcome.why, outcome.step, outcome.samples
    ('done', 20, 1280)
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        train: Source,
        *,
        test: Source | None = None,
        schedule: LoopSchedule | None = None,
        checkpoints: Checkpoints | None = None,
        sinks: Sequence[Sink] = (),
        hooks: Sequence[RunHook] = (),
    ) -> None:
        self.model, self.optimizer, self.train, self.test = model, optimizer, train, test
        self.schedule = schedule or LoopSchedule()
        self.schedule.check_test(test is not None)
        self.checkpoints = checkpoints
        self.sinks, self.hooks = list(sinks), list(hooks)
        self.progress = TrainingProgress()
        self._ranks = RunRanks(model)
        self._device = device_of(model)
        self._metrics = BinaryMetrics()  # of this rank, since the last line of the log
        self._late = DeferredMetrics(self._metrics)
        self._collections = collections_of(model)
        self._tested: dict[str, float] = {}
        self._saved: Path | None = None
        self._goes_on = False
        self._began_s = time.perf_counter()

    def resume(self) -> bool:
        """Loads the newest checkpoint. Returns False if there is none."""
        if self.checkpoints is None:
            raise StateError("resume of a trainer without checkpoints; give it some.")
        if not self._ranks.first(self.checkpoints.any()):
            return False
        self._saved = self.checkpoints.load_newest(self.model, self.optimizer, self._extras())
        self._ranks.taken_up(self._metrics)
        self._goes_on = True
        return True

    def run(self) -> Outcome:
        """Trains to the end of the schedule.

        Ctrl-C or SIGTERM saves a checkpoint and ends it early.
        """
        self.model.train()
        self._began_s = time.perf_counter()
        if self._goes_on:
            self._tell_saved()
        for hook in self.hooks:
            hook.on_start(self.model, self.optimizer, self.progress.step)
        with StopSignal() as stop, self._ranks.whole_batches():
            why = self._epochs(stop)
        at = self.progress
        if not self._is_saved():
            self._save()
        found = self._measured()
        # The metrics are empty if the last step was logged.
        self._write("end", {"why": why, **(found if found["samples"] else {})})
        return Outcome(why, at.step, at.epoch, at.samples, self._tested, self._saved)

    def _epochs(self, stop: StopSignal) -> str:
        """Trains all epochs and returns why the run ends."""
        while True:
            why = self._why_over()
            if why is None and self.progress.epoch >= self.schedule.epochs:
                why = "done"
            why = why or self._epoch(stop)
            if why is not None:
                return why

    def _epoch(self, stop: StopSignal) -> str | None:
        """Trains the remaining batches of an epoch.

        Returns why the run ends, or None if it goes on.
        """
        every, at = self.schedule.eval_every, self.progress
        for batch in self.train:
            self._step(batch)
            if at.step % self.schedule.log_every == 0:
                self._log()
            if every is not None and at.step % every == 0:
                self._evaluate()
            if self._is_save_due():
                self._save()
            why = "interrupted" if self._ranks.any(stop.wanted) else self._why_over()
            if why is not None:
                return why
        at.epoch += 1  # before an evaluation saves: the source is at its start again
        if at.evaluated_at != at.step:
            self._evaluate()
        return "interrupted" if self._ranks.any(stop.wanted) else None

    def _why_over(self) -> str | None:
        at, schedule = self.progress, self.schedule
        if schedule.steps is not None and at.step >= schedule.steps:
            return "step limit"
        if schedule.early_stop and at.worse >= schedule.early_stop:
            return "early stop"
        return None

    def _step(self, batch: Batch) -> None:
        share = self._ranks.share(batch).to(self._device, non_blocking=True)
        logits = self.model(share.dense, share.ids)
        self._late.update(logits, share.labels, share.weights)  # raises for non-finite values
        loss = self._ranks.loss(logits, share, share if self._ranks.count == 1 else batch)
        self.optimizer.zero_grad()
        loss.backward()  # rows update here
        self.optimizer.step()
        self.progress.step += 1
        self.progress.samples += batch.samples
        for hook in self.hooks:
            hook.after_step(self.progress.step, self.progress.samples)

    def _log(self) -> None:
        self._write("train", self._measured())
        self._metrics.reset()

    def _measured(self) -> dict[str, float]:
        """Returns the metrics since the last line of the log, on all ranks."""
        self._late.settle()
        return self._ranks.metrics(self._metrics).result()

    def _evaluate(self) -> None:
        if self.test is None:
            return
        self._tested = evaluate(self.model, self.test)
        is_best = self.progress.note(self._tested["loss"])
        self._write("eval", self._tested)
        if is_best:
            self._save(self._tested["loss"])

    def _save(self, test_loss: float | None = None) -> None:
        if self.checkpoints is None:
            return
        self._late.settle()
        self._ranks.hand_over(self._metrics)
        self._saved = self.checkpoints.save(
            self.model,
            self.optimizer,
            self._extras(),
            step=self.progress.step,
            test_loss=test_loss,
        )
        self._tell_saved()

    def _tell_saved(self) -> None:
        """Writes the checkpoint event.

        A resumed run writes it again, because a kill may have come first.
        """
        self._goes_on = False
        self._write("checkpoint", {"path": str(self._saved)})

    def _is_saved(self) -> bool:
        return self._saved is not None and self._saved.name == step_name(self.progress.step)

    def _is_save_due(self) -> bool:
        """Whether to save after this step. A best evaluation may have saved it already."""
        due = self.checkpoints is not None and self.checkpoints.due(self.progress.step)
        return due and not self._is_saved()

    def _extras(self) -> dict[str, Stateful]:
        return {
            "progress": self.progress,
            "metrics": self._metrics,
            "source": self.train,
            "random": RandomState(),
        }

    def _rows(self) -> int:
        """Returns the rows of all ranks, or of all servers, which only the first worker asks."""
        on_servers = any(one.servers is not None for one in self._collections)
        counted = self._collections if self._ranks.is_first or not on_servers else ()
        return self._ranks.total(sum(sum(one.row_counts().values()) for one in counted))

    def _write(self, kind: str, values: Mapping[str, float | int | str]) -> None:
        at = self.progress
        event = {
            "kind": kind,
            "step": at.step,
            "epoch": at.epoch,
            "samples": at.samples,
            "seconds": round(time.perf_counter() - self._began_s, 3),
            "rows": self._rows(),
        }
        at.events += 1
        # "samples" of the metrics counts since the last log line, and the event has the total.
        more = {name: value for name, value in values.items() if name != "samples"}
        for sink in self.sinks if self._ranks.is_first else ():
            sink.write({**event, **more})
