"""What a bundle with rows can be asked: all that a serving parameter server can, checked first."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ..tables.multi.host_tables import HostTables
from .check_inputs import answers
from .model import Signature
from .ps_model import ps_model


def multi_name(number: int) -> str:
    """The name that pushes know all tables of one server by.

    >>> multi_name(3)
    'MonolithMultiHashTable_3'
    """
    return f"MonolithMultiHashTable_{number}"


def row_signatures(
    store: HostTables, multi: str, stamp: Callable[[], int] = lambda: 0
) -> dict[str, Signature]:
    """Signatures over tables, of which the raw ones take all tables at once, in name order.

    `stamp` gives the time of rows that are assigned.

    >>> import torch
    >>> from hedgerow import Fp32, Segment, TableConfig
    >>> config = TableConfig("user", (Segment(2, compressor=Fp32()),), serving=True)
    >>> found = row_signatures(HostTables({"user": config}), multi_name(0))
    >>> [*found]
    ['lookup', 'hashtable_lookup', 'raw_lookup', 'hashtable_assign', \
'MonolithMultiHashTable_0/raw_assign', 'hashtable_remove']
    >>> found["lookup"].run({"user": torch.tensor([7])})
    {'user': tensor([[0., 0.]])}
    """
    found = ps_model("rows", store, shared_name=multi, removes=True, stamp=stamp).signatures
    return {
        key: dataclasses.replace(signature, run=answers(signature.inputs, signature.run))
        for key, signature in found.items()
    }
