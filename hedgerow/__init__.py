"""Hedgerow: embedding tables without a vocabulary for PyTorch. `import hedgerow as hr`.

This door is the whole public surface. Names load on first use, so that importing the package costs
little and the native core can be imported where torch is absent.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from .core.process_state import JobRank as _JobRank
from .core.process_state import launcher as _launcher

if TYPE_CHECKING:
    from . import data as data
    from . import errors as errors
    from . import models as models
    from . import planner as planner
    from . import serving as serving
    from .core.errors import HedgerowError as HedgerowError
    from .core.hashing import id64 as id64
    from .core.id_batch import IdBatch as IdBatch
    from .core.ids import Ragged as Ragged
    from .nn.checkpoints import load as load
    from .nn.checkpoints import save as save
    from .nn.checkpoints import save_async as save_async
    from .nn.checkpoints import save_increment as save_increment
    from .nn.distribute import distribute as distribute
    from .nn.embedding_modules import EmbeddingBags as EmbeddingBags
    from .nn.embedding_modules import Embeddings as Embeddings
    from .nn.export_ops import dynamic_shapes as dynamic_shapes
    from .nn.freeze import freeze as freeze
    from .nn.hold_updates import hold_updates as hold_updates
    from .nn.model_tables import stats as stats
    from .nn.model_tables import summary as summary
    from .nn.plan import plan as plan
    from .nn.prefetch import prefetch as prefetch
    from .nn.tier_stores import keep_on_disk as keep_on_disk
    from .serving.publish import publish as publish
    from .tables.admission import Chance as Chance
    from .tables.admission import Count as Count
    from .tables.admission import Within as Within
    from .tables.compressors import Bf16 as Bf16
    from .tables.compressors import FixedR8 as FixedR8
    from .tables.compressors import Fp16 as Fp16
    from .tables.compressors import Fp32 as Fp32
    from .tables.compressors import OneBit as OneBit
    from .tables.config import Segment as Segment
    from .tables.config import Table as Table
    from .tables.config import TableConfig as TableConfig
    from .tables.device import DeviceTable as DeviceTable
    from .tables.eviction import Lfu as Lfu
    from .tables.eviction import Lru as Lru
    from .tables.eviction import Ttl as Ttl
    from .tables.host import HostTable as HostTable
    from .tables.host_core import RowFile as RowFile
    from .tables.initializers import Constant as Constant
    from .tables.initializers import Normal as Normal
    from .tables.initializers import Ones as Ones
    from .tables.initializers import TruncatedNormal as TruncatedNormal
    from .tables.initializers import Uniform as Uniform
    from .tables.initializers import Zeros as Zeros
    from .tables.optimizers import Adagrad as Adagrad
    from .tables.optimizers import Adam as Adam
    from .tables.optimizers import AdamW as AdamW
    from .tables.optimizers import AmsGrad as AmsGrad
    from .tables.optimizers import Ftrl as Ftrl
    from .tables.optimizers import Momentum as Momentum
    from .tables.optimizers import Polynomial as Polynomial
    from .tables.optimizers import RmsProp as RmsProp
    from .tables.optimizers import RowAdagrad as RowAdagrad
    from .tables.optimizers import Sgd as Sgd
    from .tables.store import ClipRow as ClipRow
    from .tiers.caching import CachingTable as CachingTable
    from .tiers.hybrid import HybridTable as HybridTable

__version__ = "0.2.0"

_NAMES = {
    "core.errors": ("HedgerowError",),
    "core.hashing": ("id64",),
    "core.id_batch": ("IdBatch",),
    "core.ids": ("Ragged",),
    "nn.checkpoints": ("load", "save", "save_async", "save_increment"),
    "nn.distribute": ("distribute",),
    "nn.embedding_modules": ("EmbeddingBags", "Embeddings"),
    "nn.export_ops": ("dynamic_shapes",),
    "nn.freeze": ("freeze",),
    "nn.hold_updates": ("hold_updates",),
    "nn.model_tables": ("stats", "summary"),
    "nn.plan": ("plan",),
    "nn.prefetch": ("prefetch",),
    "nn.tier_stores": ("keep_on_disk",),
    "serving.publish": ("publish",),
    "tables.admission": ("Chance", "Count", "Within"),
    "tables.compressors": ("Bf16", "FixedR8", "Fp16", "Fp32", "OneBit"),
    "tables.config": ("Segment", "Table", "TableConfig"),
    "tables.device": ("DeviceTable",),
    "tables.eviction": ("Lfu", "Lru", "Ttl"),
    "tables.host": ("HostTable",),
    "tables.host_core": ("RowFile",),
    "tables.initializers": ("Constant", "Normal", "Ones", "TruncatedNormal", "Uniform", "Zeros"),
    "tables.optimizers": (
        "Adagrad",
        "Adam",
        "AdamW",
        "AmsGrad",
        "Ftrl",
        "Momentum",
        "Polynomial",
        "RmsProp",
        "RowAdagrad",
        "Sgd",
    ),
    "tables.store": ("ClipRow",),
    "tiers.caching": ("CachingTable",),
    "tiers.hybrid": ("HybridTable",),
}
# Folders that are doors of their own: hr.data.clicks.
_DOORS = ("data", "errors", "models", "planner", "serving")
_PLACES = {name: place for place, names in _NAMES.items() for name in names}


__all__ = [*_PLACES, *_DOORS]  # pyright: ignore[reportUnsupportedDunderAll]


def _launched_rank() -> _JobRank:
    """What the launcher's variables say; the file that reads them loads when this is asked."""
    from .launch.rank_info import rank_info

    info = rank_info()
    return _JobRank(info.rank, info.world_size)


_launcher.rank = _launched_rank


def __getattr__(name: str) -> object:
    if name in _DOORS:
        return import_module(f".{name}", __name__)
    if name not in _PLACES:
        raise AttributeError(f"module 'hedgerow' has no attribute {name!r}")
    value = getattr(import_module(f".{_PLACES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_PLACES, *_DOORS, "__version__"])
