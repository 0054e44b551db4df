"""Event files, read back by TensorBoard's own reader."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader

from hedgerow.core.clock import ManualClock
from hedgerow.data.tfrecord_format import payloads
from hedgerow.train.events import TensorBoard


def _train(step: int, loss: float) -> dict[str, float | int | str]:
    return {"kind": "train", "step": step, "samples": 8 * step, "seconds": 1.5, "loss": loss}


def _read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    reader = EventAccumulator(str(folder))
    reader.Reload()
    return {
        tag: [(event.step, event.value) for event in reader.Scalars(tag)]
        for tag in reader.Tags()["scalars"]
    }


def test_tensorboard_reads_scalars_by_kind_and_name(tmp_path: Path) -> None:
    log = TensorBoard(tmp_path / "new" / "folder", clock=ManualClock(1_700_000_000))
    log.write(_train(1, 0.75))
    log.write({"kind": "eval", "step": 1, "samples": 8, "seconds": 2.0, "auc": 0.5, "rows": 2**40})
    log.write({"kind": "checkpoint", "step": 1, "samples": 8, "seconds": 2.5, "path": "here"})
    log.write(_train(2**40, 0.25))
    log.close()
    log.close()
    assert _read(tmp_path / "new" / "folder") == {
        "train/loss": [(1, 0.75), (2**40, 0.25)],
        "eval/auc": [(1, 0.5)],
        "eval/rows": [(1, 2.0**40)],
    }
    reader = EventAccumulator(str(tmp_path / "new" / "folder"))
    reader.Reload()
    assert reader.FirstEventTimestamp() == 1_700_000_000
    assert {event.wall_time for event in reader.Scalars("train/loss")} == {1_700_000_000}


def test_events_are_readable_while_the_job_runs(tmp_path: Path) -> None:
    log = TensorBoard(tmp_path)
    reader = EventAccumulator(str(tmp_path))
    for step in range(3):
        log.write(_train(step, step / 4))
        reader.Reload()
        assert [event.value for event in reader.Scalars("train/loss")][-1] == step / 4
    log.close()


def test_odd_numbers_come_back(tmp_path: Path) -> None:
    log = TensorBoard(tmp_path)
    for step, value in enumerate([math.nan, math.inf, 1e300, -0.1, 7]):
        log.write(_train(step, value))
    log.close()
    values = [value for _, value in _read(tmp_path)["train/loss"]]
    np.testing.assert_array_equal(values, [math.nan, math.inf, math.inf, np.float32(-0.1), 7])


@pytest.mark.parametrize("seconds_between", [0, 5])
def test_a_resumed_job_replaces_what_came_after_its_checkpoint(
    tmp_path: Path, seconds_between: int
) -> None:
    clock = ManualClock(100)
    for from_step, steps in ((None, (1, 2, 3, 4)), (2, (3, 4, 5))):
        log = TensorBoard(tmp_path, from_step, clock=clock)
        for step in steps:
            log.write(_train(step, step + (0 if from_step is None else 100)))
        log.close()
        clock.advance(seconds_between)
    assert _read(tmp_path) == {"train/loss": [(1, 1), (2, 2), (3, 103), (4, 104), (5, 105)]}


def test_a_new_job_in_the_same_folder_starts_over(tmp_path: Path) -> None:
    for value in (1, 2):
        log = TensorBoard(tmp_path)
        log.write(_train(value, value))
        log.close()
    assert len(list(tmp_path.iterdir())) == 2
    assert _read(tmp_path) == {"train/loss": [(2, 2)]}


def test_the_first_event_names_the_version_and_frames_are_whole(tmp_path: Path) -> None:
    log = TensorBoard(tmp_path)
    log.write(_train(1, 0.5))
    log.close()
    (path,) = tmp_path.iterdir()
    assert "tfevents" in path.name
    with path.open("rb") as file:
        ours = [payload for _, payload in payloads(file, path.name)]
    assert b"brain.Event:2" in ours[0]
    assert list(RawEventFileLoader(str(path)).Load()) == ours
