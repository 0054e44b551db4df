from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from hedgerow.core.errors import ConfigError, NotSupportedError
from hedgerow.nn.embedding_modules import EmbeddingBags
from hedgerow.tables import compressors, initializers, monolith_rules, optimizers
from hedgerow.tables.config import Segment, Table, TableConfig
from hedgerow.tables.optimizers import Polynomial, rate_at

from ..support import table_config

ZEROS, SGD = initializers.Zeros(), optimizers.Sgd()


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda: Segment(0, ZEROS, SGD), "Segment.dim is 0"),
        (lambda: Segment(-3, ZEROS, SGD), "Segment.dim is -3"),
        (lambda: Segment(2.0, ZEROS, SGD), "whole number"),
        (lambda: Segment(2, SGD, ZEROS), "Segment.init"),
        (lambda: Segment(2, ZEROS, "sgd"), "Segment.optimizer is 'sgd'"),
        (lambda: Table("user", 2, optimizer="sgd"), r"^Table\('user'\).optimizer is 'sgd'"),
        (lambda: Table("user", 2, init=SGD), r"^Table\('user'\).init is Sgd"),
        (lambda: EmbeddingBags([Table("t", 2)], optimizer="x"), "^EmbeddingBags.optimizer is 'x'"),
        (lambda: Segment(2, ZEROS, monolith_rules.BatchSoftmax()), "use dim=1"),
        (lambda: TableConfig("", (Segment(1, ZEROS, SGD),)), "non-empty"),
        (lambda: TableConfig("t", ()), "at least one"),
        (lambda: TableConfig("t", [Segment(1, ZEROS, SGD)]), "tuple"),
        (lambda: TableConfig("t", (1,)), "not a Segment"),
        (lambda: TableConfig("t", (Segment(70_000, ZEROS, SGD),)), "at most 65536"),
        (lambda: table_config(seed=2**64), "0..2[*][*]64-1"),
        (lambda: table_config(seed=-1), "0..2[*][*]64-1"),
        (lambda: table_config(seed=True), "0..2[*][*]64-1"),
        (lambda: table_config(not_finite="ignore"), "reject, drop"),
        (lambda: table_config(initial_capacity=-1), "at least 0"),
        (lambda: optimizers.Sgd(lr=-0.1), "Sgd.lr is -0.1"),
        (lambda: optimizers.Sgd(lr="fast"), "number, schedule or callable"),
        (lambda: optimizers.Adagrad(initial_accumulator_value=-1.0), "at least 0"),
        (lambda: optimizers.Adam(betas=(0.9, 1.0)), "betas.1. is 1.0"),
        (lambda: optimizers.Adam(betas=0.9), "tuple of two"),
        (lambda: optimizers.RmsProp(alpha=float("nan")), "finite"),
        (lambda: monolith_rules.MonolithAdagrad(learning_rate=-1), "learning_rate is -1"),
        (lambda: monolith_rules.MonolithAdagrad(warmup_steps=-1), "warmup_steps is -1"),
        (lambda: monolith_rules.MonolithAdagrad(hessian_compression_times=2), "never reads it"),
        (lambda: monolith_rules.MonolithAdam(use_beta1_warmup=True), "never reads it"),
        (lambda: monolith_rules.DynamicWdAdagrad(flip_direction=True), "never reads it"),
        (lambda: monolith_rules.DynamicWdAdagrad(dynamic_wd_temperature=2.0), "never reads it"),
        (lambda: initializers.Uniform(-0.1), "at least 0"),
        (lambda: initializers.RandomUniform(1.0, -1.0), "swap"),
        (lambda: initializers.BatchSoftmaxInitializer(0.5), "at least 1"),
        (lambda: initializers.Normal(std=float("inf")), "finite"),
        (lambda: compressors.FixedR8(0.0), "at least 1e-30"),
        (lambda: compressors.FixedR8(1e39), "finite in float32"),
        (lambda: optimizers.Sgd(lr=1e39), "finite in float32"),
        (lambda: optimizers.Sgd(lr=10**400), "finite in float32"),
        (lambda: optimizers.Sgd(weight_decay=1e39), "finite in float32"),
        (lambda: initializers.Constant(1e39), "finite in float32"),
        (lambda: initializers.Uniform(3e38), "below"),
        (lambda: initializers.RandomUniform(-3e38, 3e38), "maxval - minval"),
        (lambda: optimizers.Momentum(nesterov="no"), "True or False"),
        (lambda: monolith_rules.MonolithAdam(use_nesterov=1), "True or False"),
        (lambda: monolith_rules.DynamicWdAdagrad(decouple_weight_decay="False"), "True or False"),
        (lambda: Polynomial(0.1, 10, cycle="no"), "True or False"),
        (lambda: table_config(serving="no"), "True or False"),
        (lambda: table_config(stochastic_rounding_float16="no"), "True or False"),
        (lambda: table_config(initial_capacity=2**32), "below 2"),
        (lambda: compressors.OneBit(step_size=0), "at least 1"),
        (lambda: Polynomial(0.1, 0), "decay_steps"),
        (lambda: Polynomial(-0.1, 10), "at least 0"),
    ],
)
def test_what_cannot_be_built_is_refused_when_the_config_is_made(
    build: Callable[[], Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        build()


def test_the_dynamic_weight_decay_of_monolith_has_no_formula() -> None:
    with pytest.raises(NotSupportedError, match="decouple_weight_decay") as caught:
        monolith_rules.DynamicWdAdagrad(enable_dynamic_wd=True)
    assert isinstance(caught.value, NotImplementedError)


def test_configs_are_frozen_and_hashable() -> None:
    config = table_config()
    with pytest.raises(AttributeError):
        config.name = "other"  # type: ignore[misc]
    assert hash(config) == hash(table_config())


def test_the_seed_follows_from_the_name_unless_given() -> None:
    seeds = {table_config(name=n, seed=None).row_seed for n in ("a", "b", "c")}
    assert len(seeds) == 3
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert table_config(name="a", seed=5).row_seed == 5


def test_rates_are_checked_where_they_arise() -> None:
    assert rate_at(Polynomial(1.0, 10, end=2.0), 1) == pytest.approx(1.1)
    with pytest.raises(ValueError, match="step 3"):
        rate_at(lambda step: -1.0, 3)
    for bad in (float("nan"), float("inf"), 1e39):
        with pytest.raises(ValueError, match="a rate must lie in"):
            rate_at(lambda step, bad=bad: bad, 3)
    for wrong in (None, "0.1", [0.1], True):
        with pytest.raises(TypeError, match="must be a number"):
            rate_at(lambda step, wrong=wrong: wrong, 3)
    assert rate_at(lambda step: torch.tensor(0.5), 3) == 0.5
    assert rate_at(np.float32(0.5), 3) == 0.5
