"""One process equals two, three and four: losses, rows, and what any of them saved."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import hedgerow as hr
from hedgerow.tables.checkpoint.manifest import seal

from . import distribute_work as work
from . import source_work
from .distribute_models import MODES, rows_of, train
from .pool import Pool

pytestmark = pytest.mark.xdist_group("distribute")
WORLDS = (1, 2, 3, 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("distribute")


@pytest.fixture(scope="module")
def pool(folder: Path) -> Iterator[Pool]:
    made = Pool(4, folder)
    yield made
    made.close()


def test_hash_routed_tables_restart_on_two_ranks_with_every_row(pool: Pool, folder: Path) -> None:
    """Table(dist_type="hash_roundrobin") -> distribute -> train -> save -> load, on 2 processes.

    Restarting hash-routed tables on more than one rank is where rows are lost elsewhere.
    """
    by_rank = pool.run(2, work.hash_routed_restart, folder)
    assert len(by_rank[0]) + len(by_rank[1]) == 50_000
    every = sorted(i for step in range(10) for i in range(step, 5000 * 64, 64))
    assert sorted(by_rank[0] + by_rank[1]) == every
    alone = hr.EmbeddingBags([hr.Table("user", 4)], optimizer=hr.Adagrad(lr=0.1))
    assert hr.load(alone, folder / "hashed").rows == {"user": 50_000}


@pytest.fixture(scope="module")
def alone() -> tuple[dict[str, list[float]], dict[str, set[int]]]:
    """Of one process: losses by optimizer, and the ids of every table."""
    models = {name: work.made(optimizer=rule) for name, rule in work.OPTIMIZERS.items()}
    found = {name: work.losses(model) for name, model in models.items()}
    return found, {name: set(rows) for name, rows in rows_of(models["sgd"]).items()}


@pytest.mark.parametrize("ranks", [2, *(pytest.param(n, marks=pytest.mark.long) for n in (3, 4))])
def test_losses_are_those_of_one_process(pool: Pool, ranks: int, alone: Any) -> None:
    pool.run(ranks, work.losses_as_on_one_process, *alone)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_rows_are_those_of_one_process(pool: Pool, ranks: int) -> None:
    pool.run(ranks, work.rows_as_on_one_process)


@pytest.mark.parametrize("ranks", [2, 3])
def test_held_updates_and_limits_see_the_total_of_all_ranks(pool: Pool, ranks: int) -> None:
    pool.run(ranks, work.held_and_clipped_as_on_one_process)


@pytest.mark.parametrize(("wire", "value"), [("fp32", float("nan")), ("fp16", 1e5)])
def test_what_is_not_finite_on_one_rank_is_refused_on_all(
    pool: Pool, wire: str, value: float
) -> None:
    pool.run(3, work.what_is_not_finite, wire, value)


def test_models_that_differ_between_ranks_are_refused(pool: Pool) -> None:
    pool.run(2, work.models_that_differ)


def test_a_distributed_model_is_used_as_a_plain_one(pool: Pool) -> None:
    pool.run(3, work.what_the_model_says)


def test_budgets_and_admission_are_of_all_ranks_together(pool: Pool, folder: Path) -> None:
    pool.run(2, work.budgets_over_ranks)
    pool.run(2, work.sightings_of_all_ranks, folder)
    alone = work.shy()
    hr.load(alone, folder / "shy")
    assert work.seen_again(alone) == [False, False]  # two filters do not become one: afresh
    hr.save(alone, folder / "shy-1")
    pool.run(2, work.go_on_counting, folder)


def _alone(folder: Path) -> tuple[float, dict[str, Any]]:
    model = work.made(optimizer=hr.Adam(lr=0.02))
    assert hr.distribute(model) is model
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    train(model, adam, range(5))
    hr.save(model, folder / "from-1", optimizer=adam, step=5)
    return train(model, adam, range(5, 10)), rows_of(model)


def _load_alone(folder: Path, saved_by: int, wanted: float) -> dict[str, Any]:
    model = work.made(optimizer=hr.Adam(lr=0.02))
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    hr.load(model, folder / f"from-{saved_by}", optimizer=adam)
    assert train(model, adam, range(5, 10)) == pytest.approx(wanted, rel=1e-5)
    return rows_of(model)


@pytest.fixture(scope="module")
def unbroken(pool: Pool, folder: Path) -> dict[int, tuple[float, list[dict[str, Any]]]]:
    """By world size: the last loss and the rows of every rank of a run that saved and went on."""
    loss, rows = _alone(folder)
    found = {1: (loss, [rows])}
    for ranks in WORLDS[1:]:
        said = pool.run(ranks, work.save_after, folder)
        found[ranks] = said[0][0], [rows for _, rows in said]
    return found


@pytest.mark.parametrize("ranks", WORLDS)
@pytest.mark.parametrize("saved_by", WORLDS)
def test_a_run_goes_on_with_any_number_of_ranks(
    pool: Pool, folder: Path, unbroken: dict[int, Any], saved_by: int, ranks: int
) -> None:
    loss, rows = unbroken[saved_by]
    if ranks == 1:
        got = [_load_alone(folder, saved_by, loss)]
    else:
        got = pool.run(ranks, work.load_and_go_on, folder, saved_by, loss)
    if ranks == saved_by:
        assert got == rows  # bit for bit
    for name in ("ads", "item", "user", "word"):
        ids = [i for of_rank in got for i in of_rank[name]]
        assert sorted(ids) == sorted(i for of_rank in rows for i in of_rank[name])


@pytest.mark.parametrize("ranks", [1, 3])
def test_another_owner_rule_needs_reroute(pool: Pool, folder: Path, ranks: int) -> None:
    for name in ("hash", "none"):
        if not (folder / name).exists():
            model = work.made(("roundrobin",) * 3)
            train(model, torch.optim.SGD(model.parameters(), lr=0.1), range(3))
            hr.save(model, folder / name)
    manifest = folder / "none" / "manifest.json"
    content = json.loads(manifest.read_text())
    content.pop("checksum")
    content["router"].pop("dist_type", None)  # as old files are: read as roundrobin
    for table in content["tables"].values():
        table.pop("dist_type", None)
    manifest.write_bytes(seal(json.dumps(content)))
    if ranks > 1:
        pool.run(ranks, work.other_rules, folder)
        return
    model, right = work.made(MODES), work.made(("roundrobin",) * 3)
    for name in ("hash", "none"):
        with pytest.raises(ValueError, match="by roundrobin, table 'ads' is now by continuous"):
            hr.load(model, folder / name)
        loaded = hr.load(model, folder / name, reroute=True)
        hr.load(right, folder / name)
        assert rows_of(model) == rows_of(right)
        assert loaded.rows == {name: len(rows) for name, rows in rows_of(right).items()}


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_save_that_fails_on_one_rank_fails_on_all(pool: Pool, folder: Path, ranks: int) -> None:
    pool.run(ranks, work.a_save_that_fails_on_one_rank, folder)


def test_a_save_over_ranks_holds_the_folder_to_its_end(pool: Pool, folder: Path) -> None:
    pool.run(2, work.another_save_is_held_off, folder)


def test_state_dicts_over_ranks_name_hr_save(pool: Pool) -> None:
    pool.run(2, work.state_dicts_are_refused)


def test_state_dicts_of_ranks_that_train_apart_warn(pool: Pool) -> None:
    pool.run(2, work.state_dicts_of_ranks_apart_warn)


@pytest.mark.parametrize("ranks", [1, 3])
def test_rows_that_do_not_add_up_are_refused(
    pool: Pool,
    folder: Path,
    unbroken: dict[int, Any],
    ranks: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert unbroken
    if ranks > 1:
        pool.run(ranks, work.rows_that_do_not_add_up, folder, 2)
        return
    monkeypatch.setattr("hedgerow.tables.checkpoint.load._Owner.choose", work.loses_one)
    with pytest.raises(hr.HedgerowError, match="rows in its files, and"):
        hr.load(work.made(optimizer=hr.Adam(lr=0.02)), folder / "from-2")


def test_every_rank_is_the_source_of_the_rows_that_it_owns(pool: Pool) -> None:
    told = pool.run(2, source_work.changed_rows_of_a_rank)
    assert [(shard, shards) for shard, shards, *_ in told] == [(0, 2), (1, 2)]
    owned = [first for _, _, first, _, _ in told]
    assert sorted(owned[0] + owned[1]) == source_work.IDS  # each rank trained half of them
    assert all(owned)
    assert sorted(told[0][3] + told[1][3]) == [7]  # one owner, though both ranks trained it
    assert [every for *_, every in told] == owned
