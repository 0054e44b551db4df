"""The text report of a plan: a header, one line per table, other memory sizes, and uneven ranks."""

from __future__ import annotations

from collections.abc import Sequence

from .explain import Curve, NextBest, ReportRow, aligned, hbm_curve, report_rows
from .plan import Load, Placed, Plan
from .problem.options import Mode
from .problem.topology import GIB

_MIB = 2**20
_UNBALANCED = 1.03
_BAR = 20


def report_text(plan: Plan, *, curve: Curve | None = None) -> str:
    """Returns the report.

    `curve` are plans for other sizes of device memory, computed if not given.
    """
    if curve is None:
        curve = default_curve(plan)
    blocks = [head_lines(plan), _table_lines(plan), curve_lines(plan, curve), _rank_lines(plan)]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def default_curve(plan: Plan) -> Curve:
    """Returns plans for other sizes of device memory, or nothing if they cannot be computed."""
    asked = plan.topology.device != "cpu" and plan.tables and plan.inputs is not None
    whole = all(table.sharding == "row_wise" for table in plan.tables)
    return hbm_curve(plan) if asked and whole and min(plan.topology.hbm_by_device) else []


def head_lines(plan: Plan) -> list[str]:
    """Returns the size, proof and time of the plan, and what each memory is worth."""
    solver, loads = plan.solver, plan.loads()
    lines = [f"Plan for {_count(len(plan.tables), 'table')} on {_machines(plan)}; {_proof(plan)}"]
    free = _without_budgets(plan)
    beside = "" if free is None else f" (a plan without budgets: {free:.3f} ms)"
    slowest = max(load.ms for load in loads)
    lines.append(f"Estimated embedding time {slowest:.3f} ms per step{beside}")
    if plan.topology.device != "cpu":
        used, budget = max(load.hbm for load in loads), plan.limits.hbm
        lines.append(_memory("HBM per device  ", used, budget, solver.hbm_ms_per_gib))
    used, budget = _host_use(plan, loads)
    lines.append(_memory("Host per machine", used, budget, solver.ddr_ms_per_gib_machine))
    lines.append(_reserve(plan))
    return lines + _doubts(plan)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _machines(plan: Plan) -> str:
    topology = plan.topology
    what = "rank" if topology.device == "cpu" else "device"
    ranks, count = topology.world, len(topology.machines)
    if count == 1:
        shape = "1 machine"
    elif ranks % count:
        shape = f"{count} machines of at most {topology.ranks_per_machine}"
    else:
        shape = f"{count} machines x {topology.ranks_per_machine}"
    cards = ", without cards" if topology.device == "cpu" else ""
    return f"{_count(ranks, what)} ({shape}{cards})"


def _proof(plan: Plan) -> str:
    solver = plan.solver
    took = f"solved in {solver.seconds * 1000:.0f} ms"
    if solver.seconds >= 1:
        took = f"solved in {solver.seconds:.1f} s"
    words = {"optimal": f"{took}, proven optimal", "empty": "nothing to place"}
    words["kept"] = f"an earlier plan, at most {solver.gap:.1%} from the best"
    return words.get(solver.status, f"{took}, at most {solver.gap:.2%} from the best")


def _without_budgets(plan: Plan) -> float | None:
    """Returns the time if every table had its fastest option."""
    if plan.inputs is None or not plan.tables or plan.topology.device == "cpu":
        return None
    return sum(
        min([c.ms for c in choices if not c.refused] or [0.0])
        for choices in plan.inputs.choices.values()
    )


def _host_use(plan: Plan, loads: Sequence[Load]) -> tuple[int, int]:
    """Returns used and usable bytes of the machine with the largest share in use."""
    usable = plan.budget.reserve.of(plan.topology)
    found, first = [], 0
    for machine in usable.machines:
        used = sum(load.ddr for load in loads[first : first + machine.ranks])
        found.append((used, machine.ddr))
        first += machine.ranks
    return max(found, key=lambda pair: pair[0] / pair[1] if pair[1] else 0.0)


def _memory(name: str, used: int, budget: int, price: float) -> str:
    unit, scale = unit_for(budget)
    share = used / budget if budget else 0.0
    sizes = f"{used / scale:8.2f} of {budget / scale:8.2f} {unit} usable ({share:6.1%})"
    worth = "more of it saves nothing" if price <= 0 else f"one more GiB saves {price:.4g} ms"
    return f"{name}  {sizes}   {worth}"


def unit_for(most: float) -> tuple[str, int]:
    """Returns GiB and its size, or MiB if all values are small."""
    return ("GiB", GIB) if most >= GIB / 10 else ("MiB", _MIB)


def _reserve(plan: Plan) -> str:
    kept, parts = plan.budget.reserve, []
    for fraction, fixed, name in (
        (kept.hbm_fraction, kept.hbm_bytes, "HBM"),
        (kept.ddr_fraction, kept.ddr_bytes, "host memory"),
    ):
        if name == "HBM" and plan.topology.device == "cpu":
            continue
        more = f" and {fixed / GIB:.2f} GiB" if fixed else ""
        parts.append(f"{fraction:.0%}{more} of {name}")
    return f"Kept free: {', '.join(parts)}"


def _doubts(plan: Plan) -> list[str]:
    """Returns lines on the assumptions behind the times."""
    if plan.inputs is None:
        return []
    lines = []
    if plan.inputs.zipf_ms:
        without = sum(spec.stats is None for spec in plan.inputs.specs)
        without -= len(plan.inputs.lacks_samples)
        times = ", ".join(f"{ms:.3f} ms at {x}" for x, ms in plan.inputs.zipf_ms.items())
        who = "have no key samples" if without != 1 else "has no key samples"
        lines.append(f"{_count(without, 'table')} {who} and count as Zipf 1.05; {times}")
    return lines + [f"Note: {note}" for note in plan.inputs.notes]


def _table_lines(plan: Plan) -> list[str]:
    rows = report_rows(plan)
    if not rows:
        return []
    placed = plan.tables
    unit, scale = unit_for(max(max(t.hbm_bytes, t.ddr_bytes) for t in placed))
    mixed = any(table.sharding != "row_wise" for table in placed)
    head = ["table", "rows", "dim", "mode", "factor", "hit", f"HBM {unit}", f"host {unit}", "ms"]
    head += ["share", "routing", "next best (and what it costs)"]
    left = ["table", "mode", "routing", "place", head[-1]]
    if mixed:
        head.insert(-1, "place")
    lines = [head, *(_cells(row, unit, scale, mixed) for row in rows)]
    return aligned(lines, left=left)


def _cells(row: ReportRow, unit: str, scale: int, mixed: bool) -> list[str]:
    table = row.table
    rows = "?" if row.rows is None else f"{row.rows:,}"
    dim = "?" if row.dim is None else str(row.dim)
    sizes = [f"{size / scale:.3f}" for size in (table.hbm_bytes, table.ddr_bytes)]
    place = [str(table.mode), table.load_factor, hit_text(table)]
    cells = [table.name, rows, dim, *place, *sizes]
    cells += [f"{table.forecast.ms:.3f}", f"{row.share:.1%}", table.dist_type]
    if mixed:
        cells.append(place_word(row))
    return [*cells, next_text(row.next_best, unit, scale)]


def hit_text(table: Placed) -> str:
    """Returns the hit rate of distinct keys as text, "-" for a table without HBM."""
    return "-" if table.mode is Mode.HOST_ONLY else f"{table.forecast.hit_rate:.1%}"


def place_word(row: ReportRow) -> str:
    """Returns which ranks hold rows, as text."""
    kinds = {"row_wise": "all ranks", "copy": "a copy each"}
    return kinds.get(row.table.sharding, f"rank {row.table.rank}")


def next_text(best: NextBest | None, unit: str, scale: int) -> str:
    """Returns the next best option and its differences as text, "-" if there is none."""
    if best is None:
        return "-"
    hbm, ddr = _signed(best.hbm / scale), _signed(best.ddr / scale)
    return f"{best.label}: {best.ms:+.3f} ms, {hbm} {unit} HBM, {ddr} host"


def _signed(size: float) -> str:
    """Returns a size with sign and two digits. A size that rounds to zero has no sign."""
    return f"{size:+.2f}" if abs(size) >= 0.005 else "0.00"


def curve_lines(plan: Plan, curve: Curve) -> list[str]:
    """Returns one line per size of device memory, compared with the present plan."""
    if not curve:
        return []
    lines = ["What if (HBM of a device, usable part -> step time, plan changes)"]
    return lines + [
        _curve_line(plan, size, other, other.budget.hbm_per_device if other else 0)
        for size, other in curve
    ]


def host_lines(plan: Plan, curve: Curve) -> list[str]:
    """Returns one line per size of host memory, compared with the present plan."""
    lines = ["What if (host memory of a machine, usable part -> step time, plan changes)"]
    return lines + [
        _curve_line(plan, size, other, other.budget.ddr_per_machine if other else 0)
        for size, other in curve
    ]


def _curve_line(plan: Plan, size: int, other: Plan | None, usable: int) -> str:
    unit, scale = unit_for(max(size, usable))
    line = f"{size / scale:8.2f} {unit}"
    if other is None:
        return f"{line}  does not fit"
    ms, now = other.solver.total_ms, plan.solver.total_ms
    change = ms / now - 1 if now > 0 else 0.0
    changed = len(plan.diff(other).changes)
    what = f"{_count(changed, 'table')} change" + ("s" if changed == 1 else "")
    if not changed:
        what = "as planned" if other is plan else "the same plan"
    return f"{line}  {usable / scale:8.2f} usable  {ms:9.3f} ms ({change:+7.1%})  {what}"


def _rank_lines(plan: Plan) -> list[str]:
    """Returns one line per rank with bars. Empty if all ranks carry about the same."""
    loads = plan.loads()
    worst = max(_over_mean([getattr(load, n) for load in loads]) for n in ("hbm", "ddr", "ms"))
    if worst <= _UNBALANCED:
        return []
    limits = plan.limits
    lines = [f"Ranks (the busiest has {worst:.2f} times the mean)"]
    unit, scale = unit_for(max(limits.hbm, int(limits.ddr_per_rank)))
    for rank, load in enumerate(loads):
        hbm = _bar(load.hbm, limits.hbm, scale)
        host = _bar(load.ddr, int(limits.ddr_per_rank), scale)
        lines.append(f"{rank:5}  HBM {hbm} {unit}  host {host} {unit}  {load.ms:8.3f} ms")
    return lines


def _over_mean(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return max(values) / mean if mean > 0 else 1.0


def _bar(used: int, budget: int, scale: int) -> str:
    full = min(_BAR, round(_BAR * used / budget)) if budget else 0
    bar = "█" * full + "░" * (_BAR - full)
    return f"{bar} {used / scale:7.2f}/{budget / scale:.2f}"
