"""Plots of jobs and comparisons, as PNG files (extra `plan`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..core.errors import InputError
from ..core.files import Axes, local_path, new_figure, save_figure
from .events import Event

_TRAIN, _EVAL, _FIRST, _OTHERS = "#9bb7d4", "#1f4e79", "#1f4e79", "#b8c4cf"
_BASELINES = ("#b5651d", "#6a8f3c", "#7a5195", "#666666")
_BAR_HEIGHT, _BAR_MARGIN = 0.32, 1.0  # inches, of a bar and around a group of bars


def learning_curves(
    events: Sequence[Event],
    path: str | Path,
    *,
    title: str,
    baselines: Mapping[str, float] | None = None,
) -> None:
    """Draws loss and AUC over the samples trained on, from the events of a job.

    `baselines` are AUCs to compare with, such as that of a majority vote.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "curves.png")
    >>> learning_curves([{"kind": "eval", "samples": 64, "auc": 0.6}], path, title="A")
    >>> path.read_bytes()[1:4]
    b'PNG'
    """
    figure = new_figure(11, 4.2)
    figure.suptitle(title, parse_math=False)
    loss, auc = figure.subplots(1, 2)
    _curves(loss, events, "loss", "log loss (nats a sample)")
    _curves(auc, events, "auc", "AUC")
    for number, (name, value) in enumerate((baselines or {}).items()):
        colour = _BASELINES[number % len(_BASELINES)]
        auc.axhline(value, color=colour, linestyle="--", linewidth=1, label=f"{name} {value:.4f}")
    for axes in (loss, auc):
        _legend(axes)
    save_figure(figure, local_path(path))


def bars(
    rows: Sequence[tuple[str, str, float, float]],
    path: str | Path,
    *,
    title: str,
    unit: str,
    start: float = 0.0,
) -> None:
    """Draws a table of (group, label, mean, spread) as bars with error bars, one panel per group.

    The first bar of each group is highlighted. `start` is the value at which bars begin, for
    example 0.5 for AUCs.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "bars.png")
    >>> bars([("clicks", "own rows", 0.79, 0.001)], path, title="A", unit="AUC", start=0.5)
    >>> path.read_bytes()[1:4]
    b'PNG'
    """
    if not rows:
        raise InputError(
            "there are no rows to draw; give at least one (group, label, mean, spread)."
        )
    groups = {group: [row for row in rows if row[0] == group] for group, *_ in rows}
    heights = [_BAR_HEIGHT * len(members) + _BAR_MARGIN for members in groups.values()]
    figure = new_figure(8.5, sum(heights) + 0.4)
    figure.suptitle(title, parse_math=False)
    panels = figure.subplots(len(groups), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (group, members) in zip(panels, groups.items(), strict=True):
        _bars(axes, members, start)
        axes.set_title(group, loc="left", fontsize=10, parse_math=False)
        axes.set_xlabel(unit, parse_math=False)
    save_figure(figure, local_path(path))


def _curves(axes: Axes, events: Sequence[Event], name: str, unit: str) -> None:
    from matplotlib.ticker import EngFormatter

    for kind, style in (
        ("train", {"color": _TRAIN, "linewidth": 1.5}),
        ("eval", {"color": _EVAL, "linewidth": 1.5, "marker": "o", "markersize": 4}),
    ):
        points = [e for e in events if e["kind"] == kind and name in e]
        if points:
            samples = [float(e["samples"]) for e in points]
            axes.plot(samples, [float(e[name]) for e in points], label=kind, **style)
    axes.set_xlabel("samples trained on")
    axes.set_ylabel(unit)
    axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _legend(axes: Axes) -> None:
    if not axes.get_legend_handles_labels()[1]:
        axes.text(0.5, 0.5, "no values", transform=axes.transAxes, ha="center", color="#888888")
        return
    for text in axes.legend(fontsize=8, frameon=False).get_texts():
        text.set_parse_math(False)


def _bars(axes: Axes, rows: Sequence[tuple[str, str, float, float]], start: float) -> None:
    places = range(len(rows))
    means, spreads = [row[2] for row in rows], [row[3] for row in rows]
    colours = [_FIRST, *[_OTHERS] * (len(rows) - 1)]
    lengths = [mean - start for mean in means]
    axes.barh(places, lengths, left=start, xerr=spreads, color=colours, capsize=3, height=0.7)
    for place, mean, spread in zip(places, means, spreads, strict=True):
        text = f" {mean:.4f} ± {spread:.4f}"
        at = max(mean + spread, start)
        axes.annotate(text, (at, place), va="center", fontsize=8, annotation_clip=False)
    for label in axes.set_yticks(places, [row[1] for row in rows]):
        label.label1.set_parse_math(False)
    axes.invert_yaxis()  # the first bar is on top
    axes.margins(x=0.25)
    axes.spines[["top", "right"]].set_visible(False)
