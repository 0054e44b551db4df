"""Fits recover what points were made from, through noise and outliers; files keep all of it."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hedgerow.core.errors import ConfigError, FileDamagedError, FileMissingError, InputError
from hedgerow.planner.times.calibrate import fit, robust_fit
from hedgerow.planner.times.calibration import Calibration, Point, PointCounts, Residuals
from hedgerow.planner.times.step_time import (
    CPU,
    NO_MOVES,
    HostCost,
    LinkCost,
    ModeCost,
    Speeds,
    Step,
    TimeParameters,
    host_ids,
    overlapped,
    row_moves,
    step_ms,
)

DIMS, KEYS = (16, 32, 64, 128, 256), tuple(2**power for power in range(12, 21, 2))
SHARES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0)


def _cpu_points(noise: float, outliers: int = 0) -> list[Point]:
    random = np.random.default_rng(3)
    found = []
    for dim in DIMS:
        for keys in KEYS:
            read, write = 12.0 * dim, 8.0 * dim
            ms = (0.3 + keys * (8e-5 + (read + write) / 9e6)) * np.exp(noise * random.normal())
            found.append(_step(CPU, keys, read, write, float(ms), dim))
    for place in range(outliers):
        found[7 * place] = _step(CPU, KEYS[0], 192.0, 128.0, 50.0, 16)
    return found


def _step(
    mode: str, keys: int, read: float, write: float, ms: float, dim: int, far: float = 0.0
) -> Point:
    return Point(
        kind="step",
        mode=mode,
        keys=keys,
        read_bytes=read,
        write_bytes=write,
        ms=ms,
        dim=dim,
        host_share=far,
    )


def _card_points(true: TimeParameters, noise: float) -> list[Point]:
    random = np.random.default_rng(4)
    found = []
    for mode, cost in true.modes.items():
        for dim in DIMS:
            for keys in KEYS:
                for far in SHARES if mode == "HYBRID" else (float(mode == "HOST_ONLY"),):
                    for update in (0, 1):
                        read, write = 4.0 * dim * (1 + 2 * update), 8.0 * dim * update
                        near = keys * (cost.key_ms + (1 - far) * (read + write) / 3e9)
                        slow = keys * far * (read / 5e7 + write / 2e7)
                        ms = cost.launch_ms + overlapped(near, slow, true.overlap)
                        ms *= float(np.exp(noise * random.normal()))
                        found.append(_step(mode, keys, read, write, ms, dim, far))
    return found


def test_a_cpu_is_recovered_through_noise() -> None:
    found = fit(_cpu_points(0.05))
    cost = found.parameters.modes[CPU]
    assert cost.launch_ms == pytest.approx(0.3, rel=0.1)
    assert cost.key_ms == pytest.approx(8e-5, rel=0.1)
    assert found.parameters.memories["ddr"] == pytest.approx(9e6, rel=0.05)
    assert found.residuals.median < 0.06
    assert found.residuals.p90 < 0.15


def test_outliers_move_little() -> None:
    found = fit(_cpu_points(0.01, outliers=2))
    assert found.parameters.memories["ddr"] == pytest.approx(9e6, rel=0.08)
    assert found.residuals.median < 0.05
    assert found.residuals.worst > 0.5  # said, not hidden


def test_a_card_is_recovered_through_noise() -> None:
    costs = {
        "HBM_ONLY": ModeCost(0.03, 1e-6),
        "HYBRID": ModeCost(0.05, 2e-6),
        "HOST_ONLY": ModeCost(0.04, 1.5e-6),
    }
    true = TimeParameters(modes=costs, overlap=3.0)
    found = fit(_card_points(true, 0.03), "NVIDIA H200")
    for mode, cost in costs.items():
        assert found.parameters.modes[mode].launch_ms == pytest.approx(cost.launch_ms, rel=0.1)
    assert found.parameters.modes["HYBRID"].key_ms == pytest.approx(2e-6, rel=0.1)
    speeds = found.parameters.memories
    assert speeds["hbm"] == pytest.approx(3e9, rel=0.1)
    assert speeds["host_read"] == pytest.approx(5e7, rel=0.1)
    assert speeds["host_write"] == pytest.approx(2e7, rel=0.1)
    assert found.parameters.overlap == pytest.approx(3.0, rel=0.15)
    assert found.residuals.median < 0.04
    assert "ddr" not in speeds


def test_serial_tiers_are_found_too() -> None:
    true = TimeParameters(modes={"HYBRID": ModeCost(0.05, 2e-6)}, overlap=1.0)
    assert fit(_card_points(true, 0.0)).parameters.overlap == pytest.approx(1.0, abs=0.02)


TRUE = {
    "HBM_ONLY": ModeCost(0.25, 1e-6, table_ms=0.03, id_ms=3e-7, id_byte_ms=4e-10, ahead=6),
    "CACHING": ModeCost(  # its kernels are those of HBM_ONLY
        *(0.6, 1e-6),
        table_ms=0.06,
        id_ms=3e-7,
        id_byte_ms=4e-10,
        ahead=6,
        host=HostCost(
            host_ms=1.4,
            host_key_ms=5e-4,
            host_bytes_per_ms=1e7,
            move_ms=2.5,
            host_table_ms=0.2,
            crowded_key_ms=4e-4,
        ),
    ),
}


def _together_points() -> list[Point]:
    """Of two modes' own paths: one and ten tables, ids that repeat, shares on the host."""
    random, found = np.random.default_rng(5), []
    for mode, cost in TRUE.items():
        shares = (0.0,) if mode == "HBM_ONLY" else SHARES
        repeats = (1, 3) if mode == "HBM_ONLY" else (1,)
        for dim, keys, tables in product((16, 128), KEYS, (1, 10)):
            for far, repeat in product(shares, repeats):
                size = 4.0 * dim
                rows = 0 if mode == "HBM_ONLY" else 10**6 // tables
                moving = row_moves(mode, far * keys, repeat * keys, tables, float(rows))
                step = Step(
                    *(keys, repeat * keys, 2 * size, size, size, far, tables, moving),
                    *(far * keys, 0.0, 0.0),
                )
                ms = step_ms(step, cost, Speeds(2.5e9, 1.0, 1.0, 1.0))
                found.append(
                    Point(
                        kind="step",
                        mode=mode,
                        keys=keys,
                        ids=repeat * keys,
                        read_bytes=2 * size,
                        write_bytes=size,
                        ms=ms * float(np.exp(0.03 * random.normal())),
                        dim=dim,
                        host_share=far,
                        tables=tables,
                        fast_rows=rows,
                    )
                )
    return found


def test_modes_that_were_measured_with_several_tables_tell_more() -> None:
    hits = Point(
        kind="hits",
        mode="HYBRID",
        keys=9,
        read_bytes=0.0,
        write_bytes=0.0,
        ms=1.0,
        host_share=0.4,
        seen=PointCounts(promoted=0.5 / 0.6),
    )
    copies = [
        Point(kind="copy", mode=way, keys=1, read_bytes=1e6, write_bytes=1e6, ms=ms)
        for way, ms in (("h2d", 0.02), ("h2d", 0.04), ("d2h", 0.05))
    ]
    found = fit([*_together_points(), hits, *copies], "NVIDIA H200")
    near, far = found.parameters.modes["HBM_ONLY"], found.parameters.modes["CACHING"]
    assert near.launch_ms == pytest.approx(0.25, rel=0.1)
    assert near.table_ms == pytest.approx(0.03, rel=0.1)
    assert near.id_ms + 512 * near.id_byte_ms == pytest.approx(3e-7 + 512 * 4e-10, rel=0.2)
    assert near.ahead == far.ahead > 3
    assert near.key_ms == far.key_ms == pytest.approx(1e-6, rel=0.2)
    assert near.host.host_key_ms == near.host.move_ms == 0 < far.host.host_key_ms
    assert far.host.move_ms == pytest.approx(2.5, rel=0.2)
    assert far.host.host_ms == pytest.approx(1.4, rel=0.15)
    assert far.host.host_table_ms == pytest.approx(0.2, rel=0.25)
    assert far.host.crowded_key_ms == pytest.approx(4e-4, rel=0.2)
    row = 1536 / (far.host.host_bytes_per_ms or 0)
    assert far.host.host_key_ms + row == pytest.approx(5e-4 + 1536 / 1e7, rel=0.1)
    assert found.residuals.p90 < 0.08
    assert found.parameters.promotion == pytest.approx(0.5 / 0.6)
    assert found.parameters.memories["host_read"] == 5e7
    assert found.parameters.memories["host_write"] == 2e7
    again = TimeParameters.from_dict(json.loads(json.dumps(found.parameters.to_dict())))
    assert again == found.parameters


def _host_points(noise: float, cost: ModeCost, tables: tuple[int, ...]) -> list[Point]:
    """Of a mode whose rows are all on the host."""
    mode = "HOST_ONLY" if cost.together else CPU
    random, found = np.random.default_rng(6), []
    for dim, keys, many, repeat in product((16, 64, 256), KEYS, tables, (1, 3)[: len(tables)]):
        size, ids = 4.0 * dim, float(repeat * keys)
        of_host = host_ids(mode, ids, float(keys), float(many))
        far = float(mode != CPU)
        step = Step(float(keys), ids, 2 * size, size, size, far, float(many), NO_MOVES, *of_host)
        ms = step_ms(step, cost, Speeds(9e6, 1.0, 1.0, 1.0))
        ms *= float(np.exp(noise * random.normal()))
        found.append(
            Point(
                kind="step",
                mode=mode,
                keys=keys,
                ids=int(ids),
                read_bytes=2 * size,
                write_bytes=size,
                ms=ms,
                dim=dim,
                host_share=far,
                tables=many,
            )
        )
    return found


def test_vectors_beyond_the_cache_of_a_processor_are_found() -> None:
    true = ModeCost(0.03, 2e-5, host=HostCost(cold_byte_ms=1.2e-7, cache_bytes=8e6))
    found = fit(_host_points(0.01, true, (1,)))
    cost = found.parameters.modes[CPU].host
    assert cost.cold_byte_ms == pytest.approx(1.2e-7, rel=0.3)
    assert cost.cache_bytes == pytest.approx(8e6, rel=0.5)
    assert found.residuals.p90 < 0.08


def test_ids_that_one_thread_does_are_found() -> None:
    host = HostCost(0.0, 0.0, 2e7, alone_id_ms=3e-4, alone_byte_ms=2e-7, pool_ms=0.2)
    true = ModeCost(0.2, 1e-5, 0.3, 2e-5, 1e-8, host=host)
    found = fit(_host_points(0.03, true, (1, 10)))
    cost = found.parameters.modes["HOST_ONLY"].host
    assert cost.alone_id_ms == pytest.approx(3e-4, rel=0.25)
    assert cost.alone_byte_ms == pytest.approx(2e-7, rel=0.4)
    assert found.residuals.p90 < 0.08


def test_rows_that_stay_on_the_host_may_be_faster_than_a_copy() -> None:
    # Only vectors cross, and those are counted by id: rows cost nothing that shows.
    true = ModeCost(0.2, 0.0, 0.3, 6e-6, 8e-8, host=HostCost(host_bytes_per_ms=1e12))
    copies = [
        Point(kind="copy", mode=way, keys=1, read_bytes=1e6, write_bytes=1e6, ms=0.02)
        for way in ("h2d", "d2h")
    ]
    found = fit([*_host_points(0.03, true, (1, 10)), *copies])
    assert found.residuals.p90 < 0.08
    speed = found.parameters.modes["HOST_ONLY"].host.host_bytes_per_ms or 0
    assert 1e9 < speed <= 1e10 * 1.001


def test_a_look_that_found_no_hot_rows_is_no_move() -> None:
    prices = {"host_ms": 0.8, "host_key_ms": 2e-4, "look_ms": 0.7, "move_ms": 4.0}
    host, found = HostCost(host_bytes_per_ms=1e7, **prices), []
    cost = ModeCost(1.2, 1e-6, table_ms=0.1, id_ms=2e-7, host=host)
    random = np.random.default_rng(7)
    for dim, keys, tables, far, moved in product(
        (16, 128), KEYS[:3], (1, 10), SHARES, (0.0, 0.3, 50.0)
    ):
        size, missed = 4.0 * dim, far * keys
        moving = row_moves("HYBRID", missed, keys, tables, 1e5, moved * (far > 0))
        step = Step(keys, keys, 2 * size, size, size, far, tables, moving, missed, 0.0, 0.0)
        point = _step("HYBRID", keys, 2 * size, size, 1.0, dim, far)
        ms = step_ms(step, cost, Speeds(2.5e9, 1.0, 1.0, 1.0)) * np.exp(0.02 * random.normal())
        seen = PointCounts(moved_rows=moved * (far > 0))
        found.append(
            replace(point, ms=float(ms), tables=tables, ids=keys, fast_rows=10**5, seen=seen)
        )
    known = fit(found)
    assert known.parameters.modes["HYBRID"].host.move_ms == pytest.approx(4.0, rel=0.1)
    assert known.parameters.modes["HYBRID"].host.look_ms == pytest.approx(0.7, rel=0.2)
    assert known.residuals.p90 < 0.06
    # Without the count each look is taken for one.
    uncounted = fit([replace(point, seen=PointCounts()) for point in found])
    assert uncounted.residuals.p90 > 2 * known.residuals.p90


def test_files_of_before_are_read() -> None:
    old = {"modes": {"CPU": {"launch_ms": 0.5, "key_ms": 1e-4}}, "memories": {"ddr": 1e7}}
    found = TimeParameters.from_dict({**old, "links": {}, "overlap": 64.0})
    assert found.modes["CPU"] == ModeCost(0.5, 1e-4)
    assert not found.modes["CPU"].together
    assert found.promotion is None
    assert found.to_dict()["modes"] == old["modes"]
    flat = {"launch_ms": 0.5, "key_ms": 1e-4, "table_ms": 0.1, "host_ms": 1.0, "pool_ms": 2.0}
    assert ModeCost.from_dict(flat).host == HostCost(host_ms=1.0, pool_ms=2.0)
    with pytest.raises(ConfigError, match="not as they are written"):
        TimeParameters.from_dict({**old, "links": {}, "overlap": 1.0, "modes": {"CPU": {"x": 1}}})


def test_points_of_before_are_read(tmp_path: Path) -> None:
    known = _measured().to_dict()
    old = {**known["points"][0], "kind": "hits", "host_share": 0.4, "factor": 0.1, "hottest": 0.7}
    del old["fast_rows"], old["seen"]
    flat = {**known["points"][0], "promoted": 0.25}  # as it was later
    del flat["seen"]
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps({**known, "points": [*known["points"], flat, old]}))
    points = Calibration.load(path).points
    assert points[-1].seen.promoted == pytest.approx(0.5 / 0.6)
    assert points[-2].seen == PointCounts(promoted=0.25)
    assert points[:-2] == _measured().points


def test_a_speed_that_cannot_be_is_not_found() -> None:
    # All steps are launches: any speed explains them as well.
    steps = [
        Point(
            kind="step",
            mode="HBM_ONLY",
            keys=keys,
            read_bytes=8.0 * dim,
            write_bytes=4.0 * dim,
            ms=0.8,
            dim=dim,
            tables=tables,
        )
        for dim, keys, tables in product((16, 128), KEYS[:3], (1, 10))
    ]
    copy = Point(kind="copy", mode="hbm", keys=1, read_bytes=1e6, write_bytes=1e6, ms=1e-3)
    published = Calibration.default("NVIDIA H200").parameters.memories["hbm"]
    speed = fit(steps, "NVIDIA H200").parameters.memories["hbm"]
    assert speed <= published * 1.001
    assert fit([*steps, copy], "NVIDIA H200").parameters.memories["hbm"] <= 2e9 * 1.001


def test_links_are_fitted_beside() -> None:
    links = [
        Point(
            kind="link", mode="intra", keys=1, read_bytes=size, write_bytes=0, ms=0.2 + size / 2e6
        )
        for size in (1e4, 1e5, 1e6, 1e7)
    ]
    found = fit([*_cpu_points(0.0), *links])
    assert found.parameters.links["intra"].latency_ms == pytest.approx(0.2, rel=1e-3)
    assert found.parameters.links["intra"].bytes_per_ms == pytest.approx(2e6, rel=1e-3)


def test_the_fit_agrees_with_another_library() -> None:
    optimize = pytest.importorskip("scipy.optimize")
    x = np.linspace(0, 3, 40)
    y = 0.7 * np.exp(0.4 * x) + np.where(np.arange(40) % 9 == 0, 1.5, 0.0)

    def errors(values: np.ndarray) -> np.ndarray:
        return values[0] * np.exp(values[1] * x) - y

    start = np.array([1.0, 0.1])
    ours = robust_fit(errors, start, np.array([0.0, 0.0]))
    theirs = optimize.least_squares(errors, start, loss="soft_l1", f_scale=0.1)
    assert ours.values == pytest.approx(theirs.x, rel=1e-4)
    assert ours.loss == pytest.approx(2 * theirs.cost, rel=1e-6)


def test_a_fit_of_fewer_points_than_values_ends() -> None:
    def errors(values: np.ndarray) -> np.ndarray:
        return np.array([values[0] + values[1] - 1.0, 0.0 * values[2]])

    found = robust_fit(errors, np.zeros(3), np.full(3, -9.0))
    assert found.loss < 1e-12
    assert found.values[2] == 0


def test_a_fit_without_steps_is_refused() -> None:
    with pytest.raises(InputError, match="no points"):
        fit([])


def _measured() -> Calibration:
    points = tuple(_cpu_points(0.02))
    found = fit(points)
    return Calibration(
        device="Some CPU",
        memory_bytes=2**34,
        library="1.0",
        parameters=found.parameters,
        residuals=found.residuals,
        points=points,
    )


def test_a_file_keeps_everything(tmp_path: Path) -> None:
    calibration = _measured()
    calibration.save(tmp_path / "calibration.json")
    assert Calibration.load(tmp_path / "calibration.json") == calibration
    assert calibration.measured


def test_a_calibration_says_what_speaks_against_it() -> None:
    calibration = _measured()
    assert calibration.warnings("Some CPU", [(16, 5000.0), (256, 100.0)]) == []
    other = calibration.warnings("Other CPU", [(512, 1.0), (8, 1.0), (64, 1e7)])
    assert [text[:30] for text in other] == [
        "the calibration is of 'Some CP",
        "dims 8, 512 lie outside the me",
        "a step of 10,000,000 distinct ",
    ]
    poor = Calibration(
        device="x", parameters=calibration.parameters, residuals=Residuals(0.1, 0.3, 0.9)
    )
    assert "30%" in poor.warnings()[0]


@pytest.mark.parametrize("name", ["NVIDIA H200", "NVIDIA A100-SXM4-80GB", "Tesla T4", "New", "cpu"])
def test_defaults_are_said_not_to_be_measured(name: str) -> None:
    found = Calibration.default(name)
    assert not found.measured
    assert "not measured" in found.warnings(name)[0]


def _changed(**values: Any) -> str:
    return json.dumps({**_measured().to_dict(), **values})


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", FileDamagedError),
        ("[1]", ConfigError),
        ("{}", ConfigError),
        (_changed(version=2), ConfigError),
        (_changed(version=None), ConfigError),
        (_changed(parameters={}), ConfigError),
        (_changed(parameters=3), ConfigError),
        (_changed(residuals={"median": 1}), ConfigError),
        (_changed(residuals={"median": 0, "p90": float("nan"), "worst": 1}), ConfigError),
        (_changed(points=[{"kind": "step"}]), ConfigError),
        (_changed(points=3), ConfigError),
        (_changed(points=[[1]]), ConfigError),
        (_changed(points=[{"seen": "x"}]), ConfigError),
        (_changed(points=[[["kind", "step"]]]), ConfigError),
        (_changed(memory_bytes="x"), ConfigError),
        (_changed(memory_bytes=float("inf")), ConfigError),
    ],
)
def test_files_that_are_none_are_refused(tmp_path: Path, text: str, error: type) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(text)
    with pytest.raises(error, match=r"calibration\.json"):
        Calibration.load(path)
    with pytest.raises(FileMissingError):
        Calibration.load(tmp_path / "none.json")
    for bomb in ("[" * 100_000, "1" * 5000):
        path.write_text(bomb)
        with pytest.raises(FileDamagedError, match="is no JSON file"):
            Calibration.load(path)


def test_parameters_that_cannot_be_are_refused() -> None:
    for values in ((-1.0, 1.0), (float("nan"), 1.0), (1.0, float("inf"))):
        with pytest.raises(ConfigError):
            ModeCost(*values)
    for values in ((0.0, 0.0), (0.0, -1.0), (float("nan"), 1.0)):
        with pytest.raises(ConfigError):
            LinkCost(*values)
    with pytest.raises(ConfigError):
        TimeParameters(modes={}, overlap=0.5)
    for more in ({"table_ms": -1.0}, {"ahead": 0.5}, {"id_ms": -1.0}):
        with pytest.raises(ConfigError):
            ModeCost(0.1, 0.1, **more)
    for more in ({"host_bytes_per_ms": 0.0}, {"cache_bytes": 0.0}, {"alone_id_ms": -1.0}):
        with pytest.raises(ConfigError):
            HostCost(**more)
    for promotion in (-0.1, 1.1, float("nan")):
        with pytest.raises(ConfigError, match="promotion"):
            TimeParameters(modes={}, promotion=promotion)
    with pytest.raises(KeyError, match="HYBIRD"):
        TimeParameters(modes={"HYBIRD": ModeCost(0.1, 0.1)})
