"""HYBRID: every row once, in the fast store or in the slow one; it moves by how it is used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..core import checks
from ..core.errors import ConfigError
from ..core.ids import distinct_ids
from ..core.shapes import Bool, Float32, Int64
from ..tables.copies import in_host
from ..tables.expiry import Evicted, Lfu, Lru, Ttl
from ..tables.host import HostTable
from ..tables.store import Entries, TableKeys
from .places import Ids
from .tier_watch import TierWatch
from .uses import Uses

if TYPE_CHECKING:
    from ..tables.device import DeviceTable

_MOVED = 16  # a step promotes up to this part of the fast rows
_RENEW_STEPS = 32  # after so many the coldest rows are looked for anew
_SPARE = 2  # so many times as many as a step may promote
_GAIN = 2  # uses of now, by which a row must be hotter: to move both costs more than a few reads
_HALF_LIFE_STEPS = 64


class HybridTable(TierWatch):
    """A table whose hottest rows lie in a `fast` store and all others in a `slow` one.

    Rows are born in the slow store. After each update the rows it used that are used most come to
    the fast one, at most `promotions` of them (a sixteenth of `fast_rows` if not given), where room
    is, or where a row lies that was used less by two uses of now: that one goes back. Uses fade:
    one of 64 updates ago counts half. Which rows lie where follows from the calls alone, and no
    number depends on it.

    >>> from hedgerow import HostTable, Segment, Sgd, TableConfig, Zeros
    >>> config = TableConfig("user", (Segment(1, Zeros(), Sgd(lr=1.0)),))
    >>> table = HybridTable(HostTable(config), HostTable(config), fast_rows=1)
    >>> for ids in ([1, 2], [2], [2], [2]):
    ...     _ = table.apply_gradients(torch.tensor(ids), torch.ones(len(ids), 1))
    >>> table.lookup(torch.tensor([1, 2, 3])).rows.tolist(), table.fast.size(), table.size()
    ([-1.0, -4.0, 0.0], 1, 2)
    >>> [int(table.stats()[name]) for name in ("fast_hits", "slow_hits", "absent", "promotions")]
    [1, 1, 1, 2]
    """

    def __init__(
        self,
        fast: HostTable | DeviceTable,
        slow: HostTable,
        *,
        fast_rows: int,
        promotions: int | None = None,
    ) -> None:
        super().__init__(fast, slow, fast_rows)
        if promotions is None:
            promotions = max(1, fast_rows // _MOVED)
        self.promotions = checks.count("promotions", promotions)
        self._uses = Uses(fast_rows, half_life_steps=_HALF_LIFE_STEPS, device=fast.device)
        self._coldest: Ids = np.empty(0, np.int64)  # places, to leave next
        self._looked = 0  # steps since they were found
        self._scans = 0  # under way: rows stay where they are
        self._scanning = Lock()  # for that number

    def size(self) -> int:
        """Rows."""
        with self._moves.shared():
            return self.fast.size() + self.slow.size()

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """All rows, in slices, each once, whatever is written meanwhile; no row moves so long."""
        with self._no_moves():
            for store in (self.slow, self.fast):
                for entries in store.scan(rows):
                    yield entries.to(self.device)

    @contextmanager
    def _no_moves(self) -> Iterator[None]:
        with self._writing, self._scanning:  # after a move that is under way
            self._scans += 1
        try:
            yield
        finally:
            with self._scanning:
                self._scans -= 1

    # ---- writes

    def erase(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Removes rows and says which were there."""
        ids = self._keys(keys).ids.cpu()
        with self._writing, self._moves.alone(), self._mended(ids.numpy()):
            at, here, _ = self._split(ids)
            erased = self.slow.erase(ids)
            if len(here):
                erased[here] = self.fast.erase(ids[here].to(self.device)).cpu()
                self.places.give(np.unique(at[at >= 0]))
        return erased.to(self.device)

    def evict(
        self, *, now_s: int | None = None, capture: bool = False, rows: int | None = None
    ) -> Evicted:
        """Removes the rows that the table's rule says must go, of both tiers; as `HostTable`."""
        rule = self.config.evict
        checks.flag("capture", capture)
        with self._writing, self._moves.alone(), self._mended():
            if isinstance(rule, Ttl):
                found = self._evict_older(self._reference_s(now_s))
            elif isinstance(rule, Lru | Lfu):
                budget = rule.rows if rows is None else checks.count("rows", rows, least=1)
                found = self._evict_to(budget)
            else:
                raise ConfigError(
                    f"table {self.config.name!r} has no eviction rule; make its TableConfig with "
                    f"evict=Ttl(...), Lru(...) or Lfu(...)."
                )
            at = self.places.find(found.ids.numpy()) if found.ids is not None else self._coldest[:0]
            self.places.give(at[at >= 0])
        return found if capture else Evicted(found.rows)

    def _evict_older(self, now_s: int | None) -> Evicted:
        parts = [store.evict(now_s=now_s, capture=True) for store in (self.slow, self.fast)]
        ids, ts = (
            torch.cat([x.cpu() for x in column if x is not None])
            for column in ([p.ids for p in parts], [p.ts for p in parts])
        )
        return Evicted(len(ids), ids, ts)

    def _evict_to(self, budget: int) -> Evicted:
        """Which rows leave is told by all of them together: their ranks, of equal ones the id."""
        if self.fast.size() + self.slow.size() <= budget:
            nothing = torch.empty(0, dtype=torch.int64)
            return Evicted(0, nothing, nothing)
        ids, ts, ranks, hot = (np.concatenate(c) for c in zip(*self._ranked(), strict=True))
        leaving = np.lexsort((ids, ranks))[: max(0, len(ids) - budget)]
        ids, ts, left = ids[leaving], ts[leaving], int(hot[leaving].sum())
        for store, going in ((self.slow, len(ids) - left), (self.fast, left)):
            if going:
                store.evict(rows=store.size() - going)
        return Evicted(len(ids), torch.from_numpy(ids), torch.from_numpy(ts))

    def _ranked(self) -> Iterator[tuple[Ids, Ids, Ids, np.ndarray]]:
        """Ids, times and ranks of all rows, and which lie in the fast store."""
        order = self.slow.order
        assert order is not None
        nothing = np.empty(0, np.int64)
        yield nothing, nothing, nothing, np.empty(0, np.bool_)
        for store in (self.slow, self.fast):
            for given in store.scan():
                part = given.to("cpu")
                ranks = order.ranks(order.stamps(part.ts, part.order))
                hot = np.full(len(part), store is self.fast)
                yield part.ids.numpy(), part.ts.numpy(), ranks.numpy(), hot

    # ---- moves

    def _after_update(self, distinct: Ids) -> None:
        self._uses.step(distinct)
        waiting = distinct[self.places.find(distinct) < 0]
        self.promote(torch.from_numpy(waiting).to(self.device), 1)

    def promote(self, waiting: Int64[Tensor, "n"], steps: int) -> None:
        """Those of ids in the slow tier that are used most come, after so many steps.

        The ids differ, and have been used by the last step; the caller holds `_writing`.
        """
        self._looked += steps
        if self._scans or not self.promotions or not len(waiting):
            return
        uses, free = self._uses.of(waiting), self.places.free
        if not free:  # a row that nobody used for long leaves for no other
            hotter = uses > _GAIN * self._uses.weight
            waiting, uses = waiting[hotter], uses[hotter]
        uses, order = uses.sort(stable=True, descending=True)
        coming = waiting[order[: self.promotions]].cpu()
        there = self.slow.contains(coming)  # others were not let in
        coming, uses = coming[there].numpy(), uses[: len(there)][there.to(uses.device)]
        if len(coming):
            leaving = self._colder(uses[free:])
            try:
                self._swap(coming[: free + len(leaving)], leaving)
            except MemoryError:  # no room for those that go back: all stay, and the update is done
                self.counters.add("failed_moves", 1)

    def _colder(self, uses: Float32[Tensor, "n"]) -> Ids:
        """Places whose rows leave for others of these uses, falling; as many as are colder."""
        if not len(uses):
            return self._coldest[:0]
        if self._looked >= _RENEW_STEPS or len(self._coldest) < len(uses):
            spare = _SPARE * self.promotions
            self._coldest, self._looked = self.places.least_used(self._uses, spare), 0
        at = self._coldest[self.places.are_taken(self._coldest)]
        theirs, order = self._uses.of(self.places.ids_at(at)).sort(stable=True)
        both = min(len(uses), len(theirs))
        gains = uses[:both] > theirs[:both] + _GAIN * self._uses.weight
        going = order[: int(gains.cumprod(0).sum())].cpu().numpy()
        stays = np.ones(len(at), np.bool_)
        stays[going] = False
        self._coldest = at[stays]
        return at[going]

    def _swap(self, coming: Ids, leaving: Ids) -> None:
        """Rows come to the fast store, and those at the places `leaving` go back."""
        if not len(coming):
            return
        going = self.places.ids_at(leaving)
        with self._moves.alone(), self._mended(np.concatenate([coming, going])):
            if len(leaving):
                gone = torch.from_numpy(going)
                self.slow.move_in(in_host(self.fast.read_out(gone)))
                self.places.give(leaving)
                self.fast.move_out(gone)
            rows = self.slow.read_out(torch.from_numpy(coming))
            placed = self.fast.move_in(rows).cpu()
            here = rows.ids[placed]
            self.places.take(here.numpy())
            self.slow.move_out(here)
        self.counters.add("promotions", len(here))
        if len(leaving):
            self.counters.add("demotions", len(leaving))

    @contextmanager
    def _mended(self, ids: Ids | None = None) -> Iterator[None]:
        """Around moves of these ids, or of all: where they break off, rows are once again.

        No memory, or a user who stops the program and saves. A row comes to its new store before
        `places` tell of it, and only then leaves the old one: so what they tell is there.
        """
        try:
            yield
        except BaseException:
            ids = self.places.ids_at(self.places.at()) if ids is None else distinct_ids(ids)
            at = self.places.find(ids)
            held = torch.from_numpy(ids[at >= 0])
            there = self.fast.contains(held.to(self.device)).cpu()
            self.slow.move_out(held[there])
            self.fast.move_out(torch.from_numpy(ids[at < 0]))
            self.places.give(at[at >= 0][~there.numpy()])  # erased: only their places are left
            raise

    # ---- all rows at once

    def clear(self) -> None:
        """Removes all rows."""
        with self._writing, self._moves.alone(), self._mended():
            self.slow.clear()
            self.fast.clear()
            self.places.clear()

    def _all_to_slow(self) -> None:
        at = self.places.at()
        ids = torch.from_numpy(self.places.ids_at(at))
        with self._mended(ids.numpy()):
            self.slow.move_in(self.fast.read_out(ids))
            self.places.give(at)
            self.fast.move_out(ids)

    def _stores(self) -> Sequence[HostTable | DeviceTable]:
        return self.slow, self.fast

    def _tier_counts(self) -> dict[str, int]:
        names = ("promotions", "demotions", "failed_moves")
        moved = {name: self.counters.read(name) for name in names}
        return {**super()._tier_counts(), **moved}

    def _known_bytes(self) -> int:
        return super()._known_bytes() + self._uses.nbytes()
