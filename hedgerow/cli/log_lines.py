"""What the library logs, as lines on stderr, while a verb wants them seen."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import typer


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        """One line a record."""
        typer.echo(record.getMessage(), err=True)


@contextmanager
def shown_log() -> Iterator[None]:
    """Shows what is logged from INFO on; afterwards all is as it was."""
    logger, handler = logging.getLogger("hedgerow"), _Lines(logging.INFO)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
