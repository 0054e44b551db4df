"""Advises on the routing rule of a table and on keys to replicate, from sampled keys."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...core import checks
from ...core.errors import InputError
from ...core.shapes import Int64
from ...routing.balance import STEP_KEYS, Balance, RuleBalance, balance
from ...routing.router import Router
from ..problem.table_spec import TableSpec
from ..problem.topology import GIB
from .time_model import row_bytes

EVEN = 1.10
"""The busiest rank may have at most this many times the mean."""
MOST_COPIES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class HotCopies:
    """Keys whose replication on all ranks balances the load.

    It helps only if repeated keys of a step are sent repeatedly. `before` and `after` are the load
    of the busiest rank relative to the mean. `enough` is False if replication alone does not
    balance.
    """

    keys: tuple[int, ...]
    row_bytes: float
    before: float
    after: float
    enough: bool

    @property
    def bytes_per_rank(self) -> int:
        """The bytes that the copies take on every rank."""
        return -int(-len(self.keys) * self.row_bytes // 1)


def hot_copies(
    keys: Int64[Tensor, "n"], router: Router, *, row_bytes: float, even: float = EVEN
) -> HotCopies:
    """Returns the fewest keys whose replication reduces the busiest rank to `even`.

    Each time the most frequent key of the busiest rank is added. A replicated key is read locally,
    so its load is spread evenly over all ranks.

    >>> import torch
    >>> keys = torch.tensor([1] * 60 + [2] * 20 + [3] * 20)
    >>> found = hot_copies(keys, Router("roundrobin", 2), row_bytes=64)
    >>> found.keys, found.before, found.after, found.bytes_per_rank
    ((1,), 1.6, 1.0, 64)
    """
    if not len(keys):
        raise InputError("keys is empty; hot keys are found in a sample of keys.")
    checks.setting("hot_copies", "even", even, least=1)
    names, counts = keys.unique(return_counts=True)
    queues = _by_rank(names, counts, router)
    loads = [float(sum(count for count, _ in queue)) for queue in queues]
    limit = even * len(keys) / router.shards
    shared, copied, before = 0.0, [], max(loads)
    while max(loads) + shared > limit and len(copied) < MOST_COPIES:
        fullest = loads.index(max(loads))
        if not queues[fullest]:
            break
        count, key = queues[fullest].pop()
        loads[fullest] -= count
        shared += count / router.shards
        copied.append(key)
    mean = len(keys) / router.shards
    after = max(loads) + shared
    return HotCopies(
        keys=tuple(copied),
        row_bytes=row_bytes,
        before=before / mean,
        after=after / mean,
        enough=after <= limit,
    )


def _by_rank(names: Tensor, counts: Tensor, router: Router) -> list[list[tuple[int, int]]]:
    """Returns (count, key) of every rank's own keys, the most frequent last."""
    queues: list[list[tuple[int, int]]] = [[] for _ in range(router.shards)]
    order = counts.argsort(stable=True)
    owners = router.owners(names[order])
    rows = zip(owners.tolist(), counts[order].tolist(), names[order].tolist(), strict=True)
    for owner, count, key in rows:
        queues[owner].append((count, key))
    return queues


@dataclass(frozen=True, slots=True)
class RoutingAdvice:
    """Advice on the routing rule of a table. It changes nothing by itself."""

    table: str
    dist_type: str  # the table's present rule
    balance: Balance
    copies: HotCopies

    @property
    def recommended(self) -> str:
        """The rule that suits the sample best; the table's own rule if it is as good."""
        return self.balance.recommended

    @property
    def own(self) -> RuleBalance:
        """The balance of the table's own rule."""
        return next(rule for rule in self.balance.rules if rule.dist_type == self.dist_type)

    @property
    def text(self) -> str:
        """The advice as text for a report."""
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
    """Returns advice on a table's routing over `ranks`, from `keys` or from its statistics.

    Returns None if there is no sample.

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
