"""Puts loaded rows and filters in the place of the live ones: all of them, or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ...core.errors import CheckpointError, InputError
from ..filters import FilterState
from ..own_rows import Counting, OwnRows


def take_over(
    tables: Sequence[tuple[OwnRows, OwnRows]],
    filters: Sequence[tuple[Counting, FilterState]],
) -> None:
    """Live tables exchange rows with staged ones; filters get their states. Errors undo it all."""
    undo: list[Callable[[], None]] = []
    try:
        for live, staged in tables:
            live.exchange_rows(staged)
            undo.append(partial(live.exchange_rows, staged))
        for filter_, state in filters:
            before = filter_.dump()
            _restore(filter_, state)
            undo.append(partial(filter_.restore, before))
    except BaseException:
        for step in reversed(undo):
            step()
        raise


def _restore(filter_: Counting, state: FilterState) -> None:
    try:
        filter_.restore(state)
    except InputError as error:
        raise CheckpointError(f"the saved counts of a filter: {error}") from error
