"""Modules over tables on a device: the numbers of host tables, in steps that wait for nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import hedgerow as hr
from hedgerow.core.errors import StateError
from hedgerow.core.id_batch import Cut, IdBatch

from ..waiting import without_waiting

ROOM = {"user": 64, "item": 64, "word": 64}


def _bags(**more: Any) -> hr.EmbeddingBags:
    tables = [
        hr.Table("user", 4, optimizer=hr.Sgd(lr=0.1)),
        hr.Table("item", 6, features=["item", "seen"], pooling="mean", optimizer=hr.Adagrad(0.1)),
        hr.Table("word", 3, pooling="sqrtn", optimizer=hr.Adam(lr=0.1)),
    ]
    return hr.EmbeddingBags(tables, init=hr.Uniform(0.5), seed=3, **more)


def _batch(seed: int, weighted: bool = False) -> IdBatch:
    random = torch.Generator().manual_seed(seed)
    lists: dict[str, list[list[int]]] = {}
    for name, most in (("user", 1), ("item", 3), ("seen", 4), ("word", 5)):
        sizes = torch.randint(0, most + 1, (6,), generator=random).tolist()
        lists[name] = [torch.randint(0, 12, (n,), generator=random).tolist() for n in sizes]
    if not weighted:
        return IdBatch.from_lists(lists)
    weights = {n: [[0.5 + i for i in range(len(row))] for row in lists[n]] for n in lists}
    return IdBatch.from_lists(lists, weights)


def _placed(device: torch.device, **settings: Any) -> hr.EmbeddingBags:
    bags = _bags()
    bags.place(device, capacity_rows=ROOM, **settings)
    return bags


def _there(batch: IdBatch, device: torch.device) -> IdBatch:
    """On the device, also where the CPU stands in for one."""
    if device.type == "cuda":
        return batch.to(device)
    return IdBatch(
        *(batch.names, batch.values.to(device), batch.offsets.to(device)),
        None if batch.weights is None else batch.weights.to(device),
        Cut(tuple(batch.borders()), batch.has_one_id_each()),
    )


def _loss(vectors: dict[str, torch.Tensor]) -> torch.Tensor:
    parts = [(v.square() + v).sum() * (i + 1) for i, v in enumerate(vectors.values())]
    return torch.stack(parts).sum()


@pytest.mark.parametrize(
    "on_host",
    [
        pytest.param((), marks=pytest.mark.long, id="all there"),
        pytest.param(("item",), id="one in host memory"),
    ],
)
def test_training_gives_the_rows_of_host_tables(
    device: torch.device, on_host: tuple[str, ...]
) -> None:
    here, there = _bags(), _placed(device, on_host=on_host)
    for step in range(2):
        batch = _batch(step, weighted=step == 1)
        for bags, given in ((here, batch), (there, _there(batch, device))):
            _loss(bags(given)).backward()
    for name in ROOM:
        wanted, found = here.table(name), there.table(name)
        assert found.size() == wanted.size() > 0
        for part in wanted.scan():
            rows = found.lookup(part.ids.to(device) if name not in on_host else part.ids)
            torch.testing.assert_close(rows.rows_of().cpu(), part.rows, rtol=1e-5, atol=1e-6)
    here.eval()
    there.eval()
    batch = _batch(9)
    for name, vectors in here(batch).items():
        torch.testing.assert_close(there(_there(batch, device))[name].cpu(), vectors)


def test_a_step_waits_for_nothing(device: torch.device) -> None:
    bags = hr.EmbeddingBags([hr.Table("item", 3, optimizer=hr.Sgd(0.1))])
    bags.place(device, capacity_rows={"item": 64})
    batch = _there(_batch(1).select(["item"]), device)
    _loss(bags(batch)).backward()  # compiles
    with without_waiting(device):
        _loss(bags(batch)).backward()
    assert bags.updates.step == 2


def test_a_table_with_rows_does_not_move(device: torch.device) -> None:
    bags = _bags()
    _loss(bags(_batch(1))).backward()
    with pytest.raises(StateError, match="rows do not move"):
        bags.place(device)


def test_a_batch_keeps_what_the_host_knows_of_it() -> None:
    batch = _batch(1)
    known = _there(batch, torch.device("cpu"))
    moved = known.to("cpu").pin_memory() if torch.cuda.is_available() else known.to("cpu")
    assert moved.cut == Cut(tuple(batch.borders()), False)
    assert torch.equal(moved.feature("item").values, batch.feature("item").values)
    assert batch.to("cpu").cut is None


def test_a_model_is_saved_on_a_device_and_loaded_on_the_host_and_back(
    device: torch.device, tmp_path: Path
) -> None:
    """One table: several are loaded by several threads, and the interpreter takes one."""
    pytest.importorskip("pyarrow")

    def made(on: torch.device | None) -> hr.EmbeddingBags:
        bags = hr.EmbeddingBags([hr.Table("item", 3, optimizer=hr.Adagrad(0.1))], seed=3)
        if on is not None:
            bags.place(on, capacity_rows={"item": 64})
        return bags

    there, here, again = made(device), made(None), made(device)
    batch = _there(_batch(1).select(["item"]), device)
    _loss(there(batch)).backward()
    hr.save(there, tmp_path / "there", step=3)
    assert hr.load(here, tmp_path / "there").step == 3
    hr.save(here, tmp_path / "here")
    hr.load(again, tmp_path / "here")
    wanted = _rows(there)
    assert wanted
    assert _rows(here) == _rows(again) == wanted
    assert again.updates.step == 1


def _rows(bags: hr.EmbeddingBags) -> dict[int, list[float]]:
    parts = bags.table("item").scan()
    return {i: row for p in parts for i, row in zip(p.ids.tolist(), p.rows.tolist(), strict=True)}
