"""Made-up planning problems that look like real ones: tables of all sizes, seeded."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from ..planner.problem.option import Option, TableOptions
from ..planner.problem.topology import Budget
from ..planner.problem.variant import Mode, variants

WORLD, MACHINES = 128, 16
_SLOT = 22  # bytes a row of keys, scores and digests, which lie in HBM in every mode
_HBM, _HOST = 3.6e6, 5.1e4  # bytes a millisecond, in thousands: a card, and the way to its host
_KEY_MS = 1.2e-6
_LAUNCH_MS = 0.05


def plan_work(seed: int, tables: int) -> tuple[list[TableOptions], Budget]:
    """Tables with 24 variants each on 128 devices of 16 machines; both budgets bind.

    Rows are log-uniform from a million to a billion. Times follow from a power law's hit rates and
    two tiers that overlap, with a little noise as measured times have it.

    >>> tables, budget = plan_work(0, 3)
    >>> [len(table.options) for table in tables]
    [24, 24, 24]
    """
    random = np.random.default_rng(seed)
    made = [_table(random, f"t{index}") for index in range(tables)]
    values = sum(table.options[0].hbm for table in made)
    # Below what all values take together with caches, above what they take without.
    return made, Budget(int(0.4 * values), Fraction(int(5.15 * values), 8))


def _table(random: np.random.Generator, name: str) -> TableOptions:
    rows = int(10 ** random.uniform(6.0, 9.0))
    dim = int(random.choice([8, 16, 32, 64, 128]))
    state = float(random.choice([1 / dim, 1, 2]))
    ids = float(10 ** random.uniform(3.6, 5.7))
    skew = random.uniform(0.05, 0.5)  # 1 less the exponent of the power law
    local = -(-rows // WORLD)
    row = -(-int(dim * 4 * (1 + state)) // 16) * 16
    distinct = min(float(rows), ids * random.uniform(0.3, 0.9))
    moved = dim * 4 + 2 * row
    options = []
    for variant in variants():
        share = float(variant.share)
        hit = {
            Mode.HBM_ONLY: 1.0,
            Mode.HYBRID: share,
            Mode.CACHING: share**skew,
            Mode.HOST_ONLY: 0.0,
        }[variant.mode]
        near = distinct * (_KEY_MS + hit * moved / (_HBM * 1e3))
        far = distinct * (1 - hit) * moved / (_HOST * 1e3)
        tiers = {Mode.HBM_ONLY: 1, Mode.HOST_ONLY: 1}.get(variant.mode, 2)
        noise = random.uniform(0.99, 1.01)
        ms = tiers * _LAUNCH_MS + (near**4 + far**4) ** 0.25 * noise
        kept = int(local * share)
        host = {Mode.HBM_ONLY: 0, Mode.HYBRID: local - kept}.get(variant.mode, local)
        slots = local + (kept if variant.mode == Mode.CACHING else 0)
        options.append(Option(variant.label, kept * row + slots * _SLOT, host * row, ms))
    return TableOptions(name, tuple(options))
