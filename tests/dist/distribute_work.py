"""What every rank does in the tests of `hr.distribute`; each function is one life of a world."""

from __future__ import annotations

import copy
import itertools
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hedgerow as hr
from hedgerow.core.clock import ManualClock
from hedgerow.core.errors import (
    CheckpointError,
    ConfigError,
    NotFiniteError,
    NotSupportedError,
    RowsLeftOutWarning,
    SaveError,
    StateError,
)
from hedgerow.nn.embedding_modules import collections_of, ranks_of
from hedgerow.nn.hold_updates import HeldUpdates
from hedgerow.nn.model_tables import routers_of
from hedgerow.sharding.all_to_all_tables import AllToAllTables
from hedgerow.tables.checkpoint import shared_save
from hedgerow.tables.checkpoint.manifest import MANIFEST
from hedgerow.tables.checkpoint.manifest_reader import read_manifest

from .distribute_models import (
    MODES,
    Model,
    batch_of,
    lists_of,
    mean_over_ranks,
    owned,
    rows_of,
    targets,
    train,
)

STEPS = 100
OPTIMIZERS = {"sgd": hr.Sgd(lr=0.1), "adagrad": hr.Adagrad(lr=0.1), "adam": hr.Adam(lr=0.02)}


def made(modes: tuple[str, str, str] = MODES, **settings: Any) -> Model:
    """A model at a time that stands still: rows of one and of many processes have equal times."""
    settings = {"optimizer": hr.Sgd(lr=0.25), "init": hr.Uniform(0.5)} | settings
    return Model(modes, clock=ManualClock(1_000_000), **settings)


def world() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()


def losses(model: nn.Module, rank: int = 0, ranks: int = 1, steps: int = STEPS) -> list[float]:
    """The loss of every step on this rank's share of the same global batches."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return [train(model, optimizer, range(step, step + 1), rank, ranks) for step in range(steps)]


def losses_as_on_one_process(wanted: dict[str, list[float]], owners: dict[str, set[int]]) -> None:
    """100 steps with every optimizer, all modes in one model; equal ids sent once or each."""
    rank, ranks = world()
    cases = [(name, True, STEPS) for name in wanted]
    cases += [("adagrad", False, 25)] if "adagrad" in wanted else []
    for name, dedup, steps in cases:
        model = hr.distribute(made(optimizer=OPTIMIZERS[name]), dedup=dedup)
        assert isinstance(model, DistributedDataParallel)
        got = losses(model, rank, ranks, steps)
        assert got == pytest.approx(wanted[name][:steps], rel=1e-5), name
        for table, rows in rows_of(model).items() if steps == STEPS else ():
            ids = torch.tensor(sorted(owners[table]))
            mine = ids[routers_of(model, ranks)[table].owners(ids) == rank]
            assert set(mine.tolist()) == set(rows), (name, table)


def rows_as_on_one_process() -> None:
    """Dyadic gradients add up exactly: every bit of every row is that of one process."""
    _, ranks = world()
    means = ("sum", "mean") if ranks in (2, 4) else ("sum",)
    modes = [(mode,) * 3 for mode in MODES] + [MODES]
    for mode, reduce, dedup in itertools.product(modes, means, (True, False)):
        exact_rows(mode, reduce, dedup)


def exact_rows(modes: Any, reduce: str, dedup: bool) -> None:
    rank, ranks = world()
    alone, many = made(modes, dense=False), made(modes, dense=False)
    spread = hr.distribute(many, reduce=reduce, dedup=dedup)
    assert spread is many  # nothing dense to average
    for step in range(4):
        weights = targets(step)[:, None]
        no_text = 1 if step == 2 else ranks  # that rank's loss has nothing of the sequences
        share = len(weights) // ranks
        parts = [alone(batch_of(lists_of(step), r, ranks), r != no_text) for r in range(ranks)]
        scale = 1 / ranks if reduce == "mean" else 1.0
        (torch.cat(parts) * weights * scale).sum().backward()
        out = spread(batch_of(lists_of(step), rank, ranks), rank != no_text)
        assert torch.equal(out, parts[rank]), (modes, reduce, dedup, step)
        (out * weights[rank * share : (rank + 1) * share]).sum().backward()
    assert rows_of(many) == owned(alone, rows_of(alone), rank, ranks), (modes, reduce, dedup)
    steps = [one.updates.step for one in collections_of(many)]
    assert steps == [one.updates.step for one in collections_of(alone)] == [4, 4]


def held_and_clipped_as_on_one_process() -> None:
    """Accumulation, the norm of all gradients, and a limit on every row: of the totals."""
    rank, ranks = world()
    settings: dict[str, Any] = {"clip": hr.ClipRow(0.05)}
    alone, many = made(**settings), made(**settings)
    spread = hr.distribute(many)

    def work(model: nn.Module, *share: int) -> float:
        with hr.hold_updates(model) as held:
            for step in range(3):
                out = model(batch_of(lists_of(step), *share))
                (out - targets(step, *share)).square().mean().backward()
            return clipped(held)

    def clipped(held: HeldUpdates) -> float:
        return float(held.clip_grad_norm_(0.5))

    assert work(spread, rank, ranks) == pytest.approx(work(alone, 0, 1), rel=1e-5)
    close_rows(many, alone)


def close_rows(many: nn.Module, alone: nn.Module) -> None:
    """The rows of this rank are those of one process, but for rounding."""
    spread = dict(zip(collections_of(many), collections_of(alone), strict=True))
    for mine, its in spread.items():
        for name in mine.store.names:
            entries = list(mine.table(name).scan())
            ids = torch.cat([part.ids for part in entries])
            wanted = its.table(name).entries(ids)
            assert bool(wanted.found.all()), name
            rows = torch.cat([part.rows for part in entries])
            torch.testing.assert_close(rows, wanted.rows, rtol=1e-4, atol=1e-6)


def what_the_model_says() -> None:
    """Names, counts and frozen forms are those of the plain model; a second call is refused."""
    rank, ranks = world()
    plain = made()
    model = hr.distribute(plain)
    sgd = torch.optim.SGD(model.parameters(), lr=0.05)
    train(model, sgd, range(3), rank, ranks)
    assert f"rows on rank {rank} of {ranks}, 17 dense parameters" in hr.summary(model)
    stores = [one.store for one in collections_of(model)]
    assert all(isinstance(store, AllToAllTables) for store in stores)
    rows = hr.stats(model)["user"]["rows"]
    assert mean_over_ranks(rows) * ranks == len(distinct("user", 3))
    frozen = hr.freeze(model)
    batch = batch_of(lists_of(1), rank, ranks)
    assert torch.equal(frozen(batch), model.eval()(batch))
    with pytest.raises(StateError, match="distributed already"):
        hr.distribute(plain)
    with_rows = made()
    if rank == 0:  # on one rank, and all are told
        with_rows.bags.table("user").assign(torch.tensor([1]), torch.zeros(1, 2))
    with pytest.raises(StateError, match="table 'user' has 1"):
        hr.distribute(with_rows)


def distinct(feature: str, steps: int) -> set[int]:
    return {i for step in range(steps) for row in lists_of(step)[feature] for i in row}


def budgets_over_ranks() -> None:
    """Lru(rows) is of all ranks together: each keeps its share."""
    ranks = world()[1]
    bags = hr.EmbeddingBags(
        [hr.Table("user", 2)], evict=hr.Lru(64), seed=1, clock=ManualClock(1_000_000)
    )
    model = hr.distribute(bags)
    for step in range(20):
        ids = [[i] for i in range(step * 12, step * 12 + 12)]
        model(hr.IdBatch.from_lists({"user": ids}))["user"].sum().backward()
    assert bags.table("user").size() <= 64 // ranks * 9 // 8 + 12
    total = mean_over_ranks(bags.table("user").size()) * ranks
    assert 48 <= total <= 72 + 12


def sightings_of_all_ranks(folder: Path) -> None:
    """Count(n) sees what all ranks saw, also after a restart on as many ranks."""
    model = shy()
    hr.distribute(model)
    assert seen_again(model) == [False, False]
    hr.save(model, folder / "shy")
    assert seen_again(model) == [True, False]  # 7 was seen twice before, once on each rank
    fresh = shy()
    hr.distribute(fresh)
    hr.load(fresh, folder / "shy")
    assert seen_again(fresh) == [True, False]


def go_on_counting(folder: Path) -> None:
    """What one process counted serves every rank."""
    model = shy()
    hr.distribute(model)
    hr.load(model, folder / "shy-1")
    assert seen_again(model) == [False, False]  # seen once before
    assert seen_again(model) == [True, ranks_of(model).rank == 0]  # 100 was seen alone, too


def shy() -> hr.EmbeddingBags:
    return hr.EmbeddingBags([hr.Table("user", 2)], admit=hr.Count(3), seed=1)


def seen_again(model: hr.EmbeddingBags) -> list[bool]:
    own = 100 + ranks_of(model).rank
    model(hr.IdBatch.from_lists({"user": [[7], [own]]}))["user"].sum().backward()
    return model.store.contains(torch.tensor([7, own])).tolist()


# ---- checkpoints


def save_after(folder: Path) -> tuple[float, dict[str, Any]]:
    """Trains 5 steps, saves, and goes on: the loss and the rows of the unbroken run."""
    rank, ranks = world()
    model = hr.distribute(made(optimizer=hr.Adam(lr=0.02)))
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    train(model, adam, range(5), rank, ranks)
    before = rows_of(model)
    manifest = hr.save(model, folder / f"from-{ranks}", optimizer=adam, step=5)
    assert manifest.routing.shards == ranks
    mine = [file.rows for file in manifest.files if file.shard == rank]
    assert sum(mine) == sum(len(rows) for rows in before.values())
    return train(model, adam, range(5, 10), rank, ranks), rows_of(model)


def load_and_go_on(folder: Path, saved_by: int, wanted: float) -> dict[str, Any]:
    """Loads what other ranks saved: every row is there, and training goes on as unbroken."""
    rank, ranks = world()
    model = hr.distribute(made(optimizer=hr.Adam(lr=0.02)))
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    loaded = hr.load(model, folder / f"from-{saved_by}", optimizer=adam)
    assert (loaded.step, loaded.added, loaded.removed) == (5, (), ())
    loss = train(model, adam, range(5, 10), rank, ranks)
    assert loss == pytest.approx(wanted, rel=1e-5)
    return rows_of(model)


def other_rules(folder: Path) -> None:
    """Another owner rule is refused on every rank until `reroute`; then no row is lost."""
    rank, ranks = world()
    right = made(("hash_roundrobin",) * 3)
    for name in ("hash", "none"):
        other = hr.distribute(made(("hash_roundrobin", "roundrobin", "continuous")))
        with pytest.raises(ValueError, match=r"by roundrobin, table '.*' is now by") as caught:
            hr.load(other, folder / name)
        assert "reroute=True" in str(caught.value)
        assert not any(one.store.size() for one in collections_of(other))
        hr.load(other, folder / name, reroute=True)
        hr.load(right, folder / name, reroute=True)  # alone: every rank reads all rows
        assert rows_of(other) == owned(other, rows_of(right), rank, ranks)


def hash_routed_restart(folder: Path) -> list[int]:
    """Train, save and load on as many ranks: every row is there, on its owner, bit for bit."""
    rank, ranks = world()
    users = hr.Table("user", 4, dist_type="hash_roundrobin")
    bags = hr.EmbeddingBags([users], optimizer=hr.Adagrad(lr=0.1), seed=1)
    model = hr.distribute(bags)
    for step in range(10):
        ids = torch.arange(rank, 5000, ranks) * 64 + step  # a pattern that modulo would pile up
        model(hr.IdBatch.from_dict({"user": ids}))["user"].square().sum().backward()
    hr.save(model, folder / "hashed")
    fresh = hr.EmbeddingBags([users], optimizer=hr.Adagrad(lr=0.1), seed=1)
    loaded = hr.load(hr.distribute(fresh), folder / "hashed")
    assert rows_of(fresh) == rows_of(bags)
    assert loaded.rows["user"] == fresh.table("user").size()
    assert mean_over_ranks(loaded.rows["user"]) * ranks == 50_000
    probe = hr.IdBatch.from_dict({"user": torch.arange(0, 5000, 7) * 64 + 3})
    assert torch.equal(fresh.eval()(probe)["user"], bags.eval()(probe)["user"])
    return sorted(rows_of(fresh)["user"])


def a_save_that_fails_on_one_rank(folder: Path) -> None:
    """All ranks raise, the old checkpoint stays, and no file of the failed save is left."""
    rank, ranks = world()
    model = hr.distribute(made())
    sgd = torch.optim.SGD(model.parameters(), lr=0.05)
    train(model, sgd, range(2), rank, ranks)
    target = folder / f"kept-{ranks}"
    hr.save(model, target, step=1)
    dist.barrier()
    before = sorted(path.name for path in target.iterdir())
    kept = rows_of(model)
    train(model, sgd, range(2, 4), rank, ranks)
    with pytest.MonkeyPatch.context() as patch:
        if rank == ranks - 1:
            patch.setattr(shared_save, "write_files", full)
        with pytest.raises(SaveError, match="no room") as caught:
            hr.save(model, target, step=2, overwrite=True)
    assert rank == ranks - 1 or f"failed on rank {ranks - 1}" in str(caught.value)
    dist.barrier()
    assert sorted(path.name for path in target.iterdir()) == before
    with pytest.raises(FileExistsError):
        hr.save(model, target)
    fresh = hr.distribute(made())
    assert hr.load(fresh, target).step == 1
    assert rows_of(fresh) == kept


def another_save_is_held_off(folder: Path) -> None:
    """While ranks save, from the first file to the last clean-up, no other save gets the folder."""
    rank, ranks = world()
    model, target = hr.distribute(made()), folder / f"held-{ranks}"
    train(model, torch.optim.SGD(model.parameters(), lr=0.05), range(2), rank, ranks)
    refused: list[str] = []

    def beside(real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            with pytest.raises(SaveError, match="being saved to by another save"):
                hr.save(nn.Sequential(nn.Linear(1, 1), made()), target, overwrite=True)
            refused.append(real.__name__)
            return real(*args, **kwargs)

        return call

    for step in (1, 2):
        with pytest.MonkeyPatch.context() as patch:
            for name in ("write_files", "write_manifest", "clean_after"):
                patch.setattr(shared_save, name, beside(getattr(shared_save, name)))
            hr.save(model, target, step=step, overwrite=True)
        dist.barrier()
        manifest = read_manifest(target)
        assert {path.name for path in target.iterdir()} == manifest.names() | {MANIFEST}
        dist.barrier()
    wanted = ["write_files", "write_manifest", "clean_after"] if rank == 0 else ["write_files"]
    assert refused == 2 * wanted
    fresh = hr.distribute(made())
    assert hr.load(fresh, target).step == 2
    assert rows_of(fresh) == rows_of(model)


def state_dicts_are_refused() -> None:
    """One rank has a part of the rows: state dicts and copies name hr.save."""
    alone = made().state_dict()
    model = hr.distribute(made())
    inner = model.module
    for call in (
        model.state_dict,
        inner.state_dict,
        lambda: inner.load_state_dict(alone),
        lambda: copy.deepcopy(inner),
    ):
        with pytest.raises(NotSupportedError, match=r"spread over 2 ranks.*hr\.save"):
            call()


def state_dicts_of_ranks_apart_warn() -> None:
    """Without `hr.distribute` each rank has rows of its own; a state dict holds those of one."""
    rank, ranks = world()
    inner = made()
    model = DistributedDataParallel(inner, find_unused_parameters=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RowsLeftOutWarning)
        inner.state_dict()  # nothing was trained yet
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), range(2), rank, ranks)
    words = rf"rank {rank} of {ranks} trained.*hr\.distribute\(model\)"
    with pytest.warns(RowsLeftOutWarning, match=words):
        model.state_dict()


def full(*args: Any, **kwargs: Any) -> None:
    del args, kwargs
    raise OSError(28, "no room")


def rows_that_do_not_add_up(folder: Path, saved_by: int) -> None:
    """A rank that loses a row makes the load fail on every rank, and nothing is changed."""
    _, ranks = world()
    model = hr.distribute(made(optimizer=hr.Adam(lr=0.02)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hedgerow.tables.checkpoint.load._Owner.choose", loses_one)
        patch.setattr("hedgerow.tables.checkpoint.load._Owner.needs", lambda *_: True)
        with pytest.raises(CheckpointError, match="rows in its files, and"):
            hr.load(model, folder / f"from-{saved_by}")
    assert not any(one.store.size() for one in collections_of(model))
    assert ranks_of(model).count == ranks


def loses_one(owner: Any, table: str, rows: Any) -> Any:
    owners = owner._routers.by_name[table].owners(torch.from_numpy(rows.ids)).numpy()
    mine = owners == owner._shard
    mine[0] = False
    return rows.take(mine)


def models_that_differ() -> None:
    """What would make ranks disagree later, or never meet again, is refused on all of them."""
    rank, _ = world()
    frozen = made()
    frozen.top = None if rank else frozen.top
    for wrong, model, settings in (
        ("pooling", bags_of(pooling="mean" if rank else "sum"), {}),
        ("segments", bags_of(optimizer=hr.Sgd(lr=0.1 * (rank + 1))), {}),
        ("features", bags_of(features=["a", "b"] if rank else ["a"]), {}),
        ("dense parameters that learn", frozen, {}),
        ("wire", bags_of(), {"wire": "bf16" if rank else "fp32"}),
        ("reduce", bags_of(), {"reduce": "sum" if rank else "mean"}),
    ):
        with pytest.raises(ConfigError, match=rf"^{wrong}.*on rank 1 and .* on rank 0"):
            hr.distribute(model, **settings)
    hr.distribute(bags_of(optimizer=hr.Sgd(lr=lambda step: 0.1)))  # a rate without words


def bags_of(**settings: Any) -> hr.EmbeddingBags:
    return hr.EmbeddingBags([hr.Table("user", 2, **settings)], seed=1)


def what_is_not_finite(wire: str, value: float) -> None:
    """One rank's gradient, of a row that another owns, is refused on all; the next step is well."""
    rank, ranks = world()
    model = hr.EmbeddingBags(
        [hr.Table("user", 2, dist_type="roundrobin")], init=hr.Zeros(), optimizer=hr.Sgd(lr=1.0)
    )
    hr.distribute(model, reduce="sum", wire=wire)
    batch = hr.IdBatch.from_lists({"user": [[i] for i in range(ranks)]})

    def learn(first: float) -> None:
        weights = torch.ones(ranks, 2)
        weights[-1, 0] = first
        (model(batch)["user"] * weights).sum().backward()

    learn(1.0)
    with pytest.raises(NotFiniteError, match="came from rank 0 have a NaN or an infinity"):
        learn(1.0 if rank else value)
    owner = f"came from rank {ranks - 1} have"

    def bring_and_apply() -> None:
        with hr.hold_updates(model) as held:
            learn(1.0 if rank else value)
            held.row_gradients()  # brings them to their owner, who is asked next

    with pytest.raises(NotFiniteError, match=owner):
        bring_and_apply()
    assert model.updates.step == 1
    learn(1.0)
    assert model.eval()(batch)["user"].tolist() == [[-2.0 * ranks] * 2] * ranks
