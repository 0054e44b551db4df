"""`hr.plan` of a model, and a model that follows a plan in one process."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import hedgerow as hr
from hedgerow.core.errors import ConfigError, DtypeError, InputError, NotSupportedError
from hedgerow.nn.plan import spec_of, specs_of
from hedgerow.planner.problem.options import Mode, Variant
from hedgerow.planner.problem.topology import GIB

MACHINE = hr.planner.Topology(world=1, ddr_per_machine=8 * GIB, device="cpu")


def _model(**more: object) -> hr.EmbeddingBags:
    user = hr.Table("user", 4, rows=1000, dist_type="roundrobin")
    item = hr.Table("item", 8, features=["item", "seen"], optimizer=hr.Adam(), rows=500, **more)
    return hr.EmbeddingBags([user, item], optimizer=hr.RowAdagrad())


def test_tables_become_specs_with_all_they_say() -> None:
    user, item = specs_of(_model(dtype="fp16", admit=hr.Count(3)))
    assert (user.rows, user.dim, user.dist_type) == (1000, 4, "roundrobin")
    assert (user.optimizer, user.counter_rows, len(user.features)) == ("rowwise_adagrad", 0, 1)
    assert (item.optimizer, item.counter_rows, item.dtype) == ("adam", 500, "fp16")
    assert [feature.pooled for feature in item.features] == [True, True]
    (window,) = specs_of(hr.EmbeddingBags([hr.Table("a", 2, rows=9, admit=hr.Within(3000, 2))]))
    assert window.counter_rows == 3000
    (first,) = specs_of(hr.EmbeddingBags([hr.Table("a", 2, rows=9, admit=hr.Count(1))]))
    assert first.counter_rows == 0


def test_how_often_a_feature_is_read() -> None:
    table = hr.Table("item", 8, features=["item", "seen"], pooling=("first", 3))
    spec = spec_of(table, 10, ids_per_sample={"seen": 20.0})
    assert [(f.ids_per_sample, f.pooled) for f in spec.features] == [(1.0, False), (20.0, False)]


def test_segments_count_as_the_one_with_the_most_states() -> None:
    parts = [
        hr.Segment(1, hr.Zeros(), hr.Sgd()),
        hr.Segment(3, hr.Zeros(), hr.Adam()),
    ]
    assert spec_of(hr.Table("t", 4, segments=parts), 10).optimizer == "adam"


def test_rows_come_from_the_call_the_table_or_the_rows_that_are_there() -> None:
    model = hr.EmbeddingBags([hr.Table("user", 2)], optimizer=hr.Sgd(lr=0.1))
    with pytest.raises(ConfigError, match=r"table 'user' has no rows=.*hr\.Table\('user', 2, rows"):
        hr.plan(model, MACHINE)
    assert specs_of(model, {"user": 70})[0].rows == 70
    batch = hr.IdBatch.from_lists({"user": [[1], [2], [3]]})
    model(batch)["user"].sum().backward()
    assert specs_of(model)[0].rows == 3
    with pytest.raises(hr.HedgerowError, match="unknown table 'users'"):
        hr.plan(model, MACHINE, rows={"users": 3})


def test_what_is_no_model() -> None:
    with pytest.raises(DtypeError, match="plan of a int"):
        hr.plan(3, MACHINE)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="without EmbeddingBags"):
        hr.plan(torch.nn.Linear(1, 1), MACHINE)


def test_a_plan_keeps_the_rule_of_each_table() -> None:
    found = hr.plan(_model(), MACHINE)
    assert [t.dist_type for t in found.tables] == ["roundrobin", "hash_roundrobin"]


def test_a_model_alone_follows_a_plan_and_logs_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = _model()
    found = hr.plan(model, MACHINE)
    found.save(tmp_path / "plan.json")
    for given in (found, tmp_path / "plan.json", str(tmp_path / "plan.json"), "auto"):
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="hedgerow"):
            assert hr.distribute(model, plan=given) is model
        lines = [r.getMessage() for r in caplog.records]
        assert [line.partition(",")[0] for line in lines] == ["plan"] * 2
        assert "rank 0 of 1: user HOST_ONLY factor 0, roundrobin, 1 000 rows, HBM 0 B" in lines[0]


def test_a_plan_of_other_tables_is_refused() -> None:
    found = hr.plan(_model(), MACHINE)
    with pytest.raises(ConfigError, match="item: optimizer adam in the plan, adagrad now"):
        hr.distribute(
            hr.EmbeddingBags(
                [
                    hr.Table("user", 4, dist_type="roundrobin", optimizer=hr.RowAdagrad()),
                    hr.Table("item", 8, features=["item", "seen"]),
                ]
            ),
            plan=found,
        )


def test_a_plan_of_another_world_is_refused() -> None:
    found = hr.plan(_model(), replace(MACHINE, world=2, local_world=2))
    with pytest.raises(ConfigError, match=r"the plan is for 2 ranks, the job has 1.*--ranks 1"):
        hr.distribute(_model(), plan=found)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_tables_in_hbm_need_a_gpu() -> None:
    found = hr.plan(_model(), MACHINE)
    lines = tuple(replace(t, variant=Variant(Mode.HBM_ONLY, "1.0")) for t in found.tables)
    with pytest.raises(NotSupportedError, match="torch sees no GPU here"):
        hr.distribute(_model(), plan=replace(found, tables=lines))


def test_whole_tables_are_refused_until_they_can_be_built() -> None:
    found = hr.plan(_model(), MACHINE)
    lines = tuple(replace(t, sharding="table_wise", rank=0) for t in found.tables)
    with pytest.raises(NotSupportedError, match="table_wise"):
        hr.distribute(_model(), plan=replace(found, tables=lines))


def test_what_is_no_plan() -> None:
    with pytest.raises(DtypeError, match="plan is a int"):
        hr.distribute(_model(), plan=3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(hr.HedgerowError, match=r"nowhere\.json is no file"):
        hr.distribute(_model(), plan="nowhere.json")
    with pytest.raises(ConfigError, match="a plan and servers"):
        hr.distribute(_model(), plan="auto", servers=["127.0.0.1:1"])
