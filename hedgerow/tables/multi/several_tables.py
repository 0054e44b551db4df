"""The configurations of several tables, and calls that ask each table in turn."""

from __future__ import annotations

import dataclasses
import functools
import json
import numbers
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from ...core import checks
from ...core.checks import CPU
from ...core.clock import Clock
from ...core.errors import ConfigError, InputError, NotSupportedError, StateError
from ...core.records import Record
from ...core.shapes import Float32, Int64
from .. import arguments
from ..config import TableConfig
from ..host import HostTable
from ..local_table import TableStats, table_stats
from ..optimizers import Rate, check_rates
from ..store import PLAIN, Entries, Lookup, SummedGradients, TableKeys, UpdatePolicy, summed

if TYPE_CHECKING:
    from .host_tables import HostCells

_KEPT = 64  # distinct sets of tables a process remembers; a trainer has a handful


@dataclass(frozen=True)
class MultiConfig:
    """The tables of a store in byte order of their names, each config under its slot's name.

    `of` gives the same object for equal content, whoever made the configs. A slot's name is its
    table's name: one config may serve many slots, whose rows still start from different values.

    >>> from hedgerow.tables.config import Segment
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.optimizers import Sgd
    >>> one = TableConfig("any", (Segment(2, Zeros(), Sgd(lr=0.1)),))
    >>> both = MultiConfig.of({"user": one, "item": one})
    >>> both.names, both.dims, both is MultiConfig.of({"item": one, "user": one})
    (('item', 'user'), (2, 2), True)
    """

    names: tuple[str, ...]
    configs: tuple[TableConfig, ...]
    dims: tuple[int, ...]
    segment_splits: tuple[int, ...]  # table k has segments segment_splits[k]:segment_splits[k + 1]
    positions: Mapping[str, int] = field(compare=False, repr=False)

    @staticmethod
    def of(configs: Mapping[str, TableConfig]) -> MultiConfig:
        """From one config a slot, in any order."""
        if not isinstance(configs, Mapping) or not configs:
            raise ConfigError(
                f"configs is {configs!r}; give a dict of at least one slot name and its config."
            )
        for name, config in configs.items():
            if not isinstance(name, str) or not name:
                raise ConfigError(f"slot name {name!r}; it must be a non-empty str.")
            if not isinstance(config, TableConfig):
                raise ConfigError(f"slot {name!r} has config {config!r}; give a TableConfig.")
        # Python orders strings by code point, which is the byte order of their UTF-8.
        named = tuple((name, configs[name]) for name in sorted(configs))
        try:
            hash(named)
        except TypeError:  # a rate that is a callable without a hash: nothing to remember it by
            return _resolve(named)
        return _remembered(named)

    @functools.cached_property
    def text(self) -> str:
        """All of it in one canonical text: equal for equal content, in every process.

        Without slot keys: tables that place ids by different keys hold the same rows.
        """
        return canonical(self.configs, without=("slot_key",))

    def at(self, slot: str) -> int:
        """The place of a slot's table, or an error that lists the slots."""
        if slot not in self.positions:
            checks.unknown("slot", str(slot), self.names)
        return self.positions[slot]

    def rates_of(self, rates: Sequence[Rate] | None) -> list[Sequence[Rate] | None]:
        """Rates for each table from one a segment, table after table."""
        if rates is None:
            return [None] * len(self.names)
        given, splits = check_rates(rates, self.segment_splits[-1]), self.segment_splits
        return [given[splits[k] : splits[k + 1]] for k in range(len(self.names))]


def _resolve(named: tuple[tuple[str, TableConfig], ...]) -> MultiConfig:
    names = tuple(name for name, _ in named)
    return MultiConfig(
        names,
        tuple(dataclasses.replace(config, name=name) for name, config in named),
        tuple(config.dim for _, config in named),
        (0, *accumulate(len(config.segments) for _, config in named)),
        {name: k for k, name in enumerate(names)},
    )


_remembered = functools.lru_cache(maxsize=_KEPT)(_resolve)


def canonical(value: object, *, without: tuple[str, ...] = ()) -> str:
    """Configurations as one text, equal exactly where they mean the same.

    Settings at their defaults are left out, so that a setting which a later release brings does not
    change the text of a config that does not use it. `without` leaves fields of the outermost
    records out.

    >>> from hedgerow.tables.optimizers import Sgd
    >>> canonical(Sgd(lr=1.0)) == canonical(Sgd(lr=1))
    True
    """
    return json.dumps(_content(value, without), sort_keys=True, separators=(",", ":"))


def _content(value: object, without: tuple[str, ...] = ()) -> Any:
    if isinstance(value, Record):
        fields = dataclasses.fields(value)  # pyright: ignore[reportArgumentType]
        kept = {f.name: getattr(value, f.name) for f in fields if f.name not in without}
        unset = {f.name for f in fields if _is_default(f, kept.get(f.name))}
        return {
            "kind": value.kind,
            **{name: _content(v) for name, v in kept.items() if name not in unset},
        }
    if isinstance(value, tuple | list):
        return [_content(v, without) for v in value]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):  # 1 and 1.0 are one rate; numpy's numbers are numbers
        number = float(value)
        return int(number) if number.is_integer() else number
    raise ConfigError(
        f"{value!r} has no content that could be compared or written; use a number or a schedule."
    )


def _is_default(field: dataclasses.Field[Any], value: object) -> bool:
    missing = dataclasses.MISSING
    if field.default is not missing:
        return bool(value == field.default)
    return field.default_factory is not missing and bool(value == field.default_factory())


class SeveralTables:
    """The part of a store that its tables share out among them, in byte order of their names.

    Tables on a device have the verbs of a `HostTable`, but asking them for rows or their number
    waits for the device.
    """

    config: MultiConfig
    _tables: Sequence[Any]  # HostTable, or a table with its verbs

    @property
    def names(self) -> tuple[str, ...]:
        """The tables, in order."""
        return self.config.names

    @property
    def dims(self) -> tuple[int, ...]:
        """Columns of each table, in order."""
        return self.config.dims

    @property
    def tables(self) -> tuple[HostTable, ...]:
        """The tables themselves, in order."""
        return tuple(self._tables)

    def table(self, k: int = 0) -> HostTable:
        """Table `k` alone: whole rows, scans and statistics are its own."""
        return self._tables[arguments.table_number(k, len(self._tables))]

    def entries(self, keys: TableKeys | Int64[Tensor, "n"]) -> Entries:
        """Whole rows; of several tables, ask `table(k)`."""
        return self._only("entries").entries(keys)

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """All rows in slices; of several tables, ask `table(k)`."""
        return self._only("scan").scan(rows)

    def size(self) -> int:
        """Rows of all tables."""
        return sum(table.size() for table in self._tables)

    def __len__(self) -> int:
        return self.size()

    def max_ts(self) -> int:
        """The largest `ts` that a write gave to any table."""
        return max(table.max_ts() for table in self._tables)

    def row_counts(self) -> dict[str, int]:
        """Rows of each table."""
        return {table.config.name: table.size() for table in self._tables}

    def stats_by_table(self) -> dict[str, TableStats]:
        """Rows, bytes, load and counts of each table."""
        return {table.config.name: table_stats(table) for table in self._tables}

    @property
    def reads_ahead(self) -> bool:
        """Whether `prefetch` does something."""
        return False

    def prefetch(self, keys: TableKeys) -> None:
        """Nothing: the rows are here."""
        del keys

    def take_part(self, *, step: int, ts: int, policy: UpdatePolicy = PLAIN) -> bool:
        """False: no other process updates these rows."""
        del step, ts, policy
        return False

    def summed_gradients(
        self,
        at: TableKeys | Lookup,
        grads: Float32[Tensor, "floats"],
        *,
        counts: Int64[Tensor, "n"] | None = None,
        given: bool = True,
    ) -> SummedGradients:
        """The sum of the gradients of each key, for an update at the result."""
        return replace(summed(at, grads, counts, self.dims), given=given)

    def cells(self, ranks: int) -> HostCells | None:
        """None: `lookup` reads what `ranks` ranks ask for."""
        del ranks
        return None

    def configs_to_move(self, where: object) -> dict[str, TableConfig]:
        """The tables, which may still go `where` they are to be: they have no rows."""
        if self.size():
            raise StateError(
                f"tables with {self.size()} rows do not move: bring the model to {where} "
                f"first, then train or hr.load."
            )
        return {table.config.name: table.config for table in self._tables}

    def emptied(self, clock: Clock) -> Self:
        """Raises: only tables in host memory are copied."""
        del clock
        raise not_copied()

    def _only(self, verb: str) -> HostTable:
        if len(self._tables) != 1:
            raise InputError(
                f"{verb} on a store of {len(self._tables)} tables, whose rows differ in width; "
                f"ask one of them: store.table(k).{verb}(...)."
            )
        return self.table()


def stays(here: torch.device, device: torch.device) -> bool:
    """False: tables on `here` do not move, and a module goes to another device without them."""
    if here != CPU and device != here:
        raise StateError(
            f"tables on {here} do not move to {device}: hr.save the model, and hr.load it into "
            f"one that was made there."
        )
    return False


def not_copied() -> NotSupportedError:
    """The error of a copy of a module whose rows are not all in host memory."""
    return NotSupportedError(
        "a copy of a module whose rows are not all in host memory. Use hr.save(model, folder) "
        "and hr.load(model, folder) into a new one."
    )
