"""Lines of cells under one head, as text."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def aligned(lines: Sequence[Sequence[str]], *, left: Collection[str] = ()) -> list[str]:
    """Cells one under the other; the first line is the head, whose words in `left` stand left.

    >>> aligned([("table", "rows"), ("item", "7")], left=("table",))
    ['table  rows', 'item      7']
    """
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return [
        "  ".join(
            cell.ljust(width) if name in left else cell.rjust(width)
            for name, cell, width in zip(lines[0], line, widths, strict=True)
        ).rstrip()
        for line in lines
    ]
