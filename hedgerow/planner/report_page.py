"""A plan as one HTML page and as a PNG file."""

from __future__ import annotations

from html import escape
from pathlib import Path

from ..core.files import Axes, new_figure, save_figure, write_whole
from .explain import Curve, ReportRow, reasons, report_rows
from .plan import Plan
from .problem.topology import GIB
from .report import default_curve, head_lines, hit_text, next_text, place_word, unit_for

COLOURS = {
    "HBM_ONLY": "#2b6cb0",
    "HYBRID": "#d69e2e",
    "CACHING": "#38a169",
    "HOST_ONLY": "#a0aec0",
}
"""Colors of the modes."""
MOST_BARS = 40
"""The most tables that a chart shows. The list shows all of them."""
_ROW, _LABEL, _WIDTH = 22, 130, 520


def memory_bars(plan: Plan, rows: list[ReportRow]) -> str:
    """Returns an SVG of each table's bytes: host memory to the left, HBM to the right."""
    rows = rows[:MOST_BARS]
    most = max([max(r.table.hbm_bytes, r.table.ddr_bytes) for r in rows] or [1]) or 1
    host = max([r.table.ddr_bytes for r in rows] or [0])
    hbm = max([r.table.hbm_bytes for r in rows] or [0])
    room = _WIDTH - _LABEL - 90
    scale = room / max(1, host + hbm)
    zero = _LABEL + 40 + host * scale
    unit, size = unit_for(most)
    parts = []
    for number, row in enumerate(rows):
        table, top = row.table, number * _ROW + 24
        colour = COLOURS[str(table.mode)]
        left, right = table.ddr_bytes * scale, table.hbm_bytes * scale
        parts.append(_name(table.name, top))
        parts.append(_bar(zero - left, top, left, colour, 0.45))
        parts.append(_bar(zero, top, right, colour, 1))
        if table.ddr_bytes:
            parts.append(_text(zero - left - 4, top + 12, _short(table.ddr_bytes / size), "end"))
        if table.hbm_bytes:
            parts.append(_text(zero + right + 4, top + 12, _short(table.hbm_bytes / size)))
    height = len(rows) * _ROW + 34
    line = f'<line x1="{zero:.1f}" x2="{zero:.1f}" y1="18" y2="{height - 8}" stroke="#4a5568"/>'
    head = _text(zero - 6, 12, f"host {unit}", "end") + _text(zero + 6, 12, f"HBM {unit}")
    said = "Host memory and HBM of every table"
    return _svg(_WIDTH, height, said, head + "".join(parts) + line) + _left_out(plan)


def _left_out(plan: Plan) -> str:
    more = len(plan.tables) - MOST_BARS
    return f"<p class=why>and {more} faster tables</p>" if more > 0 else ""


def cost_bars(rows: list[ReportRow]) -> str:
    """Returns an SVG of the milliseconds per step of each table."""
    rows = rows[:MOST_BARS]
    most = max([row.table.forecast.ms for row in rows] or [0.0]) or 1.0
    scale = (_WIDTH - _LABEL - 70) / most
    parts = [_text(_LABEL, 12, "ms a step")]
    for number, row in enumerate(rows):
        top, width = number * _ROW + 24, row.table.forecast.ms * scale
        parts.append(_name(row.table.name, top))
        parts.append(_bar(_LABEL, top, width, COLOURS[str(row.table.mode)], 1))
        parts.append(_text(_LABEL + width + 4, top + 12, f"{row.table.forecast.ms:.3f}"))
    return _svg(_WIDTH, len(rows) * _ROW + 34, "Time of every table", "".join(parts))


def curve_picture(plan: Plan, curve: Curve) -> str:
    """Returns an SVG of step time over device memory. The present size is marked."""
    points = [(size / GIB, other.solver.total_ms) for size, other in curve if other is not None]
    width, height, left, bottom = _WIDTH, 230, 56, 36
    most_x = max(x for x, _ in points) * 1.05 or 1.0
    most_y = max(y for _, y in points) * 1.1 or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        across = left + x / most_x * (width - left - 16)
        return across, height - bottom - y / most_y * (height - bottom - 16)

    places = [at(x, y) for x, y in points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [
        _axis(at(0, 0), at(most_x, 0)),
        _axis(at(0, 0), at(0, most_y)),
        f'<polyline points="{line}" fill="none" stroke="{COLOURS["HBM_ONLY"]}" stroke-width="2"/>',
    ]
    for (x, y), (size, ms) in zip(places, points, strict=True):
        title = f"<title>{size:.2f} GiB: {ms:.3f} ms</title>"
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{COLOURS["HBM_ONLY"]}">{title}</circle>'
        )
    now, _ = at(min(plan.topology.hbm_by_device) / GIB, 0)
    parts.append(
        f'<line x1="{now:.1f}" x2="{now:.1f}" y1="16" y2="{height - bottom}" stroke="#718096" '
        f'stroke-dasharray="5 4"/>'
    )
    parts.append(_text(now + 4, 26, "today"))
    parts += [_text(*_below(at(x, 0)), f"{x:.3g}", "middle") for x in _ticks(most_x)]
    parts += [_text(at(0, y)[0] - 6, at(0, y)[1] + 4, f"{y:.3g}", "end") for y in _ticks(most_y)]
    parts.append(_text(width / 2, height - 4, "HBM of a device, GiB", "middle"))
    parts.append(_text(4, 12, "ms a step"))
    return _svg(width, height, "Step time over the size of a card", "".join(parts))


def _below(place: tuple[float, float]) -> tuple[float, float]:
    return place[0], place[1] + 15


def _ticks(most: float) -> list[float]:
    """Returns about four round numbers, and 0."""
    rough = most / 4
    power = 10.0 ** len(str(int(rough))) / 10 if rough >= 1 else 10.0 ** -_zeros(rough)
    step = max(1, round(rough / power)) * power
    return [step * number for number in range(int(most / step) + 1)]


def _zeros(value: float) -> int:
    """Returns the number of decimal places of the first nonzero digit."""
    places = 1
    while value * 10**places < 1 and places < 12:
        places += 1
    return places


def _axis(start: tuple[float, float], end: tuple[float, float]) -> str:
    where = f'x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"'
    return f'<line {where} stroke="#a0aec0"/>'


def _svg(width: int, height: int, said: str, inside: str) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" width="100%" role="img" '
        f'aria-label="{escape(said)}">{inside}</svg>'
    )


def _bar(x: float, y: float, width: float, colour: str, opacity: float) -> str:
    size = f'width="{max(0.0, width):.1f}" height="{_ROW - 6}"'
    return f'<rect x="{x:.1f}" y="{y}" {size} fill="{colour}" opacity="{opacity}"/>'


def _name(name: str, top: int) -> str:
    shown = name if len(name) <= 18 else f"{name[:17]}…"
    title = f"<title>{escape(name)}</title>"
    return f'<text x="{_LABEL - 8}" y="{top + 12}" text-anchor="end">{title}{escape(shown)}</text>'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _short(size: float) -> str:
    """Returns a size with about three digits."""
    if size < 0.01:
        return "<0.01"
    return f"{size:.2f}" if size < 10 else f"{size:.1f}" if size < 100 else f"{size:.0f}"


_STYLE = """
:root { color-scheme: light; }
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1360px; padding: 0 1em;
  color: #1a202c; background: #fff; }
h1 { font-size: 1.5em; margin: 0 0 .3em; }
h2 { font-size: 1.1em; margin: 1.8em 0 .5em; }
pre { background: #f7fafc; border-left: 3px solid #2b6cb0; padding: .8em 1em;
  white-space: pre-wrap; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; border-bottom: 2px solid #cbd5e0; }
td, th { padding: 3px 9px; white-space: nowrap; }
.n { text-align: right; }
tbody tr:nth-child(even) { background: #f7fafc; }
.dot { display: inline-block; width: .75em; height: .75em; border-radius: 2px; margin-right: .4em; }
.legend span { margin-right: 1.4em; }
details { margin: .3em 0; }
summary { cursor: pointer; }
.scroll { overflow-x: auto; }
.chosen { font-weight: 600; }
.why { color: #4a5568; white-space: normal; }
svg text { font: 12px system-ui, sans-serif; fill: #2d3748; }
.pictures { display: flex; flex-wrap: wrap; gap: 1.5em; }
.pictures > div { flex: 1 1 430px; max-width: 660px; }
@media print { details { display: none; } }
"""
# Browsers enforce this: no scripts, no network, only the inline style.
_CLOSED = "default-src 'none'; style-src 'unsafe-inline'"
_MOST_EXPLAINED = 200  # tables whose options are listed; a page with thousands would not open


def write_html(plan: Plan, path: Path) -> None:
    """Writes the HTML page. The file is replaced atomically."""
    write_whole(path, page(plan, default_curve(plan)))


def page(plan: Plan, curve: Curve) -> str:
    """Returns the HTML page."""
    rows = report_rows(plan)
    body = [
        "<h1>Placement plan</h1>",
        f"<pre>{escape(chr(10).join(head_lines(plan)))}</pre>",
        _legend(),
        _pictures(plan, rows, curve),
        "<h2>Tables</h2>",
        _tables(plan, rows),
        *_explained(plan, rows),
        f"<p class=why>fingerprint {escape(plan.fingerprint)}</p>",
    ]
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_CLOSED}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Placement plan</title><style>{_STYLE}</style></head><body>"
    )
    return head + "\n".join(body) + "</body></html>\n"


def _legend() -> str:
    parts = [
        f'<span><i class="dot" style="background:{colour}"></i>{mode}</span>'
        for mode, colour in COLOURS.items()
    ]
    return f'<p class="legend">{"".join(parts)}</p>'


def _pictures(plan: Plan, rows: list[ReportRow], curve: Curve) -> str:
    parts = [
        ("Where each table lives, of one rank", memory_bars(plan, rows)),
        ("What it costs", cost_bars(rows)),
    ]
    if any(other is not None for _, other in curve):
        parts.append(("What if", curve_picture(plan, curve)))
    shown = [f"<div><h2>{title}</h2>{picture}</div>" for title, picture in parts]
    return f'<div class="pictures">{"".join(shown)}</div>'


def _tables(plan: Plan, rows: list[ReportRow]) -> str:
    unit, scale = _unit(plan)
    head = ("table", "rows", "dim", "mode", "factor", "hit", f"HBM {unit}", f"host {unit}")
    mixed = any(table.sharding != "row_wise" for table in plan.tables)
    head += ("ms", "share", "routing", *(["ranks"] if mixed else []), "next best")
    right = {"rows", "dim", "factor", "hit", f"HBM {unit}", f"host {unit}", "ms", "share"}
    cells = "".join(f"<th{' class=n' * (name in right)}>{name}</th>" for name in head)
    lines = "".join(_line(row, unit, scale, mixed) for row in rows)
    table = f"<table><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def _unit(plan: Plan) -> tuple[str, int]:
    return unit_for(max([max(t.hbm_bytes, t.ddr_bytes) for t in plan.tables] or [0]))


def _line(row: ReportRow, unit: str, scale: int, mixed: bool) -> str:
    table = row.table
    colour = COLOURS[str(table.mode)]
    mode = f'<td><i class="dot" style="background:{colour}"></i>{table.mode}</td>'
    numbers = [
        table.load_factor,
        hit_text(table),
        f"{table.hbm_bytes / scale:.3f}",
        f"{table.ddr_bytes / scale:.3f}",
        f"{table.forecast.ms:.3f}",
        f"{row.share:.1%}",
    ]
    size = ["?" if n is None else f"{n:,}" for n in (row.rows, row.dim)]
    words = [table.dist_type, *([place_word(row)] if mixed else [])]
    after = escape(next_text(row.next_best, unit, scale))
    return (
        f"<tr><td>{escape(table.name)}</td>"
        + "".join(f"<td class=n>{n}</td>" for n in size)
        + mode
        + "".join(f"<td class=n>{escape(n)}</td>" for n in numbers)
        + "".join(f"<td>{escape(word)}</td>" for word in words)
        + f"<td class=why>{after}</td></tr>"
    )


def _explained(plan: Plan, rows: list[ReportRow]) -> list[str]:
    """Returns a collapsible list of options per table."""
    if plan.inputs is None or not rows:
        return []
    shown = ["<h2>Why</h2>"]
    if len(rows) > _MOST_EXPLAINED:
        shown.append(f"<p>The slowest {_MOST_EXPLAINED} of {len(rows)} tables.</p>")
    unit, scale = _unit(plan)
    names = [row.table.name for row in rows[:_MOST_EXPLAINED]]
    return shown + [_options(plan, name, unit, scale) for name in names]


def _options(plan: Plan, name: str, unit: str, scale: int) -> str:
    head = ("option", "hit", "ms", f"HBM {unit}", f"host {unit}", "cost ms", "why")
    lines = [
        "<tr"
        + " class=chosen" * (reason.why == "chosen")
        + f"><td>{reason.choice.label}</td><td class=n>{reason.choice.hit_rate:.1%}</td>"
        f"<td class=n>{reason.choice.ms:.3f}</td><td class=n>{reason.choice.hbm / scale:.3f}</td>"
        f"<td class=n>{reason.choice.ddr / scale:.3f}</td><td class=n>{reason.cost_ms:.4f}</td>"
        f"<td class=why>{escape(reason.why)}</td></tr>"
        for reason in reasons(plan, name)
    ]
    right = {"hit", "ms", f"HBM {unit}", f"host {unit}", "cost ms"}
    cells = "".join(f"<th{' class=n' * (word in right)}>{word}</th>" for word in head)
    table = f"<table><thead><tr>{cells}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    label = plan.of(name).variant.label
    return (
        f"<details><summary>{escape(name)}: {escape(label)}</summary>"
        f'<div class="scroll">{table}</div></details>'
    )


def draw_plan(plan: Plan, path: Path) -> None:
    """Draws two panels to a PNG file, or three if there are devices. Needs the extra `plan`."""
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
