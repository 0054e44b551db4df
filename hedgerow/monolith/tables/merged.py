"""Slots of equal config merged into one table, and the names of merged tables."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from ...core import checks
from ...core.clock import Clock
from ...core.errors import InputError, NotSupportedError
from ...core.shapes import Float32, Int64
from ...tables import arguments
from ...tables.config import TableConfig
from ...tables.host import HostTable
from ...tables.multi.several_tables import MultiConfig, canonical
from ...tables.optimizers import Rate, check_rates
from ...tables.store import Applied, Missing
from .multi_type import MultiTypeTable
from .slot_tables import (
    ServesLookups,
    SlotFront,
    SlotIds,
    SlotRates,
    SlotRows,
    SlotTables,
    slot_items,
    slot_pairs,
)

_FC_SLOT = re.compile(r"fc_slot_[0-9]+")


def group_names(configs: Sequence[TableConfig]) -> list[str]:
    """Returns the name of each config's merged table.

    Configs that differ only in their names share it.

    The name depends on what shapes the rows: the dim and the kind of optimizer of each segment. So
    slots may join and leave, and rates, seeds, initializers and policies may change. Configs of one
    shape that differ in other settings are distinguished by the settings that differ.

    >>> from hedgerow.tables.config import Segment
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.optimizers import Sgd
    >>> slow, fast = (TableConfig("any", (Segment(2, Zeros(), Sgd(lr=x)),)) for x in (0.1, 0.2))
    >>> group_names([slow]) == group_names([fast])
    True
    >>> len(set(group_names([slow, fast, slow])))
    2
    """
    shapes = [_shape(config) for config in configs]
    settings = [_settings(config) for config in configs]
    alike: dict[str, list[dict[str, str]]] = {}
    for shape, own in zip(shapes, settings, strict=True):
        alike.setdefault(shape, []).append(own)
    apart = {shape: _differing(group) for shape, group in alike.items()}
    return [
        _name(shape, [(path, own.get(path)) for path in apart[shape]])
        for shape, own in zip(shapes, settings, strict=True)
    ]


def _shape(config: TableConfig) -> str:
    # Compressors and serving are left out: a checkpoint loads into both kinds of table, whatever
    # their compressors, and their names must match.
    kinds = [s.optimizer.kind if s.optimizer is not None else None for s in config.segments]
    return json.dumps([[s.dim, kind] for s, kind in zip(config.segments, kinds, strict=True)])


def _settings(config: TableConfig) -> dict[str, str]:
    """Returns every setting except names by its path, such as `segments.0.optimizer.lr`."""
    found: dict[str, str] = {}
    waiting: list[tuple[str, object]] = [
        ("", json.loads(canonical(config, without=("name", "also"))))
    ]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(f"{path}.{key}", inner) for key, inner in value.items()]
        elif isinstance(value, list) and value:
            waiting += [(f"{path}.{i}", inner) for i, inner in enumerate(value)]
        else:
            found[path] = json.dumps(value)  # as text, because 1 == True
    return found


def _differing(settings: Sequence[dict[str, str]]) -> list[str]:
    first = settings[0]
    changed = [own.items() ^ first.items() for own in settings[1:]]
    return sorted({path for items in changed for path, _ in items})


def _name(shape: str, apart: list[tuple[str, str | None]]) -> str:
    # Default values count too. A shape with a single config has an empty `apart`.
    text = json.dumps([shape, apart])
    return "merged_" + hashlib.sha256(text.encode()).hexdigest()[:16]


def merged_name(slots: Iterable[str]) -> str:
    """Returns Monolith's name of a merged table: the md5 of the sorted slot names joined by commas.

    >>> merged_name(["slot1", "slot0"])
    'e21904dd414d1780e5fc904866dc69c2'
    """
    names = list(slots)
    if not names:
        raise InputError("a merged table has at least one slot; none was given.")
    joined = ",".join(sorted(names))
    return hashlib.md5(joined.encode(), usedforsecurity=False).hexdigest()


def legacy_names(slots: Iterable[str]) -> list[str]:
    """Returns older names under which Monolith's files may hold the same table.

    Names of the form `fc_slot_<digits>` were once written without `fc_`.

    >>> legacy_names(["fc_slot_0"]), legacy_names(["user"])
    (['cde3ba88ba62b682f84241b273f8100c'], [])
    """
    names = list(slots)
    # The names keep their order, because Monolith sorts before it strips.
    older = [n.removeprefix("fc_") if _FC_SLOT.fullmatch(n) else n for n in sorted(names)]
    joined = hashlib.md5(",".join(older).encode(), usedforsecurity=False).hexdigest()
    return [] if joined == merged_name(names) else [joined]


@dataclass(frozen=True, slots=True)
class MergedSlots:
    """Slots that share a table: its name, and the slots in byte order."""

    name: str
    slots: tuple[str, ...]

    @property
    def monolith_names(self) -> tuple[str, ...]:
        """Names under which Monolith's files hold this table, the usual one first."""
        return (merged_name(self.slots), *legacy_names(self.slots))


NamesOf = Callable[[MergedSlots], Sequence[str]]
"""Returns the name of a group's table, and its other names."""


class MergedMultiTypeTable:
    """One table for all slots of equal config. Thread-safe.

    Two configs are equal if they differ only in their name. Ids of different slots should differ,
    for example by containing their slot, because equal ids share a row. A table's name depends on
    the shape of its rows (see `group_names`), so slots may join and leave, and rates may change.
    `groups` lists the slots of each table, for the checkpoint. `below` builds the front that holds
    the merged tables; by default they are in this process. `names_of` gives them other names, and
    further names under which a load finds them.

    >>> from hedgerow.tables.config import Segment
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.optimizers import Sgd
    >>> config = TableConfig("any", (Segment(2, Zeros(), Sgd(lr=1.0)),))
    >>> table = MergedMultiTypeTable({"1": config, "2": config})
    >>> one = torch.tensor([1])
    >>> table.assign_add({"1": (one, torch.full((1, 2), 2.0)), "2": (one, torch.full((1, 2), 4.0))})
    Applied(inserted=1, refused=0, dropped=0)
    >>> table.lookup({"1": one, "2": one})["2"].tolist()
    [[6.0, 6.0]]
    """

    sync_clients: tuple[object, ...] = ()  # one client per shard, which gets changed rows

    def __init__(
        self,
        configs: Mapping[str, TableConfig],
        *,
        clock: Clock | None = None,
        below: Callable[[Mapping[str, TableConfig]], SlotTables] | None = None,
        names_of: NamesOf | None = None,
    ) -> None:
        self.config = MultiConfig.of(configs)
        self.groups, merged = merge_slots(self.config, names_of)
        self._group_of = {slot: group for group in self.groups for slot in group.slots}
        self._table_of = dict(zip(self.groups, merged, strict=True))
        self.below: SlotTables = (
            MultiTypeTable(merged, clock=clock) if below is None else below(merged)
        )

    def __repr__(self) -> str:
        slots = "; ".join(f"{g.name}: {', '.join(g.slots)}" for g in self.groups)
        return f"MergedMultiTypeTable({slots})"

    @property
    def names(self) -> tuple[str, ...]:
        """The slots, in byte order."""
        return self.config.names

    @property
    def dims(self) -> tuple[int, ...]:
        """Columns of each slot, in the order of `names`."""
        return self.config.dims

    def table(self, slot: str) -> HostTable:
        """Returns the table that holds a slot and the others of its group."""
        self.config.at(slot)
        if not isinstance(self.below, SlotFront):
            raise NotSupportedError(
                f"table({slot!r}) of merged tables in other processes; call it where they are."
            )
        return self.below.table(self._table_of[self._group_of[slot]])

    def lookup(
        self, ids: SlotIds, *, missing: Missing = "zeros", step: int | None = None
    ) -> dict[str, Float32[Tensor, "n dim"]]:
        """Returns the rows of each listed slot's ids, with one search per table.

        Inserts nothing.
        """
        return self._looked_up(self.below.lookup, ids, missing, step)

    def serving_lookup(
        self, ids: SlotIds, *, missing: Missing = "zeros", step: int | None = None
    ) -> dict[str, Float32[Tensor, "n dim"]]:
        """Performs `lookup` within the serving deadline, if the tables below have one."""
        below = self.below
        read = below.serving_lookup if isinstance(below, ServesLookups) else below.lookup
        return self._looked_up(read, ids, missing, step)

    def _looked_up(
        self,
        read: Callable[..., dict[str, Tensor]],
        ids: SlotIds,
        missing: Missing,
        step: int | None,
    ) -> dict[str, Float32[Tensor, "n dim"]]:
        given = dict(slot_items("ids", ids))
        for slot, own in given.items():
            self.config.at(slot)
            checks.tensor(f"ids of {slot!r}", own, torch.int64, (None,))
        used = self._used(given)
        merged = {self._table_of[group]: _joined([given[s] for s in own]) for group, own in used}
        rows = read(merged, missing=missing, step=step)
        found = {}
        for group, own in used:
            lengths = [len(given[slot]) for slot in own]
            found.update(zip(own, rows[self._table_of[group]].split(lengths), strict=True))
        return {slot: found[slot] for slot in given}

    def assign(self, batch: SlotRows, *, ts: int = 0) -> Applied:
        """Sets rows and keeps optimizer state. The last of equal ids wins, slots in byte order."""
        return self.below.assign(self._batch("rows", batch), ts=ts)

    def assign_add(self, batch: SlotRows, *, ts: int = 0) -> Applied:
        """Adds to rows. An absent row starts from its first value."""
        return self.below.assign_add(self._batch("rows", batch), ts=ts)

    def apply_gradients(
        self,
        batch: SlotRows,
        *,
        rates: SlotRates | None = None,
        step: int | None = None,
        ts: int = 0,
        counts: SlotIds | None = None,
        per_occurrence: bool = False,
    ) -> Applied:
        """Performs one optimizer step per table and distinct id.

        `rates` must agree inside a group.
        """
        merged = self._batch("grads", batch)
        return self.below.apply_gradients(
            merged,
            rates=None if rates is None else self._rates(rates),
            step=step,
            ts=ts,
            counts=None if counts is None else self._counts(batch, counts),
            per_occurrence=per_occurrence,
        )

    def reinitialize(self, slot: str, ids: Int64[Tensor, "n"]) -> NoReturn:
        """Not supported, because ids of other slots may share the rows."""
        raise NotSupportedError(
            f"reinitialize of slot {slot!r} on merged tables, whose rows other slots may share; "
            f"use table({slot!r}).reinitialize(ids) if that is meant."
        )

    def size(self) -> int:
        """Returns the number of rows of all tables."""
        return self.below.size()

    def max_ts(self) -> int:
        """Returns the largest `ts` that a write gave to any table."""
        return self.below.max_ts()

    def _used(self, given: Mapping[str, object]) -> list[tuple[MergedSlots, list[str]]]:
        used = [(group, [s for s in group.slots if s in given]) for group in self.groups]
        return [(group, slots) for group, slots in used if slots]

    def _batch(self, name: str, batch: SlotRows) -> dict[str, tuple[Tensor, Tensor]]:
        pairs = dict(slot_pairs(name, batch))
        checked = {}
        for slot, (ids, rows) in pairs.items():
            dim = self.dims[self.config.at(slot)]
            rows = arguments.rows_of_batch(f"{name} of {slot!r}", rows, len(ids), dim)
            checked[slot] = (ids, rows)
        return {
            self._table_of[group]: (
                _joined([checked[slot][0] for slot in own]),
                _joined([checked[slot][1] for slot in own]),
            )
            for group, own in self._used(checked)
        }

    def _rates(self, rates: SlotRates) -> dict[str, Sequence[Rate]]:
        given = {}
        for slot, own in slot_items("rates", rates):
            config = self.config.configs[self.config.at(slot)]
            given[slot] = check_rates(own, len(config.segments))
        found = {}
        for group, own in self._used(given):
            first = given[own[0]]
            for slot in own[1:]:
                if given[slot] != first:
                    raise InputError(
                        f"slots {own[0]!r} and {slot!r} share a table but have rates {first!r} and "
                        f"{given[slot]!r}; give both the same."
                    )
            found[self._table_of[group]] = first
        return found

    def _counts(self, batch: SlotRows, counts: SlotIds) -> dict[str, Tensor]:
        given = dict(slot_items("counts", counts))
        for slot, own in given.items():
            if slot not in batch:
                raise InputError(f"counts lists slot {slot!r}, for which there are no ids.")
            arguments.occurrences(own, len(batch[slot][0]))
        whole = {
            slot: given[slot] if slot in given else torch.ones(len(ids), dtype=torch.int64)
            for slot, (ids, _) in batch.items()
        }
        return {
            self._table_of[group]: _joined([whole[slot] for slot in own])
            for group, own in self._used(batch)
            if any(slot in given for slot in own)
        }


def merge_slots(
    config: MultiConfig, names_of: NamesOf | None = None
) -> tuple[tuple[MergedSlots, ...], dict[str, TableConfig]]:
    """Returns the groups of slots of equal config, and each group's config by table name."""
    members: dict[str, list[str]] = {}
    shared: dict[str, TableConfig] = {}
    names = group_names(config.configs)
    for slot, own, name in zip(config.names, config.configs, names, strict=True):
        members.setdefault(name, []).append(slot)
        shared.setdefault(name, own)
    groups = tuple(MergedSlots(name, tuple(members[name])) for name in sorted(members))
    if names_of is None:
        return groups, {group.name: shared[group.name] for group in groups}
    called = {group: names_of(group) for group in groups}
    merged = {names[0]: _renamed(shared[g.name], g.name, names[1:]) for g, names in called.items()}
    return groups, merged


def _renamed(config: TableConfig, stable: str, others: Sequence[str]) -> TableConfig:
    """Returns the config under another name.

    First values stay those of the stable name, and files know all names.
    """
    seed = dataclasses.replace(config, name=stable).row_seed
    also = dict.fromkeys((stable, *others, *config.also))
    return dataclasses.replace(config, seed=seed, also=tuple(also))


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))
