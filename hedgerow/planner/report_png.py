"""A plan as a picture: where tables live, what they cost, and what other cards would change."""

from __future__ import annotations

from pathlib import Path

from ..core.figure import Axes, new_figure, save_figure
from .plan import Plan
from .problem.topology import GIB
from .report import default_curve, unit_for
from .report_rows import ReportRow, report_rows
from .report_svg import COLOURS, MOST_BARS
from .what_if import Curve


def draw_plan(plan: Plan, path: Path) -> None:
    """Two panels, or three where there are cards (extra `plan`)."""
    curve = default_curve(plan)
    if all(other is None for _, other in curve):
        curve = []
    rows = report_rows(plan)[:MOST_BARS]
    widths = [4.6, 3.4, 2.8] if curve else [4.6, 3.4]
    figure = new_figure(1.3 * sum(widths), max(3.4, 0.3 * len(rows) + 1.6))
    panels = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
    _places(panels[0], rows)
    _costs(panels[1], rows)
    if curve:
        _what_if(panels[2], plan, curve)
    shown = {str(row.table.mode) for row in rows}
    handles = [_patch(mode) for mode in COLOURS if mode in shown]
    figure.legend(handles=handles, loc="outside lower left", ncols=4, fontsize=8, frameon=False)
    solver = plan.solver
    count = f"{len(plan.tables)} table" + "s" * (len(plan.tables) != 1)
    head = f"{count} on {plan.topology.world} ranks: {solver.total_ms:.3f} ms a step"
    figure.suptitle(head, fontsize=11, parse_math=False)
    save_figure(figure, path)


def _patch(mode: str) -> Axes:
    from matplotlib.patches import Patch

    return Patch(color=COLOURS[mode], label=mode)


def _places(axes: Axes, rows: list[ReportRow]) -> None:
    sizes = [(row.table.ddr_bytes, row.table.hbm_bytes) for row in rows]
    unit, scale = unit_for(max([max(pair) for pair in sizes] or [0]))
    for number, (row, (host, hbm)) in enumerate(zip(rows, sizes, strict=True)):
        colour = COLOURS[str(row.table.mode)]
        axes.barh(number, -host / scale, color=colour, alpha=0.45)
        axes.barh(number, hbm / scale, color=colour)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.margins(x=0.08)
    axes.xaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    axes.set_xlabel(f"{unit} of a rank:  host  |  HBM")
    _finish(axes, "Where each table lives", rows)


def _costs(axes: Axes, rows: list[ReportRow]) -> None:
    for number, row in enumerate(rows):
        ms = row.table.forecast.ms
        axes.barh(number, ms, color=COLOURS[str(row.table.mode)])
        axes.annotate(
            f"{ms:.3f}", (ms, number), (3, 0), textcoords="offset points", va="center", fontsize=7
        )
    axes.margins(x=0.15)
    axes.set_xlabel("ms a step")
    _finish(axes, "What it costs", rows, names=False)


def _what_if(axes: Axes, plan: Plan, curve: Curve) -> None:
    points = [(size / GIB, other.solver.total_ms) for size, other in curve if other is not None]
    axes.plot(*zip(*points, strict=True), color=COLOURS["HBM_ONLY"], marker="o", markersize=4)
    axes.axvline(
        min(plan.topology.hbm_by_device) / GIB, color="#4a5568", linestyle="--", linewidth=1
    )
    axes.set_ylim(0, 1.1 * max(ms for _, ms in points) or 1)
    axes.set_xlim(left=0)
    axes.set_xlabel("HBM of a device, GiB (dashed: today)")
    axes.set_ylabel("ms a step")
    axes.set_title("What if", loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)


def _finish(axes: Axes, title: str, rows: list[ReportRow], *, names: bool = True) -> None:
    words = [row.table.name for row in rows] if names else [""] * len(rows)
    axes.set_yticks(range(len(rows)), words, fontsize=8, parse_math=False)
    axes.invert_yaxis()
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
