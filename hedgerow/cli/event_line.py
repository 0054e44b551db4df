"""An event of a training job as one line of text."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.units import format_count
from ..train.events import PLACE, Event

_DIGITS = {"loss": 4, "auc": 4, "ne": 3, "calibration": 3}
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def event_line(event: Event, before: Event | None = None, left: str = "") -> str:
    """The line; rates are taken since the event `before`, `left` says how far the job is.

    >>> first = {"kind": "train", "step": 11000, "samples": 0, "seconds": 8, "rows": 41_190_700}
    >>> event_line({"kind": "train", "step": 12000, "samples": 546_000, "seconds": 11.0,
    ...             "loss": 0.44123, "auc": 0.78712, "rows": 41_200_000}, first, "60 %")
    'step 12 000  60 %  loss 0.4412  auc 0.7871  182 k samples/s  rows 41.2 M (+3.1 k/s)'
    >>> event_line({"kind": "checkpoint", "step": 9, "path": "out/step-9"})
    'step 9  checkpoint  path out/step-9'
    """
    parts = [f"step {format_count(int(event['step']))}", left]
    if event["kind"] != "train":
        parts.append(str(event["kind"]))
    parts += [
        f"{name} {event[name]:.{digits}f}" for name, digits in _DIGITS.items() if name in event
    ]
    parts += _speed(event, before)
    parts += _rest(event)
    return _plain("  ".join(part for part in parts if part))


def short_count(number: float) -> str:
    """A count with three digits at most and its unit.

    >>> short_count(950), short_count(3100), short_count(182_400), short_count(41_200_117)
    ('950', '3.1 k', '182 k', '41.2 M')
    """
    for size, unit in _UNITS:
        if abs(number) >= size * 0.9995:  # what rounds to 1 000 is 1.0 of the next unit
            scaled = number / size
            return f"{scaled:.{0 if abs(scaled) >= 99.95 else 1}f} {unit}"
    return f"{number:.0f}"


def short_time(seconds_s: float) -> str:
    """A duration in its two largest units.

    >>> short_time(7.6), short_time(125), short_time(7300), short_time(200_000)
    ('8 s', '2 min 05 s', '2 h 01 min', '2 d 07 h')
    """
    whole = round(seconds_s)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def rate(name: str, event: Event, before: Event | None) -> float | None:
    """How fast a count grew since the event before; None where that cannot be said."""
    if before is None or not all(key in e for key in (name, "seconds") for e in (event, before)):
        return None
    passed_s = float(event["seconds"]) - float(before["seconds"])
    return (float(event[name]) - float(before[name])) / passed_s if passed_s > 0 else None


def _speed(event: Event, before: Event | None) -> Iterator[str]:
    speed = rate("samples", event, before)
    if speed is not None and speed > 0:
        yield f"{short_count(speed)} samples/s"
    if "rows" in event:
        growth = rate("rows", event, before)
        sign = "+" if growth is not None and growth >= 0 else ""
        grows = "" if growth is None else f" ({sign}{short_count(growth)}/s)"
        yield f"rows {short_count(float(event['rows']))}{grows}"


def _rest(event: Event) -> Iterator[str]:
    for name, value in event.items():
        if name not in PLACE and name not in _DIGITS and name != "rows":
            yield f"{name} {value if isinstance(value, int | str) else format(value, '.4g')}"


def _plain(text: str) -> str:
    """Without line ends and other characters that a terminal would obey."""
    return "".join(char if char.isprintable() else "?" for char in text)
