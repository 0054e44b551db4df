"""Jobs: what files may say, what errors point at, and what is built of them."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import hedgerow as hr
from hedgerow.core.errors import (
    ConfigError,
    ConfigMissingError,
    FileDamagedError,
    FileMissingError,
    UnknownNameError,
)
from hedgerow.core.hashing import id64
from hedgerow.data.synthetic_clicks import SyntheticClicks
from hedgerow.nn.model_tables import tables_of
from hedgerow.train.config_file import line_of, named_kinds
from hedgerow.train.job import OPTIONS, Job, job_of, read_job
from hedgerow.train.job_data import ColumnData, FileData
from hedgerow.train.job_parts import build
from hedgerow.train.run_folder import RunFolder

DOCS = Path(__file__).parents[2] / "docs" / "guides" / "jobs.md"

WHOLE = """\
[data]
source = "clicks"
batch_size = 64
steps = 20
test_steps = 2
seed = 3
users = 50
items = 30
history = 4

[model]
name = "two-tower"
dim = 8
hidden = [16,
          8]
items = ["item"]
tower_dim = 4
admit = {kind = "count", n = 2}

[model.optimizer]
kind = "adam"
lr = {kind = "polynomial", initial = 0.0, decay_steps = 20, end = 0.05}
betas = [0.8, 0.9]

[model.init]
kind = "normal"
std = 0.1

[model.tables.item]
rows = 1000
pooling = "mean"
evict = {kind = "ttl", age = "7d"}

[dense]
optimizer = "sgd"
lr = 0.1
weight_decay = 0.01

[train]
epochs = 3
steps = 50
seed = 7
log_every = 10
eval_every = 5
early_stop = 2

[checkpoint]
every_steps = 10
keep = 1
"""


def _written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(text)
    return path


def _refusal(tmp_path: Path, text: str) -> str:
    """What is said of a file, without the folder."""
    with pytest.raises(ConfigError) as caught:
        read_job(_written(tmp_path, text))
    return str(caught.value).removeprefix(f"{tmp_path}/")


def test_every_key_of_a_file_is_read(tmp_path: Path) -> None:
    job = read_job(_written(tmp_path, WHOLE))
    assert (job.data.batch_size, job.data.seed, job.train.seed) == (64, 3, 7)
    assert (job.train.epochs, job.train.steps, job.train.early_stop) == (3, 50, 2)
    assert (job.checkpoint.every_steps, job.checkpoint.keep) == (10, 1)
    assert (job.dense.optimizer, job.dense.weight_decay) == ("sgd", 0.01)
    assert job.model.admit == hr.Count(2)
    assert isinstance(job.model.optimizer, hr.Adam)
    assert job.model.optimizer.betas == (0.8, 0.9)
    assert job.model.tables["item"].evict == hr.Ttl("7d")


def test_a_job_written_to_json_reads_as_the_same_job(tmp_path: Path) -> None:
    job = read_job(_written(tmp_path, WHOLE))
    job.save(tmp_path / "job.json")
    assert read_job(tmp_path / "job.json") == job
    assert job_of(json.loads(json.dumps(job.to_dict()))) == job
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("family", ["Optimizer", "Initializer", "AdmissionRule", "Eviction"])
def test_records_of_every_name_survive_the_way_to_json_and_back(family: str) -> None:
    from hedgerow.tables import admission, eviction, initializers, optimizers

    places = [admission, eviction, initializers, optimizers]
    kind = next(vars(place)[family] for place in places if family in vars(place))
    needed = {"n": 3, "window_ids": 1000, "p": 0.5, "age": "7d", "rows": 5, "constant": 0.5}
    key = {"Optimizer": "optimizer", "Initializer": "init", "AdmissionRule": "admit"}.get(
        family, "evict"
    )
    for name, record in named_kinds(kind).items():
        fields = {f: v for f, v in needed.items() if f in record.__dataclass_fields__}
        model = {key: {"kind": name, **fields}}
        job = job_of({"data": {"source": "clicks"}, "model": model})
        assert type(getattr(job.model, key)) is record
        assert job_of(job.to_dict()) == job


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "[model.optimizer]",
            "[model.optimzer]",
            "job.toml:20: model.optimzer: unknown key; known: .*; did you mean 'optimizer'?",
        ),
        ("[dense]", "[dens]", "job.toml:34: dens: unknown key; .*; did you mean 'dense'?"),
        ("epochs = 3", "epochs = 3.5", "job.toml:40: train.epochs: is 3.5; .* a whole number"),
        ("epochs = 3", "epochs = true", "job.toml:40: train.epochs: is True; .* a whole number"),
        ("epochs = 3", "epochs = 0", "job.toml:40: train.epochs: is 0; it must be at least 1"),
        ("lr = 0.1", 'lr = "high"', "job.toml:36: dense.lr: is 'high'; it must be a number"),
        ("lr = 0.1", "lr = inf", "job.toml:36: dense.lr: is inf; it must be finite"),
        ("lr = 0.1", "lr = -0.1", "job.toml:36: dense.lr: is -0.1; it must be at least 0"),
        (
            'source = "clicks"',
            'source = "click"',
            "job.toml:2: data.source: is 'click'; .*; did you mean 'clicks'?",
        ),
        ('source = "clicks"', "", "job.toml:1: data.source: is missing; it must be one of"),
        ("two-tower", "twotower", "job.toml:12: model.name: .*did you mean 'two-tower'?"),
        ('kind = "adam"', 'kind = "adan"', "job.toml:21: model.optimizer.kind: .*mean 'adam'?"),
        ("betas", "bettas", "job.toml:23: model.optimizer.bettas: .*did you mean 'betas'?"),
        ("betas = [0.8, 0.9]", "betas = [2, 0.9]", "job.toml:20: model.optimizer: Adam.betas"),
        ("n = 2", "n = 0", "job.toml:18: model.admit: Count.n is 0; it must be at least 1"),
        ('{kind = "count", n = 2}', "3", "job.toml:18: model.admit: is 3; .* with a kind"),
        ("tables.item]", "tables.itm]", "job.toml:29: model.tables.itm: .*did you mean 'item'?"),
        ("rows = 1000", 'features = ["itm"]', "job.toml:30: model.tables.item.features: .*'item'?"),
        ('"mean"', '"men"', "job.toml:31: model.tables.item.pooling: .*did you mean 'mean'?"),
        ('items = ["item"]', "items = [1]", "job.toml:16: model.items: is 1; .* a string"),
        ('items = ["item"]', "items = 1", "job.toml:16: model.items: is 1; .* a list of strings"),
        ('items = ["item"]', 'items = ["itme"]', "job.toml:16: model.items: .*mean 'item'?"),
        ("hidden = [16,", "hidden = [0,", "job.toml:14: model.hidden: is 0; .* at least 1"),
        ("users = 50", "user = 50", "job.toml:7: data.user: .*did you mean 'users'?"),
        ("[dense]", "[dense", "job.toml:34: this is no TOML"),
        ("keep = 1", "keep = [1", "job.toml:50: this is no TOML"),
    ],
)
def test_an_error_names_file_line_and_key(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in WHOLE
    message = _refusal(tmp_path, WHOLE.replace(old, new, 1))
    assert re.match(said.replace("?", r"\?"), message), message


def test_a_key_of_the_wrong_source_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    message = _refusal(tmp_path, '[data]\nsource = "movielens-100k"\nusers = 5\n')
    assert message.startswith("job.toml:3: data.users: unknown key; known: batch_size, cache")


def test_dlrm_without_dense_numbers_is_refused_with_what_fits(tmp_path: Path) -> None:
    text = '[data]\nsource = "movielens-100k"\n[model]\nname = "dlrm"\n'
    assert "job.toml:4: model.name: is 'dlrm', which needs dense" in _refusal(tmp_path, text)


def test_tables_of_other_dims_are_for_two_towers_alone(tmp_path: Path) -> None:
    text = '[data]\nsource = "clicks"\n[model]\ndim = 8\n[model.tables.user]\ndim = 4\n'
    assert "job.toml:6: model.tables.user.dim: is 4; deepfm" in _refusal(tmp_path, text)
    job = read_job(_written(tmp_path, text.replace("dim = 8", 'name = "two-tower"')))
    assert tables_of(build(job).model)["user"].config.dim == 4


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"a": {"features": ["item"]}, "b": {"features": ["item"]}}, "to table 'a' already"),
        ({"item": {"features": ["item"]}}, "lacks 'history', whose table by default is this one"),
        ({"city": {}}, "no feature has this name"),
    ],
)
def test_tables_that_do_not_fit_the_features_are_refused(tables: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        job_of({"data": {"source": "clicks"}, "model": {"tables": tables}})


def test_a_file_that_is_missing_or_no_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigMissingError, match="no file"):
        read_job(tmp_path / "job.toml")
    (tmp_path / "job.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_job(tmp_path / "job.toml")
    (tmp_path / "job.json").write_text('{"data": ')
    with pytest.raises(ConfigError, match=r"job.json:1: this is no JSON"):
        read_job(tmp_path / "job.json")


def test_lines_are_found_behind_texts_and_lists_of_several_lines() -> None:
    text = 'a = """\n[b]\nc = 1\n"""\nd = [\n  1,\n  2,\n]\n# e\n[b]\nc.d = 2\n[[f]]\ng = 1\n'
    assert [line_of(text, tuple(path.split("."))) for path in ("a", "d", "b", "b.c", "b.c.d")] == [
        1,
        5,
        10,
        11,
        11,
    ]
    assert (line_of(text, ("f",)), line_of(text, ("h",))) == (12, 0)


def test_options_replace_keys_and_errors_name_the_option(tmp_path: Path) -> None:
    path = _written(tmp_path, WHOLE)
    values = {"--dim": 4, "--lr": 0.5, "--epochs": 9, "--batch-size": 32, "--seed": 1}
    job = read_job(path, {**values, "--steps": 5, "--model": "deepfm"} | {"--model": "two-tower"})
    assert (job.model.dim, job.model.optimizer.rate()) == (4, 0.5)
    assert (job.train.epochs, job.train.steps, job.train.seed) == (9, 5, 1)
    assert job.data.batch_size == 32
    with pytest.raises(ConfigError, match=r"^--dim: model.dim: is 0; it must be at least 1"):
        read_job(path, {"--dim": 0})
    job = job_of({}, options={"--data": "clicks", "--lr": 0.2})
    assert job.model.optimizer == hr.Adagrad(lr=0.2)
    assert set(OPTIONS) >= set(values)


def test_features_share_a_table_where_the_source_says_so() -> None:
    model = build(job_of({"data": {"source": "clicks"}})).model
    tables = {t.name: t.features for t in model.bags.tables}  # pyright: ignore
    assert tables == {"user": ("user",), "item": ("item", "history")}


def test_equal_jobs_start_equal_and_other_seeds_do_not() -> None:
    def first(seed: int) -> torch.Tensor:
        data = {"source": "clicks", "batch_size": 32, "steps": 2}
        parts = build(job_of({"data": data, "train": {"seed": seed}}))
        batch = next(iter(parts.train))
        return parts.model(batch.dense, batch.ids).detach()

    assert torch.equal(first(1), first(1))
    assert not torch.equal(first(1), first(2))


@pytest.mark.parametrize(
    ("train", "total"), [({}, 20), ({"epochs": 3}, 60), ({"epochs": 3, "steps": 50}, 50)]
)
def test_the_number_of_steps_is_known_where_the_data_is(train: dict[str, int], total: int) -> None:
    job = job_of({"data": {"source": "clicks", "steps": 20, "batch_size": 8}, "train": train})
    assert build(job).total_steps == total


def test_synthetic_data_has_a_test_of_its_own_and_a_best_auc() -> None:
    parts = build(job_of({"data": {"source": "clicks", "steps": 40, "batch_size": 8}}))
    assert isinstance(parts.test, SyntheticClicks)
    assert len(parts.test) == 2
    assert parts.best_auc is not None
    assert 0.9 < parts.best_auc < 0.95
    other = next(iter(parts.test)).ids.values
    assert not torch.equal(other, next(iter(parts.train)).ids.values)


@pytest.mark.parametrize("optimizer", ["adam", "adagrad", "sgd"])
def test_the_dense_optimizer_has_the_rate_of_the_job(optimizer: str) -> None:
    dense = {"optimizer": optimizer, "lr": 0.25, "weight_decay": 0.5}
    parts = build(job_of({"data": {"source": "clicks"}, "dense": dense}))
    (group,) = parts.optimizer.param_groups
    assert (group["lr"], group["weight_decay"]) == (0.25, 0.5)
    assert type(parts.optimizer).__name__.lower() == optimizer


def _parquet(path: Path, rows: int = 10) -> None:
    columns = {
        "user": [f"u{i % 3}" for i in range(rows)],
        "item": [f"i{i % 4}" for i in range(rows)],
        "seen": [[f"i{i % 4}"] for i in range(rows)],
        "age": [float(i) for i in range(rows)],
        "click": [i % 2 for i in range(rows)],
    }
    pq.write_table(pa.table(columns), path)


_COLUMNS = {"features": ["user", "item", "seen"], "label": "click", "dense": ["age"]}


def test_paths_are_relative_to_the_file_and_may_be_patterns(tmp_path: Path) -> None:
    for day in (1, 2):
        _parquet(tmp_path / f"day-{day}.parquet")
    text = '[data]\nsource = "parquet"\nfiles = "day-*.parquet"\ntest_files = ["day-2.parquet"]\n'
    text += 'features = ["user", "item"]\nlabel = "click"\nbatch_size = 4\n'
    job = read_job(_written(tmp_path, text))
    assert isinstance(job.data, FileData)
    assert job.data.files == (str(tmp_path / "day-*.parquet"),)
    parts = build(job)
    assert parts.total_steps == 5
    assert parts.test is not None
    assert sum(batch.samples for batch in parts.test) == 10
    with pytest.raises(FileMissingError, match="no file matches"):
        build(read_job(_written(tmp_path, text.replace("day-*", "week-*"))))


def test_strings_of_features_that_share_a_table_become_the_same_ids(tmp_path: Path) -> None:
    _parquet(tmp_path / "a.parquet")
    data = {"source": "parquet", "files": str(tmp_path / "a.parquet"), **_COLUMNS}
    tables = {"things": {"features": ["item", "seen"]}}
    for job in (
        job_of({"data": data, "model": {"tables": tables}}),
        job_of({"data": {**data, "fields": {"item": "things", "seen": "things"}}}),
    ):
        ids = next(iter(build(job).train)).ids
        assert torch.equal(ids.feature("item").values, ids.feature("seen").values)
        known = {id64(f"i{i}", field="things") for i in range(4)}
        assert set(ids.feature("item").values.tolist()) == known
        assert job.model.layout(job.data)["things"] == ("item", "seen")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"features": []}, "data.features: is empty"),
        ({"features": ["user", "user"]}, "column 'user' is named twice"),
        ({"dense": ["click"]}, "column 'click' is named twice"),
        ({"fields": {"itm": "item"}}, "data.fields: unknown feature 'itm'.*did you mean 'item'"),
    ],
)
def test_columns_are_checked_before_a_file_is_opened(change: dict[str, Any], said: str) -> None:
    data = {"source": "parquet", "files": "none.parquet", **_COLUMNS, **change}
    with pytest.raises(ConfigError, match=said):
        job_of({"data": data})


def test_a_column_that_the_file_lacks_is_told_at_once(tmp_path: Path) -> None:
    _parquet(tmp_path / "a.parquet")
    data = {"source": "parquet", "files": str(tmp_path / "a.parquet"), **_COLUMNS}
    with pytest.raises(UnknownNameError, match=r"a.parquet 'clicked'.*Did you mean 'click'"):
        build(job_of({"data": {**data, "label": "clicked"}}))


def test_two_towers_know_the_items_of_sources_that_say_them() -> None:
    job = job_of({"data": {"source": "clicks"}, "model": {"name": "two-tower"}})
    assert build(job).model.items == ("item",)
    data = {"source": "parquet", "files": "none.parquet", **_COLUMNS}
    with pytest.raises(ConfigError, match=r"model.items: is \[\]"):
        job_of({"data": data, "model": {"name": "two-tower"}})


def _documented() -> str:
    (text,) = re.findall(r"```toml\n(# A complete job.*?)```", DOCS.read_text(), re.DOTALL)
    return text


def test_the_example_of_the_docs_is_a_job(tmp_path: Path) -> None:
    job = read_job(_written(tmp_path, _documented()))
    assert job.model.tables
    assert isinstance(job.data, FileData)


def _keys(values: dict[str, Any]) -> set[str]:
    """Without the settings of optimizers and rules, which their classes explain."""
    inner = [_keys(v) for v in values.values() if isinstance(v, dict) and "kind" not in v]
    return set(values).union(*inner)


@pytest.mark.parametrize(
    "source", ["movielens-100k", "clicks", "wide-clicks", "parquet", "tfrecord", "criteo"]
)
def test_the_docs_name_every_key(source: str) -> None:
    files = {"files": ["x"]} if source in ("parquet", "tfrecord", "criteo") else {}
    columns = _COLUMNS if source in ("parquet", "tfrecord") else {}
    job: Job = job_of({"data": {"source": source, **files, **columns}})
    text = DOCS.read_text()
    for key in _keys(job.to_dict()):
        assert f"`{key}`" in text or f"`[{key}]`" in text, (
            f"docs/guides/jobs.md does not explain {key}"
        )


@pytest.mark.parametrize("features", [[], ["user", "user"]])
def test_movielens_needs_features_and_each_once(features: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"data.features: is .*name at least one, and each once"):
        job_of({"data": {"source": "movielens-100k", "features": features}})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[model.tables.""]\nfeatures = ["user"]', "job.toml:4: model.tables.: .*name is ''"),
        ("[model]\ndim = 70000", "model.tables.user: .*70000; at most"),
        ("[model.tables.user]\nrows = 5000000000", "job.toml:4: model.tables.user: .*2..32"),
        ("[train]\nseed = " + "1" * 5000, "job.toml: this cannot be read"),
        ("[train]\nseed = " + "[" * 5000, "job.toml: this cannot be read"),
        ("# \u2028 is no end of a line\n[train]\nepoch = 1", "job.toml:6: train.epoch"),
    ],
)
def test_what_no_table_or_parser_takes_is_told_with_its_place(
    tmp_path: Path, text: str, said: str
) -> None:
    told = _refusal(tmp_path, '[data]\nsource = "clicks"\n\n' + text)
    assert re.search(said, told), told


def test_a_mark_of_the_byte_order_is_no_error(tmp_path: Path) -> None:
    assert read_job(_written(tmp_path, '\ufeff[data]\nsource = "clicks"\n')).data.word == "clicks"


def test_fields_of_other_features_leave_shared_tables_alike() -> None:
    def fields(given: dict[str, str]) -> dict[str, str]:
        data = {"source": "parquet", "files": "none.parquet", **_COLUMNS, "fields": given}
        tables = {"things": {"features": ["item", "seen"]}}
        job = job_of({"data": data, "model": {"tables": tables}})
        assert isinstance(job.data, ColumnData)
        return job.data._columns(0, job.model.fields(job.data))["fields"]

    shared = {"item": "things", "seen": "things"}
    assert fields({"user": "who"}) == {**shared, "user": "who"}
    assert fields({"seen": "item"}) == {"seen": "item"}  # strings of items are hashed as such


def test_rows_beyond_the_memory_of_a_job_are_in_files(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    told = {"memory": "400KiB", "rows_in": "rows"}
    (tmp_path / "job.json").write_text(json.dumps(_clicks_with_rows(told)))
    model = build(read_job(tmp_path / "job.json")).model
    kinds = {name: type(table).__name__ for name, table in tables_of(model).items()}
    assert kinds == {"item": "HostTable", "user": "HybridTable"}


@pytest.mark.parametrize("told", [{"memory": "1GiB"}, {"rows_in": "."}])
def test_memory_and_folder_of_a_job_go_together(told: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="both are needed to keep rows in files"):
        build(job_of(_clicks_with_rows(told)))


def _clicks_with_rows(train: dict[str, str]) -> dict[str, Any]:
    tables = {"user": {"rows": 50_000}, "item": {"rows": 100}}
    return {"data": {"source": "clicks"}, "model": {"tables": tables}, "train": train}


@pytest.mark.timeout(60)  # a pipe without a writer would be waited for
@pytest.mark.parametrize("name", ["job.json", "log.jsonl"])
@pytest.mark.parametrize("kind", ["link", "link to nothing", "pipe", "device", "folder"])
def test_a_run_has_plain_files_alone(tmp_path: Path, name: str, kind: str) -> None:
    """A log is cut where a run goes on: through a link that would be someone's file."""
    job = job_of({"data": {"source": "clicks"}})
    run, mine = RunFolder(tmp_path / "run"), tmp_path / "mine"
    for begun in (False, True):
        run.path.mkdir()
        mine.write_text("keep")
        if begun:
            run.begin(job)
        path = run.path / name
        path.unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        else:
            targets = {"link": mine, "device": Path("/dev/zero")}
            path.symlink_to(targets.get(kind, tmp_path / "nothing"))
        for call in (run.read, lambda: run.go_on(job), lambda: run.begin(job)):
            with pytest.raises(FileDamagedError, match=f"{name} is no plain file"):
                call()
        assert mine.read_text() == "keep"
        assert not (tmp_path / "nothing").exists()
        shutil.rmtree(run.path)
