"""Sources of batches: synthetic clicks, MovieLens-100K, and files of several formats.

Users import this package as `hr.data`. Importing it loads only torch; readers import pyarrow when
they read.
"""

from __future__ import annotations

from .criteo_text import criteo as criteo
from .movielens_100k import movielens as movielens
from .parquet_files import parquet as parquet
from .source import Batch as Batch
from .source import BatchSource as BatchSource
from .source import Source as Source
from .synthetic_clicks import ClickFeature as ClickFeature
from .synthetic_clicks import SyntheticClicks as SyntheticClicks
from .synthetic_clicks import clicks as clicks
from .synthetic_clicks import wide_clicks as wide_clicks
from .table_stream import TableStream as TableStream
from .tfrecord_files import tfrecord as tfrecord

__all__ = [
    "Batch",
    "BatchSource",
    "ClickFeature",
    "Source",
    "SyntheticClicks",
    "TableStream",
    "clicks",
    "criteo",
    "movielens",
    "parquet",
    "tfrecord",
    "wide_clicks",
]
