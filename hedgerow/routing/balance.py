"""How evenly a sample of keys spreads over ranks under each routing rule, and which rule to use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core import checks
from ..core.errors import InputError
from ..core.shapes import Int64
from .hot_keys import hot_key_advice, hot_key_lines
from .router import Router, widened

STEP_KEYS = 32_768
"""Keys that a source sends at once: equal ones among them travel once."""
_TOP = 10
_BETTER = 1.02  # roundrobin must be better than hashing by more than 2 %
_DENSE = 0.5  # distinct keys per number between the smallest and the largest


@dataclass(frozen=True, slots=True)
class Spread:
    """A load over ranks.

    >>> Spread((30, 10)).max_over_mean
    1.5
    """

    counts: tuple[int, ...]

    @property
    def max_over_mean(self) -> float:
        """What the fullest rank has, with 1 as its fair share. All wait for it."""
        return max(self.counts) * len(self.counts) / max(1, sum(self.counts))

    @property
    def gini(self) -> float:
        """0 if all ranks have the same, near 1 if one has all."""
        return gini(torch.tensor(self.counts))

    def to_dict(self) -> dict[str, Any]:
        """Fit for JSON."""
        return {
            "counts": list(self.counts),
            "max_over_mean": self.max_over_mean,
            "gini": self.gini,
        }


@dataclass(frozen=True, slots=True)
class RuleBalance:
    """One rule: every occurrence, what travels after equal keys of a step are one, and rows."""

    dist_type: str
    raw: Spread
    deduplicated: Spread
    rows: Spread

    def to_dict(self) -> dict[str, Any]:
        """Fit for JSON."""
        loads = {"raw": self.raw, "deduplicated": self.deduplicated, "rows": self.rows}
        return {"dist_type": self.dist_type, **{n: s.to_dict() for n, s in loads.items()}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """What a sample of keys says; made by `balance`."""

    keys: int
    distinct: int
    ranks: int
    step_keys: int
    key_gini: float  # of the occurrences of keys: how hot the hot ones are
    top: tuple[tuple[int, float], ...]  # the most frequent keys, and their share of all
    rules: tuple[RuleBalance, ...]
    recommended: str
    reason: str

    @property
    def hot_keys(self) -> str:
        """What the hottest keys do to ranks, and what helps."""
        rule = next(rule for rule in self.rules if rule.dist_type == self.recommended)
        raw, sent = rule.raw.max_over_mean, rule.deduplicated.max_over_mean
        return hot_key_advice(self.top, self.ranks, raw=raw, deduplicated=sent)

    def to_dict(self) -> dict[str, Any]:
        """Fit for JSON."""
        return {
            "keys": self.keys,
            "distinct": self.distinct,
            "ranks": self.ranks,
            "step_keys": self.step_keys,
            "key_gini": self.key_gini,
            "top": [{"key": key, "share": share} for key, share in self.top],
            "rules": [rule.to_dict() for rule in self.rules],
            "recommended": self.recommended,
            "reason": self.reason,
            "hot_keys": self.hot_keys,
        }

    def text(self) -> str:
        """A few lines for people."""
        lines = [
            f"{self.keys} keys, {self.distinct} distinct, over {self.ranks} ranks; "
            f"Gini of the keys {self.key_gini:.3f}",
            *hot_key_lines(self.top),
            "",
            f"{'max/mean (Gini) over ranks':<28}{'raw':>16}{'deduplicated':>16}{'rows':>16}",
        ]
        for rule in self.rules:
            loads = (rule.raw, rule.deduplicated, rule.rows)
            cells = "".join(f"{f'{s.max_over_mean:.3f} ({s.gini:.3f})':>16}" for s in loads)
            lines.append(f"{rule.dist_type:<28}{cells}")
        advice = [f"recommended: {self.recommended}. {self.reason}", self.hot_keys]
        return "\n".join([*lines, "", *advice])


def balance(
    keys: Int64[Tensor, "n"], ranks: int, *, rows: int | None = None, step_keys: int = STEP_KEYS
) -> Balance:
    """Measures a sample of keys in the order of their use, `step_keys` of them to a step.

    `continuous` is measured, too, if the number of `rows` is given.

    >>> found = balance(8 * torch.arange(1000), ranks=8)
    >>> found.rules[0].dist_type, found.rules[0].raw.max_over_mean, found.recommended
    ('roundrobin', 8.0, 'hash_roundrobin')
    """
    keys = widened("keys", keys)
    if not len(keys):
        raise InputError("keys is empty; a report needs a sample of keys.")
    checks.count("step_keys", step_keys, least=1)
    distinct, counts = keys.unique(return_counts=True)
    names = ["roundrobin", "hash_roundrobin", *(["continuous"] if rows is not None else [])]
    steps = [step.unique() for step in keys.split(step_keys)]
    rules = tuple(
        _measured(Router(name, ranks, rows=rows), keys, steps, distinct) for name in names
    )
    most = counts.topk(min(_TOP, len(counts)))
    recommended, reason = _recommended(rules, distinct)
    return Balance(
        keys=len(keys),
        distinct=len(distinct),
        ranks=ranks,
        step_keys=step_keys,
        key_gini=gini(counts),
        top=tuple(
            zip(distinct[most.indices].tolist(), (most.values / len(keys)).tolist(), strict=True)
        ),
        rules=rules,
        recommended=recommended,
        reason=reason,
    )


def gini(counts: Int64[Tensor, "n"]) -> float:
    """How unequal numbers are: 0 if all are the same, near 1 if one is all.

    >>> gini(torch.tensor([5, 5])), gini(torch.tensor([0, 0, 0, 8]))
    (0.0, 0.75)
    """
    ordered, n = counts.sort().values.double(), len(counts)
    total = float(ordered.sum())
    if not total:
        return 0.0
    weighted = float((torch.arange(1, n + 1, dtype=torch.float64) * ordered).sum())
    return 2 * weighted / (n * total) - (n + 1) / n


def _measured(
    router: Router, keys: Tensor, steps: Sequence[Tensor], distinct: Tensor
) -> RuleBalance:
    def spread(parts: Sequence[Tensor]) -> Spread:
        loads = [router.owners(part).bincount(minlength=router.shards) for part in parts]
        return Spread(tuple(torch.stack(loads).sum(0).tolist()))

    return RuleBalance(router.dist_type, spread([keys]), spread(steps), spread([distinct]))


def _recommended(rules: Sequence[RuleBalance], distinct: Tensor) -> tuple[str, str]:
    """Hashing, unless the plain remainder was measured to be better and nothing speaks against."""
    plain, hashed = rules[0], rules[1]
    traffic = plain.deduplicated.max_over_mean, hashed.deduplicated.max_over_mean
    rows = plain.rows.max_over_mean, hashed.rows.max_over_mean
    figures = (
        f"the fullest rank has {traffic[0]:.3f} times the mean of the traffic under roundrobin, "
        f"{traffic[1]:.3f} under hash_roundrobin; {rows[0]:.3f} and {rows[1]:.3f} of the rows"
    )
    better = all(_BETTER * a < b for a, b in (traffic, rows))
    if better and _dense(distinct):
        return "roundrobin", f"Keys are dense, and {figures}."
    if better:
        return "hash_roundrobin", (
            f"Keys have gaps, so the good fit of roundrobin may be one of this sample only: "
            f"{figures}."
        )
    if traffic[0] > _BETTER * traffic[1] or rows[0] > _BETTER * rows[1]:
        return "hash_roundrobin", f"Patterns in the keys pile up on some ranks: {figures}."
    return "hash_roundrobin", f"Both rules are alike here, and hashing stays so: {figures}."


def _dense(distinct: Tensor) -> bool:
    """Most numbers between the smallest and the largest key are there, as unsigned numbers."""
    signs = (int(distinct[0]) < 0, int(distinct[-1]) < 0)  # sorted as signed numbers
    span = int(distinct[-1]) - int(distinct[0]) + 1
    return signs[0] == signs[1] and len(distinct) >= _DENSE * span
