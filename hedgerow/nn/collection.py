"""What `EmbeddingBags` and `Embeddings` share: tables, features, reading and updating."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..core.checks import unknown
from ..core.clock import Clock, SystemClock
from ..core.errors import ConfigError, InputError, NotSupportedError
from ..core.id_batch import IdBatch
from ..ps.server_tables import ServerTables
from ..sharding.agreement import Ranks
from ..sharding.all_to_all_tables import AllToAllTables
from ..tables.admission import Admission
from ..tables.expiry import Eviction
from ..tables.host import HostTable
from ..tables.initializers import Initializer
from ..tables.multi.host_tables import HostTables
from ..tables.optimizer_base import Optimizer
from ..tables.store import Lookup
from ..tables.table import Table
from .clip import ClipRow
from .read_only import ReadOnlyRows, refuse
from .reading import Feature, Reading, RowsOf
from .server_group import ServerGroup
from .updates import RowUpdates, without_rows


class ReadsAhead(Protocol):
    """Who reads for a collection while batches are looked up ahead."""

    def found(self, collection: Collection, batch: IdBatch, reading: Reading) -> Lookup:
        """The rows of a call, read ahead or now."""
        ...


class Collection(nn.Module):
    """Tables and the features whose ids own their rows.

    Rows are no Parameters: `parameters()` and `state_dict()` hold nothing of them. In training an
    id without a row gives its first value, zeros while an admission rule has not let it in; in eval
    it gives zeros. Rows are born and change at the end of `backward()`.

    An `evict` rule runs by itself after updates: one of room when a table holds an eighth more rows
    than it should (it is then cut to them), one of age once in an eighth of that age. Times are
    those of `clock`, the machine's if not given.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        init: Initializer | None = None,
        optimizer: Optimizer | None = None,
        admit: Admission | None = None,
        evict: Eviction | None = None,
        clip: ClipRow | None = None,
        seed: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        clock = clock or SystemClock()
        defaults = {"init": init, "optimizer": optimizer, "admit": admit, "evict": evict}
        self.tables = tuple(table.with_defaults(**defaults) for table in tables)
        self._check_names()
        configs = {table.name: table.resolve(seed) for table in self.tables}
        own = HostTables(configs, clock=clock)
        self.store: HostTables | AllToAllTables | ServerTables = own
        self.servers: ServerGroup | None = None  # where rows are, if not in processes like this
        self.ranks = Ranks()  # this process alone
        self.ahead: ReadsAhead | None = None
        number = {name: k for k, name in enumerate(self.store.names)}
        self.declared = tuple(f for table in self.tables for f in table.features)
        self.features = tuple(
            Feature(feature, number[table.name], table.pooling)
            for table in sorted(self.tables, key=lambda table: number[table.name])
            for feature in table.features
        )
        self.updates = RowUpdates(own, clip, clock)
        self._anchor = torch.empty(0, requires_grad=True)

    def _check_names(self) -> None:
        if not self.tables:
            raise ConfigError(f"{type(self).__name__} without tables; give at least one.")
        for what, names in (
            ("tables", [table.name for table in self.tables]),
            ("features", [f for table in self.tables for f in table.features]),
        ):
            twice = [name for name in names if names.count(name) > 1]
            if twice:
                raise ConfigError(f"two {what} are named {twice[0]!r}; names must differ.")

    def rows(self, batch: IdBatch, wanted: Sequence[str]) -> tuple[Reading, tuple[Tensor, ...]]:
        """The rows of the ids of these features, in the order of `Reading.features`."""
        chosen = [feature for feature in self.features if feature.name in wanted]
        reading = Reading.of(batch, chosen, len(self.store.names))
        if self.ahead is None:
            found = self.look_up(reading, training=self.training, step=self.updates.step)
        else:
            found = self.ahead.found(self, batch, reading)
        if not (self.training and torch.is_grad_enabled()):
            return reading, reading.rows(found)
        collect = partial(self.updates.collect, without_rows(found))
        outputs: Any = RowsOf.apply(self._anchor, reading, found, collect)
        return reading, outputs

    def look_up(self, reading: Reading, *, training: bool, step: int) -> Lookup:
        """Reads as training or eval does."""
        missing = "training" if training else "zeros"
        return self.store.lookup(reading.keys, missing=missing, step=step)

    def table(self, name: str) -> HostTable:
        """One of its tables: rows, scans and eviction are its own."""
        if name not in self.store.names:
            unknown("table", name, self.store.names)
        if isinstance(self.store, ServerTables):
            raise NotSupportedError(
                f"table {name!r} is on servers; ask for rows with module.store.table(k)."
            )
        return self.store.table(self.store.names.index(name))

    def row_counts(self) -> dict[str, int]:
        """Rows of each table: of this process, or of all servers."""
        if isinstance(self.store, ServerTables):
            return dict(zip(self.store.names, self.store.sizes(), strict=True))
        return {name: self.table(name).size() for name in self.store.names}

    def spread(self, over: AllToAllTables, ranks: Ranks, model: Sequence[RowUpdates]) -> None:
        """Reads and updates go to the rows of all ranks from now on; `model`: all its updates."""
        self.store, self.ranks = over, ranks
        self.updates.spread(over, model)

    def move(self, store: ServerTables, servers: ServerGroup) -> None:
        """Reads and updates go to the rows of servers from now on."""
        self.store, self.servers = store, servers
        self.updates.move(store)

    def extra_repr(self) -> str:
        """One line a table."""
        counts = self.row_counts()
        return "\n".join(
            f"{t.name}: dim {t.dim}, {t.pooling}, features {', '.join(t.features)}, "
            f"{counts[t.name]} rows"
            for t in self.tables
        )


def wanted(features: Sequence[str] | None, declared: tuple[str, ...]) -> tuple[str, ...]:
    """The features of a call: all in the order of their declaration, or those it names."""
    if features is not None and not features:
        raise InputError("features is empty; name at least one, or leave it out for all.")
    for name in features or ():
        if name not in declared:
            unknown("feature", name, declared)
    return declared if features is None else tuple(features)


def ranks_of(model: nn.Module) -> Ranks:
    """The ranks that share the rows of a model: this process alone, unless it was distributed."""
    found = collections_of(model)
    return found[0].ranks if found else Ranks()


def servers_of(model: nn.Module) -> ServerGroup | None:
    """The servers that hold the rows of a model; None where processes like this one do."""
    found = collections_of(model)
    return found[0].servers if found else None


def undressed(model: nn.Module) -> nn.Module:
    """The model inside what torch wraps around it: its names are those that the user gave."""
    while True:
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        inner = getattr(inner, "_orig_mod", inner)  # of torch.compile
        if inner is model:
            return model
        model = inner


def collections_of(model: nn.Module) -> list[Collection]:
    """The modules of a model that have rows, in the order of its modules."""
    if any(isinstance(module, ReadOnlyRows) for module in model.modules()):
        refuse("this use of")
    return [module for module in model.modules() if isinstance(module, Collection)]
