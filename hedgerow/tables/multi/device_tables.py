"""`DeviceTables`: K tables of one process as one store whose keys and rows are on a device."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ...core import checks
from ...core.clock import Clock
from ...core.errors import InputError
from ...core.shapes import Bool, Float32, Int8, Int64
from ...kernels.layout import LANES
from .. import arguments
from ..config import TableConfig
from ..device import DeviceTable
from ..device_slots import FILL, MAX_IDS, Full
from ..host import HostTable
from ..module_store import FeatureBags
from ..optimizers import Rate
from ..store import PLAIN, Applied, Lookup, Missing, TableKeys, UpdatePolicy, as_keys, summed
from ..transfer import host_room, to_host
from . import device_bags, parts
from .device_bags import POOLED, DeviceReader, GroupFeatures, KnownFeatures
from .device_group import DeviceGroup
from .several_tables import MultiConfig, SeveralTables, stays

_LEAST_ROWS = 1 << 16  # initial capacity of a table whose config gives none


class DeviceTables(SeveralTables):
    """The `RowStore` of K tables on one device, in byte order of their names. Single-owner.

    Keys, rows and gradients are on the device. A step waits for the device only in these cases:

    - A table that is `on_host` keeps its rows in host memory, so each step copies its ids and rows.
    - A table that is not in `capacity_rows` starts with the capacity of its config and grows. From
      time to time it counts its rows, which waits.
    - With full="raise", every write waits.

    `capacity_rows` fixes the capacity of tables by name. `full` says what happens to ids that then
    find no slot; see `DeviceTable`.
    """

    def __init__(
        self,
        configs: Mapping[str, TableConfig],
        *,
        device: torch.device | str = "cuda",
        capacity_rows: Mapping[str, int] | None = None,
        on_host: Collection[str] = (),
        full: Full = "refuse",
        clock: Clock | None = None,
    ) -> None:
        self.config = MultiConfig.of(configs)
        self.device = torch.empty(0, device=device).device  # adds the device number
        room = capacity_rows or {}
        if isinstance(on_host, str):
            raise InputError(f"on_host is {on_host!r}; pass a list of names, as [{on_host!r}].")
        for argument, names in (("capacity_rows", room), ("on_host", on_host)):
            for name in names:
                if name not in self.config.positions:
                    checks.unknown(f"table in {argument}:", str(name), self.names)
        self._group: DeviceGroup | None = None
        self._features: KnownFeatures | None = None
        if all(name in room and name not in on_host for name in self.names):
            tables = [
                DeviceTable(config, capacity_rows=1, device=self.device, clock=clock, full=full)
                for config in self.config.configs
            ]
            buckets = [-(-_slots(room[name]) // LANES) for name in self.names]
            if DeviceGroup.alike(tables) and DeviceGroup.fits(buckets):
                self._group = DeviceGroup(tables, buckets)
                self._features = KnownFeatures(self, self._group, self._group)
                self._tables = tables
                return
        made: list[DeviceTable | HostTable] = []
        for config in self.config.configs:
            if config.name in on_host:
                made.append(HostTable(config, clock=clock))
                continue
            rows = room.get(config.name, max(_LEAST_ROWS, config.initial_capacity))
            made.append(
                DeviceTable(
                    config,
                    capacity_rows=_slots(rows),
                    device=self.device,
                    clock=clock,
                    full=full if config.name in room else "grow",
                )
            )
        self._tables = made

    def __repr__(self) -> str:
        return f"DeviceTables({', '.join(map(repr, self._tables))})"

    # ---- the step

    def lookup(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        *,
        missing: Missing = "zeros",
        step: int | None = None,
        out: Float32[Tensor, "floats"] | None = None,
    ) -> Lookup:
        """Returns the rows of `keys`, flat, in `out` if given, and their slots. Inserts nothing."""
        keys = self._keys(keys)
        arguments.missing_rule(missing)
        at = parts.float_offsets(keys.splits, self.dims)
        if out is None:
            out = torch.empty(at[-1], dtype=torch.float32, device=self.device)
        flat = arguments.output(out.view(-1), at[-1], 1, self.device).view(-1)
        if self._group is not None and len(keys.ids) and self._group.whole():
            rows = flat.view(-1, self.dims[0])
            slots = self._group.lookup(keys, rows, born=missing != "zeros")
            return Lookup(keys, flat, self.dims, slots, self._group.epochs())
        slots = torch.full_like(keys.ids, -1)
        epochs: list[object] = []
        for k, (table, own) in enumerate(zip(self._tables, self._split(keys), strict=True)):
            rows = flat[at[k] : at[k + 1]].view(-1, self.dims[k])
            epochs.append(None)
            if isinstance(table, HostTable):
                (ids,) = to_host(own.exact().ids)
                room = host_room((len(ids), self.dims[k]), torch.float32, self.device)
                table.lookup(ids, missing=missing, step=step, out=room)
                rows[len(ids) :].zero_()
                rows[: len(ids)].copy_(room, non_blocking=True)
            elif len(own.ids):
                found = table.lookup(own, missing=missing, step=step, out=rows)
                slots[keys.splits[k] : keys.splits[k + 1]] = _there(found.slots)
                epochs[k] = found.epoch
        return Lookup(keys, flat, self.dims, slots, tuple(epochs))

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
        """Applies one optimizer step per table and distinct id, using its summed gradient."""
        keys = self._keys(at.keys if isinstance(at, Lookup) else at)
        if policy.clip is not None:
            where = at if isinstance(at, Lookup) else keys
            one = summed(where, grads, counts, self.dims).clipped(policy.clip)
            at, keys, grads, counts = one.at, one.keys, one.grads, one.counts
        by_table = self.config.rates_of(rates)
        if self._group is not None and not per_occurrence:
            together = self._step_together(self._group, at, keys, grads, by_table, step, ts, counts)
            if together is not None:
                return together
        done = []
        for k, (table, own, part) in enumerate(self._shares("grads", keys, grads)):
            mine = None if counts is None else counts[keys.splits[k] : keys.splits[k + 1]]
            settings: dict[str, Any] = {
                "rates": None if by_table is None else by_table[k],
                "step": step,
                "ts": ts,
                "per_occurrence": per_occurrence,
                "policy": UpdatePolicy(not_finite=policy.not_finite),
            }
            if not len(own.ids):
                continue
            if isinstance(table, HostTable):
                done.append(_on_host(table.apply_gradients, own, part, mine, **settings))
            else:
                place = at.in_table(k, own) if isinstance(at, Lookup) else own
                done.append(table.apply_gradients(place, part, counts=mine, **settings))
        return self._total(done)

    def _step_together(
        self,
        group: DeviceGroup,
        at: TableKeys | Lookup | Tensor,
        keys: TableKeys,
        grads: Tensor,
        rates: Sequence[Sequence[Rate] | None] | None,
        step: int | None,
        ts: int,
        counts: Tensor | None,
    ) -> Applied | None:
        """Applies the step of all tables in one launch; returns None if they cannot share it.

        All arguments are checked here, so if the caller then updates table by table, no table
        changes before another one raises.
        """
        n = keys.splits[-1]
        floats = parts.float_offsets(keys.splits, self.dims)[-1]
        rows = parts.flat_rows("grads", grads.reshape(-1), floats, self.device)
        if counts is not None:
            checks.tensor("counts", counts, torch.int64, (n,), self.device)
        sizes = [stop - start for start, stop in pairwise(keys.splits)]
        agreed = group.rates_at(sizes, rates, step)
        if agreed is None or not group.whole() or n > MAX_IDS:  # None: no keys, or different rates
            return None
        times = group.stamps(group.times(ts, sizes), sizes)
        group.begin(sizes, times)
        known = at.slots if isinstance(at, Lookup) and at.epoch == group.epochs() else None
        made = group.step(keys, rows.view(-1, self.dims[0]), agreed, max(times), known, step)
        return Applied(made.sum(dim=0))

    def bags_reader(self, bags: FeatureBags) -> GroupFeatures | DeviceReader | None:
        """Returns what pools these bags from slots; None if their rows must be read instead."""
        batch = bags.batch
        if self._group is not None and self._features is not None and self._group.whole():
            features = self._features.of(bags.group)
            if features.takes(bags):
                return features
        if batch.weights is None and batch.has_one_id_each():
            return None  # one id per bag: the rows are the vectors
        if batch.weights is not None and batch.weights.requires_grad:
            return None
        pools = all(f.pooling in POOLED and self.is_on_device(f.table) for f in bags.group.features)
        return DeviceReader(self) if pools else None

    @property
    def programs_read(self) -> bool:
        """Whether exported programs can read these rows: no, only rows in host memory."""
        return False

    def moves_to(self, device: torch.device) -> bool:
        """Returns False, or raises: the tables do not move."""
        return stays(self.device, device)

    def is_on_device(self, k: int) -> bool:
        """Returns whether the rows of table `k` are on the device."""
        return isinstance(self._tables[k], DeviceTable)

    def find(self, keys: TableKeys | Int64[Tensor, "n"]) -> Lookup:
        """Returns the slots of `keys`, without the rows; for tables on the device."""
        keys = self._keys(keys)
        slots, epochs = torch.full_like(keys.ids, -1), []
        for k, own in enumerate(self._split(keys)):
            found = device_bags.find_rows(self._on_device(k), own)
            slots[keys.splits[k] : keys.splits[k + 1]] = _there(found.slots)
            epochs.append(found.epoch)
        return Lookup(
            keys,
            torch.empty(0, dtype=torch.float32, device=self.device),
            self.dims,
            slots,
            tuple(epochs),
        )

    def pool(
        self,
        found: Lookup,
        k: int,
        borders: tuple[int, int],
        splits: Int64[Tensor, "bags+1"],
        pooling: str,
        *,
        weights: Float32[Tensor, "n"] | None = None,
        missing: Missing = "zeros",
    ) -> Float32[Tensor, "bags dim"]:
        """Pools bags of the ids of table `k` between `borders`, directly from its rows."""
        ids, slots = (x[borders[0] : borders[1]] for x in (found.keys.ids, _there(found.slots)))
        return device_bags.pool_bags(
            self._on_device(k), ids, slots, splits, pooling, weights=weights, missing=missing
        )

    # ---- other methods

    def assign(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        rows: Float32[Tensor, "floats"],
        *,
        ts: int = 0,
    ) -> Applied:
        """Sets rows; keeps optimizer state. Of equal ids, the last one wins."""
        return self._write("assign", self._keys(keys), rows, ts)

    def assign_add(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        rows: Float32[Tensor, "floats"],
        *,
        ts: int = 0,
    ) -> Applied:
        """Adds to rows; an absent row starts from its initial value."""
        return self._write("assign_add", self._keys(keys), rows, ts)

    def reinitialize(self, keys: TableKeys | Int64[Tensor, "n"]) -> Int8[Tensor, "n"]:
        """Resets rows and states; returns 1 per key that had a row, else 0."""
        return self._each(keys, "reinitialize", torch.int8)

    def contains(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Returns whether each key has a row."""
        return self._each(keys, "contains", torch.bool)

    def erase(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Removes rows; returns which keys had a row."""
        return self._each(keys, "erase", torch.bool)

    # ---- helpers

    def _keys(self, keys: TableKeys | Tensor) -> TableKeys:
        return as_keys(keys, len(self._tables), self.device, room=True)

    def _split(self, keys: TableKeys) -> Iterator[TableKeys]:
        """Yields the keys of each table."""
        for k, (start, stop) in enumerate(pairwise(keys.splits)):
            used = None if keys.used is None else keys.used[k : k + 1]
            yield TableKeys(keys.ids[start:stop], (0, stop - start), used)

    def _shares(
        self, name: str, keys: TableKeys, flat: Tensor
    ) -> Iterator[tuple[DeviceTable | HostTable, TableKeys, Tensor]]:
        at = parts.float_offsets(keys.splits, self.dims)
        if flat.numel() != at[-1]:
            raise InputError(f"{name} has {flat.numel()} values; the keys need {at[-1]}.")
        flat = flat.reshape(-1)
        for k, (table, own) in enumerate(zip(self._tables, self._split(keys), strict=True)):
            yield table, own, flat[at[k] : at[k + 1]].view(-1, self.dims[k])

    def _write(self, verb: str, keys: TableKeys, rows: Tensor, ts: int) -> Applied:
        done = []
        for table, own, part in self._shares("rows", keys, rows):
            call: Callable[..., Applied] = getattr(table, verb)
            if isinstance(table, HostTable):
                done.append(_on_host(call, own, part, None, ts=ts))
            elif len(own.ids):
                done.append(call(own, part, ts=ts))
        return self._total(done)

    def _each(self, keys: TableKeys | Tensor, verb: str, dtype: torch.dtype) -> Tensor:
        keys = self._keys(keys)
        answers = torch.zeros(len(keys.ids), dtype=dtype, device=self.device)
        for k, (table, own) in enumerate(zip(self._tables, self._split(keys), strict=True)):
            call: Callable[[Any], Tensor] = getattr(table, verb)
            asked = own.exact().ids.cpu() if isinstance(table, HostTable) else own
            found = call(asked).to(self.device)
            answers[keys.splits[k] : keys.splits[k] + len(found)] = found
        return answers

    def _total(self, done: Sequence[Applied]) -> Applied:
        return parts.total([Applied(one.counts.to(self.device)) for one in done])

    def _on_device(self, k: int) -> DeviceTable:
        table = self._tables[k]
        if not isinstance(table, DeviceTable):
            raise InputError(f"table {self.names[k]!r} is in host memory; use lookup.")
        return table


def _slots(rows: float) -> int:
    """Returns the slots that a table for this many rows needs."""
    return int(rows / FILL) + 1


def _there(slots: Tensor | None) -> Tensor:
    assert slots is not None  # lookups of device tables always have slots
    return slots


def _on_host(
    call: Callable[..., Applied],
    keys: TableKeys,
    rows: Tensor,
    counts: Tensor | None,
    **settings: Any,
) -> Applied:
    """Writes to a table in host memory; waits for the device."""
    ids = keys.exact().ids
    here, rows = to_host(ids, rows[: len(ids)])
    if counts is not None:
        settings["counts"] = counts[: len(ids)].cpu()
    return call(here, rows, **settings)
