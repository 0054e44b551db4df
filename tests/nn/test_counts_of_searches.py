"""A module's step looks once for the owners and once for the rows of its keys, in any placement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import pytest
import torch

from hedgerow.kernels import apply as applies
from hedgerow.kernels import step as steps
from hedgerow.nn.embedding_modules import collections_of
from hedgerow.tables.multi.device_group import DeviceGroup
from hedgerow.tables.multi.device_tables import DeviceTables
from hedgerow.tiers.tier_group import MissHandler
from hedgerow.tiers.tier_tables import Tiers, TierTables, device_tier_tables
from tests.dist.pool import Pool
from tests.dist.test_placements import on_servers

from . import counts_work as work


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    made = Pool(2, tmp_path_factory.mktemp("counts"))
    yield made
    made.close()


@pytest.mark.parametrize("kind", work.KINDS)
def test_in_host_memory(kind: str) -> None:
    modules = work.model(kind)
    counts = work.counted(modules, lambda: sum(work.step(modules, kind, 4 * n) for n in range(3)))
    assert counts.routings == 0
    assert counts.searched == counts.by_lookups
    assert 0 < counts.searched <= counts.asked  # equal ids side by side are searched for once


@pytest.mark.parametrize("kind", work.KINDS)
def test_over_ranks(pool: Pool, kind: str) -> None:
    for counts in pool.run(2, work.steps_over_ranks, kind):
        assert counts.lookups > 0
        assert counts.routings == counts.lookups
        assert counts.searched == counts.by_lookups
        if kind != "admitted":  # equal ids of ranks stand side by side there
            assert counts.searched == counts.asked > 0


@pytest.mark.parametrize("kind", work.KINDS)
def test_on_servers(kind: str) -> None:
    with on_servers(work.model(kind), 2) as spread:
        modules: Any = spread
        counts = work.counted(
            modules, lambda: sum(work.step(modules, kind, 4 * n) for n in range(3))
        )
    batches = 3 if "accumulated" in kind else 2 if kind == "norm between" else 1
    assert counts.lookups == 3 * batches * len(work.collections_of(modules))
    assert counts.routings == counts.lookups


@pytest.mark.parametrize("kind", work.KINDS)
def test_on_a_device(kind: str) -> None:
    modules = work.model(kind)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for one in collections_of(modules):
        one.place(device, capacity_rows=dict.fromkeys(one.store.names, 64))
        assert isinstance(one.store, DeviceTables)

    def slots(_: object, settings: dict[str, Any]) -> Any:
        return settings["slots"]

    with _noted(steps, "step", slots) as told, _noted(applies, "apply", slots) as told_too:
        lookups = sum(work.step(modules, kind, 4 * n) for n in range(3))
    assert lookups >= 3
    told += told_too
    assert told
    assert None not in told


@contextmanager
def _noted(
    owner: Any, name: str, found: Callable[[tuple[Any, ...], dict[str, Any]], Any]
) -> Iterator[list[Any]]:
    """Notes where each update found its rows: None where it searches for them again."""
    told: list[Any] = []
    plain: Any = getattr(owner, name)

    def noting(*args: Any, **settings: Any) -> Any:
        told.append(found(args, settings))
        return plain(*args, **settings)

    with mock.patch.object(owner, name, noting):
        yield told


def _in_tiers(kind: str, mode: Any, alike: bool) -> Any:
    modules = work.model(kind, alike=alike)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for one in collections_of(modules):
        tiers = Tiers(mode=mode, fast_rows=24, slots=32, allow_small=mode == "CACHING")
        configs = one.store.configs_to_move(device).values()
        tables, groups = device_tier_tables(
            [(config, tiers) for config in configs], device, one.clock
        )
        one.set_store(TierTables(tables, device=device, together=groups))
    return modules


@contextmanager
def _searches() -> Iterator[list[str]]:
    """The searches for keys of tables in two tiers on a device, and the reads of missing rows."""
    found: list[str] = []
    with ExitStack() as stack:
        for owner, name in (
            *((DeviceGroup, name) for name in ("find", "lookup", "find_and_list")),
            (MissHandler, "fetch"),
        ):
            told = stack.enter_context(_noted(owner, name, lambda *_, name=name: name))
            stack.callback(lambda told=told: found.extend(told))
        yield found


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("kind", work.KINDS)
@pytest.mark.parametrize("mode", ["CACHING", "HYBRID"])
def test_in_two_tiers(mode: str, kind: str, alike: bool) -> None:
    """One search per lookup and group of alike tables, while no row moves."""
    modules = _in_tiers(kind, mode, alike)
    for _ in range(3):  # rows are born and come; where many are used, a hybrid promotes them
        work.step(modules, kind, 0)
    groups = [1 if alike else len(one.store.names) for one in collections_of(modules)]
    with _searches() as searches:
        lookups = work.step(modules, kind, 0)
    # Ids that never get a row are asked of the host again: they are read, not searched for.
    reads = searches.count("fetch")
    assert reads == 0 or "some features" in kind or kind == "admitted", searches
    assert len(searches) - reads == lookups // len(groups) * sum(groups), searches


@pytest.mark.parametrize("kind", ["plain", "clipped", "held", "modules"])
@pytest.mark.parametrize("mode", ["CACHING", "HYBRID"])
def test_in_two_tiers_while_rows_come(mode: str, kind: str) -> None:
    """An update goes where the lookup before it found rows and brought others."""
    modules = _in_tiers(kind, mode, alike=True)
    for n in range(5):
        with _searches() as searches:
            lookups = work.step(modules, kind, 4 * n)
        fetches = searches.count("fetch")
        assert len(searches) - fetches == lookups, searches
        assert fetches <= lookups, searches
