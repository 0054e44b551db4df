"""The rows of one parameter server, as a publisher reads them."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence

from torch import Tensor

from ..core.checks import unknown
from ..core.errors import HedgerowError, InputError
from ..core.shapes import Int64
from ..routing.router import Router
from ..tables.followed import FollowedRows
from ..tables.touched import DEFAULT_CAPACITY, Touched
from .source import RowsRead, Share, SourceTable

_log = logging.getLogger("hedgerow")


class ShardSource:
    """Tables that lie on a server: a `RowSource`. A server that is away is an error of its calls.

    What a take gave and did not arrive comes with the next one. A server that was restarted, or
    that has forgotten who follows it, gives another `incarnation` at the next take.
    """

    def __init__(
        self,
        tables: Mapping[str, FollowedRows],
        routers: Mapping[str, Router],
        *,
        shard: int,
        shards: int,
        step: Callable[[], int] = lambda: 0,
        capacity: int = DEFAULT_CAPACITY,
    ) -> None:
        if not 0 <= shard < shards:
            raise InputError(f"shard {shard} of {shards}; they are counted from 0.")
        self.shard, self.shards = shard, shards
        self._step, self._live = step, dict(tables)
        order = sorted(self._live, key=str.encode)
        self.tables = tuple(
            SourceTable(name, self._live[name].dim, routers[name]) for name in order
        )
        self._incarnation = secrets.token_hex(8)
        name = f"publish-{self._incarnation}"  # its own: two publishers share no marks
        self._marks = {
            table: self._live[table].touched(name, capacity=capacity, all_changes=True)
            for table in order
        }
        self._lives = self._lives_now()
        self._left: dict[str, Touched] = {}  # taken before a take that failed
        self.lost_rows = False

    @property
    def incarnation(self) -> str:
        """Another text after marks may have been lost; as of the last take."""
        return self._incarnation

    def take(self) -> Mapping[str, Touched]:
        """The keys changed since the last take that arrived, of every table."""
        for table, marks in self._marks.items():
            if table not in self._left:
                self._left[table] = marks.take()
        if self._lives_now() != self._lives:
            self._lives, self._incarnation = self._lives_now(), secrets.token_hex(8)
            self.lost_rows = any(marks.began_empty for marks in self._marks.values())
        elif any(one.whole_table for one in self._left.values()):  # as after a load
            self.lost_rows = False
        taken, self._left = self._left, {}
        return taken

    def read(self, table: str, ids: Int64[Tensor, "n"]) -> RowsRead:
        """Rows as they are now."""
        return RowsRead(*self._table(table).read(ids, step=self._step()))

    def message(self, shares: Sequence[Share]) -> bytes | None:
        """None: rows come in messages of the server's own."""
        return None

    def all_ids(self, table: str) -> Iterator[Int64[Tensor, "n"]]:
        """The ids of all rows, in slices."""
        return self._table(table).all_ids()

    def close(self) -> None:
        """Collects no more marks. A server that is away keeps them, until others need their room.

        Only one table waits for it.
        """
        try:
            for marks in self._marks.values():
                marks.close()
        except HedgerowError as error:
            _log.info("marks of shard %d stay: %s", self.shard, error)

    def _table(self, name: str) -> FollowedRows:
        if name not in self._live:
            unknown("table", name, self._live)
        return self._live[name]

    def _lives_now(self) -> tuple[int, ...]:
        return tuple(marks.life for marks in self._marks.values())
