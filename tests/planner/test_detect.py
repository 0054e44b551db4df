"""Topologies that are found instead of written."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hedgerow.core.errors import ConfigError
from hedgerow.planner.problem.topology import GIB, Topology, detect, host_memory

PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    sizes: list[int] = request.param
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(sizes))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(sizes))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda card: SimpleNamespace(total_memory=sizes[card])
    )


@pytest.mark.parametrize("cards", [[]], indirect=True)
@pytest.mark.usefixtures("cards")
def test_a_machine_without_cards() -> None:
    found = Topology.detect(3)
    assert (found.device, found.world, found.hbm_by_device) == ("cpu", 3, (0, 0, 0))
    assert 0 < found.machines[0].ddr <= PHYSICAL


@pytest.mark.parametrize("cards", [[5, 6, 7]], indirect=True)
@pytest.mark.usefixtures("cards")
class TestThreeCards:
    def test_each_rank_has_its_own(self) -> None:
        found = detect(5, 2)
        assert (found.device, found.hbm_by_device) == ("cuda", (5, 6, 5, 6, 5))
        assert [machine.ranks for machine in found.machines] == [2, 2, 1]

    def test_they_may_be_left_alone(self) -> None:
        assert detect(8, device="cpu").hbm_by_device == (0,) * 8

    def test_more_ranks_than_cards_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="4 ranks of a machine need a card each, and 3 are"):
            detect(4)


@pytest.mark.parametrize("cards", [[9]], indirect=True)
@pytest.mark.usefixtures("cards")
def test_a_process_that_sees_only_its_own_card() -> None:
    assert detect(4, 2).hbm_by_device == (9, 9, 9, 9)


@pytest.mark.parametrize("cards", [[]], indirect=True)
@pytest.mark.usefixtures("cards")
def test_cards_that_are_asked_for_must_be_there() -> None:
    with pytest.raises(ConfigError, match="and 0 are visible"):
        detect(1, device="cuda")


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
@pytest.mark.parametrize(
    ("text", "expected"), [("4096\n", 4096), ("max\n", PHYSICAL), (f"{2**62}", PHYSICAL)]
)
def test_a_container_has_its_limit(tmp_path: Path, name: str, text: str, expected: int) -> None:
    path = tmp_path / "sys/fs/cgroup" / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert host_memory(tmp_path) == expected


def test_words() -> None:
    mixed = Topology(
        world=3,
        local_world=2,
        hbm_per_device=[80 * GIB, 80 * GIB, 40 * GIB],
        ddr_per_machine=512 * GIB,
    )
    assert mixed.describe() == (
        "3 ranks on 2 machines: a card of 40.0 GiB to 80.0 GiB each, "
        "512 GiB of host memory a machine"
    )
    alone = Topology(world=1, ddr_per_machine=GIB, device="cpu")
    assert alone.describe() == "1 rank on 1 machine: no cards, 1.00 GiB of host memory a machine"
