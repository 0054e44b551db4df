"""CACHING: every row in the slow store, and copies of those in use in a cache of fixed size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..core import checks
from ..core.errors import CacheTooSmallError
from ..core.ids import are_among, distinct_ids
from ..core.shapes import Bool, Float32, Int64
from ..tables.copies import in_host
from ..tables.expiry import Evicted
from ..tables.host import HostTable
from ..tables.store import Entries, Lookup, Missing, TableKeys
from .cache_moves import CacheMoves
from .overlay import overlay
from .places import Ids
from .prefetch import Prefetched, Prefetcher

if TYPE_CHECKING:
    from ..tables.device import DeviceTable


class CachingTable(CacheMoves):
    """A table with all its rows in a `slow` store, behind a cache of `cache_rows`.

    Rows come to the cache when they are looked up for training or updated; the longest unused leave
    it, and those that were changed are written back by a thread, `queue_rows` on their way at most
    (as many as the cache has, if not given). Rows are born in the slow store. `prefetch` brings the
    rows of a later batch beside training and holds them. `flush` writes all changes back.

    A call that needs more distinct rows than the cache has places is refused; with `allow_small`
    what does not fit is read and written in the slow store, each time.

    >>> from hedgerow import HostTable, Segment, Sgd, TableConfig, Zeros
    >>> config = TableConfig("user", (Segment(1, Zeros(), Sgd(lr=1.0)),))
    >>> table = CachingTable(HostTable(config), HostTable(config), cache_rows=2)
    >>> one, two = torch.tensor([1]), torch.tensor([2, 3])
    >>> for ids in (one, one, two, two):
    ...     _ = table.apply_gradients(ids, torch.ones(len(ids), 1))
    >>> table.flush()
    >>> table.slow.lookup(torch.tensor([1, 2, 3])).rows.tolist()
    [-2.0, -2.0, -2.0]
    >>> [int(table.stats()[name]) for name in ("fetches", "write_backs", "cache_evictions")]
    [3, 3, 1]
    """

    def __init__(
        self,
        fast: HostTable | DeviceTable,
        slow: HostTable,
        *,
        cache_rows: int,
        allow_small: bool = False,
        queue_rows: int | None = None,
    ) -> None:
        super().__init__(
            fast, slow, cache_rows=cache_rows, allow_small=allow_small, queue_rows=queue_rows
        )
        self._ahead = Prefetcher(self._bring_ahead)

    # ---- reads

    def lookup(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        *,
        missing: Missing = "zeros",
        step: int | None = None,
        out: Float32[Tensor, "n dim"] | None = None,
    ) -> Lookup:
        """Rows of `keys`, into `out` if given. Nothing is inserted.

        With `missing="training"` rows come to the cache first, since an update follows.
        """
        if missing == "training":
            ids = self._keys(keys).ids.cpu()
            distinct = torch.unique(ids).numpy()
            self._await(distinct)
            with self._writing:
                self._before_update(distinct)
        return super().lookup(keys, missing=missing, step=step, out=out)

    def size(self) -> int:
        """Rows."""
        return self.slow.size()

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """All rows, in slices, each once, as `HostTable.scan`."""
        slices = self.slow.scan(rows)
        while (found := self._next_slice(slices)) is not None:
            yield found.to(self.device)

    def _next_slice(self, slices: Iterator[Entries]) -> Entries | None:
        with self._moves.shared(), self._back.still() as leaving:
            found = next(slices, None)
            return None if found is None else self._newest(overlay(found, leaving))

    # ---- batches to come

    def prefetch(self, keys: TableKeys | Int64[Tensor, "n"]) -> Prefetched:
        """Starts to bring the rows of a later batch; they stay until it is released.

        Distinct keys of all batches that are not released must fit the cache.
        """
        distinct = torch.unique(self._keys(keys).ids.cpu()).numpy()
        batch = Prefetched(distinct, self._release)
        too_many = self._ahead.add(batch, self.places.rows)
        if too_many is not None:
            raise CacheTooSmallError(
                f"table {self.config.name!r}: prefetched batches that are not released and this "
                f"one have {too_many} distinct keys, and the cache has {self.places.rows} places. "
                f"Prefetch fewer batches, release them in time, or make the cache larger."
            )
        return batch

    def _bring_ahead(self, batch: Prefetched) -> None:
        """In the thread of the prefetcher: reads beside training, then moves rows in at once."""
        with self.noted() as notes:
            with self._moves.shared():
                missing = torch.from_numpy(batch.ids[self.places.find(batch.ids) < 0])
                with self._back.still() as leaving:
                    missing = missing[~leaving.contains(missing)]
            known = self.slow.read_out(missing)
            known = known.where(known.found)
            with self._writing:
                same = torch.ones(len(known), dtype=torch.bool)
                self._notes.keep_unchanged(notes, self, known.ids.numpy(), same.numpy())
                self._fetch(batch.ids, known.where(same))
                at = self.places.find(batch.ids)
                batch.home, batch.places = self.places, at[at >= 0]
                batch.born = self.places.hold(batch.places)
        self.counters.add("prefetches", len(batch.ids))

    def _release(self, batch: Prefetched) -> None:
        if not self._ahead.remove(batch):
            return
        with self._writing:
            if batch.home is self.places:
                self.places.let_go(batch.places, batch.born)

    def _await(self, distinct: Ids) -> None:
        """Waits for prefetched batches whose rows are needed now: they come late."""
        batches = self._ahead.under_way()
        if not batches:
            return
        with self._moves.shared():
            missing = distinct_ids(distinct[self.places.find(distinct) < 0])  # a group's are not
        for batch in batches:
            late = int(are_among(missing, batch.ids).sum())
            if late:
                self.counters.add("late_prefetches", late)
                batch.wait()

    # ---- writes

    def check_room(self, ids: Int64[Tensor, "n"], step: int | None) -> None:
        """The part of `check_update` that no single store has."""
        super().check_room(ids, step)
        self.check_distinct(ids)
        if self._ahead.is_outstanding() and not self.allow_small:
            distinct = torch.unique(ids).cpu().numpy()
            with self._moves.shared():
                self._room_for(*self._missing(distinct))

    def check_distinct(self, ids: Int64[Tensor, "n"]) -> None:
        """Refuses more different ids than the cache may be asked for at once."""
        if len(ids) > self.places.rows:
            self._check_size(torch.unique(ids).cpu().numpy())

    def _before_update(self, distinct: Ids) -> None:
        self._check_size(distinct)
        self._fetch(distinct)

    def _check_size(self, distinct: Ids) -> None:
        if len(distinct) > self.places.rows and not self.allow_small:
            raise CacheTooSmallError(
                f"table {self.config.name!r}: a step of {len(distinct)} distinct keys, and the "
                f"cache has {self.places.rows} places. Make the cache larger, the batch smaller, "
                f"or ask for it with allow_small=True: what does not fit then goes to the slow "
                f"store each time."
            )

    def erase(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Removes rows and says which were there."""
        ids = self._keys(keys).ids.cpu()
        with self._writing, self._moves.alone(), self._back.still():
            try:
                erased = self.slow.erase(ids)
                self._remove_copies(ids)
            except BaseException:
                self._remove_copies(ids[~self.slow.contains(ids)])
                raise
        return erased.to(self.device)

    def evict(
        self, *, now_s: int | None = None, capture: bool = False, rows: int | None = None
    ) -> Evicted:
        """Removes the rows that the table's rule says must go; as `HostTable.evict`."""
        checks.flag("capture", capture)
        with self._writing, self._moves.alone():
            self._flush()
            now_s = self._reference_s(now_s)
            try:
                found = self.slow.evict(now_s=now_s, capture=True, rows=rows)
                assert found.ids is not None
                self._remove_copies(found.ids)
            except BaseException:
                self._remove_orphans()
                raise
        return found if capture else Evicted(found.rows)

    def _remove_copies(self, ids: Int64[Tensor, "n"]) -> None:
        """Rows are gone, wherever there are copies."""
        self._log(ids.numpy())
        self._back.take_back(ids)
        at = np.unique(self.places.find(ids.numpy()))
        at = at[at >= 0]
        gone = torch.from_numpy(self.places.ids_at(at))
        self.places.give(at)
        try:
            self.fast.move_out(gone)
        except BaseException:
            self.places.stayed(at, self._now)
            raise

    def _remove_orphans(self) -> None:
        """Copies of rows that the slow store has no longer go too."""
        cached = torch.from_numpy(self.places.ids_at(self.places.at()))
        self._remove_copies(cached[~self.slow.contains(cached)])

    def flush(self) -> None:
        """Writes every change back to the slow store; the rows stay cached."""
        with self._writing:
            self._flush()

    def _flush(self) -> None:
        self._back.flush()
        at = self.places.dirty()
        if len(at):
            ids = self.places.ids_at(at)
            self._log(ids)
            self._back.put(in_host(self.fast.read_out(torch.from_numpy(ids))))
            self._back.flush()
            self.places.set_dirty(at, False)

    # ---- all rows at once

    def clear(self) -> None:
        """Removes all rows."""
        # Rows on their way stay there meanwhile: one that arrived after the slow store was cleared
        # would live on.
        with self._writing, self._moves.alone(), self._back.still():
            try:
                self.slow.clear()  # first: it refuses while a snapshot is open
                self._back.clear()
                self.places.clear()
                self.fast.clear()
                self._replaced()
            except BaseException:
                if not self.slow.size():
                    self._back.clear()
                    self._remove_orphans()
                    self._replaced()
                raise

    def _all_to_slow(self) -> None:
        self._flush()
        self._drop(self.places.at())

    def _gather(self) -> None:
        self._flush()

    def _stores(self) -> Sequence[HostTable]:
        return (self.slow,)

    def _tier_counts(self) -> dict[str, int]:
        self._back.land()  # which counts them
        for name, rows in zip(
            ("fetches", "cache_evictions"), self.places.take_moved(), strict=True
        ):
            self.counters.add(name, rows)
        names = ("fetches", "cache_evictions", "write_backs", "prefetches", "late_prefetches")
        moved = {name: self.counters.read(name) for name in names}
        return {**super()._tier_counts(), "dirty_rows": len(self.places.dirty()), **moved}
