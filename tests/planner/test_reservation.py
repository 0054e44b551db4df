"""Reserves: what they take, where, and what is said when nothing is left."""

from __future__ import annotations

import pytest

from hedgerow.core.errors import ConfigError
from hedgerow.planner.problem.topology import GIB, Reserve, Topology
from hedgerow.planner.sizes.storage import dense_size, input_size, reserve_for

PAIR = Topology(world=2, hbm_per_device=[100_000, 80_000], ddr_per_machine=1_000_000)


def test_shares_come_off_first_then_the_dense_part_and_the_batches() -> None:
    dense = dense_size(1_000, 50)
    reserve = reserve_for(PAIR, dense_bytes=dense, ids_per_sample=[1, 2.5], batch=20)
    left = reserve.of(PAIR)
    taken = 6_050 + 70 * 8 * 20
    assert left.hbm_by_device == (int(0.85 * 100_000) - taken, int(0.85 * 80_000) - taken)
    assert left.machines[0].ddr == 900_000
    assert PAIR.hbm_by_device == (100_000, 80_000)


def test_without_cards_every_rank_takes_its_part_of_the_host() -> None:
    hosts = Topology(world=3, local_world=2, ddr_per_machine=100_000, device="cpu")
    left = reserve_for(hosts, dense_bytes=500, batch=1, ids_per_sample=[1], ddr_fraction=0).of(
        hosts
    )
    assert [machine.ddr for machine in left.machines] == [100_000 - 2 * 660] * 2
    assert left.hbm_by_device == (0, 0, 0)


def test_inference_keeps_one_copy() -> None:
    assert dense_size(1_000, 50, inference=True) == 1_050
    assert input_size([1, 2.5], 20, inference=True) == 560
    assert reserve_for(PAIR, ids_per_sample=[3], batch=5, inference=True).hbm_bytes == 120


def test_nothing_but_shares() -> None:
    assert reserve_for(PAIR) == Reserve()


def test_an_exact_fit_is_accepted_and_one_byte_more_refused() -> None:
    fits = reserve_for(PAIR, dense_bytes=68_000)
    assert fits.of(PAIR).budget().hbm == 0
    with pytest.raises(ConfigError):
        reserve_for(PAIR, dense_bytes=68_001)


def test_the_error_lists_what_takes_the_card() -> None:
    card = Topology(world=1, hbm_per_device=16 * GIB, ddr_per_machine=GIB)
    with pytest.raises(ConfigError) as error:
        reserve_for(card, dense_bytes=20 * GIB, ids_per_sample=[10], batch=8192, hbm_fraction=0.2)
    for part in ("20.0 GiB", "8192 samples", "12.5 MiB", "20%", "card of 16.0 GiB"):
        assert part in str(error.value)
