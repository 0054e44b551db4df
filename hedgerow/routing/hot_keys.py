"""The hottest keys of a sample, and what helps against them: in words."""

from __future__ import annotations

from collections.abc import Sequence

_SHOWN = 5
_LEAST_SHARE = 0.001  # a key below is not worth a line
_EVEN = 1.1  # a fullest rank below so many times the mean is nothing to act upon
_NAMED = 3
HotKeys = Sequence[tuple[int, float]]  # keys with their share of all, the hottest first


def hot_key_lines(top: HotKeys) -> list[str]:
    """The hottest keys with their shares, a line each.

    >>> hot_key_lines([(7, 0.25), (-1, 0.125)])
    ['the 2 most frequent keys are 37.5 % of all', '  7  25.0 %', '  -1  12.5 %']
    """
    total = sum(share for _, share in top)
    head = f"the {len(top)} most frequent keys are {100 * total:.1f} % of all"
    shown = [line for line in top[:_SHOWN] if line[1] >= _LEAST_SHARE]
    return [head, *(f"  {key}  {100 * share:.1f} %" for key, share in shown)]


def hot_key_advice(top: HotKeys, ranks: int, *, raw: float, deduplicated: float) -> str:
    """What helps, from max/mean over ranks under the recommended rule, raw and de-duplicated.

    >>> hot_key_advice([(7, 0.25)], 8, raw=2.5, deduplicated=1.02)[:49]
    'Hot keys: 7 (2.00 times the fair share of a rank)'
    """
    if raw <= _EVEN:
        return "Hot keys: none that matter; occurrences spread evenly as they are."
    if deduplicated > raw / _EVEN:
        return (
            "Hot keys: none that matter; ranks differ in their distinct keys, which a hash or more "
            "keys even out."
        )
    hot = [(key, share * ranks) for key, share in top[:_NAMED] if share * ranks >= _EVEN - 1]
    names = ", ".join(f"{key} ({weight:.2f} times the fair share of a rank)" for key, weight in hot)
    advice = (
        f"Hot keys: {names or 'many, none of them large'}. No dist_type can split a key. What "
        f"helps is to send equal keys of a step once, which the exchange does by itself "
        f"(dedup=True): the fullest rank has {raw:.2f} times the mean without, "
        f"{deduplicated:.2f} with it. Copies of hot rows on every rank, or another dist_type, are "
        f"no help beside it."
    )
    if deduplicated <= _EVEN:
        return advice
    return f"{advice} What is left are keys of every step: with more keys a step it gets less."
