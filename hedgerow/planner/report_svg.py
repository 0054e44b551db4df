"""The pictures of a plan's page, as SVG: where tables live, what they cost, what if."""

from __future__ import annotations

from html import escape

from .plan import Plan
from .problem.topology import GIB
from .report import unit_for
from .report_rows import ReportRow
from .what_if import Curve

COLOURS = {
    "HBM_ONLY": "#2b6cb0",
    "HYBRID": "#d69e2e",
    "CACHING": "#38a169",
    "HOST_ONLY": "#a0aec0",
}
"""Of each mode, in all pictures."""
MOST_BARS = 40
"""Tables that a picture shows; the others stand in the list."""
_ROW, _LABEL, _WIDTH = 22, 130, 520


def memory_bars(plan: Plan, rows: list[ReportRow]) -> str:
    """Host memory to the left, HBM to the right, of every table's shard."""
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
    """Milliseconds a step of every table."""
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
    """Step time over the size of a card, with the present one marked."""
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
    """Four round numbers, and 0."""
    rough = most / 4
    power = 10.0 ** len(str(int(rough))) / 10 if rough >= 1 else 10.0 ** -_zeros(rough)
    step = max(1, round(rough / power)) * power
    return [step * number for number in range(int(most / step) + 1)]


def _zeros(value: float) -> int:
    """How far behind the point the first digit stands."""
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
    """Three digits."""
    if size < 0.01:
        return "<0.01"
    return f"{size:.2f}" if size < 10 else f"{size:.1f}" if size < 100 else f"{size:.0f}"
