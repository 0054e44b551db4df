"""The names that configuration files use for optimizers, initializers and rules of tables."""

from __future__ import annotations

from typing import Any

from ..core.records import Record
from ..tables.admission import Admission, Chance, Count, Within
from ..tables.expiry import Eviction, Lfu, Lru, Ttl
from ..tables.initializers import Constant, Initializer, Normal, TruncatedNormal, Uniform, Zeros
from ..tables.optimizer_base import Optimizer
from ..tables.optimizers import (
    Adagrad,
    Adam,
    AdamW,
    AmsGrad,
    Ftrl,
    Momentum,
    RmsProp,
    RowAdagrad,
    Sgd,
)

# Lower case for everybody; checkpoints write "Adagrad" for ours and "adagrad" for the original's.
_NAMES: dict[type[Record], dict[str, type[Record]]] = {
    Optimizer: {
        "adagrad": Adagrad,
        "row-adagrad": RowAdagrad,
        "sgd": Sgd,
        "momentum": Momentum,
        "adam": Adam,
        "adamw": AdamW,
        "amsgrad": AmsGrad,
        "rmsprop": RmsProp,
        "ftrl": Ftrl,
    },
    Initializer: {
        "uniform": Uniform,
        "normal": Normal,
        "truncated-normal": TruncatedNormal,
        "constant": Constant,
        "zeros": Zeros,
    },
    Admission: {"count": Count, "within": Within, "chance": Chance},
    Eviction: {"ttl": Ttl, "lru": Lru, "lfu": Lfu},
}


def named_kinds(family: type[Any]) -> dict[str, type[Any]]:
    """The members of a family by the name that users write.

    >>> from hedgerow.tables.expiry import Eviction
    >>> list(named_kinds(Eviction))
    ['ttl', 'lru', 'lfu']
    """
    return dict(_NAMES[family])


def kind_of(record: Record) -> str:
    """The name that users write for a record.

    >>> kind_of(Adagrad())
    'adagrad'
    """
    for names in _NAMES.values():
        for name, kind in names.items():
            if type(record) is kind:
                return name
    return record.kind
