"""A plan that tests share: twelve tables of an advertiser on two machines of eight cards."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from hedgerow.planner import Feature, Plan, Reserve, TableSpec, Topology, plan
from hedgerow.planner.problem.topology import GIB
from hedgerow.planner.times.calibration import Calibration, Residuals
from hedgerow.planner.times.step_time import ModeCost, TimeParameters

CARD = Calibration(
    device="sample card",
    parameters=TimeParameters(
        modes={
            "HBM_ONLY": ModeCost(0.049, 1.2e-6),
            "HYBRID": ModeCost(0.095, 2.6e-6),
            "CACHING": ModeCost(0.098, 3.0e-6),
            "HOST_ONLY": ModeCost(0.049, 1.2e-6),
            "CPU": ModeCost(0.02, 1e-4),
        },
        memories={"hbm": 2e9, "host_read": 5.1e7, "host_write": 5.1e7, "ddr": 1e7},
        overlap=8.0,
    ),
    residuals=Residuals(0.02, 0.1, 0.2),
)
RESERVE = Reserve(hbm_bytes=3 * GIB // 2)


def table(
    name: str, rows: int, dim: int, ids: float = 1.0, optimizer: str = "adam", **more: object
) -> TableSpec:
    settings = {"optimizer": optimizer, "features": (Feature(ids),), **more}
    return TableSpec(name=name, rows=rows, dim=dim, **settings)  # pyright: ignore[reportArgumentType]


TABLES = (
    table("user_id", 900_000_000, 64),
    table("item_id", 300_000_000, 64),
    table("item_hist", 300_000_000, 64, 50, dist_type="roundrobin"),
    table("query_terms", 120_000_000, 32, 8),
    table("shop_id", 30_000_000, 32),
    table("author_id", 60_000_000, 32, 2),
    table("geo_cell", 8_000_000, 16, optimizer="rowwise_adagrad"),
    table("device_model", 200_000, 16),
    table("campaign", 2_000_000, 32),
    table("tag_list", 20_000_000, 32, 30),
    table("user_x_cate", 700_000_000, 16, 5, "rowwise_adagrad"),
    table("item_x_hour", 500_000_000, 16, 1, "rowwise_adagrad"),
)


def topology(hbm: int = 40 * GIB) -> Topology:
    return Topology(world=16, local_world=8, hbm_per_device=hbm, ddr_per_machine=800 * GIB)


@cache
def sample() -> Plan:
    """Planned once; the seconds it took are set, so that texts can be compared."""
    found = plan(TABLES, topology(), CARD, RESERVE)
    return replace(found, solver=replace(found.solver, seconds=0.041))


def cpu_plan(*tables: TableSpec, world: int = 2) -> Plan:
    machine = Topology(world=world, ddr_per_machine=64 * GIB, device="cpu")
    return plan(tables or (table("user", 1000, 8), table("item", 500, 8)), machine, CARD)
