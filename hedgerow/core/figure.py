"""Pictures as PNG files, whole or absent, without a display (extra `plan`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeAlias

from .errors import MissingExtraError
from .whole_file import naming

Axes: TypeAlias = Any  # matplotlib's, which may not be there
Figure: TypeAlias = Any


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches, bound to no window."""
    try:
        from matplotlib import figure
    except ImportError as error:
        raise MissingExtraError(
            f"pictures need matplotlib ({error}); pip install hedgerow[plan]."
        ) from error
    return figure.Figure((width, height), dpi=120, layout="constrained")


def save_figure(figure: Figure, path: Path) -> None:
    """The whole picture or none: written beside, then renamed."""
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            figure.savefig(part, format="png")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
