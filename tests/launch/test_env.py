"""Variables as values, and which source of a setting wins."""

from __future__ import annotations

from typing import Any

import pytest

from hedgerow.core.errors import ConfigError, VariableMissingError
from hedgerow.launch import env
from hedgerow.launch.process_group import group_settings


def test_the_first_given_source_wins_in_the_documented_order() -> None:
    given: dict[str, Any] = {
        "argument": 1,
        "flag": 2,
        "config": {"n": 3},
        "environ": {"N": "4"},
    }
    wins = []
    for source in (*given, None):
        wins.append(env.choose("n", default=5, variable="N", parse=int, **{"environ": {}, **given}))
        if source is not None:
            del given[source]
    assert wins == [1, 2, 3, 4, 5]


def test_a_value_that_is_given_but_false_still_wins() -> None:
    assert env.choose("n", default=5, argument=0, flag=2) == 0


def test_group_settings_follow_that_order() -> None:
    environ = {"EMB_DIST_BACKEND": "nccl", "HEDGEROW_TIMEOUT_S": "7.5"}
    config = {"backend": "cpu:gloo,cuda:nccl", "timeout_s": 9}
    assert group_settings(environ=environ).timeout_s == 7.5
    assert group_settings(environ=environ).backend == "nccl"
    assert group_settings(environ=environ, config=config).timeout_s == 9
    assert group_settings("gloo", 11, environ=environ, config=config).timeout_s == 11
    assert group_settings("gloo", environ=environ, config=config).backend == "gloo"
    assert group_settings(environ={}).timeout_s == 300


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"EMB_DIST_BACKEND": "smoke"}, "backend is 'smoke'"),
        ({"HEDGEROW_TIMEOUT_S": "soon"}, "HEDGEROW_TIMEOUT_S is 'soon'"),
        ({"HEDGEROW_TIMEOUT_S": "0"}, "timeout_s is 0"),
        ({"HEDGEROW_TIMEOUT_S": "nan"}, "timeout_s is nan"),
    ],
)
def test_bad_settings_are_named(environ: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        group_settings(environ=environ)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("0", False), ("1", True), ("true", True), ("False", False), (" 1 ", True), ("", False)],
)
def test_switches(text: str, wanted: bool) -> None:
    assert env.switch("MONOLITH_WITH_HOROVOD", {"MONOLITH_WITH_HOROVOD": text}) is wanted


@pytest.mark.parametrize("name", [env.WITH_BYTEPS, env.WITH_HOROVOD])
@pytest.mark.parametrize("text", ["yes", "2", "-1", "on"])
def test_other_text_in_a_switch_is_an_error_that_names_the_variable(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is {text!r}"):
        env.switch(name, {name: text})


def test_a_missing_variable_is_named() -> None:
    with pytest.raises(VariableMissingError, match="OMPI_COMM_WORLD_RANK is not set"):
        env.whole("OMPI_COMM_WORLD_RANK", {})
