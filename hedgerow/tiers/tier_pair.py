"""Two stores of one table, read and written as one. All tables in two tiers share this part."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..core import checks
from ..core.counters import Counters
from ..core.errors import ConfigError, DtypeError, InputError, NameTakenError
from ..core.shapes import Bool, Float32, Float64, Int8, Int64
from ..tables import arguments
from ..tables.changes import Overflow, TouchedBatch, TouchedSettings
from ..tables.config import TableConfig
from ..tables.eviction import Ttl, one_call, uses_of
from ..tables.host import HostTable
from ..tables.layout import RowLayout
from ..tables.local_table import MemoryUse
from ..tables.optimizers import Rate
from ..tables.store import Applied, Entries, Lookup, Missing, TableKeys
from .locks import SharedLock, WriteLock
from .residency_map import Ids, ResidencyMap

if TYPE_CHECKING:
    from ..tables.device import DeviceTable
    from .device_residency import DeviceResidencyMap


_MAX_IDS = 2**31 - 1
_BYTES = ("index_bytes", "row_bytes", "slack_bytes", "other_bytes", "output_bytes")
_COUNTS = ("inserted", "refused", "dropped", "erased", "evicted", "clamped_ts")
_HITS = ("fast_hits", "slow_hits", "absent")


class TierPair:
    """A `fast` store of at most `fast_rows` rows in front of a `slow` store of any size.

    Both stores have the config of one table. The fast store has no admission rule, because rows are
    inserted in the slow store. Keys, rows and gradients of calls are on the device of the fast
    store.

    Owns two locks. A thread that writes or moves rows holds `write_lock`. A thread that moves rows
    also holds `move_lock` alone meanwhile; readers share `move_lock`. Any number of threads may
    read.
    """

    def __init__(
        self,
        fast: HostTable | DeviceTable,
        slow: HostTable,
        fast_rows: int,
        resident: Callable[[HostTable | DeviceTable, int], Any],
    ) -> None:
        if not isinstance(slow, HostTable):
            raise DtypeError(f"slow is a {type(slow).__name__}; it must be a HostTable.")
        _check_configs(fast.config, slow.config)
        self.fast, self.slow = fast, slow
        self.config: TableConfig = slow.config
        self.layout: RowLayout = slow.layout
        room = checks.count("fast_rows", fast_rows, least=1)
        _check_slots(fast, room)
        fast.share_order(slow.order)  # ages of rows are comparable across both stores
        self.resident: ResidencyMap | DeviceResidencyMap = resident(fast, room)
        self.counters = Counters()
        self.write_lock = WriteLock()
        self.move_lock = SharedLock()
        for store, name in ((fast, "fast"), (slow, "slow")):
            if store.size():
                raise ConfigError(
                    f"the {name} store of table {slow.config.name!r} has {store.size()} rows "
                    f"already; give empty stores, then load or restore."
                )

    def description(self, kind: str) -> str:
        """Returns the `repr` of the table that owns this pair."""
        return (
            f"{kind}({self.config.name!r}, {len(self.resident)} of "
            f"{self.resident.rows} rows on {self.fast.device}, over {self.slow!r})"
        )

    @property
    def device(self) -> torch.device:
        """The device of keys and rows of calls."""
        return self.fast.device

    # ---- where ids are

    def keys(self, keys: TableKeys | Tensor) -> TableKeys:
        """Returns the checked keys of a call."""
        return arguments.keys_of_one_table(keys, _MAX_IDS, self.device, room=True).exact()

    def split(self, ids: Int64[Tensor, "n"]) -> tuple[Ids, Tensor, Tensor]:
        """Returns the slot of each id, and the positions of the ids in each of the two tiers."""
        at = self.resident.find(ids.numpy())
        return at, positions(at >= 0), positions(at < 0)

    def with_resident_rows(self, entries: Entries) -> Entries:
        """Returns `entries` of the slow tier, with resident rows taken from the fast store."""
        at = self.resident.find(entries.ids.numpy())
        return with_rows_of(entries, positions(at >= 0), self.fast)

    # ---- what both stores know together

    def uses(self, entries: Entries) -> Float64[Tensor, "n"]:
        """Returns the use counts of rows under an `Lfu` rule."""
        return uses_of(self.slow.order, entries, self.config.name)

    def max_ts(self) -> int:
        """Returns the largest `ts` of all writes. All writes report it to the slow store."""
        return self.slow.max_ts()

    def reference_s(self, now_s: int | None) -> int | None:
        """Returns the present time of a `Ttl` rule over both tiers; None for other rules.

        One store alone may not have seen the newest time.
        """
        rule = self.config.evict
        if now_s is not None or not isinstance(rule, Ttl):
            return now_s
        return self.max_ts() if rule.reference == "newest" else self.slow.clock.now_s()

    def count_hits(self, fast: int, slow: int, all_ids: int) -> None:
        """Counts the ids of a lookup by the tier that has them."""
        for name, n in zip(_HITS, (fast, slow, all_ids - fast - slow), strict=True):
            if n:
                self.counters.add(name, n)

    def memory(self, known_bytes: int) -> MemoryUse:
        """Returns bytes of both tiers by purpose; `known_bytes` of bookkeeping count as index."""
        fast, slow = self.fast.memory(), self.slow.memory()
        return MemoryUse(
            fast.index_bytes + slow.index_bytes + known_bytes,
            fast.row_bytes + slow.row_bytes,
            fast.slack_bytes + slow.slack_bytes,
            fast.other_bytes + slow.other_bytes,
        )

    def stats(self, rows: int, known_bytes: int) -> dict[str, float]:
        """Returns the statistics of one table, summed over both tiers, and of the fast tier."""
        fast, slow = self.fast.stats(), self.slow.stats()
        summed = {name: fast[name] + slow[name] for name in (*_BYTES, *_COUNTS)}
        summed["index_bytes"] += known_bytes
        return {
            "rows": rows,
            "uncompressed_bytes": rows * 4 * self.layout.dim,
            **summed,
            "load_factor": slow["load_factor"],
            "longest_search": max(fast["longest_search"], slow["longest_search"]),
            "fast_rows": len(self.resident),
            "fast_capacity_rows": self.resident.rows,
            **{name: slow[name] for name in ("file_bytes", "resident_bytes") if name in slow},
            **self.counts(_HITS),
        }

    def counts(self, names: Sequence[str]) -> dict[str, float]:
        """Returns counters by name."""
        return {name: self.counters.read(name) for name in names}


def share_locks(pairs: Sequence[TierPair]) -> None:
    """Makes these unused pairs share the locks and the eviction order of the first.

    A lock of one is then a lock of all, and ages of their rows are comparable.
    """
    for pair in pairs:
        pair.write_lock, pair.move_lock = pairs[0].write_lock, pairs[0].move_lock
        if pair.slow.order is not None and pairs[0].slow.order is not None:
            for store in (pair.slow, pair.fast):
                store.share_order(pairs[0].slow.order)


class SlowTier(Protocol):
    """Reads and writes rows that are not resident."""

    def read(
        self,
        ids: Int64[Tensor, "n"],
        missing: Missing,
        step: int | None,
        out: Float32[Tensor, "n dim"] | None = None,
    ) -> Float32[Tensor, "n dim"]:
        """Returns rows as `lookup` does."""
        ...

    def entries(self, ids: Int64[Tensor, "n"]) -> Entries:
        """Returns whole rows with their states and times."""
        ...

    def prepare_write(self, ids: Int64[Tensor, "n"]) -> None:
        """Called before rows of `ids` are written in the slow store."""
        ...

    def mark_dirty(self, slots: Ids) -> None:
        """Called before the resident rows at `slots` are written."""
        ...


class TierRows:
    """Reads and writes the rows of a `TierPair`, each row in the tier that has it.

    A write first checks the whole call for both stores, then writes to the slow store, then to the
    fast store. A call that is refused changes nothing.
    """

    def __init__(self, pair: TierPair, behind: SlowTier) -> None:
        self.pair, self.behind = pair, behind

    # ---- reads

    def lookup(
        self,
        keys: TableKeys,
        missing: Missing,
        step: int | None,
        out: Float32[Tensor, "n dim"] | None,
    ) -> Lookup:
        """Returns rows of checked keys, in `out` if given. Inserts and moves no row."""
        pair, dim, ids = self.pair, self.pair.layout.dim, keys.ids.cpu()
        if out is None:
            out = torch.empty(len(ids), dim, dtype=torch.float32, device=pair.device)
        else:
            out = arguments.output(out, len(ids), dim, pair.device)
        with pair.move_lock.shared:
            _, here, rest = pair.split(ids)
            behind = part_of(ids, rest)
            if len(rest) or not len(ids):  # an empty call still checks its arguments
                put_part(out, rest, self.behind.read(behind, missing, step))
            if len(here) == len(ids):
                pair.fast.lookup(keys.ids, missing="zeros", step=step, out=out)
            elif len(here):
                mine = part_of(ids, here).to(pair.device)
                put_part(out, here, pair.fast.lookup(mine, missing="zeros", step=step).rows_of())
            there = pair.slow.contains(behind)
        pair.count_hits(len(here), int(there.sum()), len(ids))
        return Lookup(keys, out.view(-1), (dim,))

    def contains(self, keys: TableKeys | Tensor) -> Bool[Tensor, "n"]:
        """Returns whether each key has a row."""
        ids = self.pair.keys(keys).ids.cpu()
        with self.pair.move_lock.shared:
            at = self.pair.resident.find(ids.numpy())
            found = torch.from_numpy(at >= 0) | self.pair.slow.contains(ids)
        return found.to(self.pair.device)

    def entries(self, keys: TableKeys | Tensor) -> Entries:
        """Returns whole rows with their optimizer states and times."""
        ids = self.pair.keys(keys).ids.cpu()
        with self.pair.move_lock.shared:
            return self.pair.with_resident_rows(self.behind.entries(ids)).to(self.pair.device)

    # ---- writes

    def check_update(
        self,
        ids: Int64[Tensor, "n"],
        grads: Float32[Tensor, "n dim"],
        rates: Sequence[Rate] | None,
        step: int | None,
        counts: Int64[Tensor, "n"] | None,
    ) -> None:
        """Raises on arguments that the update of either store would refuse."""
        check_store_update(self.pair.fast, ids, grads, rates, step, counts)
        self.check_step(step)

    def check_step(self, step: int | None) -> None:
        """Raises if an update lacks the step that the admission rule needs."""
        admit = self.pair.config.admit
        if admit is not None and admit.needs_step:
            self.pair.slow.checked_step(step, True, "admits ids")

    def set(self, verb: str, keys: TableKeys | Tensor, rows: Tensor, ts: int) -> Applied:
        """Calls `assign` or `assign_add`."""
        pair = self.pair
        ids = pair.keys(keys).ids
        rows = pair.fast.checked_rows("rows", rows, len(ids))
        if not isinstance(pair.fast, HostTable):
            pair.fast.usable_rows(rows, None)
        with pair.write_lock:
            return self.write(verb, ids.cpu(), rows, ts)

    def write(
        self,
        verb: str,
        ids: Int64[Tensor, "n"],
        rows: Tensor,
        ts: int,
        counts: Tensor | None = None,
        **settings: Any,
    ) -> Applied:
        """Calls a writing method of both stores with their shares. The caller holds the lock."""
        pair = self.pair
        rows = rows.detach().view(len(ids), pair.layout.dim)
        at, here, rest = pair.split(ids)
        behind = part_of(ids, rest)
        self.behind.prepare_write(behind)
        if counts is not None:
            settings["counts"] = part_of(counts, rest).cpu()
        ts = pair.slow.next_time(ts)  # counts a time in the future once, not once per store
        uses = len(ids) if counts is None else int(counts.sum())
        with one_call(pair.slow.order, ts, uses):
            slow_write: Callable[..., Applied] = getattr(pair.slow, verb)
            done = slow_write(behind, part_of(rows, rest).cpu(), ts=ts, **settings)
            if not len(here):
                return total(done)
            if counts is not None:
                settings["counts"] = part_of(counts, here)
            self.behind.mark_dirty(at[here.numpy()])
            fast_write: Callable[..., Applied] = getattr(pair.fast, verb)
            there = part_of(ids, here).to(pair.device)
            more = fast_write(there, part_of(rows, here), ts=ts, **settings)
        return total(done, more)

    def restore(self, entries: Entries) -> Applied:
        """Restores whole rows, with states and times, as `entries` or `scan` returned them."""
        pair, given = self.pair, entries.to("cpu")
        with pair.write_lock:
            at, here, rest = pair.split(given.ids)
            if not len(here):
                self.behind.prepare_write(given.ids)
                return pair.slow.restore(given)
            self._check_entries(given)
            self.behind.prepare_write(given.ids[rest])
            done = pair.slow.restore(_some_entries(given, rest))
            self.behind.mark_dirty(at[here.numpy()])
            more = pair.fast.restore(_some_entries(given, here))
            newest = pair.fast.entries(given.ids[here].to(pair.device)).ts.max()
            pair.slow.saw(int(newest))
        return total(done, more)

    def reinitialize(self, keys: TableKeys | Tensor) -> Int8[Tensor, "n"]:
        """Gives rows their first values, at the clock's time; 0 = was absent, 1 = was there."""
        pair = self.pair
        ids = pair.keys(keys).ids.cpu()
        status = torch.empty(len(ids), dtype=torch.int8)
        with pair.write_lock:
            at, here, rest = pair.split(ids)
            self.behind.prepare_write(ids[rest])
            with one_call(pair.slow.order, pair.slow.clock.now_s(), 0):
                status[rest] = pair.slow.reinitialize(ids[rest])
                if len(here):
                    self.behind.mark_dirty(at[here.numpy()])
                    status[here] = pair.fast.reinitialize(ids[here].to(pair.device)).cpu()
        return status.to(pair.device)

    def _check_entries(self, given: Entries) -> None:
        """Raises on entries that one store would refuse after the other has taken its share."""
        if not bool(given.found.all()):
            raise InputError("entries holds ids that were not found; select those with found True.")
        if int(given.ts.min()) < 0:
            raise InputError(f"ts holds {int(given.ts.min())}; a time is at least 0.")
        self.pair.slow.checked_rows("rows", given.rows, len(given))
        self.pair.layout.join(given.states, len(given))


def check_store_update(
    store: HostTable | DeviceTable,
    ids: Int64[Tensor, "n"],
    grads: Float32[Tensor, "n dim"],
    rates: Sequence[Rate] | None,
    step: int | None,
    counts: Int64[Tensor, "n"] | None,
) -> None:
    """Raises on arguments that `apply_gradients` of a store would refuse."""
    store.update_arguments(ids, grads, rates, step, counts)


# ---- parts of tensors and of entries
# Host memory is handled by numpy: torch would start its threads for each part, and wait for them.


def positions(mask: np.ndarray) -> Int64[Tensor, "n"]:
    """Returns the positions at which a mask is true."""
    return torch.from_numpy(mask.nonzero()[0])


def part_of(values: Tensor, which: Int64[Tensor, "m"]) -> Tensor:
    """Returns the values at positions `which`, which differ and rise. All values: no copy.

    >>> part_of(torch.tensor([5, 6, 7]), torch.tensor([0, 2])).tolist()
    [5, 7]
    """
    if len(which) == len(values):
        return values
    if values.device == checks.CPU:
        return torch.from_numpy(values.numpy().take(which.numpy(), 0))
    return values[which.to(values.device)]


def put_part(values: Tensor, which: Int64[Tensor, "m"], new: Tensor) -> None:
    """Sets the values at positions `which`, from a tensor on any device.

    >>> values = torch.tensor([5, 6, 7])
    >>> put_part(values, torch.tensor([0, 2]), torch.tensor([1, 2]))
    >>> values.tolist()
    [1, 6, 2]
    """
    if values.device == checks.CPU:
        values.numpy()[which.numpy()] = new.cpu().numpy()
    else:
        values[which.to(values.device)] = new.to(values.device)


def with_rows_of(
    entries: Entries, where: Int64[Tensor, "m"], newer: HostTable | DeviceTable
) -> Entries:
    """Changes `entries` in host memory in place: those at `where` become the rows of `newer`."""
    if not len(where):
        return entries
    return put_entries(entries, where, newer.entries(entries.ids[where].to(newer.device)).to("cpu"))


def put_entries(entries: Entries, where: Int64[Tensor, "m"], mine: Entries) -> Entries:
    """Changes `entries` in place: those at `where` become `mine`."""
    if not len(where):
        return entries
    pairs = zip(entries.states, mine.states, strict=True)
    columns = [(entries.found, mine.found), (entries.rows, mine.rows), (entries.ts, mine.ts)]
    if entries.order is not None and mine.order is not None:
        columns.append((entries.order, mine.order))
    columns += [(old[name], new[name]) for old, new in pairs for name in old]
    for old, new in columns:
        old[where] = new
    return entries


def _some_entries(entries: Entries, which: Int64[Tensor, "m"]) -> Entries:
    states = [{name: x[which] for name, x in one.items()} for one in entries.states]
    ids, found, rows, ts = (
        x[which] for x in (entries.ids, entries.found, entries.rows, entries.ts)
    )
    order = None if entries.order is None else entries.order[which]
    return Entries(ids, found, rows, states, ts, order)


def total(*done: Applied) -> Applied:
    """Returns the summed counts of several stores, in host memory."""
    return Applied(sum((one.counts.cpu() for one in done), torch.zeros(3, dtype=torch.int64)))


# ---- which stores make a pair


def not_copied(name: str) -> TypeError:
    """Returns the error of pickling or copying a table in two tiers."""
    return TypeError(
        f"table {name!r} cannot be pickled or copied; save a model with hr.save or "
        f"model.state_dict(), and copy the rows of a table with scan() and restore()."
    )


def _check_configs(fast: TableConfig, slow: TableConfig) -> None:
    """Raises unless both stores hold rows of one table, of a kind that can move."""
    same = replace(fast, admit=slow.admit, initial_capacity=slow.initial_capacity)
    if same != slow:
        raise ConfigError(
            f"the stores of table {slow.name!r} differ in their configs; make both with the same "
            f"config, the fast store with admit=None."
        )
    if fast.admit is not None:
        raise ConfigError(
            f"the fast store of table {slow.name!r} has an admission rule, but rows are inserted "
            f"in the slow store. Make the config of the fast store with admit=None."
        )
    refused: list[tuple[str, Callable[[], bool]]] = [
        ("it is a serving table", lambda: slow.serving),
        ("it skips rows of zeros", lambda: slow.skip_zero_embedding),
    ]
    wrong = [why for why, holds in refused if holds()]
    if wrong:
        raise ConfigError(
            f"table {slow.name!r} cannot be in two tiers: {', '.join(wrong)}. Use one store."
        )


def _check_slots(fast: HostTable | DeviceTable, rows: int) -> None:
    """Raises unless a device table has a slot for each row.

    A row without a slot would stay in the slow store.
    """
    if not isinstance(fast, HostTable) and rows > fast.capacity_rows:
        raise ConfigError(
            f"fast_rows is {rows}; the DeviceTable has {fast.capacity_rows} slots. Make it with "
            f"more capacity_rows."
        )


class ChangeFeeds:
    """The consumers of changed keys of a `TierPair`, by name."""

    def __init__(self, pair: TierPair) -> None:
        self._pair = pair
        self._consumers: dict[str, TierTouched] = {}

    def open(
        self, consumer: str, capacity: int, all_changes: bool, overflow: Overflow
    ) -> TierTouched:
        """Returns the feed of a consumer, which it opens if needed; as `HostTable.touched`."""
        settings = TouchedSettings(capacity, all_changes, overflow)
        asked: dict[str, Any] = {
            "capacity": capacity,
            "all_changes": all_changes,
            "overflow": overflow,
        }
        pair = self._pair
        with pair.write_lock:
            known = self._consumers.get(consumer)
            if known is None:
                fast, slow = (s.touched(consumer, **asked) for s in (pair.fast, pair.slow))
                known = TierTouched(consumer, settings, fast, slow, self._forget)
                self._consumers[consumer] = known
        if known.settings != settings:
            raise NameTakenError(
                f"consumer {consumer!r} of table {pair.config.name!r} is open with "
                f"{known.settings}, not {settings}; close it first, or choose another name."
            )
        return known

    def get(self, name: str) -> TierTouched | None:
        """Returns the open feed of a consumer; None if there is none."""
        return self._consumers.get(name)

    def _forget(self, consumer: str) -> None:
        self._consumers.pop(consumer, None)


class TierTouched:
    """The keys of both tiers that changed since one consumer last took them; as `TouchedKeys`.

    A key that changed in both tiers is returned once. A move between tiers is not a change.
    """

    def __init__(
        self,
        name: str,
        settings: TouchedSettings,
        fast: Any,
        slow: Any,
        forget_name: Callable[[str], object],
    ) -> None:
        self.name, self.settings = name, settings
        self.since: str | None = None  # the consumer's own mark of its last delivery
        self.delivering = threading.Lock()  # held between a take and its delivery
        self._fast, self._slow, self._forget_name = fast, slow, forget_name

    def __repr__(self) -> str:
        return f"TierTouched({self._fast!r}, {self._slow!r})"

    def take(self) -> TouchedBatch:
        """Returns the keys that changed since the last call, and starts collecting anew."""
        taken: list[TouchedBatch] = []
        try:
            taken = [self._slow.take()]
            taken.append(self._fast.take())
            ids = torch.cat([one.ids.cpu() for one in taken]).unique()
        except BaseException:
            for one in taken:
                self._slow.give_back(replace(one, ids=one.ids.cpu()))
            raise
        slow, fast = taken
        whole = slow.whole_table or fast.whole_table
        if self.settings.overflow == "whole_table":
            whole = whole or len(ids) > self.settings.capacity
        return TouchedBatch(ids[:0] if whole else ids, whole, slow.forgotten + fast.forgotten)

    def give_back(self, taken: TouchedBatch | Int64[Tensor, "n"]) -> None:
        """Puts keys back for the next `take`, after a failed delivery."""
        self._slow.give_back(taken)

    def size(self) -> int:
        """Returns how many keys wait to be taken. A key that changed in both tiers counts twice."""
        return self._fast.size() + self._slow.size()

    def overflows(self) -> int:
        """Returns how often a tier has had more keys than the capacity."""
        return self._fast.overflows() + self._slow.overflows()

    def close(self) -> None:
        """Stops collecting and frees the name. A second call does nothing."""
        self._forget_name(self.name)
        self._fast.close()
        self._slow.close()


class TierSnapshot:
    """Snapshots of the `stores` that hold the rows, read one after the other."""

    def __init__(self, stores: Sequence[Any], max_ts: int, resume: Callable[[], None]) -> None:
        with ExitStack() as opened:
            self._parts = [opened.enter_context(store.snapshot()) for store in stores]
            self._close = opened.pop_all()
        self.size = sum(part.size for part in self._parts)
        self.max_ts = max_ts
        self._resume = resume

    def __repr__(self) -> str:
        return f"TierSnapshot({', '.join(map(repr, self._parts))})"

    def __enter__(self) -> TierSnapshot:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def resume(self) -> None:
        """Lets writers continue that have waited since the snapshot was opened `paused`."""
        resume, self._resume = self._resume, _do_nothing
        resume()

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """Yields the rows in slices, in no particular order. Several scans share them."""
        for part in self._parts:
            for entries in part.scan(rows):
                yield entries.to("cpu")

    def close(self) -> None:
        """Frees memory and lets waiting writers continue. A second call does nothing."""
        self.resume()
        self._close.close()


def _do_nothing() -> None:
    """Replaces `resume` after its first call, since a later pause belongs to another snapshot."""


def open_snapshot(
    pair: TierPair,
    stores: Callable[[], Sequence[Any]],
    at_start: Callable[[], object] | None,
    paused: bool,
) -> TierSnapshot:
    """Returns a snapshot of all rows, while writers and moves continue; as `HostTable.snapshot`.

    `stores` is called with the write lock held. It returns the stores that together have every row
    once.
    """
    if at_start is not None and not callable(at_start):
        raise InputError(f"at_start is {at_start!r}; it must be a function without arguments.")
    checks.flag("paused", paused)
    # Writers wait for the lock, not inside a store. A writer that waited inside a store, in the
    # middle of a move, would keep readers out for as long.
    with pair.write_lock:
        opened = TierSnapshot(stores(), pair.max_ts(), pair.write_lock.resume)
        pair.write_lock.pause()
        try:
            if at_start is not None:
                at_start()
        except BaseException:
            opened.close()
            raise
        if not paused:
            opened.resume()
    return opened
