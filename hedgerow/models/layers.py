"""What the models share: a stack of linear layers, and the width of their tables."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from ..core import checks
from ..core.errors import ConfigError
from ..tables.table import Table


def mlp(first: int, hidden: Sequence[int], last: int) -> nn.Sequential:
    """Linear layers of these widths, with ReLU between them and none behind the last.

    >>> [tuple(layer.weight.shape) for layer in mlp(4, (8,), 2) if isinstance(layer, nn.Linear)]
    [(8, 4), (2, 8)]
    """
    widths = [first, *hidden, last]
    for width in widths:
        checks.whole("mlp", "width", width, least=1)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def common_dim(owner: str, tables: Sequence[Table]) -> int:
    """The one width of all tables; vectors of different widths have no products."""
    dims = {table.name: table.dim for table in tables}
    if len(set(dims.values())) != 1:
        raise ConfigError(f"{owner} needs tables of one dim; given: {dims}.")
    check_pooled(owner, tables)
    return next(iter(dims.values()))


def check_pooled(owner: str, tables: Sequence[Table]) -> None:
    """Every feature gives one vector a sample."""
    for table in tables:
        if isinstance(table.pooling, tuple) or table.pooling == "none":
            raise ConfigError(
                f"{owner} needs one vector a sample; Table({table.name!r}).pooling is "
                f"{table.pooling!r}. Use sum, mean, sqrtn or max."
            )
