"""Makes tables in two tiers, and serves tables in one or two tiers as one store of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core import checks
from ..core.clock import Clock
from ..core.errors import StateError
from ..core.shapes import Bool, Float32, Int8, Int64
from ..tables import arguments
from ..tables.config import TableConfig
from ..tables.host import HostTable
from ..tables.module_store import BagsReader, FeatureBags
from ..tables.multi import parts
from ..tables.multi.device_bags import KnownFeatures
from ..tables.multi.several_tables import MultiConfig, SeveralTables, stays
from ..tables.optimizers import Rate
from ..tables.store import (
    PLAIN,
    Applied,
    Lookup,
    Missing,
    SummedGradients,
    TableKeys,
    UpdatePolicy,
    as_keys,
)
from .caching import CachingTable
from .hybrid import HybridTable
from .lookup_outputs import RowsOutput
from .tier_features import TierFeatures
from .tier_pair import check_store_update

if TYPE_CHECKING:
    from ..tables.device import DeviceTable
    from .misses import Residency
    from .tier_group import GroupUpdate, TierGroup


MODES = ("HYBRID", "CACHING")
TierTable = HybridTable | CachingTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiers:
    """How a table is kept in two tiers. `mode` is "HYBRID" or "CACHING".

    The fast tier holds `fast_rows` rows. On a device its table has `slots` slots, by default
    `fast_rows`. With `allow_small`, a cache can be smaller than the rows of a step.

    >>> Tiers(mode="CACHING", fast_rows=1000).slots is None
    True
    """

    mode: str
    fast_rows: int
    slots: int | None = None
    allow_small: bool = False

    def __post_init__(self) -> None:
        checks.choice("Tiers", "mode", self.mode, MODES)
        checks.whole("Tiers", "fast_rows", self.fast_rows, least=1)


def tier_table(
    config: TableConfig,
    tiers: Tiers,
    *,
    device: torch.device = checks.CPU,
    clock: Clock | None = None,
    slow: HostTable | None = None,
) -> TierTable:
    """Returns an empty table with its fast tier on the device, or in host memory for the CPU.

    `slow` is the store behind the fast tier, by default a `HostTable` of the config.

    >>> import hedgerow as hr
    >>> config = hr.TableConfig("user", (hr.Segment(4, hr.Zeros(), hr.Sgd()),))
    >>> tier_table(config, Tiers(mode="HYBRID", fast_rows=10))
    HybridTable('user', 0 of 10 rows on cpu, over HostTable('user', 0 rows of 4 x Sgd(...)))
    """
    if device == checks.CPU:
        fast: HostTable | DeviceTable = HostTable(front_config(config, tiers), clock=clock)
    else:
        from ..tables.device import DeviceTable

        slots = tiers.slots or tiers.fast_rows
        own = front_config(config, tiers)
        fast = DeviceTable(own, capacity_rows=slots, device=device, clock=clock)
    if slow is None:  # not `slow or`: an empty store is false
        slow = HostTable(config, clock=clock)
    return over(fast, slow, tiers)


def tier_tables(
    configs: Sequence[tuple[TableConfig, Tiers]],
    *,
    device: torch.device = checks.CPU,
    clock: Clock | None = None,
) -> tuple[list[TierTable], list[TierGroup]]:
    """Returns empty tables for several configs, and the groups of tables that step together.

    Only tables on a device form groups.
    """
    if device != checks.CPU:
        return device_tier_tables(configs, device, clock)
    return [tier_table(config, tiers, clock=clock) for config, tiers in configs], []


def device_tier_tables(
    configs: Sequence[tuple[TableConfig, Tiers]], device: torch.device, clock: Clock | None = None
) -> tuple[list[TierTable], list[TierGroup]]:
    """Returns empty tables in the order of the configs, and the groups that step together."""
    from ..tables.device import DeviceTable
    from ..tables.multi.device_group import DeviceGroup
    from .tier_group import TierGroup

    made: dict[str, TierTable] = {}
    groups: list[TierGroup] = []
    # They are small, since a group replaces their memory.
    fronts = [
        DeviceTable(front_config(config, tiers), capacity_rows=1, device=device, clock=clock)
        for config, tiers in configs
    ]
    for mine in _alike(fronts, configs):
        group = DeviceGroup([fronts[i] for i in mine], [_buckets(configs[i][1]) for i in mine])
        tables = [
            over(fronts[i], HostTable(configs[i][0], clock=clock), configs[i][1]) for i in mine
        ]
        groups.append(TierGroup(tables, group))
        made.update((table.config.name, table) for table in tables)
    for config, tiers in configs:
        if config.name not in made:
            made[config.name] = tier_table(config, tiers, device=device, clock=clock)
    return [made[config.name] for config, _ in configs], groups


def front_config(config: TableConfig, tiers: Tiers) -> TableConfig:
    """Returns the config of the fast tier. It has no admission rule.

    Rows are inserted in the slow tier, which applies the rule.
    """
    few = min(config.initial_capacity, tiers.fast_rows)
    return replace(config, admit=None, initial_capacity=few)


def over(fast: HostTable | DeviceTable, slow: HostTable, tiers: Tiers) -> TierTable:
    """Returns a table of two empty stores."""
    slow.use_slot_key(fast.slot_key)
    if tiers.mode == "HYBRID":
        return HybridTable(fast, slow, fast_rows=tiers.fast_rows)
    return CachingTable(fast, slow, cache_rows=tiers.fast_rows, allow_small=tiers.allow_small)


def _alike(
    fronts: Sequence[DeviceTable], configs: Sequence[tuple[TableConfig, Tiers]]
) -> list[list[int]]:
    """Returns the numbers of the tables of each possible group: one mode and one kind of rows."""
    from ..tables.multi.device_group import DeviceGroup, kind_of

    kinds: dict[object, list[int]] = {}
    # In the order of the names, as in a store: the parts of consecutive tables need no copy.
    for i in sorted(range(len(configs)), key=lambda i: configs[i][0].name.encode()):
        if (kind := kind_of(fronts[i])) is not None:
            kinds.setdefault((configs[i][1].mode, kind), []).append(i)
    return [
        mine for mine in kinds.values() if DeviceGroup.fits([_buckets(configs[i][1]) for i in mine])
    ]


def _buckets(tiers: Tiers) -> int:
    from ..kernels.layout import LANES

    return -(-(tiers.slots or tiers.fast_rows) // LANES)


class TierTables(SeveralTables):
    """The RowStore of K tables, in byte order of their names. Single-owner.

    Keys, rows and gradients of calls are on `device`. They are copied for tables on other devices.

    >>> import hedgerow as hr
    >>> from hedgerow.tiers.tier_tables import Tiers, tier_table
    >>> config = hr.TableConfig("user", (hr.Segment(1, hr.Zeros(), hr.Sgd(lr=1.0)),))
    >>> store = TierTables([tier_table(config, Tiers(mode="CACHING", fast_rows=9))])
    >>> store.apply_gradients(torch.tensor([7]), torch.ones(1))
    Applied(inserted=1, refused=0, dropped=0)
    >>> store.lookup(torch.tensor([7])).rows.tolist()
    [-1.0]
    """

    def __init__(
        self,
        tables: Sequence[HostTable | DeviceTable | TierTable],
        *,
        device: torch.device = checks.CPU,
        together: Sequence[TierGroup] = (),
    ) -> None:
        named = {table.config.name: table for table in tables}
        self.config = MultiConfig.of({name: table.config for name, table in named.items()})
        self._tables = tuple(named[name] for name in self.config.names)
        self.device = device
        self._groups = [(self._numbers_of(one), one) for one in together]
        self._features: KnownFeatures | None = None
        if any(len(mine) == len(self._tables) for mine, _ in self._groups):
            group, reader = together[0].device_group, TierFeatures(self, together[0])
            self._features = KnownFeatures(self, group, reader)
        self._last: tuple[Sequence[int], list[int]] = ((), [])  # splits, and offsets of rows

    def __repr__(self) -> str:
        return f"TierTables({', '.join(map(repr, self._tables))})"

    @property
    def programs_read(self) -> bool:
        """Whether exported programs can read the rows: only those in host memory."""
        return self.device == checks.CPU

    def configs_to_move(self, where: object) -> dict[str, TableConfig]:
        """Raises `StateError`: tables in two tiers cannot move."""
        raise StateError(
            f"tables of the model are in two tiers already and do not move to {where}. Create "
            f"the model again, and place it once."
        )

    def moves_to(self, device: torch.device) -> bool:
        """Returns False: the tables do not move. Raises if they would have to follow the module."""
        if self.device == checks.CPU != device:
            raise StateError(
                f"tables in two tiers of host memory do not move to {device}; bring the model's "
                f"other modules there one by one, or let a plan place the tables on the device."
            )
        return stays(self.device, device)

    # ---- reads

    def bags_reader(self, bags: FeatureBags) -> BagsReader | None:
        """Returns what pools these bags on the device; None if the tables do not step together."""
        if self._features is None or not self._groups[0][1].device_group.whole():
            return None
        features = self._features.of(bags.group)
        return features if features.takes(bags) else None

    def lookup(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        *,
        missing: Missing = "zeros",
        step: int | None = None,
        out: Float32[Tensor, "floats"] | None = None,
    ) -> Lookup:
        """Returns the rows of `keys`, flat, in `out` if given. Inserts nothing."""
        keys = as_keys(keys, len(self._tables), self.device, room=True)
        if keys.used is not None:
            keys = keys.exact()
        arguments.missing_rule(missing)
        at, dims = self._row_offsets(keys.splits), self.config.dims
        if out is None:
            flat = torch.empty(at[-1], dtype=torch.float32, device=self.device)
        else:
            flat = arguments.output(out.view(-1), at[-1], 1, self.device).view(-1)
        found_by: dict[TierGroup, Residency] = {}
        alone = set(range(len(self._tables)))
        for mine, group in self._groups:
            if not group.device_group.whole():
                continue
            own, rows = _keys_of(keys, mine), _parts_of(flat, at, mine).view(-1, dims[mine[0]])
            to = RowsOutput(group.device_group, rows)
            found_by[group] = group.lookup(own, to, missing, step, keys.ids)
            if not _are_neighbours(mine):
                for k, part in zip(mine, rows.split(_sizes(own)), strict=True):
                    flat[at[k] : at[k + 1]] = part.reshape(-1)
            alone -= set(mine)
        for k, (table, ids) in enumerate(self._each(keys)) if alone else ():
            if k in alone:
                found = table.lookup(ids, missing=missing, step=step)
                flat[at[k] : at[k + 1]] = found.rows
        return self.lookup_at(keys, flat, found_by)

    def lookup_at(
        self, keys: TableKeys, flat: Float32[Tensor, "floats"], found: dict[TierGroup, Residency]
    ) -> Lookup:
        """Returns the lookup of checked keys, from what groups have found.

        It has slots for the keys of these groups.
        """
        slots: Tensor | None = None
        for mine, group in self._groups if found else ():
            if len(mine) == len(self._tables):
                slots = found[group].slots
            elif group in found:
                slots = torch.full_like(keys.ids, -1) if slots is None else slots
                parts_found = found[group].slots.split(_sizes(_keys_of(keys, mine)))
                for k, part in zip(mine, parts_found, strict=True):
                    slots[keys.splits[k] : keys.splits[k + 1]] = part
        epochs = tuple((group, one.epoch) for group, one in found.items())
        return Lookup(keys, flat, self.config.dims, slots, _Where(self, epochs, keys, found))

    @property
    def reads_ahead(self) -> bool:
        """Whether `prefetch` has an effect: some of the tables are caches on a device."""
        return any(group.miss_handler is not None for _, group in self._groups)

    def prefetch(self, keys: TableKeys | Int64[Tensor, "n"]) -> None:
        """Reads rows that caches on the device lack, while training continues.

        Nothing happens before the next lookup for training, which starts the reads. The rows are
        fetched into the caches when `lookup` is called for training with the same tensor of ids.
        The results do not change.
        """
        keys = self._keys(keys)
        for mine, group in self._groups:
            if group.can_step():
                group.prefetch(_keys_of(keys, mine), keys.ids)

    def contains(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Returns whether each key has a row."""
        return self._ask(keys, "contains", torch.bool)

    # ---- writes

    def apply_gradients(
        self,
        at: TableKeys | Lookup | Int64[Tensor, "n"],
        grads: Float32[Tensor, "floats"],
        *,
        rates: Sequence[Rate] | None = None,
        step: int | None = None,
        ts: int = 0,
        counts: Int64[Tensor, "n"] | None = None,
        per_occurrence: bool = False,
        policy: UpdatePolicy = PLAIN,
    ) -> Applied:
        """Makes one optimizer step per table and distinct id, with its summed gradient.

        All tables check their shares before the first row changes.
        """
        at = self._located(at)
        if policy.clip is not None:
            one = self.summed_gradients(at, grads, counts=counts).clipped(policy.clip)
            at, grads, counts = one.at, one.grads, one.counts
        keys = at.keys if isinstance(at, Lookup) else at
        by_table = None if rates is None else self.config.rates_of(rates)
        offsets = self._row_offsets(keys.splits)
        flat = parts.flat_rows("grads", grads.reshape(-1), offsets[-1], self.device)
        updates: list[tuple[TierGroup, GroupUpdate]] = []
        alone = set(range(len(self._tables)))
        for mine, group in self._groups if not per_occurrence else ():
            if not group.device_group.whole():
                continue
            seen = None if counts is None else _parts_of(counts, keys.splits, mine)
            rows = _parts_of(flat, offsets, mine).view(-1, self.config.dims[mine[0]])
            own = _keys_of(keys, mine)
            own_rates = None if by_table is None else [by_table[k] for k in mine]
            found = None if isinstance(at, TableKeys) else _found_again(at, group, mine, own)
            update = group.check(own, rows, own_rates, step, ts, seen, found)
            if update is not None:
                updates.append((group, update))
                alone -= set(mine)
        settings: dict[str, Any] = {"step": step, "ts": ts, "per_occurrence": per_occurrence}
        calls = self._checked_calls(alone, keys, grads, by_table, step, counts) if alone else ()
        done = []
        for group, update in updates:
            done.append(group.apply(update))
        for table, ids, own, more in calls:
            done.append(table.apply_gradients(ids, own, **more, **settings))
        return done[0] if len(updates) == len(done) == 1 else self._total(done)

    def summed_gradients(
        self,
        at: TableKeys | Lookup,
        grads: Float32[Tensor, "floats"],
        *,
        counts: Int64[Tensor, "n"] | None = None,
        given: bool = True,
    ) -> SummedGradients:
        """Returns the sum of the gradients of each key, for an update at the result."""
        one = super().summed_gradients(at, grads, counts=counts, given=given)
        if not isinstance(at, Lookup) or not isinstance(one.at, Lookup):
            return one
        where, slots, keys = at.epoch, one.at.slots, one.keys
        if not isinstance(where, _Where) or where.keys is not at.keys or slots is None:
            return one  # joined from several lookups, of which some may have fetched rows
        found = {
            group: where.found[group].of(_parts_of(slots, keys.splits, mine))
            for mine, group in self._groups
            if group in where.found
        }
        return replace(one, at=self.lookup_at(keys, one.at.rows, found))

    def _located(self, at: TableKeys | Lookup | Tensor) -> TableKeys | Lookup:
        """Returns checked keys, or the given lookup if this store knows from it where rows are."""
        if not isinstance(at, Lookup):
            return self._keys(at)
        where = at.epoch
        if isinstance(where, _Where) and where.store is self:
            if where.keys is at.keys:
                return at  # checked by the lookup
            keys = self._keys(at.keys)
            if at.slots is not None and keys is at.keys:
                return at
            return keys
        return self._keys(at.keys)

    def _checked_calls(
        self,
        alone: set[int],
        keys: TableKeys,
        grads: Tensor,
        rates: Sequence[Sequence[Rate] | None] | None,
        step: int | None,
        counts: Tensor | None,
    ) -> list[tuple[Any, Tensor, Tensor, dict[str, Any]]]:
        """Returns the updates of tables that step alone, after checking all of them."""
        calls: list[tuple[Any, Tensor, Tensor, dict[str, Any]]] = []
        for k, (table, ids, own) in enumerate(self._shares("grads", keys, grads)):
            if not len(ids) or k not in alone:
                continue
            mine = None if counts is None else counts[keys.splits[k] : keys.splits[k + 1]]
            more: dict[str, Any] = {
                "rates": None if rates is None else rates[k],
                "counts": None if mine is None else mine.to(table.device),
            }
            if isinstance(table, TierTable):
                table.check_update(ids, own, step=step, **more)
            else:
                check_store_update(table, ids, own, step=step, **more)
            calls.append((table, ids, own, more))
        return calls

    def assign(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        rows: Float32[Tensor, "floats"],
        *,
        ts: int = 0,
    ) -> Applied:
        """Sets rows and keeps optimizer state. The last of equal keys wins."""
        return self._write("assign", keys, rows, ts)

    def assign_add(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        rows: Float32[Tensor, "floats"],
        *,
        ts: int = 0,
    ) -> Applied:
        """Adds to rows. An absent row starts from its first value."""
        return self._write("assign_add", keys, rows, ts)

    def reinitialize(self, keys: TableKeys | Int64[Tensor, "n"]) -> Int8[Tensor, "n"]:
        """Gives rows their first values; 0 = was absent, 1 = was there."""
        return self._ask(keys, "reinitialize", torch.int8)

    def erase(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Removes rows and returns which of them existed."""
        return self._ask(keys, "erase", torch.bool)

    # ---- helpers

    def _numbers_of(self, group: TierGroup) -> tuple[int, ...]:
        return tuple(self.config.positions[name] for name in group.names)

    def _keys(self, keys: TableKeys | Tensor) -> TableKeys:
        return as_keys(keys, len(self._tables), self.device, room=True).exact()

    def _row_offsets(self, splits: Sequence[int]) -> list[int]:
        """Returns the offset of each table's rows in a flat tensor. Caches the last result."""
        last = self._last  # read once: another thread may replace it
        if last[0] != splits:
            last = self._last = (splits, parts.float_offsets(splits, self.config.dims))
        return last[1]

    def _each(self, keys: TableKeys) -> Iterator[tuple[Any, Int64[Tensor, "n_k"]]]:
        """Yields each table with its keys, which are copied to the table's device."""
        for table, (start, stop) in zip(self._tables, pairwise(keys.splits), strict=True):
            yield table, keys.ids[start:stop].to(table.device)

    def _shares(
        self, name: str, keys: TableKeys, flat: Tensor
    ) -> Iterator[tuple[Any, Tensor, Tensor]]:
        at = self._row_offsets(keys.splits)
        flat = parts.flat_rows(name, flat.reshape(-1), at[-1], self.device)
        for k, (table, ids) in enumerate(self._each(keys)):
            own = flat[at[k] : at[k + 1]].view(-1, self.config.dims[k])
            yield table, ids, own.to(table.device)

    def _write(self, verb: str, keys: TableKeys | Tensor, rows: Tensor, ts: int) -> Applied:
        done: list[Applied] = []
        for table, ids, own in self._shares("rows", self._keys(keys), rows):
            write: Callable[..., Applied] = getattr(table, verb)
            if len(ids):
                done.append(write(ids, own, ts=ts))
        return self._total(done)

    def _ask(self, keys: TableKeys | Tensor, verb: str, dtype: torch.dtype) -> Tensor:
        keys = self._keys(keys)
        answers = torch.empty(len(keys.ids), dtype=dtype, device=self.device)
        for k, (table, ids) in enumerate(self._each(keys)):
            if len(ids):
                answers[keys.splits[k] : keys.splits[k + 1]] = getattr(table, verb)(ids)
        return answers

    def _total(self, done: Sequence[Applied]) -> Applied:
        if len(done) == 1 and done[0].counts.device == self.device:
            return done[0]
        return parts.total([Applied(one.counts.to(self.device)) for one in done])


@dataclass(frozen=True, slots=True)
class _Where:
    """Where a lookup found its keys, so that an update of the same keys need not search.

    Two of them are equal if no row moved between their lookups: then their slots can be joined.
    """

    store: TierTables
    epochs: tuple[tuple[TierGroup, tuple[object, ...]], ...]  # of the rows of each group
    keys: TableKeys = field(compare=False)
    found: dict[TierGroup, Residency] = field(compare=False)


def _found_again(
    at: Lookup, group: TierGroup, mine: Sequence[int], own: TableKeys
) -> Residency | None:
    """Returns where the keys of a group are, by one lookup of them or by the slots of several."""
    where = at.epoch
    assert isinstance(where, _Where)
    if group not in where.found:
        return None
    if where.keys is at.keys:
        return where.found[group]
    assert at.slots is not None  # see `_located`
    slots = _parts_of(at.slots, at.keys.splits, mine)
    return group.known(own, slots, where.found[group].epoch)


def _are_neighbours(numbers: Sequence[int]) -> bool:
    """Returns whether tables are consecutive, so that their parts are contiguous."""
    return list(numbers) == list(range(numbers[0], numbers[0] + len(numbers)))


def _parts_of(values: Tensor, splits: Sequence[int], mine: Sequence[int]) -> Tensor:
    """Returns the parts of these tables, joined; without a copy if they are contiguous."""
    if len(mine) == len(splits) - 1:
        return values
    if _are_neighbours(mine):
        return values[splits[mine[0]] : splits[mine[-1] + 1]]
    return torch.cat([values[splits[k] : splits[k + 1]] for k in mine])


def _keys_of(keys: TableKeys, mine: Sequence[int]) -> TableKeys:
    if len(mine) == keys.tables:
        return keys
    sizes = [keys.splits[k + 1] - keys.splits[k] for k in mine]
    return TableKeys(_parts_of(keys.ids, keys.splits, mine), (0, *accumulate(sizes)))


def _sizes(keys: TableKeys) -> list[int]:
    return [stop - start for start, stop in pairwise(keys.splits)]
