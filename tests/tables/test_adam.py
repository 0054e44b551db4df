"""Adam against torch's sparse and dense forms: what its bias corrections follow."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import hedgerow as hr
from hedgerow.core.errors import CheckpointError, ConfigError, InputError
from hedgerow.ps.server_tables import ServerTables
from hedgerow.ps.shard import LocalShard
from hedgerow.routing.router import Router
from hedgerow.tables import optimizers
from hedgerow.tables.checkpoint.manifest import TableSchema
from hedgerow.tables.device import DeviceTable
from hedgerow.tables.host import HostTable
from hedgerow.tables.multi.host_tables import HostTables
from hedgerow.tables.store import TableKeys
from hedgerow.tiers.hybrid import HybridTable

from ..support import make_table, table_config, twin_of

ROWS, DIM, STEPS = 40, 5, 250


def _stream(steps: int = STEPS) -> list[tuple[Tensor, Tensor]]:
    """Ids and gradients of each step: few ids often, most seldom; some steps have none."""
    random = torch.Generator().manual_seed(7)
    found = []
    for step in range(steps):
        n = 0 if step % 11 == 4 else int(torch.randint(1, 6, (), generator=random))
        skewed = (torch.rand(n, generator=random) ** 3 * ROWS).long()
        found.append((skewed.unique(), torch.randn(n, DIM, generator=random)))
    return [(ids, grads[: len(ids)]) for ids, grads in found]


def _trained(table: HostTable, start: Tensor, steps: int = STEPS) -> Tensor:
    table.assign(torch.arange(ROWS), start)
    for step, (ids, grads) in enumerate(_stream(steps)):
        table.apply_gradients(ids, grads, step=step)
    return table.lookup(torch.arange(ROWS)).rows_of()


def _of_torch(optimizer: torch.optim.Optimizer, weight: Tensor, *, sparse: bool) -> Tensor:
    for ids, grads in _stream():
        whole = torch.sparse_coo_tensor(
            ids[None], grads.to(weight.dtype), weight.shape, check_invariants=False
        )
        weight.grad = whole if sparse else whole.to_dense()
        optimizer.step()
    return weight.detach()


@pytest.mark.parametrize("eps", [1e-8, 1e-2])
def test_rows_follow_sparse_adam(eps: float) -> None:
    start = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(1))
    weight = torch.nn.Parameter(start.clone())
    theirs = torch.optim.SparseAdam([weight], lr=0.01, eps=eps)
    wanted = _of_torch(theirs, weight, sparse=True)
    got = _trained(make_table(optimizers.Adam(lr=0.01, eps=eps), dim=DIM), start)
    torch.testing.assert_close(got, wanted, rtol=2e-5, atol=2e-6)


def test_by_row_the_first_update_of_a_row_moves_it_by_the_rate() -> None:
    grad, late = torch.full((1, DIM), 0.3), torch.tensor([5])
    for counted, moved in (("row", 0.1), ("step", 0.1 * 0.1 / 0.001**0.5)):
        table = make_table(
            optimizers.Adam(lr=0.1, bias_correction=counted), init=hr.Zeros(), dim=DIM
        )
        table.apply_gradients(late, grad, step=20_000)
        row = table.lookup(late).rows
        torch.testing.assert_close(row, torch.full_like(row, -moved), rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (optimizers.AdamW(lr=0.01), lambda p: torch.optim.AdamW(p, lr=0.01)),
        (optimizers.AmsGrad(lr=0.01), lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True)),
    ],
    ids=["adamw", "amsgrad"],
)
def test_forms_without_a_sparse_one_follow_torchs_on_every_row(
    ours: optimizers.Adam, theirs: type
) -> None:
    """All rows have a gradient in every step: torch's dense formula, corrected by the step."""
    start = torch.randn(3, DIM, generator=torch.Generator().manual_seed(1))
    weight, ids = torch.nn.Parameter(start.double()), torch.arange(3)
    optimizer, table = theirs([weight]), make_table(ours, dim=DIM)
    table.assign(ids, start)
    random = torch.Generator().manual_seed(2)
    for step in range(200):
        grads = torch.randn(3, DIM, generator=random)
        weight.grad = grads.double()
        optimizer.step()
        table.apply_gradients(ids, grads, step=step)
    got = table.lookup(ids).rows_of().double()
    torch.testing.assert_close(got, weight.detach(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("ours", "theirs", "near"),
    [
        (optimizers.Adam(lr=0.01, dense=True), lambda p: torch.optim.Adam(p, lr=0.01), 1e-5),
        (  # moves and decays of the same missed updates are not taken one after the other
            optimizers.AdamW(lr=0.01, weight_decay=0.1, dense=True),
            lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
            1e-3,
        ),
        (
            optimizers.AmsGrad(lr=0.01, dense=True),
            lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
            1e-5,
        ),
    ],
    ids=["adam", "adamw", "amsgrad"],
)
def test_dense_rows_are_those_of_dense_adam_whenever_they_are_updated(
    ours: optimizers.Adam, theirs: type, near: float
) -> None:
    start = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(1))
    weight = torch.nn.Parameter(start.double())
    optimizer, table = theirs([weight]), make_table(ours, dim=DIM)
    table.assign(torch.arange(ROWS), start)
    # A row without a gradient so far has no moments, and none of its states: dense AdamW shrinks
    # it already. So every row has one in the first step.
    first = (torch.arange(ROWS), torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(3)))
    for step, (ids, grads) in enumerate([first, *_stream()]):
        whole = torch.zeros(ROWS, DIM, dtype=torch.float64)
        whole[ids] = grads.double()
        weight.grad = whole
        optimizer.step()
        table.apply_gradients(ids, grads, step=step)
        got = table.lookup(ids).rows_of().double()
        torch.testing.assert_close(got, weight.detach()[ids], rtol=10 * near, atol=near)


def test_dense_adam_closes_a_long_gap_in_one_update() -> None:
    """100,000 missed updates, from a step behind the tabulated ones; the moments have faded."""
    table, ids = make_table(optimizers.Adam(lr=0.01, dense=True), dim=2), torch.tensor([3])
    weight = torch.nn.Parameter(torch.zeros(1, 2, dtype=torch.float64))
    theirs = torch.optim.Adam([weight], lr=0.01)
    table.assign(ids, torch.zeros(1, 2))
    grad, nothing = torch.tensor([[0.5, -2.0]]), torch.zeros(1, 2, dtype=torch.float64)
    gap = 20_000
    for step in range(5000 + gap + 1):
        has = step < 5 or step in (4999, 5000 + gap)
        weight.grad = grad.double() if has else nothing
        theirs.step()
        if has:
            table.apply_gradients(ids, grad, step=step)
    got = table.lookup(ids).rows_of().double()
    torch.testing.assert_close(got, weight.detach(), rtol=1e-5, atol=1e-6)


def test_without_a_step_a_row_counts_its_own_updates() -> None:
    grad, ids = torch.full((1, DIM), 0.3), torch.tensor([5])
    found = []
    for counted in ("row", "step"):
        table = make_table(
            optimizers.AdamW(lr=0.1, bias_correction=counted), init=hr.Zeros(), dim=DIM
        )
        for _ in range(3):
            table.apply_gradients(ids, grad)
        found.append(table.lookup(ids).rows)
    assert torch.equal(found[0], found[1])


def test_dense_adam_cannot_do_without_a_step() -> None:
    table = make_table(optimizers.Adam(dense=True), dim=2)
    with pytest.raises(InputError, match="learns according to the step"):
        table.apply_gradients(torch.tensor([1]), torch.ones(1, 2))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"bias_correction": "rows"}, "one of step, row"),
        ({"dense": 1}, "True or False"),
        ({"dense": True, "bias_correction": "row"}, "counts steps"),
        ({"dense": True, "weight_decay": 0.1}, "Use AdamW"),
        ({"dense": True, "betas": (0.9, 0.8)}, r"betas\[0\]\*\*2 < betas\[1\]"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        optimizers.Adam(**settings)  # pyright: ignore[reportArgumentType]


FORMS = [
    optimizers.Adam(lr=0.05),
    optimizers.AdamW(lr=0.05),
    optimizers.AmsGrad(lr=0.05),
    optimizers.Adam(lr=0.05, dense=True),
    optimizers.AdamW(lr=0.05, dense=True),
    optimizers.AmsGrad(lr=0.05, dense=True),
    optimizers.Adam(lr=0.05, bias_correction="row"),
]


@pytest.mark.parametrize("optimizer", FORMS, ids=repr)
def test_the_core_follows_its_twin(optimizer: optimizers.Adam) -> None:
    config, start = table_config(optimizer, dim=DIM), torch.randn(ROWS, DIM)
    ours, twin = HostTable(config), twin_of(config)
    torch.testing.assert_close(
        _trained(ours, start, 120), _trained(twin, start, 120), rtol=1e-6, atol=1e-7
    )


@pytest.mark.parametrize("optimizer", [one for one in FORMS if one.kind != "AmsGrad"], ids=repr)
def test_devices_and_tiers_follow_the_host(
    optimizer: optimizers.Adam, device: torch.device
) -> None:
    config = table_config(optimizer, dim=DIM)
    start = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(1))
    tables = (
        HostTable(config),
        DeviceTable(config, capacity_rows=2 * ROWS, device=device),
        HybridTable(HostTable(config), HostTable(config), fast_rows=7, promotions=3),
    )
    for table in tables:
        table.assign(torch.arange(ROWS, device=table.device), start.to(table.device))
    for step, (ids, grads) in enumerate(_stream(30)):
        for table in tables:
            keys = TableKeys.of_one(ids.to(table.device))
            table.apply_gradients(keys, grads.to(table.device), step=step)
    wanted, there, tiers = (
        table.lookup(torch.arange(ROWS, device=table.device)).rows_of().cpu() for table in tables
    )
    torch.testing.assert_close(there, wanted, rtol=1e-6, atol=1e-7)
    assert torch.equal(tiers, wanted)


@pytest.mark.parametrize("optimizer", [optimizers.Adam(lr=0.05), FORMS[3]], ids=repr)
@pytest.mark.parametrize("servers", [1, 3])
def test_servers_take_the_step_of_their_worker(optimizer: optimizers.Adam, servers: int) -> None:
    config = table_config(optimizer, dim=DIM)
    start = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(1))
    shards = [LocalShard(HostTables({"test": config})) for _ in range(servers)]
    over = ServerTables(shards, {"test": config}, [Router("hash_roundrobin", servers)])
    over.assign(torch.arange(ROWS), start)
    for step, (ids, grads) in enumerate(_stream(60)):
        over.apply_gradients(ids, grads.flatten(), step=step)
    got = over.lookup(torch.arange(ROWS)).rows_of()
    assert torch.equal(got, _trained(HostTable(config), start, 60))


def test_a_model_follows_sparse_adam_and_counts_updates_of_no_row() -> None:
    """Accumulation is one update; a batch without ids is one, too, as with torch."""
    bags = hr.EmbeddingBags([hr.Table("item", 3)], init=hr.Zeros(), optimizer=hr.Adam(lr=0.1))
    weight = torch.nn.Parameter(torch.zeros(10, 3))
    theirs = torch.optim.SparseAdam([weight], lr=0.1)
    scale = torch.tensor([[1.0, -2.0, 0.5]])
    for step in range(60):
        parts = [[[]], [[step % 7]]] if step % 3 else [[[]]]
        theirs.zero_grad()
        with hr.hold_updates(bags):
            for part in parts:
                batch = hr.IdBatch.from_lists({"item": part})
                (bags(batch)["item"] * scale * (step + 1)).sum().backward()
                ids = torch.tensor(part[0], dtype=torch.int64)
                bag = torch.nn.functional.embedding(ids, weight, sparse=True).sum(0, keepdim=True)
                (bag * scale * (step + 1)).sum().backward()
        theirs.step()
    assert bags.updates.step == 60
    got = bags.table("item").lookup(torch.arange(7)).rows_of()
    torch.testing.assert_close(got, weight.detach()[:7], rtol=1e-5, atol=1e-6)


def test_a_saved_model_goes_on_with_its_step(tmp_path: Path) -> None:
    def made() -> hr.EmbeddingBags:
        return hr.EmbeddingBags([hr.Table("item", 3)], init=hr.Zeros(), optimizer=hr.Adam(lr=0.1))

    def train(bags: hr.EmbeddingBags, steps: range) -> None:
        for step in steps:
            batch = hr.IdBatch.from_lists({"item": [[step % 5, step % 3]]})
            (bags(batch)["item"] * torch.tensor([[1.0, -2.0, step]])).sum().backward()

    whole, first, second = made(), made(), made()
    train(whole, range(40))
    train(first, range(25))
    hr.save(first, tmp_path / "saved")
    hr.load(second, tmp_path / "saved")
    train(second, range(25, 40))
    ids = torch.arange(5)
    tables = [bags.table("item").lookup(ids).rows for bags in (whole, second)]
    assert torch.equal(*tables)


def test_rows_of_version_0_1_load_where_corrections_count_by_row(tmp_path: Path) -> None:
    """What version 0.1 saved says nothing of bias corrections, which were by row."""
    by_row = TableSchema.of(table_config(hr.Adam(bias_correction="row"), dim=3)).to_dict()
    assert "bias_correction" not in by_row["segments"][0]
    bags = hr.EmbeddingBags([hr.Table("item", 3)], optimizer=hr.Adam(bias_correction="row"))
    bags(hr.IdBatch.from_lists({"item": [[1, 2]]}))["item"].sum().backward()
    hr.save(bags, tmp_path / "saved")
    hr.load(
        hr.EmbeddingBags([hr.Table("item", 3)], optimizer=hr.Adam(bias_correction="row")),
        tmp_path / "saved",
    )
    with pytest.raises(CheckpointError, match=r"with Adam\(bias_correction='row'\) to go on"):
        hr.load(hr.EmbeddingBags([hr.Table("item", 3)], optimizer=hr.Adam()), tmp_path / "saved")


def test_a_record_of_version_0_1_means_by_row() -> None:
    old = {"kind": "Adam", "lr": 0.1, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
    read = optimizers.Adam.from_dict(old)
    assert read.bias_correction == "row"
    assert optimizers.Adam.from_dict({"kind": "Adam", "lr": 0.1}).bias_correction == "step"
    assert optimizers.Adam.from_dict(read.to_dict()) == read


def _apart_in_rates(seed: int, size: float, betas: tuple[float, float]) -> float:
    """How far rows with random gaps are from dense Adam's, in units of the rate."""
    made = torch.Generator().manual_seed(seed)
    rows, steps, lr = 30, 100, 0.01
    optimizer = optimizers.Adam(lr=lr, betas=betas, dense=True)
    table, ids = make_table(optimizer, dim=2), torch.arange(rows)
    table.assign(ids, torch.zeros(rows, 2))
    weight = torch.zeros(rows, 2, requires_grad=True)
    of_torch = torch.optim.Adam([weight], lr=lr, betas=betas)
    for step in range(steps):
        whole = step in (0, steps - 1)
        chosen = ids if whole else ids[torch.rand(rows, generator=made) < 0.05]
        grads = size * torch.randn(len(chosen), 2, generator=made)
        weight.grad = torch.zeros(rows, 2).index_copy_(0, chosen, grads)
        of_torch.step()
        table.apply_gradients(chosen, grads, step=step)
    return float((table.lookup(ids).rows_of() - weight.detach()).abs().max()) / lr


@pytest.mark.parametrize(
    ("size", "betas", "most"),
    [
        (1.0, (0.9, 0.999), 5e-5),
        (1e-2, (0.9, 0.999), 1e-4),
        (1e-3, (0.9, 0.999), 1e-3),
        (1e-4, (0.9, 0.999), 0.01),
        (1e-6, (0.9, 0.999), 0.04),
        (1e-8, (0.9, 0.999), 0.04),
        (1e-3, (0.9, 0.9), 0.004),
        (1e-7, (0.9, 0.9), 0.16),
    ],
)
def test_dense_adam_comes_as_near_as_its_docstring_says(
    size: float, betas: tuple[float, float], most: float
) -> None:
    assert max(_apart_in_rates(seed, size, betas) for seed in range(16)) < most
