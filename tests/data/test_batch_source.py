"""Sources in a DataLoader, and what they are told of ranks and workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader

import hedgerow as hr
from hedgerow.core.errors import DtypeError, InputError, StateError
from hedgerow.core.process_state import JobRank, launcher
from hedgerow.data import BatchSource
from hedgerow.data.source import whole_batches

ROWS = 250


@pytest.fixture
def file(tmp_path: Path) -> Path:
    table = pa.table({"user": range(ROWS), "click": [row % 2 for row in range(ROWS)]})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=64)
    return tmp_path / "rows.parquet"


def _parquet(file: Path) -> BatchSource:
    return hr.data.parquet(file, 16, features=["user"], label="click", window_rows=50)


def _clicks(file: Path) -> BatchSource:
    return hr.data.clicks(batch_size=16, steps=7)


def _ids(batches: object) -> list[list[int]]:
    return [batch.ids.values.tolist() for batch in batches]  # pyright: ignore[reportGeneralTypeIssues]


KINDS = pytest.mark.parametrize("make", [_parquet, _clicks])


@KINDS
def test_a_data_loader_without_workers_gives_the_batches_of_the_source(
    make: Callable[[Path], BatchSource], file: Path
) -> None:
    assert _ids(DataLoader(make(file), batch_size=None)) == _ids(make(file))
    assert _ids(DataLoader(make(file), batch_size=None, num_workers=1)) == _ids(make(file))


@KINDS
def test_workers_that_the_source_was_not_told_of_are_refused(
    make: Callable[[Path], BatchSource], file: Path
) -> None:
    with pytest.raises(StateError, match=r"Call source\.share\(workers=2\)"):
        list(DataLoader(make(file), batch_size=None, num_workers=2))
    with pytest.raises(StateError, match="was told of 3 workers"):
        list(DataLoader(make(file).share(workers=3), batch_size=None, num_workers=2))


@KINDS
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_that_were_told_give_every_batch_once_and_in_order(
    make: Callable[[Path], BatchSource], file: Path, start: str
) -> None:
    source = make(file).share(workers=2)
    loader = DataLoader(source, batch_size=None, num_workers=2, multiprocessing_context=start)
    assert _ids(loader) == _ids(make(file))
    assert _ids(source) == _ids(make(file))  # in this process it has no workers


def test_workers_that_stay_go_on_to_the_order_of_the_next_epoch(file: Path) -> None:
    source = _parquet(file).share(workers=2)
    loader = DataLoader(source, batch_size=None, num_workers=2, persistent_workers=True)
    plain = _parquet(file)
    for _ in range(3):
        ids = _ids(loader)
        assert ids == _ids(plain)
        assert sorted(chain.from_iterable(ids)) == list(range(ROWS))


def test_a_rank_and_its_workers_together_read_each_sample_once(file: Path) -> None:
    found = []
    for rank in range(3):
        source = _parquet(file).share(rank, 3, workers=2)
        found.append(_ids(DataLoader(source, batch_size=None, num_workers=2)))
    assert [list(chain.from_iterable(parts)) for parts in zip(*found, strict=True)] == _ids(
        _parquet(file)
    )


@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_a_worker_that_cannot_ask_torch_takes_the_rank_of_the_process_it_serves(
    start: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only this process knows its rank, as where torch.multiprocessing started it."""
    told_early = _parquet(file).share()
    monkeypatch.setattr(launcher, "rank", lambda: JobRank(1, 2))

    def read(source: BatchSource) -> list[list[int]]:
        loader = DataLoader(source, batch_size=None, num_workers=1, multiprocessing_context=start)
        return _ids(loader)

    with pytest.raises(StateError, match=r"is read on rank 1 of 2 without source\.share\(\)"):
        read(_parquet(file))
    assert read(told_early) == _ids(_parquet(file).share(1, 2))


class _Position(BatchSource):
    """Asks for the position in a worker."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass

    def _numbered(self):  # noqa: ANN202
        hr.data.clicks(batch_size=2, steps=2).state_dict()
        yield from ()


def test_one_of_several_workers_has_no_position() -> None:
    loader = DataLoader(_Position().share(workers=2), batch_size=None, num_workers=2)
    with pytest.raises(StateError, match="the position of worker 0 of 2 is not that of the whole"):
        list(loader)


def test_what_cannot_be_shared_is_refused(file: Path) -> None:
    source = _parquet(file)
    with pytest.raises(InputError, match="rank 1 and of None; give both, or neither"):
        source.share(1)
    with pytest.raises(InputError, match=r"rank 2 of 2; rank must lie in 0\.\.1"):
        source.share(2, 2)
    with pytest.raises(DtypeError, match=r"workers is 1\.5"):
        source.share(workers=1.5)  # pyright: ignore[reportArgumentType]
    with whole_batches(), pytest.raises(StateError, match="part 1 of 2 of every batch"):
        iter(source.share(1, 2))


def test_a_resumed_source_gives_its_workers_the_rest(file: Path) -> None:
    plain = _parquet(file)
    reading = iter(plain)
    for _ in range(3):
        next(reading)
    position = plain.state_dict()
    resumed = _parquet(file).share(workers=2)
    resumed.load_state_dict(position)
    assert _ids(DataLoader(resumed, batch_size=None, num_workers=2)) == _ids(reading)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_loader_of_default_settings_gives_the_batches_of_the_source(workers: int) -> None:
    source = hr.data.clicks(batch_size=8, steps=3)
    plain = [batch.labels.tolist() for batch in hr.data.clicks(batch_size=8, steps=3)]
    found = [batch.labels.tolist() for batch in DataLoader(source, num_workers=workers)]
    assert found == plain


def test_a_data_loader_that_collects_batches_is_told_to_take_them_whole() -> None:
    loader = DataLoader(hr.data.clicks(batch_size=8, steps=4), batch_size=2)
    with pytest.raises(InputError, match=r"collects 2 batches .* batch_size=None"):
        next(iter(loader))
