"""One sync step by the original's rule: target after target, part after part, nothing tried again.

Keys that were taken and could not be pushed are lost, as in the original. It is the parity mode;
`Publisher` loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from ..core.shapes import Float32, Int64
from ..wire import push, push_split
from ..wire.messages import parameter_sync
from .strict_targets import StrictTargets

if TYPE_CHECKING:
    from ..wire.messages.parameter_sync import ClientConfig, PushRequest, PushResult

RAW_ASSIGN = "raw_assign"


@dataclass(frozen=True, slots=True, eq=False)
class ChangedRows:
    """The rows of one table that a step pushes, perhaps none."""

    name: str
    ids: Int64[Tensor, "n"]
    rows: Float32[Tensor, "n dim"]


def strict_step(
    config: ClientConfig,
    targets: StrictTargets,
    changed: Sequence[ChangedRows],
    multi: str | None = None,
    limit_bytes: int = push_split.LIMIT_BYTES,
) -> PushResult:
    """Pushes to every target of the config and tells how each part went.

    `changed` holds every table, also those without rows: a server wants them all. `multi` is the
    name of the multi table that they are; without it they are plain tables, pushed in the order of
    their names. Without any row nobody is called.

    >>> import torch
    >>> table = ChangedRows("t", torch.empty(0, dtype=torch.int64), torch.empty(0, 2))
    >>> targets = StrictTargets()
    >>> config = parameter_sync.ClientConfig(targets=["localhost:1"])
    >>> len(strict_step(config, targets, [table]).responses), targets.addresses
    (0, ('localhost:1',))
    >>> targets.close()
    """
    targets.replace(config)
    request = push_request(config, changed, multi)
    result = parameter_sync.PushResult()
    if push.row_count(request):
        parts = push_split.split(request, limit_bytes, "reference")
        for address in targets.addresses:
            result.responses.extend(targets.push(address, part) for part in parts)
    return result


def push_request(
    config: ClientConfig, changed: Sequence[ChangedRows], multi: str | None = None
) -> PushRequest:
    """The rows of a step as one message, as the original makes it.

    >>> import torch
    >>> table = ChangedRows("t", torch.tensor([7]), torch.ones(1, 2))
    >>> config = parameter_sync.ClientConfig(model_name="ps_0", signature_name="hashtable_assign")
    >>> push_request(config, [table], "MonolithMultiHashTable_0").signature_name
    'MonolithMultiHashTable_0/raw_assign'
    """
    request = parameter_sync.PushRequest(
        model_name=config.model_name,
        signature_name=config.signature_name if multi is None else f"{multi}/{RAW_ASSIGN}",
        timeout_in_ms=config.timeout_in_ms,
    )
    plain = multi is None
    for one in sorted(changed, key=lambda one: one.name) if plain else changed:
        push.add_rows(request, one.name, one.ids, one.rows, multi=not plain)
    return request
