"""The modules EmbeddingBags and Embeddings, and their base EmbeddingModule."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..core.checks import unknown
from ..core.clock import Clock, SystemClock
from ..core.errors import ConfigError, InputError, NotSupportedError, StateError
from ..core.id_batch import IdBatch, check_batch
from ..core.ids import Ragged
from ..core.shapes import Float
from ..ps.remote_shard import RemoteShard
from ..sharding.agreement import RankGroup
from ..tables.admission import AdmissionRule
from ..tables.config import Table, TableConfig, check_part
from ..tables.eviction import Eviction
from ..tables.initializers import Initializer
from ..tables.local_table import TableStats
from ..tables.module_store import (
    FeatureBags,
    FeatureGroup,
    FeatureKeys,
    ModuleStore,
    ReadRecord,
    TableFeature,
)
from ..tables.multi.several_tables import MultiConfig
from ..tables.optimizers import Optimizer
from ..tables.store import ClipRow, Lookup
from .batch_rows import BatchKeys, CollectGradients, ReadOutputs, pool_features
from .local_stores import in_host_memory, on_a_device
from .row_updates import Evictions, RowUpdates
from .state_dict import copied, load_rows, packed_rows, take_rows
from .torch_hooks import (
    OPTIMIZER_WATCHER,
    PenaltyWatcher,
    TrainedRows,
    between_graphs,
    follow_requires_grad,
)

if TYPE_CHECKING:
    from ..tables.host import HostTable


class ReadOnlyRows(nn.Module):
    """Base of modules that read rows and never change them."""


class NoBackward(torch.autograd.Function):
    """Returns vectors unchanged, and raises in backward.

    Without it, a backward of a frozen model would train the dense weights but not the rows.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *found: Tensor) -> tuple[Tensor, ...]:
        """Returns the vectors unchanged."""
        del ctx, anchor
        return tuple(vectors.view_as(vectors) for vectors in found)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> NoReturn:
        """Raises `StateError`."""
        del ctx, grads
        refuse("backward of")


def refuse(what: str) -> NoReturn:
    """Raises `StateError`: the model is read-only. `what` names the refused operation."""
    raise StateError(
        f"{what} a frozen model, which is read-only; use the model that was passed to hr.freeze: "
        f"it shares the rows and weights, and can be trained."
    )


@dataclass(slots=True, eq=False)
class ServerGroup:
    """The connections to the servers, one per server, and the configs of all tables of the model.

    Every server holds a part of every table. `workers` are the processes that train the model in
    step; None until `workers_of` sets them.
    """

    shards: tuple[RemoteShard, ...]
    config: MultiConfig
    workers: RankGroup | None = None

    @property
    def count(self) -> int:
        """The number of servers."""
        return len(self.shards)

    def close(self) -> None:
        """Closes the connections. The servers keep running."""
        for shard in self.shards:
            shard.close()


_MOST_GROUPS = 64  # combinations of requested features that a module caches
_ROWS = "_extra_state"  # torch's state-dict key for the extra state of a module


class PrefetchedReads(Protocol):
    """Reads the rows of a module's calls while `hr.prefetch` looks up later batches."""

    def found(self, collection: EmbeddingModule, batch: IdBatch, keys: FeatureKeys) -> Lookup:
        """Returns the rows of a call, which were prefetched or are read now."""
        ...


class EmbeddingModule(nn.Module):
    """Base of the modules that hold tables and look up the ids of features in them.

    Rows are not Parameters: `parameters()` does not contain them. `state_dict()` contains the rows
    as one tensor of bytes, at most 1 GiB per module, and `load_state_dict` restores them. In
    training mode, an id without a row gets its first value, or zeros as long as the admission rule
    has not admitted it. In eval mode it gets zeros. Rows are inserted and updated at the end of
    `backward()`.

    After `requires_grad_(False)` on the module, or on a module that contains it, no row is updated
    or inserted. Lookups return the same values as before. The same holds for a table whose
    optimizers all have the constant rate 0, as `hr.Sgd(lr=0)`. A schedule that is 0 at some steps
    does not freeze a table: rows are inserted.

    `module.to("cuda")` moves the tables to the device if they have no rows yet. Batches must then
    be on the device, too, and a step never waits for the device.

    An `evict` rule runs after updates. A rule of size (`Lru`, `Lfu`) runs when a table holds an
    eighth more rows than the rule allows, and evicts down to the allowed number. A rule of age
    (`Ttl`) runs once per eighth of the age. `clock` gives the times; by default it is the clock of
    the machine.

    `slot_key` determines the slots of ids in all tables, see `TableConfig`. Set it if two runs must
    agree even on which ids overflow on a full device. By default each table draws its own.
    """

    pools = True  # whether a call returns one vector per bag, or one per id

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        init: Initializer | None = None,
        optimizer: Optimizer | None = None,
        admit: AdmissionRule | None = None,
        evict: Eviction | None = None,
        clip: ClipRow | None = None,
        seed: int | None = None,
        slot_key: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        self._clock = clock = clock or SystemClock()
        for part, given in (("init", init), ("optimizer", optimizer)):
            check_part(f"{type(self).__name__}.{part}", part, given)
        defaults = {"init": init, "optimizer": optimizer, "admit": admit, "evict": evict}
        self.tables = tuple(table.with_defaults(**defaults) for table in tables)
        self._check_names()
        configs = {table.name: table.resolve(seed, slot_key=slot_key) for table in self.tables}
        self.store = in_host_memory(configs, clock)
        self.servers: ServerGroup | None = None  # the servers that hold the rows, if servers do
        self.ranks = RankGroup()  # this process alone
        self.ahead: PrefetchedReads | None = None
        number = {name: k for k, name in enumerate(self.store.names)}
        self.declared = tuple(f for table in self.tables for f in table.features)
        self.features = tuple(
            TableFeature(feature, number[table.name], table.pooling if self.pools else "none")
            for table in sorted(self.tables, key=lambda table: number[table.name])
            for feature in table.features
        )
        self._groups: dict[tuple[tuple[str, ...] | None, ...], FeatureGroup] = {}
        self.clip = clip
        self.updates = RowUpdates(self.store, clip, clock)
        self.rows_apart = False  # whether state dicts omit rows: hr.save writes them separately
        self._anchor = torch.empty(0, requires_grad=True)
        # Tables whose rows never change, because their learning rate is the number 0.
        self._still = frozenset(number[c.name] for c in configs.values() if _is_fixed(c))
        self._takes_clip = clip is not None
        self._penalties = PenaltyWatcher()
        follow_requires_grad()
        OPTIMIZER_WATCHER.install()

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
        for table in self.tables:
            if self.pools and table.pooling == "none":
                raise ConfigError(
                    f"Table({table.name!r}).pooling is 'none'; use hr.Embeddings for unpooled rows."
                )

    def bags(self, batch: IdBatch, features: Sequence[str] | None) -> FeatureBags:
        """Returns the bags that a call reads: those of `features`, or of all features."""
        check_batch(batch, type(self).__name__)
        whole = batch.source()
        asked = (batch.names, whole.names, None if features is None else tuple(features))
        group = self._groups.get(asked)
        if group is None:
            names = requested_features(features, self.declared)
            for name in names:
                if name not in batch.names:
                    unknown("feature", name, batch.names)
            group = FeatureGroup.of(whole.names, self.features, names)
            if len(self._groups) >= _MOST_GROUPS:
                self._groups.clear()
            self._groups[asked] = group
        return FeatureBags(whole, group)

    def outputs(self, bags: FeatureBags) -> tuple[Tensor, ...]:
        """Returns one tensor per feature of the group: pooled vectors, or one row per id."""
        reader = None if self.ahead is not None else self.store.bags_reader(bags)
        step, learns = self.updates.step, self.learns
        make: ReadOutputs
        if reader is None:
            make = partial(self._rows, bags, step)
        else:
            make = partial(reader.read, bags, training=self.training, step=step, keep=learns)
        outputs: Any
        if learns:
            self._penalties.began()
            outputs = CollectGradients.apply(self._anchor, make, self._collect)
        else:
            outputs = make()[0]
        return outputs if reader is not None else tuple(pool_features(bags, outputs))

    def _rows(self, bags: FeatureBags, step: int) -> tuple[tuple[Tensor, ...], BatchKeys]:
        """Returns the rows of all ids, feature by feature."""
        batch, group = bags.batch, bags.group
        keys = FeatureKeys.of(batch, group.features, len(self.store.names), group.places)
        if self.ahead is not None:
            found = self.ahead.found(self, batch, keys)
        else:
            missing = "training" if self.training else "zeros"
            found = self.store.lookup(keys.keys, missing=missing, step=step)
        return BatchKeys.of(keys, found)

    @property
    def learns(self) -> bool:
        """Whether calls collect gradients: in training mode, with gradients enabled, not frozen."""
        return self.training and torch.is_grad_enabled() and self._anchor.requires_grad

    def let_rows_learn(self, mode: bool) -> None:
        """Sets whether `backward()` updates and inserts rows. `requires_grad_` calls it."""
        self._anchor.requires_grad_(mode)

    def _collect(self, read: ReadRecord, grads: Sequence[Tensor | None]) -> None:
        """Takes the gradients of a read from autograd, unless rows were frozen since the read."""
        if not self._anchor.requires_grad:
            return
        if self._still:
            learning = [f.table not in self._still for f in read.features]
            grads = [g if learns else None for g, learns in zip(grads, learning, strict=True)]
        OPTIMIZER_WATCHER.saw(self._trained_rows)
        self._penalties.ended()
        self.updates.collect(read, grads)

    def _trained_rows(self) -> TrainedRows:
        plain = [table.name for table in self.tables if not _decays(table.resolve())]
        names = tuple(table.name for table in self.tables)
        return TrainedRows(tuple(plain), names, self._takes_clip or self.updates.held > 0)

    def look_up(self, keys: FeatureKeys, *, training: bool, step: int) -> Lookup:
        """Looks up rows as in training mode or as in eval mode."""
        missing = "training" if training else "zeros"
        return self.store.lookup(keys.keys, missing=missing, step=step)

    def table(self, name: str) -> HostTable:
        """Returns the table of this name, which has methods to read, scan and evict rows."""
        if name not in self.store.names:
            unknown("table", name, self.store.names)
        if not self.store.tables:
            raise NotSupportedError(
                f"table {name!r} is on servers; ask for rows with module.store.table(k)."
            )
        return self.store.tables[self.store.names.index(name)]

    def row_counts(self) -> dict[str, int]:
        """Returns the number of rows of each table, in this process or on all servers."""
        return self.store.row_counts()

    def table_stats(self) -> dict[str, TableStats]:
        """Returns rows, bytes, load and counters of each table, in this process or all servers."""
        return self.store.stats_by_table()

    def place(
        self,
        device: torch.device | str,
        *,
        capacity_rows: Mapping[str, int] | None = None,
        on_host: Sequence[str] = (),
    ) -> None:
        """Moves the tables to a device, except those named in `on_host`. The tables must be empty.

        `capacity_rows` gives the capacity of tables in rows, by name.
        """
        configs = self.store.configs_to_move(device)
        self.set_store(
            on_a_device(configs, self._clock, device, capacity_rows=capacity_rows, on_host=on_host)
        )

    def set_store(
        self,
        store: ModuleStore,
        *,
        ranks: RankGroup | None = None,
        servers: ServerGroup | None = None,
        together: Sequence[EmbeddingModule] = (),
    ) -> None:
        """Replaces the store of the module. Rows of the old store are not copied.

        `ranks` are the ranks that share the rows. `servers` hold the rows, if servers do.
        `together` are the modules that update in this order on all ranks at the end of a backward.
        """
        self.store, self.servers = store, servers
        self.ranks = ranks or RankGroup()
        evict = Evictions(store.tables, self.ranks.rank, self.ranks.count)
        self.updates.set_store(store, evict, [one.updates for one in together or (self,)])

    @property
    def clock(self) -> Clock:
        """The clock that gives the tables their times."""
        return self._clock

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Called by `module.to(...)`: moves the tables of this process with the weights."""
        found = super()._apply(fn, recurse)
        target = fn(torch.empty(0, device=self.store.device)).device
        if self.store.moves_to(target):
            self.place(target)
        return found

    def get_extra_state(self) -> Tensor:
        """Returns the rows for `state_dict`, packed into one tensor of bytes."""
        return torch.empty(0, dtype=torch.uint8) if self.rows_apart else packed_rows(self)

    def set_extra_state(self, state: Any) -> None:
        """Replaces the rows by those of a state dict."""
        take_rows(self, state)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.rows_apart:
            del destination[prefix + _ROWS]

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        key = prefix + _ROWS
        rest = {name: value for name, value in state_dict.items() if name != key}
        missing: list[str] = []
        super()._load_from_state_dict(
            rest, prefix, local_metadata, strict, missing, unexpected_keys, error_msgs
        )
        missing_keys += [name for name in missing if name != key]
        load_rows(self, state_dict, key, missing_keys, unexpected_keys)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Returns a copy with its own rows. Gradients that wait for an update are not copied."""
        new: Any = copied(self, memo)
        return new

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Generator[tuple[str, nn.Module], None, None]:
        """As `nn.Module.named_modules`, which `parameters()` calls. Notifies `PenaltyWatcher`."""
        if not torch.compiler.is_compiling():
            self._penalties.asked(self._trained_rows)
        return super().named_modules(memo, prefix, remove_duplicate)

    def extra_repr(self) -> str:
        """Returns one line per table."""
        counts = self.row_counts()
        return "\n".join(
            f"{t.name}: dim {t.dim}, {t.pooling}, features {', '.join(t.features)}, "
            f"{counts[t.name]} rows"
            for t in self.tables
        )


def _is_fixed(config: TableConfig) -> bool:
    """Returns whether no update can change a row: all optimizers have the constant rate 0."""
    rules = [segment.optimizer for segment in config.segments]
    rates = [None if rule is None else rule.rate() for rule in rules]
    return all(not callable(rate) and rate == 0 for rate in rates)


def _decays(config: TableConfig) -> bool:
    """Returns whether any optimizer of the table has a weight decay."""
    names = ("weight_decay", "weight_decay_factor", "l2", "l2_regularization_strength")
    return any(getattr(s.optimizer, name, 0) for s in config.segments for name in names)


def requested_features(
    features: Sequence[str] | None, declared: tuple[str, ...]
) -> tuple[str, ...]:
    """Returns the features of a call: `features`, or all in the order of their declaration."""
    if features is not None and not features:
        raise InputError("features is empty; name at least one, or leave it out for all.")
    for name in features or ():
        if name not in declared:
            unknown("feature", name, declared)
    return declared if features is None else tuple(features)


def ranks_of(model: nn.Module) -> RankGroup:
    """Returns the ranks that share the rows of a model: one rank if it is not distributed."""
    found = collections_of(model)
    return found[0].ranks if found else RankGroup()


def servers_of(model: nn.Module) -> ServerGroup | None:
    """Returns the servers that hold the rows of a model; None if training processes hold them."""
    found = collections_of(model)
    return found[0].servers if found else None


def unwrap(model: nn.Module) -> nn.Module:
    """Returns the model inside the wrappers of DDP and `torch.compile`, which add to part names."""
    while True:
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        inner = getattr(inner, "_orig_mod", inner)  # of torch.compile
        if inner is model:
            return model
        model = inner


@contextmanager
def dense_only(model: nn.Module) -> Iterator[nn.Module]:
    """Yields the unwrapped model. Its state dicts contain no rows inside this block."""
    modules = collections_of(model)
    for one in modules:
        one.rows_apart = True
    try:
        yield unwrap(model)
    finally:
        for one in modules:
            one.rows_apart = False


def dense_state(model: nn.Module) -> dict[str, Any]:
    """Returns the state dict of a model without its rows."""
    with dense_only(model) as inner:
        return inner.state_dict()


def collections_of(model: nn.Module) -> list[EmbeddingModule]:
    """Returns the modules of a model that have rows, in the order of its modules.

    Raises `StateError` if the model is frozen.
    """
    if any(isinstance(module, ReadOnlyRows) for module in model.modules()):
        refuse("this use of")
    return [module for module in model.modules() if isinstance(module, EmbeddingModule)]


class EmbeddingBags(EmbeddingModule):
    """Looks up the rows of every feature's ids, and pools them per bag as the feature's table says.

    `init`, `optimizer`, `admit` and `evict` apply to tables that do not set them. `clip` limits the
    gradient of each row.

    >>> import torch, hedgerow as hr
    >>> bags = hr.EmbeddingBags([hr.Table("user", 2), hr.Table("item", 2, features=["seen"])],
    ...                         init=hr.Zeros(), optimizer=hr.Sgd(lr=1.0))
    >>> batch = hr.IdBatch.from_lists({"user": [[7], [8]], "seen": [[1, 2], []]})
    >>> vectors = bags(batch)
    >>> {name: tuple(v.shape) for name, v in vectors.items()}
    {'user': (2, 2), 'seen': (2, 2)}
    >>> sum(v.sum() for v in vectors.values()).backward()
    >>> bags.store.size(), bags.eval()(batch)["seen"].tolist()
    (4, [[-2.0, -2.0], [0.0, 0.0]])
    """

    @between_graphs
    def forward(
        self, batch: IdBatch, features: Sequence[str] | None = None
    ) -> dict[str, Float[Tensor, "samples dim"]]:
        """Returns the vectors of each feature, in the order of declaration of tables and features.

        With `features`, returns these features only, in this order. The batch may lack the others.
        """
        bags = self.bags(batch, features)
        vectors = self.outputs(bags)
        return {bags.group.features[i].name: vectors[i] for i in bags.group.order}


class Embeddings(EmbeddingModule):
    """Looks up one vector per id of every feature, without pooling.

    >>> import hedgerow as hr
    >>> rows = hr.Embeddings([hr.Table("item", 3, features=["history"])])
    >>> found = rows(hr.IdBatch.from_lists({"history": [[1, 2], [], [1]]}))["history"]
    >>> tuple(found.values.shape), found.row_splits.tolist()
    ((3, 3), [0, 2, 2, 3])
    """

    pools = False

    @between_graphs
    def forward(self, batch: IdBatch, features: Sequence[str] | None = None) -> dict[str, Ragged]:
        """Returns one ragged tensor of vectors per feature, in the order of declaration.

        With `features`, returns these features only, in this order. The batch may lack the others.
        """
        bags = self.bags(batch, features)
        rows = self.outputs(bags)
        found: dict[str, Ragged] = {}
        for i in bags.group.order:
            name = bags.group.features[i].name
            found[name] = Ragged.trusted(rows[i], bags.batch.feature(name).row_splits)
        return found
