"""`hedgerow train`, `predict` and `summary`: runs, their folders, and what is refused how."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from hedgerow.cli import app as program
from hedgerow.cli import train as train_program
from hedgerow.core.errors import (
    CheckpointExistsError,
    CheckpointMissingError,
    ConfigError,
    FileMissingError,
    HedgerowError,
    InputError,
    SaveError,
)
from hedgerow.nn.model_tables import tables_of
from hedgerow.train.checkpoints import Checkpoints
from hedgerow.train.events import read_events

JOB = """\
[data]
source = "parquet"
files = "train.parquet"
test_files = "test.parquet"
features = ["user", "item", "seen"]
dense = ["hour"]
label = "click"
batch_size = 32

[model]
dim = 4
hidden = [8]

[model.tables.item]
features = ["item", "seen"]

[train]
log_every = 5
threads = 1
"""
CLICKS = """\
[data]
source = "clicks"
batch_size = 32
steps = 10
test_steps = 2
"""


def _write(path: Path, rows: int, seed: int, **change: Any) -> None:
    random = np.random.default_rng(seed)
    users, items = random.integers(0, 9, rows), random.integers(0, 7, rows)
    columns = {
        "user": [f"u{user}" for user in users],
        "item": items,
        "seen": [list(random.integers(0, 7, random.integers(0, 3))) for _ in range(rows)],
        "hour": random.random(rows),
        "click": ((users + items) % 2).astype(np.float32),
    }
    pq.write_table(pa.table({**columns, **change}), path)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    _write(tmp_path / "train.parquet", 640, 1)
    _write(tmp_path / "test.parquet", 100, 2)
    (tmp_path / "job.toml").write_text(JOB)
    return tmp_path / "job.toml"


@pytest.fixture
def clicks(tmp_path: Path) -> Path:
    (tmp_path / "clicks.toml").write_text(CLICKS)
    return tmp_path / "clicks.toml"


def _run(*arguments: object, status: int = 0) -> str:
    """What a verb prints on stdout."""
    result = CliRunner().invoke(program.app, list(map(str, arguments)))
    if isinstance(result.exception, HedgerowError):
        raise result.exception
    assert result.exit_code == status, (result.output, result.exception)
    return result.stdout


def _status(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """Exit status and stderr of the whole program."""
    with (
        mock.patch("sys.argv", ["hedgerow", *map(str, arguments)]),
        pytest.raises(SystemExit) as ended,
    ):
        program.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code, capsys.readouterr().err


def test_a_run_leaves_everything_in_its_folder_and_says_where(job: Path, tmp_path: Path) -> None:
    said = _run("train", job, "--out", tmp_path / "run", "--epochs", 2)
    assert "deepfm on parquet: done after 40 steps, 1 280 samples" in said
    assert "this model" in said
    assert "majority        0.5000  0.69" in said
    for name in ("job.json", "checkpoints/step-000000040", "log.jsonl", "tensorboard"):
        assert (tmp_path / "run" / name).exists()
    assert f"hedgerow predict {tmp_path}/run" in said
    assert f"hedgerow train --resume --out {tmp_path}/run --epochs 3" in said


def test_predictions_are_those_of_the_trained_model(job: Path, tmp_path: Path) -> None:
    run, file = tmp_path / "run", tmp_path / "p.parquet"
    trained = json.loads(_run("train", job, "--out", run, "--epochs", 2, "--json"))
    predicted = json.loads(_run("predict", run, "--out", file, "--json"))
    assert predicted["samples"] == 100
    assert predicted["metrics"]["auc"] == trained["test"]["auc"]
    assert predicted["metrics"]["loss"] == trained["test"]["loss"]
    table = pq.read_table(file)
    assert table.column_names == ["prediction", "label"]
    labels = pq.read_table(tmp_path / "test.parquet").column("click")
    assert table.column("label").to_pylist() == labels.to_pylist()
    assert all(0 < p < 1 for p in table.column("prediction").to_pylist())
    assert not list(tmp_path.glob("**/*.part"))


@pytest.mark.timeout(120)  # a pipe without a reader would be waited for
def test_predictions_are_not_written_through_a_link_of_the_run(job: Path, tmp_path: Path) -> None:
    """The folder of a run may be a stranger's, and a link in it lead to any file of the user's."""
    run, mine = tmp_path / "run", tmp_path / "mine"
    _run("train", job, "--out", run, "--epochs", 1)
    mine.write_text("keep")
    part = run / "predictions.parquet.part"
    for make in (lambda: part.symlink_to(mine), lambda: os.mkfifo(part), part.touch):
        make()
        _run("predict", run)
        assert mine.read_text() == "keep"
        assert not part.exists()
        assert pq.read_table(run / "predictions.parquet").num_rows == 100


def test_predictions_that_cannot_be_written_name_their_file(job: Path, tmp_path: Path) -> None:
    run, file = tmp_path / "run", tmp_path / "file"
    _run("train", job, "--out", run, "--epochs", 1)
    file.write_text("mine")
    for out in (file / "p.parquet", Path("/proc/nowhere/p.parquet")):
        with pytest.raises(SaveError, match=f"{out} could not be written"):
            _run("predict", run, "--out", out)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(SaveError, match=r"p\.parquet could not be written: File too large"):
            _run("predict", run, "--out", tmp_path / "p.parquet")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert not list(tmp_path.glob("p.parquet*"))


def test_predictions_say_which_row_they_are_of(job: Path, tmp_path: Path) -> None:
    """By columns of the job or of the command line, and by number; a feature may be a key."""
    requests = [f"r{i}" for i in range(100)]
    _write(tmp_path / "test.parquet", 100, 2, request=requests)
    job.write_text(JOB.replace('label = "click"', 'label = "click"\nkeys = ["request"]'))
    _run("train", job, "--out", tmp_path / "run")
    _run("predict", tmp_path / "run", "--row-numbers")
    table = pq.read_table(tmp_path / "run" / "predictions.parquet")
    assert table.column_names == ["row", "request", "prediction", "label"]
    assert table.column("row").to_pylist() == list(range(100))
    assert table.column("request").to_pylist() == requests
    out = tmp_path / "other.parquet"
    _run("predict", tmp_path / "run", "--key", "user", "--key", "seen", "--out", out)
    given, other = pq.read_table(tmp_path / "test.parquet"), pq.read_table(out)
    assert other.column_names == ["user", "seen", "prediction", "label"]
    for name in ("user", "seen"):
        assert other.column(name).to_pylist() == given.column(name).to_pylist()
    assert other.column("prediction").equals(table.column("prediction"))
    with pytest.raises(HedgerowError, match=r"unknown column of .*'requst'"):
        _run("predict", tmp_path / "run", "--key", "requst")
    with pytest.raises(InputError, match="the key 'label' would be two columns"):
        _run("predict", tmp_path / "run", "--key", "label")


def test_synthetic_samples_have_no_key_columns(clicks: Path, tmp_path: Path) -> None:
    _run("train", clicks, "--out", tmp_path / "run")
    with pytest.raises(InputError, match="--key is 'user', and the run's data, clicks"):
        _run("predict", tmp_path / "run", "--key", "user")


def test_a_job_reads_nulls_with_fill_and_names_them_without(job: Path, tmp_path: Path) -> None:
    hours = [None if i % 7 == 0 else float(i % 24) for i in range(640)]
    _write(tmp_path / "train.parquet", 640, 1, hour=hours)
    with pytest.raises(HedgerowError, match=r"train\.parquet: column 'hour' is None in row 0") as e:
        _run("train", job, "--out", tmp_path / "bad", status=1)
    assert "`fill = {hour = 0.0}` in [data]" in str(e.value)
    job.write_text(JOB.replace("[model]\n", "[data.fill]\nhour = 12\n\n[model]\n", 1))
    assert "done after 20 steps" in _run("train", job, "--out", tmp_path / "good")


def test_a_wrong_label_ends_the_job_with_its_file_and_row(job: Path, tmp_path: Path) -> None:
    labels = [float(i % 2) for i in range(640)]
    labels[123] = 5.0
    _write(tmp_path / "train.parquet", 640, 1, click=labels)
    with pytest.raises(HedgerowError, match=r"train\.parquet: column 'click' is 5\.0 in row 123"):
        _run("train", job, "--out", tmp_path / "run", status=1)


def test_the_last_line_after_a_line_of_the_log_repeats_no_metrics(
    job: Path, tmp_path: Path
) -> None:
    """It said `loss nan auc nan`: nothing was seen since."""
    _run("train", job, "--out", tmp_path / "run", "--steps", 10)
    *_, end = read_events(tmp_path / "run" / "log.jsonl")
    assert (end["kind"], end["step"], end["why"]) == ("end", 10, "step limit")
    assert not {"loss", "auc", "ne", "calibration"} & set(end)
    _run("train", job, "--out", tmp_path / "other", "--steps", 12)
    *_, end = read_events(tmp_path / "other" / "log.jsonl")
    assert end["loss"] > 0  # two steps were not told yet


def test_tensorboard_has_the_speed(job: Path, tmp_path: Path) -> None:
    _run("train", job, "--out", tmp_path / "run")
    (file,) = (tmp_path / "run" / "tensorboard").iterdir()
    assert file.read_bytes().count(b"train/samples_per_s") == 4  # lines of the log
    assert b"eval/samples_per_s" not in file.read_bytes()


def test_files_without_labels_are_predicted_alike(job: Path, tmp_path: Path) -> None:
    run, bare = tmp_path / "run", tmp_path / "bare.parquet"
    _run("train", job, "--out", run)
    pq.write_table(pq.read_table(tmp_path / "test.parquet").drop_columns("click"), bare)
    _run("predict", run)
    said = json.loads(
        _run(
            "predict",
            run,
            "--files",
            bare,
            "--unlabelled",
            "--out",
            tmp_path / "b.parquet",
            "--json",
        )
    )
    assert said["metrics"] == {}
    labelled = pq.read_table(run / "predictions.parquet")
    unlabelled = pq.read_table(tmp_path / "b.parquet")
    assert unlabelled.column_names == ["prediction"]
    assert unlabelled.column("prediction").equals(labelled.column("prediction"))
    with pytest.raises(HedgerowError, match="'click'"):
        _run("predict", run, "--files", bare)


def test_a_resumed_run_ends_as_one_that_was_not_stopped(job: Path, tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    _run("train", job, "--out", whole, "--epochs", 2)
    said = _run("train", job, "--out", stopped, "--steps", 13)
    assert f"hedgerow train --resume --out {stopped} --steps 26" in said
    more = json.loads(
        _run("train", "--resume", "--out", stopped, "--epochs", 2, "--steps", 40, "--json")
    )
    assert (more["step"], more["samples"]) == (40, 1280)
    for run in (whole, stopped):
        _run("predict", run)
    one, two = (pq.read_table(run / "predictions.parquet") for run in (whole, stopped))
    assert one.equals(two)


def test_a_folder_with_a_run_is_refused_and_says_what_to_do(job: Path, tmp_path: Path) -> None:
    _run("train", job, "--out", tmp_path / "run", "--steps", 2)
    with pytest.raises(CheckpointExistsError, match="--resume, or choose another --out"):
        _run("train", job, "--out", tmp_path / "run")


def test_without_out_every_run_gets_a_folder_of_its_own(
    clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        _run("train", clicks, "--steps", 2)
    names = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert names == ["clicks", "clicks-2"]


def test_clicks_tell_the_best_reachable_auc(clicks: Path, tmp_path: Path) -> None:
    said = json.loads(_run("train", clicks, "--steps", 3, "--out", tmp_path / "run", "--json"))
    assert said["why"] == "step limit"
    assert 0.9 < said["baselines"]["best reachable"]["auc"] < 0.95
    assert "auc" in said["test"]


def test_a_resumed_run_keeps_what_it_computes(job: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    _run("train", job, "--out", run, "--steps", 2)
    with pytest.raises(ConfigError, match=r"model.dim is 8, and the run in .* has 4"):
        _run("train", "--resume", "--out", run, "--dim", 8)
    with pytest.raises(InputError, match="--resume needs --out"):
        _run("train", job, "--resume")
    with pytest.raises(CheckpointMissingError, match="holds no run"):
        _run("train", "--resume", "--out", tmp_path / "none")
    with pytest.raises(InputError, match="nothing to train on"):
        _run("train")


def test_an_interrupted_run_says_how_to_go_on(job: Path, tmp_path: Path) -> None:
    from hedgerow.data.table_stream import TableStream

    batches = TableStream.__iter__

    def interrupted(self: TableStream) -> Any:
        for batch in batches(self):
            signal.raise_signal(signal.SIGINT)  # as Ctrl-C does
            yield batch

    with mock.patch.object(TableStream, "__iter__", interrupted):
        said = _run("train", job, "--out", tmp_path / "run", status=1)
    assert "interrupted after 1 steps" in said
    assert f"go on with:  hedgerow train --resume --out {tmp_path}/run" in said
    assert (tmp_path / "run/checkpoints/step-000000001").is_dir()


def test_a_baseline_that_was_interrupted_or_not_tested_is_left_out(
    job: Path, clicks: Path, tmp_path: Path
) -> None:
    from hedgerow.cli.train_report import _ChangedSource

    batches = _ChangedSource.__iter__

    def interrupted(self: _ChangedSource) -> Any:
        for batch in batches(self):
            signal.raise_signal(signal.SIGINT)
            yield batch

    with mock.patch.object(_ChangedSource, "__iter__", interrupted):
        said = json.loads(_run("train", clicks, "--compare", "--out", tmp_path / "a", "--json"))
    assert said["why"] == "done"
    assert set(said["baselines"]) == {"majority", "best reachable"}
    job.write_text(JOB.replace('test_files = "test.parquet"\n', ""))
    said = json.loads(_run("train", job, "--compare", "--out", tmp_path / "b", "--json"))
    assert said["baselines"] == {}


def test_the_best_checkpoint_is_not_the_newest(job: Path, tmp_path: Path) -> None:
    from hedgerow.train.run_folder import RunFolder, load_run

    run = tmp_path / "run"
    _run("train", job, "--steps", 4, "--out", run)
    best = Checkpoints(RunFolder(run).checkpoints)
    best.save(load_run(run).model, None, {}, step=2, test_loss=0.1)
    assert (load_run(run).step, load_run(run, best=True).step) == (4, 2)
    assert json.loads(_run("predict", run, "--best", "--json"))["step"] == 2


def test_a_summary_shows_tables_and_step(job: Path, tmp_path: Path) -> None:
    _run("train", job, "--out", tmp_path / "run")
    said = _run("summary", tmp_path / "run")
    assert "deepfm on parquet, step 20" in said
    assert "item, seen" in said
    as_json = json.loads(_run("summary", tmp_path / "run", "--json"))
    assert as_json["tables"]["user"]["rows"] == 9
    assert as_json["tables"]["item"]["rows"] == 7
    assert as_json["job"]["model"]["dim"] == 4


def test_a_run_without_a_checkpoint_says_how_to_get_one(job: Path, tmp_path: Path) -> None:
    from hedgerow.train.job import read_job
    from hedgerow.train.run_folder import RunFolder

    RunFolder(tmp_path / "run").begin(read_job(job))
    with pytest.raises(CheckpointMissingError, match="no checkpoint yet; go on with"):
        _run("summary", tmp_path / "run")


def test_curves_are_left_out_where_matplotlib_is_missing(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = json.loads(_run("train", job, "--out", tmp_path / "run", "--steps", 2, "--json"))
    assert said["curves"] is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("dim = 4", "dmi = 4"), "job.toml:11: model.dmi: unknown key"),
        (("dim = 4", 'dim = "4"'), "job.toml:11: model.dim: is '4'; it must be a whole number"),
        (('"click"', '"clicked"'), "unknown column"),
        (('features = ["item", "seen"]', 'features = ["itme"]'), "job.toml:15: .*did you mean"),
        (("hidden = [8]", "hidden = [8"), "job.toml:1[0-9]: this is no TOML"),
        (('"hour"', '"seen2"'), "unknown column"),
    ],
)
def test_a_bad_configuration_is_status_2(
    job: Path, tmp_path: Path, change: tuple[str, str], said: str, capsys: Any
) -> None:
    assert change[0] in JOB
    job.write_text(JOB.replace(*change))
    code, told = _status(capsys, "train", job, "--out", tmp_path / "run")
    assert code == 2
    assert told.count("\n") == 1
    assert re.search(said, told), told
    assert not (tmp_path / "run").exists()


def test_a_missing_configuration_is_status_2(tmp_path: Path, capsys: Any) -> None:
    code, told = _status(capsys, "train", tmp_path / "none.toml")
    assert code == 2
    assert "none.toml is no file" in told


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ({"item": pa.array([0.5] * 64)}, "column 'item' holds double; a feature holds whole"),
        ({"seen": pa.array([[0.5]] * 64)}, "column 'seen' holds list<.*double"),
        ({"click": pa.array(["yes"] * 64)}, "column 'click' holds string"),
    ],
)
def test_columns_of_the_wrong_type_are_status_2(
    job: Path, tmp_path: Path, column: dict[str, Any], said: str, capsys: Any
) -> None:
    _write(tmp_path / "train.parquet", 64, 1, **column)
    code, told = _status(capsys, "train", job, "--out", tmp_path / "run")
    assert code == 2
    assert re.search(said, told), told


@pytest.mark.parametrize(
    ("rows", "column", "said"),
    [
        (64, {"click": [1.0] * 63 + [float("nan")]}, "column 'click' is nan in row 63"),
        (64, {"click": [1.0] * 63 + [None]}, "column 'click' is None in row 63"),
        (64, {"click": [2.0] * 64}, "it must lie in 0..1"),
        (0, {}, "holds no rows"),
    ],
)
def test_a_job_that_fails_over_its_data_is_status_1(
    job: Path, tmp_path: Path, rows: int, column: dict[str, Any], said: str, capsys: Any
) -> None:
    schema = {"seen": pa.array([[1]] * rows, pa.list_(pa.int64()))}
    _write(tmp_path / "train.parquet", rows, 1, **schema, **column)
    if not rows:
        table = pq.read_table(tmp_path / "train.parquet")
        pq.write_table(
            table.set_column(0, "user", pa.array([], pa.string())), tmp_path / "train.parquet"
        )
    code, told = _status(capsys, "train", job, "--out", tmp_path / "run")
    assert (code, said in told) == (1, True), told


def test_a_wrong_row_of_the_test_is_status_1_too(job: Path, tmp_path: Path, capsys: Any) -> None:
    """With a step limit the test is read after the run, for the report."""
    _write(tmp_path / "test.parquet", 64, 1, click=[2.0] * 64)
    code, told = _status(capsys, "train", job, "--out", tmp_path / "run", "--steps", 2)
    assert (code, "column 'click' is 2.0 in row 0" in told) == (1, True), told


def test_a_file_that_is_no_parquet_is_status_1(job: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "train.parquet").write_bytes(b"")
    code, told = _status(capsys, "train", job, "--out", tmp_path / "run")
    assert code == 1
    assert "train.parquet cannot be read as Parquet" in told


def test_without_a_package_index_movielens_points_at_synthetic_clicks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.toml").write_text('[data]\nsource = "movielens-100k"\ncache = "here"\n')
    failed = subprocess.CompletedProcess([], 1, stdout="", stderr="ERROR: no index")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(FileMissingError, match=r"no index.*hedgerow train --data clicks"):
        _run("train", tmp_path / "job.toml")


def test_what_the_system_refuses_is_one_line_and_status_1(
    clicks: Path, tmp_path: Path, capsys: Any
) -> None:
    code, told = _status(capsys, "train", clicks, "--steps", 1, "--out", clicks)
    assert (code, told.count("\n")) == (1, 1)
    assert "File exists" in told
    _run("train", clicks, "--steps", 1, "--out", tmp_path / "run")
    code, told = _status(capsys, "predict", tmp_path / "run", "--out", tmp_path)
    assert (code, told.count("\n")) == (1, 1)
    assert "Is a directory" in told


def test_predict_refuses_what_does_not_fit_the_run(job: Path, clicks: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    _run("train", clicks, "--steps", 2, "--out", run)
    with pytest.raises(InputError, match="its data is clicks"):
        _run("predict", run, "--files", "x.parquet")
    job.write_text(JOB.replace('test_files = "test.parquet"\n', ""))
    _run("train", job, "--out", tmp_path / "other", "--steps", 2)
    with pytest.raises(InputError, match="no test_files"):
        _run("predict", tmp_path / "other")


def test_equal_jobs_train_to_equal_models(job: Path, tmp_path: Path) -> None:
    from hedgerow.train.run_folder import load_run

    for name in ("one", "two"):
        _run("train", job, "--out", tmp_path / name, "--steps", 8)
    one, two = (load_run(tmp_path / name).model for name in ("one", "two"))
    for weight, other in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(weight, other)
    tables = zip(tables_of(one).values(), tables_of(two).values(), strict=True)
    for table, other in tables:
        ids = torch.cat([part.ids for part in table.scan()]).sort().values
        assert torch.equal(table.lookup(ids).rows, other.lookup(ids).rows)
        assert table.size() == other.size() > 0


def test_the_plan_is_printed_and_nothing_else_happens(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No data is opened and no room made; of several processes the first speaks, and waits not."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.parquet").unlink()
    rules = '[model.tables.user]\ndist_type = "continuous"\nrows = 4000000000\n'
    job.write_text(JOB.replace("[train]", rules + "[train]"))
    alone = _run("train", "--print-plan", job)
    assert "2 tables over 1 rank" in alone
    assert "id mod" in alone
    for rank in (0, 1):
        for name, value in (("RANK", rank), ("WORLD_SIZE", 4)):
            monkeypatch.setenv(name, str(value))
        said = _run("train", "--print-plan", job, "--json")
        if rank:
            assert said == ""
            continue
        plan = json.loads(said)
        tables = {table["name"]: table for table in plan["tables"]}
        user, item = tables["user"], tables["item"]
        assert user["owner"] == "id div 1000000000 if id < 4000000000, else id mod 4"
        assert (user["dist_type"], user["rows_per_rank"]) == ("continuous", 10**9)
        assert (item["owner"], item["rows"]) == ("mix64(id) mod 4", None)
        assert item["features"] == ["item", "seen"]
        assert (item["dim"], item["row_bytes"], item["state_bytes"]) == (5, 20, 20)
        assert item["ranks"] == [0, 1, 2, 3]
        assert plan["dense"]["over.deep.0.bias"] == [8]
        assert plan["dense_parameters"] > 8
    assert not (tmp_path / "runs").exists()


def test_owner_rules_of_a_job(job: Path, capsys: Any) -> None:
    job.write_text(JOB.replace("dim = 4", 'dim = 4\ndist_type = "modulo"'))
    assert _status(capsys, "train", "--print-plan", job)[0] == 2
    job.write_text(JOB.replace("dim = 4", 'dim = 4\ndist_type = "continuous"'))
    status, said = _status(capsys, "train", "--print-plan", job)
    assert status == 2
    assert "pass rows=" in said


def test_ctrl_c_that_an_import_swallows_while_ranks_join_ends_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextmanager
    def swallows() -> Iterator[None]:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        yield

    monkeypatch.setattr(train_program, "job_ranks", swallows)
    with ExitStack() as stack, pytest.raises(KeyboardInterrupt):
        train_program._joined(stack)
