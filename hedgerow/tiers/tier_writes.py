"""Writes to a table of two tiers: each row where it lies, those that are born in the slow one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core import checks
from ..core.errors import InputError
from ..core.shapes import Bool, Float32, Int8, Int64
from ..tables.host import HostTable
from ..tables.leave_order import one_call
from ..tables.policy import PLAIN, UpdatePolicy
from ..tables.schedules import Rate
from ..tables.store import Applied, Entries, Lookup, TableKeys
from ..tables.summed import summed
from .host_parts import some_of
from .places import Ids
from .two_tiers import TwoTiers


class TierWrites(TwoTiers):
    """The writing part of a table of two tiers.

    Every verb first asks both stores' checks about the whole call, then writes to the slow one,
    then to the fast one, so that a call that is refused has changed nothing.
    """

    def apply_gradients(
        self,
        at: TableKeys | Lookup | Int64[Tensor, "n"],
        grads: Float32[Tensor, "n dim"],
        *,
        rates: Sequence[Rate] | None = None,
        step: int | None = None,
        ts: int = 0,
        counts: Int64[Tensor, "n"] | None = None,
        per_occurrence: bool = False,
        policy: UpdatePolicy = PLAIN,
    ) -> Applied:
        """One optimizer step per distinct id, with its summed gradient; absent ids are born first.

        As `HostTable.apply_gradients`. This is what counts as use of a row, and rows move here.
        """
        checks.flag("per_occurrence", per_occurrence)
        keys = self._keys(at.keys if isinstance(at, Lookup) else at)
        if policy.clip is not None:
            one = summed(keys, grads, counts, (self.config.dim,)).clipped(policy.clip)
            keys, grads, counts = one.keys, one.grads, one.counts
        self.check_update(keys.ids, grads, rates, step, counts)
        ids = keys.ids.cpu()
        settings = {"rates": rates, "step": step, "per_occurrence": per_occurrence}
        distinct = torch.unique(ids).numpy()
        self._await(distinct)
        with self._writing:
            self._before_update(distinct)
            done = self._in_tiers("apply_gradients", ids, grads, ts, counts, **settings)
            self._after_update(distinct)
        return done

    def check_update(
        self,
        ids: Int64[Tensor, "n"],
        grads: Float32[Tensor, "n dim"],
        rates: Sequence[Rate] | None,
        step: int | None,
        counts: Int64[Tensor, "n"] | None,
    ) -> None:
        """Refuses what `apply_gradients` refuses."""
        check_update(self.fast, ids, grads, rates, step, counts)
        self.check_room(ids, step)

    def check_room(self, ids: Int64[Tensor, "n"], step: int | None) -> None:
        """The part of `check_update` that no single store has."""
        if self.config.admit is not None and self.config.admit.needs_step:
            self.slow.checked_step(step, True, "admits ids")

    def assign(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        rows: Float32[Tensor, "n dim"],
        *,
        ts: int = 0,
    ) -> Applied:
        """Sets rows and keeps optimizer state (fresh for an absent id). The last of equals wins."""
        return self._set("assign", keys, rows, ts)

    def assign_add(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        rows: Float32[Tensor, "n dim"],
        *,
        ts: int = 0,
    ) -> Applied:
        """Adds to rows; an absent one starts from its first value."""
        return self._set("assign_add", keys, rows, ts)

    def restore(self, entries: Entries) -> Applied:
        """Puts whole rows back: embedding, states and times as `entries` or `scan` gave them."""
        given = entries.to("cpu")
        with self._writing:
            at, here, rest = self._split(given.ids)
            if not len(here):
                self._settle(given.ids)
                return self.slow.restore(given)
            self._check_entries(given)
            self._settle(given.ids[rest])
            done = self.slow.restore(_some(given, rest))
            self._changing(at[here.numpy()])
            more = self.fast.restore(_some(given, here))
            self.slow.saw(int(self.fast.entries(given.ids[here].to(self.device)).ts.max()))
        return _total(done, more)

    def reinitialize(self, keys: TableKeys | Int64[Tensor, "n"]) -> Int8[Tensor, "n"]:
        """Makes rows as new, at the clock's time; 0 = was absent, 1 = was there."""
        ids = self._keys(keys).ids.cpu()
        status = torch.empty(len(ids), dtype=torch.int8)
        with self._writing:
            at, here, rest = self._split(ids)
            self._settle(ids[rest])
            with one_call(self.slow.order, self.slow.clock.now_s(), 0):
                status[rest] = self.slow.reinitialize(ids[rest])
                if len(here):
                    self._changing(at[here.numpy()])
                    status[here] = self.fast.reinitialize(ids[here].to(self.device)).cpu()
        return status.to(self.device)

    def erase(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Removes rows and says which were there."""
        raise NotImplementedError

    # ---- what the modes do around writes

    def _await(self, distinct: Ids) -> None:
        """Before the lock is taken: what other threads do for these ids."""

    def _before_update(self, distinct: Ids) -> None:
        """Before gradients of these ids are applied."""

    def _after_update(self, distinct: Ids) -> None:
        """After gradients of these ids were applied."""

    def _settle(self, ids: Int64[Tensor, "n"]) -> None:
        """Before rows of these ids are written in the slow tier."""

    def _changing(self, at: Ids) -> None:
        """Before rows at these places are written: a call may break off after it wrote some."""

    # ---- inside

    def _set(self, verb: str, keys: TableKeys | Tensor, rows: Tensor, ts: int) -> Applied:
        ids = self._keys(keys).ids
        rows = self.fast.checked_rows("rows", rows, len(ids))
        if not isinstance(self.fast, HostTable):
            self.fast.usable_rows(rows, None)
        with self._writing:
            return self._in_tiers(verb, ids.cpu(), rows, ts)

    def _in_tiers(
        self,
        verb: str,
        ids: Int64[Tensor, "n"],
        rows: Tensor,
        ts: int,
        counts: Tensor | None = None,
        **settings: Any,
    ) -> Applied:
        rows = rows.detach().view(len(ids), self.layout.dim)
        at, here, rest = self._split(ids)
        behind = some_of(ids, rest)
        self._settle(behind)
        if counts is not None:
            settings["counts"] = some_of(counts, rest).cpu()
        ts = self.slow.next_time(ts)  # a time of the future is counted once
        uses = len(ids) if counts is None else int(counts.sum())
        with one_call(self.slow.order, ts, uses):
            write: Callable[..., Applied] = getattr(self.slow, verb)
            done = write(behind, some_of(rows, rest).cpu(), ts=ts, **settings)
            if not len(here):
                return _total(done)
            if counts is not None:
                settings["counts"] = some_of(counts, here)
            self._changing(at[here.numpy()])
            write = getattr(self.fast, verb)
            more = write(some_of(ids, here).to(self.device), some_of(rows, here), ts=ts, **settings)
        return _total(done, more)

    def _check_entries(self, given: Entries) -> None:
        """What a store refuses after the other has taken its part."""
        if not bool(given.found.all()):
            raise InputError("entries holds ids that were not found; select those with found True.")
        if int(given.ts.min()) < 0:
            raise InputError(f"ts holds {int(given.ts.min())}; a time is at least 0.")
        self.slow.checked_rows("rows", given.rows, len(given))
        self.layout.join(given.states, len(given))


def check_update(
    table: Any,
    ids: Int64[Tensor, "n"],
    grads: Float32[Tensor, "n dim"],
    rates: Sequence[Rate] | None,
    step: int | None,
    counts: Int64[Tensor, "n"] | None,
) -> None:
    """Refuses what `apply_gradients` of any table would refuse, before it is called."""
    if isinstance(table, HostTable):
        table.update_arguments(ids, grads, rates, step, counts)
    elif isinstance(table, TierWrites):
        table.check_update(ids, grads, rates, step, counts)
    else:
        table._call(ids, grads, rates, step, counts)


def _some(entries: Entries, which: Int64[Tensor, "m"]) -> Entries:
    states = [{name: x[which] for name, x in one.items()} for one in entries.states]
    ids, found, rows, ts = (
        x[which] for x in (entries.ids, entries.found, entries.rows, entries.ts)
    )
    order = None if entries.order is None else entries.order[which]
    return Entries(ids, found, rows, states, ts, order)


def _total(*done: Applied) -> Applied:
    return Applied(sum((one.counts.cpu() for one in done), torch.zeros(3, dtype=torch.int64)))
