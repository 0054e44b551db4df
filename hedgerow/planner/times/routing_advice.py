"""Which routing rule a table's sampled keys speak for; the table's own stands all the same."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.shapes import Int64
from ...routing.balance import STEP_KEYS, Balance, RuleBalance, balance
from ...routing.router import Router
from ..problem.table_spec import TableSpec
from ..problem.topology import GIB
from .hot_copies import EVEN, HotCopies, hot_copies
from .time_model import row_bytes


@dataclass(frozen=True, slots=True)
class RoutingAdvice:
    """What a sample says of a table's rule: nothing is changed by it."""

    table: str
    dist_type: str  # the table's own, which stands
    balance: Balance
    copies: HotCopies

    @property
    def recommended(self) -> str:
        """What the sample speaks for; the table's own rule if that is as good."""
        return self.balance.recommended

    @property
    def own(self) -> RuleBalance:
        """How even the table's own rule is."""
        return next(rule for rule in self.balance.rules if rule.dist_type == self.dist_type)

    @property
    def text(self) -> str:
        """A line or two for a report."""
        sent = self.own.deduplicated.max_over_mean
        lines = [
            f"{self.table}: {self.dist_type} gives the fullest of {self.balance.ranks} ranks "
            f"{sent:.2f} times the mean of the traffic."
        ]
        if self.recommended != self.dist_type:
            lines.append(
                f"{self.recommended} is recommended. {self.balance.reason} It is applied only with "
                f"--choose-routing, and never to a table that has a checkpoint."
            )
        if self.copies.keys and self.copies.enough:
            lines.append(
                f"Where every occurrence travels, copies of {len(self.copies.keys)} hot keys on "
                f"every rank ({self.copies.bytes_per_rank / GIB:.3f} GiB each) bring "
                f"{self.copies.before:.2f} down to {self.copies.after:.2f}; where equal keys of a "
                f"step are sent once, as by default, they are no help."
            )
        return " ".join(lines)


def routing_advice(
    spec: TableSpec,
    ranks: int,
    keys: Int64[Tensor, "n"] | None = None,
    *,
    step_keys: int = STEP_KEYS,
    even: float = EVEN,
) -> RoutingAdvice | None:
    """Advice on a table's routing over `ranks`, from `keys` or else from its statistics.

    None where nothing was sampled.

    >>> item = TableSpec(name="item", rows=8000, dim=8, dist_type="roundrobin")
    >>> found = routing_advice(item, 8, 8 * torch.arange(1000))
    >>> found.dist_type, found.recommended, found.own.raw.max_over_mean
    ('roundrobin', 'hash_roundrobin', 8.0)
    >>> routing_advice(item, 8) is None
    True
    """
    if keys is None:
        if spec.stats is None or not spec.stats.keys:
            return None
        keys = torch.tensor(spec.stats.keys, dtype=torch.int64)
    rows = spec.rows if spec.dist_type == "continuous" else None
    found = balance(keys, ranks, rows=rows, step_keys=step_keys)
    router = Router(spec.dist_type, ranks, rows=rows)
    copies = hot_copies(keys, router, row_bytes=row_bytes(spec), even=even)
    return RoutingAdvice(spec.name, spec.dist_type, found, copies)
