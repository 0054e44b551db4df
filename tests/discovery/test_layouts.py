"""Layout filters: what fits, and that a filter is never code."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.core.errors import InputError
from hedgerow.discovery.control import Control
from hedgerow.discovery.layouts import LayoutFilter, condition_holds
from hedgerow.discovery.zookeeper import Session

from .memory_zookeeper import MemoryZooKeeper

NAMES = ["entry", *(f"ps_{i}" for i in range(6)), "dense_0", "xps_1", "ps_1x"]


@pytest.mark.parametrize(
    ("text", "fitting"),
    [
        ("ps_{i}; i % 2 == 1", ["ps_1", "ps_3", "ps_5"]),
        ("ps_{i}", [f"ps_{i}" for i in range(6)]),
        ("entry", ["entry"]),
        ("ps_{i}; i % ${shard_num} == ${shard_id}", ["ps_1", "ps_4"]),
        ("ps_{i}; i < 2 or i >= 5", ["ps_0", "ps_1", "ps_5"]),
        ("ps_{i}; not (i + 1) * 2 > 4 and i != 0", ["ps_1"]),
        ("{kind}_{i}", []),
        ("p.*", []),
    ],
)
def test_what_fits(text: str, fitting: list[str]) -> None:
    asked = LayoutFilter(text, 1, 3)
    assert [name for name in NAMES if asked.fits(name)] == fitting


@pytest.mark.parametrize(
    "text",
    [
        "ps_{i}; __import__('os').system('true')",
        "ps_{i}; i.bit_length()",
        "ps_{i}; j == 1",
        "ps_{i}; i ==",
        "ps_{i}; i == 1)",
        "ps_{i}; (i == 1",
        "ps_{i}; i / 0 == 1",
        "ps_{i}; i ** i",
        "ps_{i}; " + "9" * 30,
        "ps_{i}; " + "+".join("i" * 200),
        "ps_{i}; " + "(" * 99,
        "ps_{i}; " + "(" * 199,
        "ps_{i}; " + "not " * 199 + "i",
        "ps_{i}; [i for i in (1,)]",
        "ps_{i}_{i}",
        "ps_{1}",
    ],
)
def test_what_is_no_condition_is_an_error_at_once(text: str) -> None:
    with pytest.raises(InputError, match="as in"):
        LayoutFilter(text)


NUMBERS = st.integers(0, 40).map(str) | st.just("i")
SUMS = st.recursive(
    NUMBERS,
    lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(
        lambda parts: f"({' '.join(parts)})"
    ),
    max_leaves=6,
)
COMPARED = st.tuples(SUMS, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), SUMS).map(" ".join)
CONDITIONS = st.lists(COMPARED, min_size=1, max_size=3).map(" and ".join) | COMPARED.map(
    lambda one: f"not {one}"
)


@given(CONDITIONS, st.integers(0, 20))
def test_conditions_mean_what_python_means(text: str, i: int) -> None:
    wanted = eval(text, {"__builtins__": {}}, {"i": i})
    assert condition_holds(text, {"i": i}) is bool(wanted)


def test_control(tmp_path: Path) -> None:
    for name in ("entry", "ps_0", "ps_1"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    with Session(MemoryZooKeeper().client()).start() as session:
        control = Control(session, "demo")
        assert control.info() == {}
        for _ in range(2):  # a second declaration replaces the first
            assert [str(one) for one in control.declare("ctr", tmp_path)] == [
                *("ctr:entry", "ctr:ps_0", "ctr:ps_1")
            ]
        assert [one.sub_graph for one in control.publish("mix", "ctr:ps_*")] == ["ps_0", "ps_1"]
        assert control.info() == {
            "layouts": {"mix": {"ctr:ps_0": None, "ctr:ps_1": None}},
            "saved_models": {
                "ctr": {
                    name: {"model_base_path": str(tmp_path / name), "version_policy": policy}
                    for name, policy in (
                        *(("entry", "latest"), ("ps_0", "latest_once"), ("ps_1", "latest_once")),
                    )
                }
            },
        }
        session.client.create("/demo/layouts/mix/of others", b"")
        assert [one.sub_graph for one in control.unpublish("mix", "ctr:*_0")] == ["ps_0"]
        assert sorted(session.client.get_children("/demo/layouts/mix")) == ["ctr:ps_1", "of others"]
        for wrong in ("ctr", "ctr:", "ctr:nothing", "a/b:*"):
            with pytest.raises(ValueError, match=r"sub graph|match"):
                control.publish("mix", wrong)
