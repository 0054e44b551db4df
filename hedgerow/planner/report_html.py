"""A plan as one HTML page: no network, no scripts, pictures drawn in place."""

from __future__ import annotations

from html import escape
from pathlib import Path

from ..core.whole_file import write_whole
from .explain import reasons
from .plan import Plan
from .report import default_curve, head_lines, hit_text, next_text, place_word, unit_for
from .report_rows import ReportRow, report_rows
from .report_svg import COLOURS, cost_bars, curve_picture, memory_bars
from .what_if import Curve

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
# Browsers hold the page to it: no scripts, no network, only the style below.
_CLOSED = "default-src 'none'; style-src 'unsafe-inline'"
_MOST_EXPLAINED = 200  # tables with their options; a page of thousands would not open


def write_html(plan: Plan, path: Path) -> None:
    """Writes the page, whole or not at all."""
    write_whole(path, page(plan, default_curve(plan)))


def page(plan: Plan, curve: Curve) -> str:
    """The whole page."""
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
    """Every table's options behind a line that opens."""
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
