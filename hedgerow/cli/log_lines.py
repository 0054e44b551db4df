"""Shows the library's log as lines on stderr with time and level."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from ..core.errors import ConfigError

LEVELS = ("debug", "info", "warning", "error")
LogLevel = Annotated[
    str | None,
    typer.Option(
        "--log-level",
        metavar="|".join(LEVELS),
        help="The least severe log lines to show on stderr; put it before the command. Default: "
        "warning, and info while a job or plan is set up.",
    ),
]
_LINE = "%(asctime)s.%(msecs)03d %(levelname)s %(message)s"


class _StderrHandler(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(_LINE, "%Y-%m-%d %H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line above a live line; `typer.echo` would write into the live line."""
        sys.stderr.write(f"{self.format(record)}\n")
        sys.stderr.flush()


@contextmanager
def log_lines(level: str | None) -> Iterator[None]:
    """Shows log lines from a level on; restores the logger at the end.

    >>> with log_lines("verbose"):
    ...     pass
    Traceback (most recent call last):
    hedgerow.core.errors.ConfigError: --log-level is 'verbose'; it must be one of debug, info, \
warning, error.
    """
    if level is not None and level not in LEVELS:
        raise ConfigError(f"--log-level is {level!r}; it must be one of {', '.join(LEVELS)}.")
    logger, handler = logging.getLogger("hedgerow"), _StderrHandler()
    before = logger.level
    logger.addHandler(handler)
    if level is not None:
        logger.setLevel(level.upper())
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


@contextmanager
def shown_log() -> Iterator[None]:
    """Shows log lines from INFO on inside the `with` block, unless `--log-level` is given."""
    logger = logging.getLogger("hedgerow")
    if logger.level != logging.NOTSET:
        yield
        return
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(logging.NOTSET)
