"""Configs of many tables: one object for equal content, and a text that means the same for ever."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.core.errors import ConfigError, UnknownNameError
from hedgerow.monolith.tables.merged import group_names, legacy_names, merged_name
from hedgerow.tables import compressors, initializers, optimizers
from hedgerow.tables.admission import Count
from hedgerow.tables.config import TableConfig
from hedgerow.tables.eviction import Lru
from hedgerow.tables.multi import several_tables
from hedgerow.tables.multi.several_tables import MultiConfig, canonical
from hedgerow.tables.optimizers import Polynomial

from ...support import OPTIMIZERS, table_config
from .many import CONFIGS, DIMS, NAMES

GROUP_NAME = "merged_c0bc20262b472355"


def test_names_configs_and_dims_stand_in_byte_order() -> None:
    config = MultiConfig.of(CONFIGS)
    assert config.names == NAMES
    assert config.dims == DIMS
    assert config.segment_splits == (0, 1, 2, 4)
    assert [c.name for c in config.configs] == list(NAMES)
    assert [config.at(name) for name in NAMES] == [0, 1, 2]


def test_equal_content_gives_one_object_whoever_made_it() -> None:
    again = {
        name: TableConfig.from_dict(config.to_dict()) for name, config in reversed(CONFIGS.items())
    }
    assert again["user"] is not CONFIGS["user"]
    assert MultiConfig.of(again) is MultiConfig.of(CONFIGS)


def test_other_content_gives_another_object() -> None:
    first = MultiConfig.of({"a": table_config(dim=2)})
    for other in ({"a": table_config(dim=3)}, {"b": table_config(dim=2)}):
        assert MultiConfig.of(other) is not first
        assert MultiConfig.of(other).text != first.text


def test_what_is_remembered_is_bounded() -> None:
    for dim in range(1, 2 * several_tables._KEPT):
        MultiConfig.of({"bounded": table_config(dim=dim)})
    assert several_tables._remembered.cache_info().currsize <= several_tables._KEPT


def test_a_rate_without_a_hash_is_served_too() -> None:
    class Rate:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, step: int) -> float:
            return 0.1

    config = MultiConfig.of({"a": table_config(optimizers.Sgd(lr=Rate()))})
    assert config.names == ("a",)


@pytest.mark.parametrize(
    ("configs", "words"),
    [
        ({}, "at least one"),
        (None, "dict"),
        ([table_config()], "dict"),
        ({"": table_config()}, "slot name ''"),
        ({3: table_config()}, "slot name 3"),
        ({"a": "sgd"}, "slot 'a' has config 'sgd'"),
    ],
    ids=["empty", "none", "list", "empty name", "number as name", "no config"],
)
def test_what_is_no_set_of_tables_is_refused(configs: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        MultiConfig.of(configs)


def test_an_unknown_slot_is_named_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown slot 'usr'.*'user'"):
        MultiConfig.of(CONFIGS).at("usr")


@pytest.mark.parametrize("rates", [[], [0.1] * 3, [0.1] * 5, "0.1", 0.1])
def test_rates_are_one_a_segment_of_all_tables(rates: Any) -> None:
    with pytest.raises(ConfigError, match="rates"):
        MultiConfig.of(CONFIGS).rates_of(rates)


def test_the_text_tells_every_optimizer_and_setting_apart() -> None:
    texts = {canonical(table_config(optimizer)) for optimizer in OPTIMIZERS}
    assert len(texts) == len(OPTIMIZERS)
    schedule = Polynomial(0.1, 10)
    assert canonical(table_config(optimizers.Sgd(lr=schedule))) not in texts
    assert canonical(Polynomial(0.1, 10)) == canonical(schedule) != canonical(Polynomial(0.1, 11))


def test_settings_at_their_defaults_do_not_show_so_that_new_ones_rename_nothing() -> None:
    assert canonical(optimizers.Sgd(lr=0.5)) == '{"kind":"Sgd","lr":0.5}'
    assert canonical(optimizers.Sgd(lr=1)) == canonical(optimizers.Sgd(lr=1.0))


def test_a_function_has_no_text() -> None:
    config = table_config(optimizers.Sgd(lr=lambda step: 0.1))
    with pytest.raises(ConfigError, match="use a number or a schedule"):
        group_names([config])


def _adagrad(lr: Any = 0.1, dim: int = 8, **settings: Any) -> TableConfig:
    return table_config(optimizers.Adagrad(lr=lr), dim, **{"seed": None, **settings})


SAME_SHAPE = {
    "another name": _adagrad(name="x"),
    "another rate": _adagrad(0.2),
    "a schedule": _adagrad(Polynomial(0.1, 10)),
    "a seed": _adagrad(seed=1),
    "another initializer": _adagrad(init=initializers.Zeros()),
    "an admission rule": _adagrad(admit=Count(2)),
    "an eviction rule": _adagrad(evict=Lru(5)),
    "a compressor": _adagrad(compressor=compressors.Fp16()),
    "serving": _adagrad(compressor=compressors.Fp16(), serving=True),
    "rounding": _adagrad(stochastic_rounding_float16=True),
    "room": _adagrad(initial_capacity=100),
    "another rule for what is not finite": _adagrad(not_finite="drop"),
}
OTHER_SHAPES = {
    "dim": _adagrad(dim=9),
    "optimizer": table_config(optimizers.Sgd(), dim=8),
    "segments": TableConfig("test", _adagrad(dim=4).segments * 2),
}


@pytest.mark.parametrize("config", SAME_SHAPE.values(), ids=SAME_SHAPE)
def test_a_merged_table_keeps_its_name_whatever_a_checkpoint_tolerates(config: TableConfig) -> None:
    assert group_names([config]) == [GROUP_NAME]  # in files: a change here orphans their rows
    assert group_names([*OTHER_SHAPES.values(), config])[-1] == GROUP_NAME


@pytest.mark.parametrize("config", OTHER_SHAPES.values(), ids=OTHER_SHAPES)
def test_rows_of_another_shape_have_another_name(config: TableConfig) -> None:
    assert group_names([config]) != [GROUP_NAME]
    assert group_names([config, _adagrad()]) == [*group_names([config]), GROUP_NAME]


def test_two_groups_of_one_shape_are_named_by_what_differs() -> None:
    slow, fast = "merged_04538b90a5098737", "merged_399c47245f93bcc9"
    assert group_names([_adagrad(), _adagrad(0.2)]) == [slow, fast]  # in files, as above
    assert group_names([_adagrad(0.2), _adagrad(name="x"), _adagrad(0.2)]) == [fast, slow, fast]
    assert group_names([_adagrad(seed=3), _adagrad(0.2, seed=3)]) == [slow, fast]
    assert group_names([*OTHER_SHAPES.values(), _adagrad(), _adagrad(0.2)])[3:] == [slow, fast]


@given(st.lists(st.sampled_from([*SAME_SHAPE.values(), *OTHER_SHAPES.values()]), max_size=6))
def test_configs_share_a_name_exactly_where_they_differ_in_their_name_alone(
    configs: list[TableConfig],
) -> None:
    names = group_names(configs)
    contents = [canonical(config, without=("name",)) for config in configs]
    assert len(set(zip(names, contents, strict=True))) == len(set(names)) == len(set(contents))
    alone = {canonical(c, without=("name",)) for c in configs if c in SAME_SHAPE.values()}
    assert (GROUP_NAME in names) == (len(alone) == 1)
    assert group_names(configs[::-1]) == names[::-1]
    assert group_names(configs * 2) == names * 2


def test_monolith_names_do_not_depend_on_the_order_given() -> None:
    assert merged_name(["b", "a"]) == merged_name(["a", "b"]) != merged_name(["a,b", "c"])
    with pytest.raises(ValueError, match="at least one slot"):
        merged_name([])


@pytest.mark.parametrize(
    ("slots", "older"),
    [
        (["fc_slot_1", "gid"], "slot_1,gid"),  # sorted before the prefix goes
        (["fc_slot_1", "fc_slot_12"], "slot_1,slot_12"),
        (["fc_slot_x"], None),
        (["fc_slot_"], None),
        (["fc_slot_1_a"], None),
        (["my_fc_slot_1"], None),
        (["slot_1"], None),
    ],
)
def test_only_numbered_slots_lose_their_prefix(slots: list[str], older: str | None) -> None:
    expected = [hashlib.md5(older.encode()).hexdigest()] if older else []
    assert legacy_names(slots) == expected
