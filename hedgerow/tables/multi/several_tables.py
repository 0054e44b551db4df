"""The configurations of several tables, and the calls that a store passes on to each table."""

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

_KEPT = 64  # distinct sets of tables a process keeps; a trainer has a handful


@dataclass(frozen=True)
class MultiConfig:
    """The configs of a store's tables, in byte order of their slot names.

    `of` returns the same object for equal content. Each table is named after its slot, so one
    config may serve many slots; their rows still start from different values.

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
        """Makes it from one config per slot, in any order."""
        if not isinstance(configs, Mapping) or not configs:
            raise ConfigError(
                f"configs is {configs!r}; give a dict of at least one slot name and its config."
            )
        for name, config in configs.items():
            if not isinstance(name, str) or not name:
                raise ConfigError(f"slot name {name!r}; it must be a non-empty str.")
            if not isinstance(config, TableConfig):
                raise ConfigError(f"slot {name!r} has config {config!r}; give a TableConfig.")
        # Python orders strings by code point, which equals the byte order of their UTF-8.
        named = tuple((name, configs[name]) for name in sorted(configs))
        try:
            hash(named)
        except TypeError:  # a rate is an unhashable callable: nothing can be cached
            return _resolve(named)
        return _remembered(named)

    @functools.cached_property
    def text(self) -> str:
        """The configs as one canonical text: equal for equal content, in every process.

        It leaves slot keys out, because tables with different slot keys hold the same rows.
        """
        return canonical(self.configs, without=("slot_key",))

    def at(self, slot: str) -> int:
        """Returns the number of a slot's table; raises, listing the slots, if there is none."""
        if slot not in self.positions:
            checks.unknown("slot", str(slot), self.names)
        return self.positions[slot]

    def rates_of(self, rates: Sequence[Rate] | None) -> list[Sequence[Rate] | None]:
        """Splits rates, one per segment and table after table, by table."""
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
    """Returns configurations as one text; two texts are equal exactly if they mean the same.

    Settings at their defaults are left out. A setting that a later release adds then does not
    change the text of a config that does not use it. `without` names fields of the outermost
    records to leave out.

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
    if isinstance(value, numbers.Real):  # 1 and 1.0 are equal; so are numpy's
        number = float(value)
        return int(number) if number.is_integer() else number
    raise ConfigError(f"{value!r} cannot be compared or written; use a number or a schedule.")


def _is_default(field: dataclasses.Field[Any], value: object) -> bool:
    missing = dataclasses.MISSING
    if field.default is not missing:
        return bool(value == field.default)
    return field.default_factory is not missing and bool(value == field.default_factory())


class SeveralTables:
    """The common part of stores of several tables, in byte order of the tables' names.

    Tables on a device have the methods of a `HostTable`, but reading rows or their number waits for
    the device.
    """

    config: MultiConfig
    _tables: Sequence[Any]  # HostTable, or a table with the same methods

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tables, in order."""
        return self.config.names

    @property
    def dims(self) -> tuple[int, ...]:
        """The number of columns of each table, in order."""
        return self.config.dims

    @property
    def tables(self) -> tuple[HostTable, ...]:
        """The tables, in order."""
        return tuple(self._tables)

    def table(self, k: int = 0) -> HostTable:
        """Returns table `k` alone, for example for whole rows, scans and statistics."""
        return self._tables[arguments.table_number(k, len(self._tables))]

    def entries(self, keys: TableKeys | Int64[Tensor, "n"]) -> Entries:
        """Returns whole rows, if there is one table; otherwise use `table(k)`."""
        return self._only("entries").entries(keys)

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """Yields all rows in slices, if there is one table; otherwise use `table(k)`."""
        return self._only("scan").scan(rows)

    def size(self) -> int:
        """Returns the number of rows of all tables."""
        return sum(table.size() for table in self._tables)

    def __len__(self) -> int:
        return self.size()

    def max_ts(self) -> int:
        """Returns the largest `ts` of all writes to any table."""
        return max(table.max_ts() for table in self._tables)

    def row_counts(self) -> dict[str, int]:
        """Returns the number of rows of each table."""
        return {table.config.name: table.size() for table in self._tables}

    def stats_by_table(self) -> dict[str, TableStats]:
        """Returns rows, bytes, load and counters of each table."""
        return {table.config.name: table_stats(table) for table in self._tables}

    @property
    def reads_ahead(self) -> bool:
        """Whether `prefetch` does something: no."""
        return False

    def prefetch(self, keys: TableKeys) -> None:
        """Does nothing: the rows are in this process."""
        del keys

    def take_part(self, *, step: int, ts: int, policy: UpdatePolicy = PLAIN) -> bool:
        """Returns False: no other process updates these rows."""
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
        """Returns the sum of the gradients of each key; an update can be made at the result."""
        return replace(summed(at, grads, counts, self.dims), given=given)

    def cells(self, ranks: int) -> HostCells | None:
        """Returns None: `lookup` reads the keys of ranks."""
        del ranks
        return None

    def configs_to_move(self, where: object) -> dict[str, TableConfig]:
        """Returns the configs of the tables, to build them at `where`; raises if they have rows."""
        if self.size():
            raise StateError(
                f"tables with {self.size()} rows do not move: bring the model to {where} "
                f"first, then train or hr.load."
            )
        return {table.config.name: table.config for table in self._tables}

    def emptied(self, clock: Clock) -> Self:
        """Raises: only tables in host memory can be copied."""
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
    """Returns False: tables on `here` do not move. Raises if the module cannot leave `here`."""
    if here != CPU and device != here:
        raise StateError(
            f"tables on {here} do not move to {device}: hr.save the model, and hr.load it into a "
            f"model that was made on that device."
        )
    return False


def not_copied() -> NotSupportedError:
    """Returns the error for a copy of a module whose rows are not all in host memory."""
    return NotSupportedError(
        "a copy of a module whose rows are not all in host memory. Use hr.save(model, folder) "
        "and hr.load(model, folder) into a new one."
    )
