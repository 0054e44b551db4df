"""Parsing and formatting of durations and byte sizes such as "7d" and "80GiB", and of counts."""

from __future__ import annotations

import re

from .errors import InputError

_SECONDS = {"ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_BYTES = {
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("kMGTP", start=1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGTP", start=1)},
}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")


def _parse(text: str, units: dict[str, float], kind: str, example: str) -> float:
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in units:
        raise InputError(
            f"{text!r} is not a {kind}; write a number and one of {', '.join(units)}, "
            f"for example {example!r}."
        )
    return float(match[1]) * units[match[2]]


def parse_seconds(value: str | float) -> float:
    """Returns the seconds of a text such as "10s", "200ms" or "7d". A number is taken as seconds.

    >>> parse_seconds("7d"), parse_seconds("200ms"), parse_seconds(3)
    (604800.0, 0.2, 3.0)
    """
    if isinstance(value, str):
        return _parse(value, dict(_SECONDS), "duration", "7d")
    return float(value)


def parse_bytes(value: str | int) -> int:
    """Returns the bytes of a text such as "80GiB" or "512MB". A number is taken as bytes.

    >>> parse_bytes("1GiB"), parse_bytes("1.5 kB"), parse_bytes(7)
    (1073741824, 1500, 7)
    """
    if isinstance(value, str):
        return round(_parse(value, dict(_BYTES), "size in bytes", "80GiB"))
    return int(value)


def format_bytes(size_bytes: float) -> str:
    """Returns a byte size as text with a binary unit and three digits.

    >>> format_bytes(0), format_bytes(1536), format_bytes(3 * 1024**3)
    ('0 B', '1.50 KiB', '3.00 GiB')
    """
    size, unit = float(size_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            break
        size /= 1024
    digits = 0 if unit == "B" else max(0, 2 - (abs(size) >= 10) - (abs(size) >= 100))
    return f"{size:.{digits}f} {unit}"


def format_count(number: int) -> str:
    """Returns a count as text with digits in groups of three.

    >>> format_count(41200117)
    '41 200 117'
    """
    return f"{number:,}".replace(",", " ")
