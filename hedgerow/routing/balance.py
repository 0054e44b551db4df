"""How evenly keys are spread over ranks under each routing rule, as figures and as a chart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core import checks
from ..core.errors import InputError
from ..core.files import Axes, new_figure, save_figure
from ..core.shapes import Int64
from .router import Router, widened

_SHOWN = 5
_LEAST_SHARE = 0.001  # a key with a smaller share is not listed
_EVEN = 1.1  # ratios of the fullest rank to the mean below this count as even
_NAMED = 3
HotKeys = Sequence[tuple[int, float]]  # keys with their share of all, the hottest first


def hot_key_lines(top: HotKeys) -> list[str]:
    """Returns the most frequent keys with their shares, one line each.

    >>> hot_key_lines([(7, 0.25), (-1, 0.125)])
    ['the 2 most frequent keys are 37.5 % of all', '  7  25.0 %', '  -1  12.5 %']
    """
    total = sum(share for _, share in top)
    head = f"the {len(top)} most frequent keys are {100 * total:.1f} % of all"
    shown = [line for line in top[:_SHOWN] if line[1] >= _LEAST_SHARE]
    return [head, *(f"  {key}  {100 * share:.1f} %" for key, share in shown)]


def hot_key_advice(top: HotKeys, ranks: int, *, raw: float, deduplicated: float) -> str:
    """Returns advice on hot keys, from max/mean over ranks under the recommended rule.

    `raw` counts every occurrence; `deduplicated` counts equal keys of a step once.

    >>> hot_key_advice([(7, 0.25)], 8, raw=2.5, deduplicated=1.02)[:49]
    'Hot keys: 7 (2.00 times the fair share of a rank)'
    """
    if raw <= _EVEN:
        return "Hot keys: none that matter; occurrences spread evenly as they are."
    if deduplicated > raw / _EVEN:
        return (
            "Hot keys: none that matter; ranks differ in their distinct keys, which hashing or "
            "more keys even out."
        )
    hot = [(key, share * ranks) for key, share in top[:_NAMED] if share * ranks >= _EVEN - 1]
    names = ", ".join(f"{key} ({weight:.2f} times the fair share of a rank)" for key, weight in hot)
    advice = (
        f"Hot keys: {names or 'many, none of them large'}. No dist_type can split a key. What "
        f"helps is to send equal keys of a step once, which the exchange does by itself "
        f"(dedup=True): the fullest rank has {raw:.2f} times the mean without, {deduplicated:.2f} "
        f"with it. Copies of hot rows on every rank, or another dist_type, are then no help."
    )
    if deduplicated <= _EVEN:
        return advice
    return (
        f"{advice} The remaining imbalance comes from keys of every step; more keys per step "
        f"reduce it."
    )


STEP_KEYS = 32_768
"""The number of keys that a source sends at once; equal keys among them are sent once."""
_TOP = 10
_BETTER = 1.02  # roundrobin must be better than hashing by more than 2 %
_DENSE = 0.5  # distinct keys per number between the smallest and the largest


@dataclass(frozen=True, slots=True)
class Spread:
    """The load of each rank.

    >>> Spread((30, 10)).max_over_mean
    1.5
    """

    counts: tuple[int, ...]

    @property
    def max_over_mean(self) -> float:
        """The load of the fullest rank relative to the mean. All ranks wait for the fullest one."""
        return max(self.counts) * len(self.counts) / max(1, sum(self.counts))

    @property
    def gini(self) -> float:
        """The Gini coefficient: 0 if all ranks have the same load, near 1 if one rank has all."""
        return gini(torch.tensor(self.counts))

    def to_dict(self) -> dict[str, Any]:
        """Returns a dict for JSON."""
        return {
            "counts": list(self.counts),
            "max_over_mean": self.max_over_mean,
            "gini": self.gini,
        }


@dataclass(frozen=True, slots=True)
class RuleBalance:
    """The loads under one rule: of every occurrence, of de-duplicated keys, and of rows."""

    dist_type: str
    raw: Spread
    deduplicated: Spread
    rows: Spread

    def to_dict(self) -> dict[str, Any]:
        """Returns a dict for JSON."""
        loads = {"raw": self.raw, "deduplicated": self.deduplicated, "rows": self.rows}
        return {"dist_type": self.dist_type, **{n: s.to_dict() for n, s in loads.items()}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """The result of `balance` for a sample of keys."""

    keys: int
    distinct: int
    ranks: int
    step_keys: int
    key_gini: float  # of the occurrences per key: how hot the hot keys are
    top: tuple[tuple[int, float], ...]  # the most frequent keys, and their share of all
    rules: tuple[RuleBalance, ...]
    recommended: str
    reason: str

    @property
    def hot_keys(self) -> str:
        """How the hottest keys affect the ranks, and what helps."""
        rule = next(rule for rule in self.rules if rule.dist_type == self.recommended)
        raw, sent = rule.raw.max_over_mean, rule.deduplicated.max_over_mean
        return hot_key_advice(self.top, self.ranks, raw=raw, deduplicated=sent)

    def to_dict(self) -> dict[str, Any]:
        """Returns a dict for JSON."""
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
        """Returns a report of a few lines."""
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
    """Measures a sample of keys in the order of their use, with `step_keys` keys per step.

    `continuous` is measured too if the number of `rows` is given.

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
    """Returns the Gini coefficient of numbers: 0 if all are equal, near 1 if one is the whole sum.

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
    """Returns hash_roundrobin, or roundrobin if it is better and keys are dense; and why."""
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
            f"Keys have gaps, so roundrobin may only be better for this sample: {figures}."
        )
    if traffic[0] > _BETTER * traffic[1] or rows[0] > _BETTER * rows[1]:
        return "hash_roundrobin", f"Patterns in the keys pile up on some ranks: {figures}."
    return (
        "hash_roundrobin",
        f"Both rules are alike here, and hashing stays even if the ids change: {figures}.",
    )


def _dense(distinct: Tensor) -> bool:
    """Returns whether the keys, as unsigned numbers, fill most of the range that they span."""
    signs = (int(distinct[0]) < 0, int(distinct[-1]) < 0)  # sorted as signed numbers
    span = int(distinct[-1]) - int(distinct[0]) + 1
    return signs[0] == signs[1] and len(distinct) >= _DENSE * span


_RAW, _SENT, _FAIR = "#b8c4cf", "#1f4e79", "#b5651d"
_MOST_LABELS = 32


def draw_balance(report: Balance, path: str | Path, *, title: str = "") -> None:
    """Draws one panel per rule: each rank's share, raw and de-duplicated; 1 is the mean.

    >>> import tempfile, torch
    >>> from .balance import balance
    >>> path = Path(tempfile.mkdtemp(), "balance.png")
    >>> draw_balance(balance(torch.arange(100), 4), path)
    >>> path.read_bytes()[1:4]
    b'PNG'
    """
    figure = new_figure(9, 2.4 * len(report.rules) + 0.6)
    head = title or f"{report.keys} keys over {report.ranks} ranks"
    figure.suptitle(f"{head}; recommended: {report.recommended}", parse_math=False)
    panels = figure.subplots(len(report.rules), 1, squeeze=False, sharex=True)[:, 0]
    for axes, rule in zip(panels, report.rules, strict=True):
        _draw_rule(axes, rule)
    panels[0].legend(fontsize=8, frameon=False, ncols=3)
    panels[-1].set_xlabel("rank")
    save_figure(figure, Path(path))


def _draw_rule(axes: Axes, rule: RuleBalance) -> None:
    ranks = range(len(rule.raw.counts))
    for shift, colour, name, load in (
        (-0.2, _RAW, "every occurrence", rule.raw),
        (0.2, _SENT, "equal keys once a step", rule.deduplicated),
    ):
        axes.bar(
            [rank + shift for rank in ranks], _shares(load), width=0.4, color=colour, label=name
        )
    axes.axhline(1.0, color=_FAIR, linewidth=1, linestyle="--", label="mean")
    if len(ranks) <= _MOST_LABELS:
        axes.set_xticks(list(ranks))
    worst = f"max/mean {rule.raw.max_over_mean:.2f} raw, {rule.deduplicated.max_over_mean:.2f} sent"
    axes.set_title(f"{rule.dist_type}: {worst}", loc="left", fontsize=10, parse_math=False)
    axes.set_ylabel("times the mean")
    axes.spines[["top", "right"]].set_visible(False)


def _shares(load: Spread) -> list[float]:
    mean = sum(load.counts) / len(load.counts)
    return [count / mean for count in load.counts]
