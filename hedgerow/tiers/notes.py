"""What is written behind caches while somebody reads there without their lock."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..core.ids import are_among
from .places import Ids

# Ids that are noted for who reads behind a cache. Who takes longer gets none of the rows: a batch
# that is prefetched and never looked up would fill the memory.
_NOTED_ROWS = 1 << 22


@dataclass(slots=True, eq=False)
class Notes:
    """Ids that were written behind caches since somebody began to read there, by cache."""

    era: int  # rows that were replaced altogether since are not those
    since: int  # rows that were last used before are not asked for
    log: list[tuple[object, Ids]] = field(default_factory=list)
    rows: int = 0  # in the log


class Notebook:
    """Who reads behind caches; those that step together have one, as they have one lock.

    The caller has that lock, but for `end`, which any thread may say as often as it likes.
    """

    def __init__(self) -> None:
        self._open: set[Notes] = set()
        self._era = 0  # how often all rows of a cache were replaced

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, since: int = 0) -> Notes:
        """From now on it is noted what is written.

        Who asks only for rows that were not cached at the time `since` is told of others in vain.
        """
        notes = Notes(self._era, since)
        self._open.add(notes)
        return notes

    def end(self, notes: Notes) -> None:
        """Nobody asks for these any more."""
        self._open.discard(notes)

    def write(self, cache: object, ids: Ids) -> None:
        """Rows of these ids are written behind a cache."""
        noting = tuple(self._open)  # others may end theirs meanwhile
        if not noting or not len(ids):
            return
        ids = ids.copy()  # the caller may write to them
        for notes in noting:
            notes.log.append((cache, ids))
            notes.rows += len(ids)
            if notes.rows > _NOTED_ROWS:
                self.end(notes)
                notes.log.clear()

    def replaced(self) -> None:
        """All rows of a cache were: nobody gets what was read before."""
        self._era += 1

    def since(self) -> int | None:
        """Rows that were last used before this time may leave unnoted; None = all may."""
        return min((notes.since for notes in tuple(self._open)), default=None)

    def is_written(self, notes: Notes) -> bool:
        """Whether anything was written since these began."""
        return bool(notes.log) or notes.era != self._era or notes not in self._open

    def keep_unchanged(self, notes: Notes, cache: object, ids: Ids, which: np.ndarray) -> None:
        """Leaves only those `which` of a cache's ids are as they were read."""
        if notes.era != self._era or notes not in self._open:
            which[:] = False
            return
        written = [own for other, own in notes.log if other is cache]
        if written:
            which &= ~are_among(ids, np.concatenate(written))
