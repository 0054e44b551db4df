"""Tables as used in Monolith's tests and benchmark."""

from __future__ import annotations

from collections.abc import Sequence

from ..ps.shard import Shard
from ..tables.compressors import Fp16, Fp32
from ..tables.config import Segment, TableConfig
from ..tables.initializers import Zeros
from ..tables.monolith_rules import MonolithSgd
from .tables.on_servers import DistributedTable

BENCHMARK_TABLE = "benchmark"


def generate_test_hash_table_config(
    dim: int = 2, use_float16: bool = False, learning_rate: float = 1.0
) -> TableConfig:
    """Returns the config of a table that starts at zeros and learns with plain SGD.

    >>> generate_test_hash_table_config(4).dim
    4
    """
    shown_as = Fp16() if use_float16 else Fp32()
    optimizer = MonolithSgd(learning_rate=learning_rate)
    return TableConfig("test", (Segment(dim, Zeros(), optimizer, shown_as),))


def benchmark_table_config(dim: int = 16) -> TableConfig:
    """Returns the config of Monolith's benchmark table: zeros, SGD with rate 1, no filter.

    >>> benchmark_table_config().segments[0].optimizer.learning_rate
    1.0
    """
    return TableConfig(BENCHMARK_TABLE, (Segment(dim, Zeros(), MonolithSgd(learning_rate=1.0)),))


def benchmark_table(
    shards: Sequence[Shard], dim: int = 16, *, dedup: bool = True
) -> DistributedTable:
    """Returns the benchmark table on servers that hold `benchmark_table_config(dim)`."""
    return DistributedTable(shards, benchmark_table_config(dim), dedup=dedup)
