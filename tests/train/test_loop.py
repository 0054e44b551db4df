"""The loop: how long it runs, what it writes, what it keeps, and what it refuses."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hedgerow as hr
from hedgerow.core.errors import CheckpointError, NotFiniteError, StateError
from hedgerow.data.source import Batch
from hedgerow.train.checkpoints import Checkpoints
from hedgerow.train.evaluate import evaluate
from hedgerow.train.loop import LoopSchedule, Trainer, TrainingProgress


class _List:
    """A source of given batches."""

    def __init__(self, batches: list[Batch]) -> None:
        self._batches, self._at = batches, 0

    def __iter__(self) -> Iterator[Batch]:
        while self._at < len(self._batches):
            self._at += 1
            yield self._batches[self._at - 1]
        self._at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self._at}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._at = state["at"]


class _Kept:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def write(self, event: Mapping[str, Any]) -> None:
        self.events.append(dict(event))

    def close(self) -> None:
        raise AssertionError("who made a sink closes it")

    def kinds(self) -> list[tuple[str, int]]:
        return [(event["kind"], event["step"]) for event in self.events]


def _model() -> nn.Module:
    torch.manual_seed(0)
    tables = [hr.Table("user", 4), hr.Table("item", 4, features=["item", "history"])]
    return hr.models.DeepFM(tables, dense=4, hidden=(8,), optimizer=hr.Adagrad(lr=0.1))


def _trainer(train: Any = None, **more: Any) -> tuple[Trainer, _Kept]:
    model, kept = _model(), _Kept()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train = train or hr.data.clicks(batch_size=32, steps=6)
    return Trainer(model, optimizer, train, sinks=[kept], **more), kept


def test_epochs_logs_and_evaluations_come_when_they_should() -> None:
    test = hr.data.clicks(batch_size=64, steps=6).held_out(64, 2)
    trainer, kept = _trainer(test=test, schedule=LoopSchedule(epochs=2, log_every=5, eval_every=4))
    outcome = trainer.run()
    assert (outcome.why, outcome.step, outcome.epoch, outcome.samples) == ("done", 12, 2, 384)
    assert kept.kinds() == [
        ("eval", 4),
        ("train", 5),
        ("eval", 6),  # of the epoch
        ("eval", 8),
        ("train", 10),
        ("eval", 12),
        ("end", 12),
    ]
    assert outcome.test == evaluate(trainer.model, test)
    assert outcome.test["samples"] == 128
    assert kept.events[1]["rows"] > 0


def test_a_step_limit_ends_a_run_and_a_higher_one_goes_on(tmp_path: Path) -> None:
    trainer, _ = _trainer(schedule=LoopSchedule(steps=4), checkpoints=Checkpoints(tmp_path))
    outcome = trainer.run()
    assert (outcome.why, outcome.step) == ("step limit", 4)
    assert outcome.checkpoint == tmp_path / "step-000000004"
    again, _ = _trainer(schedule=LoopSchedule(epochs=2), checkpoints=Checkpoints(tmp_path))
    assert again.resume()
    assert again.run().step == 12
    once, _ = _trainer(schedule=LoopSchedule(epochs=2))
    once.run()
    for weight, other in zip(once.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(weight, other)


def test_a_run_that_has_more_epochs_than_asked_for_is_done(tmp_path: Path) -> None:
    _trainer(schedule=LoopSchedule(epochs=2), checkpoints=Checkpoints(tmp_path))[0].run()
    again, _ = _trainer(schedule=LoopSchedule(epochs=1), checkpoints=Checkpoints(tmp_path))
    assert again.resume()
    outcome = again.run()
    assert (outcome.why, outcome.step) == ("done", 12)


def test_a_kill_before_the_line_of_a_checkpoint_leaves_the_log_whole(tmp_path: Path) -> None:
    def made(folder: int) -> tuple[Trainer, _Kept]:
        test = hr.data.clicks(batch_size=64, steps=6).held_out(64, 1)
        schedule = LoopSchedule(log_every=2, eval_every=2)  # a best test and a save at one step
        keep = Checkpoints(tmp_path / str(folder), every_steps=2)
        return _trainer(test=test, schedule=schedule, checkpoints=keep)

    whole, log = made(0)
    whole.run()
    saves = [step for kind, step in log.kinds() if kind == "checkpoint"]
    assert len(set(saves)) == len(saves)
    for folder, step in enumerate(saves, start=1):
        killed, before = made(folder)

        def die(step: int = step, killed: Trainer = killed) -> None:
            if killed.progress.step == step:
                raise KeyboardInterrupt
            Trainer._tell_saved(killed)

        killed._tell_saved = die  # pyright: ignore[reportAttributeAccessIssue]
        with pytest.raises(KeyboardInterrupt):
            killed.run()
        again, after = made(folder)
        assert again.resume()
        kept = again.progress.events
        again.run()
        told = before.kinds()[:kept] + after.kinds()
        assert told == log.kinds(), step


def test_an_equal_loss_is_no_better_one() -> None:
    progress = TrainingProgress()
    assert [progress.note(loss) for loss in (0.5, 0.5, float("nan"), 0.4)] == [
        True,
        False,
        False,
        True,
    ]
    progress.note(0.4)
    assert (progress.worse, progress.best_loss) == (1, 0.4)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("step", value) for value in ("x", None, 1.5, True, [1])),
        *(("best_loss", value) for value in ("x", True, [0.5])),
        *(("events", None), ("worse", 0.5)),
    ],
)
def test_progress_of_another_kind_is_refused(name: str, value: object) -> None:
    progress = TrainingProgress(step=3)
    with pytest.raises(CheckpointError, match=f"progress: {name} is "):
        progress.load_state_dict({**TrainingProgress(step=4).state_dict(), name: value})
    assert progress == TrainingProgress(step=3)


def test_early_stop_keeps_the_best_checkpoint(tmp_path: Path) -> None:
    batch = hr.data.clicks(batch_size=64, steps=1).batch(0)
    upside_down = Batch(batch.dense, batch.ids, 1 - batch.labels)  # learning makes it worse
    trainer, kept = _trainer(
        _List([batch] * 40),
        test=_List([upside_down]),
        schedule=LoopSchedule(eval_every=3, early_stop=4),
        checkpoints=Checkpoints(tmp_path, keep=1),
    )
    outcome = trainer.run()
    assert outcome.why == "early stop"
    losses = {e["step"]: e["loss"] for e in kept.events if e["kind"] == "eval"}
    best = min(losses, key=lambda step: losses[step])
    assert outcome.step == best + 12
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"step-{step:09d}" for step in (best, outcome.step)
    ]
    assert Checkpoints(tmp_path).best().name == f"step-{best:09d}"
    assert Checkpoints(tmp_path).newest() == outcome.checkpoint
    other = _model()
    hr.load(other, Checkpoints(tmp_path).best())
    assert evaluate(other, _List([upside_down]))["loss"] == losses[best]


def test_weights_of_samples_count_in_loss_and_metrics() -> None:
    batch = hr.data.clicks(batch_size=8, steps=1).batch(0)
    weights = torch.tensor([0.0, 1, 1, 0, 2, 1, 0, 3])
    weighted = Batch(batch.dense, batch.ids, batch.labels, weights)
    other = Batch(batch.dense, batch.ids, (batch.labels + (weights == 0)) % 2, weights)
    ends = []
    for one in (weighted, other):  # labels of samples without weight change nothing
        trainer, kept = _trainer(_List([one] * 5), schedule=LoopSchedule(log_every=5))
        trainer.run()
        ends.append((kept.events[0]["loss"], dict(trainer.model.named_parameters())))
    assert ends[0][0] == ends[1][0]
    for name, weight in ends[0][1].items():
        assert torch.equal(weight, ends[1][1][name])


@pytest.mark.parametrize("bad", [float("nan"), 2.0, -1.0])
def test_labels_that_are_none_stop_the_job_before_anything_changes(bad: float) -> None:
    batch = hr.data.clicks(batch_size=8, steps=1).batch(0)
    labels = batch.labels.clone()
    labels[3] = bad
    trainer, _ = _trainer(_List([Batch(batch.dense, batch.ids, labels)]))
    before = {name: weight.clone() for name, weight in trainer.model.state_dict().items()}
    with pytest.raises(hr.HedgerowError, match=r"labels.*3"):
        trainer.run()
    assert trainer.progress.step == 0
    for name, weight in trainer.model.state_dict().items():
        assert torch.equal(weight, before[name])


def test_a_model_that_diverges_says_so_and_keeps_its_last_checkpoint(tmp_path: Path) -> None:
    batch = hr.data.clicks(batch_size=8, steps=1).batch(0)
    huge = Batch(batch.dense * float("inf"), batch.ids, batch.labels)
    batches = [batch] * 4 + [huge]
    trainer, _ = _trainer(_List(batches), checkpoints=Checkpoints(tmp_path, every_steps=2))
    with pytest.raises(NotFiniteError, match="logits"):
        trainer.run()
    again, _ = _trainer(_List(batches), checkpoints=Checkpoints(tmp_path))
    assert again.resume()
    assert again.progress.step == 4


def test_a_run_outside_the_main_thread() -> None:
    trainer, _ = _trainer()
    outcomes: list[str] = []
    thread = threading.Thread(target=lambda: outcomes.append(trainer.run().why))
    thread.start()
    thread.join()
    assert outcomes == ["done"]


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    trainer, _ = _trainer()
    with pytest.raises(StateError, match="without checkpoints"):
        trainer.resume()
    fresh, _ = _trainer(checkpoints=Checkpoints(tmp_path / "none"))
    assert not fresh.resume()
    for bad in ({"epochs": 0}, {"log_every": 0}, {"steps": 0}, {"early_stop": -1}):
        with pytest.raises(hr.HedgerowError, match="at least"):
            LoopSchedule(**bad)
    for wish in (LoopSchedule(early_stop=2), LoopSchedule(eval_every=5)):
        with pytest.raises(hr.HedgerowError, match="there is no test data"):
            _trainer(schedule=wish)
    with pytest.raises(hr.HedgerowError, match="keep"):
        Checkpoints(tmp_path, keep=0)
