from __future__ import annotations

import json
import subprocess
import sys

import pytest

from hedgerow.core.errors import ConfigError
from hedgerow.core.records import Record
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.initializers import Uniform
from hedgerow.tables.optimizers import Adam, Optimizer, Polynomial, Sgd

from ..support import OPTIMIZERS, table_config


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.kind)
def test_every_optimizer_survives_json(optimizer: Optimizer) -> None:
    assert Optimizer.from_dict(json.loads(json.dumps(optimizer.to_dict()))) == optimizer


def test_a_table_config_survives_json_with_its_schedules() -> None:
    config = table_config(Adam(lr=Polynomial(0.1, 100), betas=(0.8, 0.9)), init=Uniform(0.2))
    assert TableConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize("optimizer", ["Adagrad", "adagrad", "group_ftrl"])
def test_a_config_can_be_read_in_a_process_that_imported_nothing_else(optimizer: str) -> None:
    config = table_config(Optimizer.from_dict({"kind": optimizer}))
    script = (
        "import json, sys, hedgerow as hr; "
        "print(hr.TableConfig.from_dict(json.load(sys.stdin)).to_dict()['name'])"
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(config.to_dict()),
        capture_output=True,
        text=True,
    )
    assert run.stdout == "test\n", run.stderr


def test_a_subclass_of_a_users_own_does_not_take_the_kind_of_its_parent() -> None:
    class Mine(Sgd):
        pass

    assert Optimizer.members()["Sgd"] is Sgd
    del Mine


def test_kinds_are_unique() -> None:
    def classes(cls: type[Record]) -> list[type[Record]]:
        return [cls, *(c for child in cls.__subclasses__() for c in classes(child))]

    kinds = [c.kind for c in classes(Record) if c.kind and c.__module__.startswith("hedgerow.")]
    assert len(kinds) == len(set(kinds))


def test_what_cannot_be_written_or_read_says_why() -> None:
    with pytest.raises(ConfigError, match=r"lr is .* cannot be written"):
        Sgd(lr=lambda step: 0.1).to_dict()
    with pytest.raises(KeyError, match="Did you mean 'adagrad'"):
        Optimizer.from_dict({"kind": "adagard"})
    with pytest.raises(KeyError, match="weight_decay"):
        Optimizer.from_dict({"kind": "Sgd", "weight_decy": 0.1})
    with pytest.raises(ConfigError, match="'kind'"):
        Optimizer.from_dict({"lr": 0.1})
    with pytest.raises(KeyError, match="kind of segment"):
        Segment.from_dict({"kind": "Sgd"})
    with pytest.raises(KeyError, match="kind of segment"):
        Segment.from_dict({"kind": ["segment"]})
    with pytest.raises(ConfigError, match="segment lacks dim"):
        Segment.from_dict({"kind": "segment"})
