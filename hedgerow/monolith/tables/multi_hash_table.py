"""Monolith's `MultiHashTable`: all tables of a shard in one object, from a cached config."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from ...core import checks
from ...core.clock import Clock
from ...core.errors import InputError
from ...tables.admission import SlidingFilter
from ...tables.changes import checked_client
from ...tables.config import TableConfig
from ...tables.eviction import Eviction
from ...tables.multi.several_tables import MultiConfig
from .hash_filters import HashFilter, counts_of, filtered
from .multi_type import NativeMultiTable

NATIVE_NAME = "MonolithMultiHashTable_"


@dataclass(frozen=True)
class CachedConfig:
    """Tables in order. Computed once for equal content and used for every shard."""

    tables: MultiConfig

    @property
    def names(self) -> tuple[str, ...]:
        """The tables, in byte order."""
        return self.tables.names

    @property
    def dims(self) -> tuple[int, ...]:
        """Columns of each table."""
        return self.tables.dims

    @property
    def serialized(self) -> str:
        """All configs as one text."""
        return self.tables.text

    @property
    def expire(self) -> tuple[Eviction | None, ...]:
        """The eviction rule of each table."""
        return tuple(config.evict for config in self.tables.configs)

    @property
    def configs(self) -> dict[str, TableConfig]:
        """The configs by slot."""
        return dict(zip(self.tables.names, self.tables.configs, strict=True))


def convert_to_cached_config(configs: Mapping[str, TableConfig]) -> CachedConfig:
    """Returns the cached form of a mapping. Equal content gives the same object.

    >>> from hedgerow.monolith.test_utils import generate_test_hash_table_config
    >>> one = convert_to_cached_config({"1": generate_test_hash_table_config()})
    >>> one is convert_to_cached_config({"1": generate_test_hash_table_config()})
    True
    """
    return _converted(MultiConfig.of(configs))


@functools.lru_cache(maxsize=64)
def _converted(tables: MultiConfig) -> CachedConfig:
    return CachedConfig(tables)


class MultiHashTable(NativeMultiTable):
    """`NativeMultiTable` under Monolith's name, with its name in checkpoints.

    >>> from hedgerow.monolith.test_utils import generate_test_hash_table_config
    >>> table = MultiHashTable.from_configs({"1": generate_test_hash_table_config()})
    >>> table.shared_name, table.names
    ('MonolithMultiHashTable_', ('1',))
    """

    def __init__(
        self,
        configs: Mapping[str, TableConfig],
        *,
        clock: Clock | None = None,
        filter: SlidingFilter | None = None,
        name_suffix: str = "",
    ) -> None:
        super().__init__(configs, clock=clock, filter=filter)
        self.shared_name = NATIVE_NAME + name_suffix

    @classmethod
    def from_configs(
        cls,
        configs: Mapping[str, TableConfig],
        hash_filter: HashFilter | SlidingFilter | None = None,
        sync_client: object | None = None,
        name_suffix: str = "",
    ) -> Self:
        """Builds the tables from one config per slot."""
        cached = convert_to_cached_config(configs)
        return cls.from_cached_config(cached, hash_filter, sync_client, name_suffix)

    @classmethod
    def from_cached_config(
        cls,
        cached_config: CachedConfig,
        hash_filter: HashFilter | SlidingFilter | None = None,
        sync_client: object | None = None,
        name_suffix: str = "",
    ) -> Self:
        """Builds the tables from a cached config."""
        configs = filtered(cached_config.configs, hash_filter)
        made = cls(configs, filter=counts_of(hash_filter), name_suffix=name_suffix)
        made.sync_clients = (sync_client,)
        if sync_client is not None:
            tables = dict(zip(made.names, made.store.tables, strict=True))
            checked_client(sync_client).attach_multi(made.shared_name, tables)
        return made


class MultiHashTableFactory:
    """Builds the tables of shards. Equal configs are converted once.

    >>> from hedgerow.monolith.test_utils import generate_test_hash_table_config
    >>> factory = MultiHashTableFactory([None, None], [None, None])
    >>> factory(1, {"1": generate_test_hash_table_config()}).shared_name
    'MonolithMultiHashTable_1'
    """

    def __init__(
        self,
        hash_filters: Sequence[HashFilter | SlidingFilter | None],
        sync_clients: Sequence[object | None],
    ) -> None:
        if len(hash_filters) != len(sync_clients):
            raise InputError(
                f"{len(hash_filters)} hash filters and {len(sync_clients)} sync clients; give one "
                f"of each per shard."
            )
        self._filters, self._clients = tuple(hash_filters), tuple(sync_clients)

    def __call__(self, idx: int, slot_to_config: Mapping[str, TableConfig]) -> MultiHashTable:
        """Builds the tables of shard `idx`."""
        if checks.count("idx", idx) >= len(self._filters):
            raise InputError(f"shard {idx} of {len(self._filters)}; they are counted from 0.")
        cached = convert_to_cached_config(slot_to_config)
        return MultiHashTable.from_cached_config(
            cached, self._filters[idx], self._clients[idx], str(idx)
        )
