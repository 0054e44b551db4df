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
    """Hands vectors on, and refuses a backward: without it dense weights alone would get one."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *found: Tensor) -> tuple[Tensor, ...]:
        """The same vectors."""
        del ctx, anchor
        return tuple(vectors.view_as(vectors) for vectors in found)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> NoReturn:
        """Refused."""
        del ctx, grads
        refuse("backward of")


def refuse(what: str) -> NoReturn:
    """Says that the model is read-only, and what to do."""
    raise StateError(
        f"{what} a frozen model, which is read-only; use the model that hr.freeze was given: it "
        f"shares rows and weights, and trains on."
    )


@dataclass(slots=True, eq=False)
class ServerGroup:
    """One connection a server, and the tables of the whole model, which each of them holds.

    `workers` are the processes that train the model in step; None before they were asked for.
    """

    shards: tuple[RemoteShard, ...]
    config: MultiConfig
    workers: RankGroup | None = None

    @property
    def count(self) -> int:
        """How many servers there are."""
        return len(self.shards)

    def close(self) -> None:
        """Ends the connections; the servers stay."""
        for shard in self.shards:
            shard.close()


_MOST_GROUPS = 64  # of features asked for together, that a module keeps
_ROWS = "_extra_state"  # torch's key for what is neither a parameter nor a buffer


class PrefetchedReads(Protocol):
    """Who reads for a collection while batches are looked up ahead."""

    def found(self, collection: EmbeddingModule, batch: IdBatch, keys: FeatureKeys) -> Lookup:
        """The rows of a call, read ahead or now."""
        ...


class EmbeddingModule(nn.Module):
    """Tables and the features whose ids own their rows.

    Rows are no Parameters: `parameters()` holds nothing of them. `state_dict()` carries them as one
    tensor of bytes, up to 1 GiB a module, and `load_state_dict` brings them back. In training an
    id without a row gives its first value, zeros while an admission rule has not let it in; in eval
    it gives zeros. Rows are born and change at the end of `backward()`.

    After `requires_grad_(False)`, of the module or of one around it, rows do not learn and none is
    born; ids read as before. The same holds for a table whose optimizers all have the rate 0, as
    `hr.Sgd(lr=0)`. A schedule that is 0 at some steps is an ordinary rate: rows are born.

    `module.to("cuda")` brings the tables to the device while they have no rows yet: batches are
    then there, too, and a step waits for nothing.

    An `evict` rule runs by itself after updates: one of room when a table holds an eighth more rows
    than it should (it is then cut to them), one of age once in an eighth of that age. Times are
    those of `clock`, the machine's if not given.

    `slot_key` places the ids of all tables, see `TableConfig`: give one where two runs must agree
    even in which ids find no room on a full device. By default each table draws its own.
    """

    pools = True  # whether a call gives a vector a bag, or one an id

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
        self.servers: ServerGroup | None = None  # where rows are, if not in processes like this
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
        self.rows_apart = False  # whether state dicts leave rows out: hr.save has them elsewhere
        self._anchor = torch.empty(0, requires_grad=True)
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

    def bags(self, batch: IdBatch, features: Sequence[str] | None) -> FeatureBags:
        """What a call reads of its batch: all features, or those it names."""
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
        """Of each feature of the group its vectors, or the rows of its ids where it has no bags."""
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
        """Reads the rows of all ids."""
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
        """Whether a call is one of training, which a backward will follow."""
        return self.training and torch.is_grad_enabled() and self._anchor.requires_grad

    def let_rows_learn(self, mode: bool) -> None:
        """Whether backwards change rows and give birth to them; `requires_grad_` calls it."""
        self._anchor.requires_grad_(mode)

    def _collect(self, read: ReadRecord, grads: Sequence[Tensor | None]) -> None:
        """Called by autograd. Rows that were frozen since the call get nothing, as Parameters."""
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
        """Reads as training or eval does."""
        missing = "training" if training else "zeros"
        return self.store.lookup(keys.keys, missing=missing, step=step)

    def table(self, name: str) -> HostTable:
        """One of its tables: rows, scans and eviction are its own."""
        if name not in self.store.names:
            unknown("table", name, self.store.names)
        if not self.store.tables:
            raise NotSupportedError(
                f"table {name!r} is on servers; ask for rows with module.store.table(k)."
            )
        return self.store.tables[self.store.names.index(name)]

    def row_counts(self) -> dict[str, int]:
        """Rows of each table: of this process, or of all servers."""
        return self.store.row_counts()

    def table_stats(self) -> dict[str, TableStats]:
        """Rows, bytes, load and counts of each table: of this process, or of all servers."""
        return self.store.stats_by_table()

    def place(
        self,
        device: torch.device | str,
        *,
        capacity_rows: Mapping[str, int] | None = None,
        on_host: Sequence[str] = (),
    ) -> None:
        """Tables go to a device, but for those `on_host`; before rows are there.

        `capacity_rows` says by name how many rows a table has room for.
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
        """Rows are in this store from now on; those of before are none.

        `ranks` share the rows. `together` are all modules of a model whose updates are collectives
        of these ranks. `servers` hold the rows, if not processes like this one.
        """
        self.store, self.servers = store, servers
        self.ranks = ranks or RankGroup()
        evict = Evictions(store.tables, self.ranks.rank, self.ranks.count)
        self.updates.set_store(store, evict, [one.updates for one in together or (self,)])

    @property
    def clock(self) -> Clock:
        """Whose times its tables have."""
        return self._clock

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """What `module.to(...)` calls: tables of this process go where the weights go."""
        found = super()._apply(fn, recurse)
        target = fn(torch.empty(0, device=self.store.device)).device
        if self.store.moves_to(target):
            self.place(target)
        return found

    def get_extra_state(self) -> Tensor:
        """The rows, for `state_dict`."""
        return torch.empty(0, dtype=torch.uint8) if self.rows_apart else packed_rows(self)

    def set_extra_state(self, state: Any) -> None:
        """Takes the rows of a state dict."""
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
        """A module with rows of its own; what waits for the end of a backward stays behind."""
        new: Any = copied(self, memo)
        return new

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Generator[tuple[str, nn.Module], None, None]:
        """As of any module; torch's `parameters()` asks this of every module."""
        if not torch.compiler.is_compiling():
            self._penalties.asked(self._trained_rows)
        return super().named_modules(memo, prefix, remove_duplicate)

    def extra_repr(self) -> str:
        """One line a table."""
        counts = self.row_counts()
        return "\n".join(
            f"{t.name}: dim {t.dim}, {t.pooling}, features {', '.join(t.features)}, "
            f"{counts[t.name]} rows"
            for t in self.tables
        )


def _is_fixed(config: TableConfig) -> bool:
    """Whether no step can change a row: every rate is the number 0."""
    rules = [segment.optimizer for segment in config.segments]
    rates = [None if rule is None else rule.rate() for rule in rules]
    return all(not callable(rate) and rate == 0 for rate in rates)


def _decays(config: TableConfig) -> bool:
    """Whether any optimizer of the table makes rows smaller by itself."""
    names = ("weight_decay", "weight_decay_factor", "l2", "l2_regularization_strength")
    return any(getattr(s.optimizer, name, 0) for s in config.segments for name in names)


def requested_features(
    features: Sequence[str] | None, declared: tuple[str, ...]
) -> tuple[str, ...]:
    """The features of a call: all in the order of their declaration, or those it names."""
    if features is not None and not features:
        raise InputError("features is empty; name at least one, or leave it out for all.")
    for name in features or ():
        if name not in declared:
            unknown("feature", name, declared)
    return declared if features is None else tuple(features)


def ranks_of(model: nn.Module) -> RankGroup:
    """The ranks that share the rows of a model: this process alone, unless it was distributed."""
    found = collections_of(model)
    return found[0].ranks if found else RankGroup()


def servers_of(model: nn.Module) -> ServerGroup | None:
    """The servers that hold the rows of a model; None where processes like this one do."""
    found = collections_of(model)
    return found[0].servers if found else None


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside what torch wraps around it: its names are those that the user gave."""
    while True:
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        inner = getattr(inner, "_orig_mod", inner)  # of torch.compile
        if inner is model:
            return model
        model = inner


@contextmanager
def dense_only(model: nn.Module) -> Iterator[nn.Module]:
    """The model with the names that the user gave; its state dicts hold no rows in this block."""
    modules = collections_of(model)
    for one in modules:
        one.rows_apart = True
    try:
        yield unwrap(model)
    finally:
        for one in modules:
            one.rows_apart = False


def dense_state(model: nn.Module) -> dict[str, Any]:
    """The state dict of a model without its rows."""
    with dense_only(model) as inner:
        return inner.state_dict()


def collections_of(model: nn.Module) -> list[EmbeddingModule]:
    """The modules of a model that have rows, in the order of its modules."""
    if any(isinstance(module, ReadOnlyRows) for module in model.modules()):
        refuse("this use of")
    return [module for module in model.modules() if isinstance(module, EmbeddingModule)]


class EmbeddingBags(EmbeddingModule):
    """Vectors of the bags of every feature, pooled as its table says.

    Arguments beside the tables stand in for what a table leaves open: `init`, `optimizer`, `admit`,
    `evict`. `clip` limits the gradient of each row.

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
        """Vectors by feature, in the order in which tables and features were declared.

        With `features`, of these alone and in their order; the batch need not have the others.
        """
        bags = self.bags(batch, features)
        vectors = self.outputs(bags)
        return {bags.group.features[i].name: vectors[i] for i in bags.group.order}


class Embeddings(EmbeddingModule):
    """The vector of every id of every feature, unpooled.

    >>> import hedgerow as hr
    >>> rows = hr.Embeddings([hr.Table("item", 3, features=["history"])])
    >>> found = rows(hr.IdBatch.from_lists({"history": [[1, 2], [], [1]]}))["history"]
    >>> tuple(found.values.shape), found.row_splits.tolist()
    ((3, 3), [0, 2, 2, 3])
    """

    pools = False

    @between_graphs
    def forward(self, batch: IdBatch, features: Sequence[str] | None = None) -> dict[str, Ragged]:
        """Ragged rows of vectors by feature, in the order in which features were declared.

        With `features`, of these alone and in their order; the batch need not have the others.
        """
        bags = self.bags(batch, features)
        rows = self.outputs(bags)
        found: dict[str, Ragged] = {}
        for i in bags.group.order:
            name = bags.group.features[i].name
            found[name] = Ragged.trusted(rows[i], bags.batch.feature(name).row_splits)
        return found
