"""A model in words, so that ranks can tell whether they have built the same one."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from ..core.errors import ConfigError
from ..tables.table import Table
from .collection import Collection


def about(model: nn.Module, collections: Sequence[Collection]) -> dict[str, str]:
    """What ranks must agree on, by name: the tables of each module, and what of the rest learns.

    >>> import hedgerow as hr
    >>> bags = hr.EmbeddingBags([hr.Table("user", 2)])
    >>> about(bags, [bags])["tables of module 0"]
    'user'
    """
    learning = sum(parameter.requires_grad for parameter in model.parameters())
    words = {"dense parameters that learn": str(learning)}
    for number, one in enumerate(collections):
        names = [table.name for table in one.tables]
        words[f"tables of module {number}"] = ", ".join(names)
        for table in one.tables:
            for setting, value in _settings(one, table).items():
                words[f"{setting} of table {table.name!r} in module {number}"] = value
    return words


def _settings(one: Collection, table: Table) -> dict[str, str]:
    given = ("dim", "dist_type", "rows", "features", "pooling")
    own = {name: str(getattr(table, name)) for name in given}
    config = one.table(table.name).config
    try:
        made = config.to_dict()
    except ConfigError:  # a rate is a function, which has no words
        kinds = [f"{type(s.init).__name__}, {type(s.optimizer).__name__}" for s in config.segments]
        made = {"segments": kinds, "seed": config.seed}
    return own | {name: str(value) for name, value in made.items()}
