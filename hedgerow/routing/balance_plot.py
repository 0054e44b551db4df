"""A balance report as a picture: the load of every rank under each rule (extra `plan`)."""

from __future__ import annotations

from pathlib import Path

from ..core.figure import Axes, new_figure, save_figure
from .balance import Balance, RuleBalance, Spread

_RAW, _SENT, _FAIR = "#b8c4cf", "#1f4e79", "#b5651d"
_MOST_LABELS = 32


def draw_balance(report: Balance, path: str | Path, *, title: str = "") -> None:
    """Draws one panel a rule: each rank's share, raw and de-duplicated; 1 is the mean.

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
        _panel(axes, rule)
    panels[0].legend(fontsize=8, frameon=False, ncols=3)
    panels[-1].set_xlabel("rank")
    save_figure(figure, Path(path))


def _panel(axes: Axes, rule: RuleBalance) -> None:
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
