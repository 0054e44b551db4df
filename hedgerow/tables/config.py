"""`Table`, which users write, and `TableConfig`, the checked configuration it resolves to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace

from ..core import checks
from ..core.errors import ConfigError
from ..core.hashing import id64
from ..core.records import Record
from ..routing.router import check_dist_type
from . import monolith_rules, optimizers
from .admission import AdmissionRule
from .compressors import Bf16, Compressor, Fp16
from .eviction import Eviction
from .initializers import Initializer, Uniform
from .optimizers import Adagrad, Optimizer
from .slot_key import check_slot_key

# A config read from a file may name any class of these modules, even one the user did not import.
FAMILIES = (optimizers, monolith_rules)
_PARTS: dict[str, tuple[type[Record], str]] = {
    "init": (Initializer, "Uniform(0.05)"),
    "optimizer": (Optimizer, "Adagrad(lr=0.05)"),
    "compressor": (Compressor, "Fp16()"),
}


def check_part(setting: str, part: str, value: object) -> None:
    """Raises if `value` is not a valid init, optimizer or compressor.

    `setting` is the name of the setting in the error message.

    >>> check_part("Table('user', optimizer=...)", "optimizer", None)
    """
    family, example = _PARTS[part]
    if value is None or isinstance(value, family):
        return
    # Monolith's optimizers share their names with ours; the set lists each name once.
    names = sorted({member.__name__ for member in family.members().values()})
    raise ConfigError(
        f"{setting} is {value!r}; it must be one of {', '.join(names)}, as in {part}=hr.{example}."
    )


@dataclass(frozen=True)
class Segment(Record):
    """A range of columns of a row with its own initializer, optimizer and compressor.

    >>> from hedgerow.tables.initializers import Uniform
    >>> from hedgerow.tables.optimizers import Adagrad
    >>> Segment(16, Uniform(0.05), Adagrad(lr=0.1)).dim
    16
    """

    kind = "segment"
    dim: int
    init: Initializer | None = None
    optimizer: Optimizer | None = None
    compressor: Compressor | None = None
    stochastic_rounding_float16: bool = False

    def __post_init__(self) -> None:
        checks.whole("Segment", "dim", self.dim, least=1)
        for name in _PARTS:
            check_part(f"Segment.{name}", name, getattr(self, name))
        checks.switch("Segment", "stochastic_rounding_float16", self.stochastic_rounding_float16)
        if self.optimizer is not None:
            self.optimizer.check_dim(self.dim)


@dataclass(frozen=True)
class TableConfig(Record):
    """The resolved configuration of one table.

    In a training table, every segment needs an initializer and an optimizer; its compressor changes
    only what a lookup returns. In a serving table, every segment needs a compressor; the table
    stores its rows compressed, without optimizer state.

    - `seed` determines initial values and rounding. None derives it from the name.
    - `not_finite` says what happens to NaN and infinity in gradients and rows. "reject" raises an
      error and changes nothing. "drop" leaves such rows and gradients out and counts them.
    - `admit` decides which absent ids a write may insert. None admits all.
    - `evict` decides which rows `evict()` removes, and which expired rows are not saved.
    - `also` lists other names of the table. A load finds the table's rows under any of them.
    - `slot_key` is the secret that determines the slots of ids. It prevents ids that were chosen to
      collide from slowing the table down. None draws a random one. The key is saved with the rows
      and does not change their values. Set it if the order of scans, or which ids find no slot in a
      full table on a device, must be the same in every run.

    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.optimizers import Sgd
    >>> config = TableConfig("user", (Segment(4, Zeros(), Sgd(lr=0.1)),))
    >>> TableConfig.from_dict(config.to_dict()) == config
    True
    """

    kind = "table"
    name: str
    segments: tuple[Segment, ...]
    seed: int | None = None
    serving: bool = False
    skip_zero_embedding: bool = False
    initial_capacity: int = 1
    not_finite: str = "reject"
    admit: AdmissionRule | None = None
    evict: Eviction | None = None
    also: tuple[str, ...] = ()
    slot_key: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.also, tuple) or not all(isinstance(n, str) for n in self.also):
            raise ConfigError(f"TableConfig.also is {self.also!r}; give a tuple of names.")
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(f"TableConfig.name is {self.name!r}; it must be a non-empty str.")
        if not isinstance(self.segments, tuple) or not self.segments:
            raise ConfigError(
                f"table {self.name!r} has segments {self.segments!r}; give a tuple of at least one."
            )
        checks.whole("TableConfig", "initial_capacity", self.initial_capacity)
        if self.initial_capacity >= 2**32:
            raise ConfigError(
                f"TableConfig.initial_capacity is {self.initial_capacity}; it must be below 2**32."
            )
        checks.switch("TableConfig", "serving", self.serving)
        checks.switch("TableConfig", "skip_zero_embedding", self.skip_zero_embedding)
        checks.choice("TableConfig", "not_finite", self.not_finite, ("reject", "drop"))
        if self.evict is not None and not isinstance(self.evict, Eviction):
            raise ConfigError(
                f"TableConfig.evict is {self.evict!r}; it must be one of "
                f"{', '.join(sorted(m.__name__ for m in Eviction.members().values()))}."
            )
        if self.seed is not None and not (type(self.seed) is int and 0 <= self.seed < 2**64):
            raise ConfigError(
                f"TableConfig.seed is {self.seed!r}; it must be an int in 0..2**64-1."
            )
        check_slot_key("TableConfig", self.slot_key)
        if self.skip_zero_embedding and not self.serving:
            raise ConfigError(
                f"table {self.name!r} is a training table with skip_zero_embedding; only serving "
                f"tables may leave zero rows out. Set serving=True or skip_zero_embedding=False."
            )
        self._check_admit()
        for i, segment in enumerate(self.segments):
            self._check_segment(i, segment)
        if self.dim > checks.MAX_DIM:
            raise ConfigError(f"table {self.name!r} has dim {self.dim}; at most {checks.MAX_DIM}.")

    def _check_admit(self) -> None:
        if self.admit is not None and not isinstance(self.admit, AdmissionRule):
            raise ConfigError(
                f"TableConfig.admit is {self.admit!r}; it must be one of "
                f"{', '.join(sorted(m.__name__ for m in AdmissionRule.members().values()))}."
            )
        if self.admit is not None and self.serving:
            raise ConfigError(
                f"table {self.name!r} is a serving table with an admission rule, which would drop "
                f"rows that training admitted; leave admit out."
            )

    def _check_segment(self, i: int, segment: Segment) -> None:
        if not isinstance(segment, Segment):
            raise ConfigError(f"table {self.name!r}: segments[{i}] is {segment!r}, not a Segment.")
        needed = ("compressor",) if self.serving else ("init", "optimizer")
        missing = [name for name in needed if getattr(segment, name) is None]
        if missing:
            use = "serving" if self.serving else "training"
            raise ConfigError(
                f"table {self.name!r}: segments[{i}] lacks {' and '.join(missing)}, which a {use} "
                f"table needs in every segment."
            )

    @property
    def dim(self) -> int:
        """The number of columns of a row."""
        return sum(segment.dim for segment in self.segments)

    @property
    def row_seed(self) -> int:
        """The seed in use: `seed`, or one derived from the name."""
        return self.seed if self.seed is not None else id64(self.name, "table seed") & (2**64 - 1)


POOLINGS = ("sum", "mean", "sqrtn", "max", "none")
DTYPES = ("fp32", "fp16", "bf16")


@dataclass(frozen=True)
class Table:
    """One table of a module: a name, a width, and the features whose ids share its rows.

    - `features` are the names of the features that use the table; by default the table's own name.
    - `pooling` combines the rows of a sample's ids into one vector: "sum", "mean", "sqrtn" (the sum
      divided by the square root of the number of ids) or "max". ("first", n) gives the first n
      rows, and "none" gives every row.
    - `dtype` is the precision in which the model sees rows; they are trained in fp32.
    - `dist_type` is the rule by which ranks share the ids: "hash_roundrobin", "roundrobin", or
      "continuous", which needs `rows`.
    - `rows` is otherwise a hint for the planner and for the initial capacity.
    - `segments` splits a row into parts with their own initializers and optimizers; their dims add
      up to `dim`. By default the row is one segment.

    The module supplies every setting that is None.

    >>> table = Table("item", 4, features=["item", "history"], optimizer=Adagrad(lr=0.1))
    >>> table.features, table.resolve().dim
    (('item', 'history'), 4)
    """

    name: str
    dim: int
    _: KW_ONLY
    features: Sequence[str] = ()
    pooling: str | tuple[str, int] = "sum"
    dtype: str = "fp32"
    dist_type: str = "hash_roundrobin"
    rows: int | None = None
    init: Initializer | None = None
    optimizer: Optimizer | None = None
    admit: AdmissionRule | None = None
    evict: Eviction | None = None
    segments: Sequence[Segment] = ()

    def __post_init__(self) -> None:
        if isinstance(self.features, str) or not all(isinstance(f, str) for f in self.features):
            raise ConfigError(
                f"Table({self.name!r}).features is {self.features!r}; give a list of names."
            )
        object.__setattr__(self, "features", tuple(self.features) or (self.name,))
        object.__setattr__(self, "segments", tuple(self.segments))
        self._check()

    def _check(self) -> None:
        checks.whole("Table", "dim", self.dim, least=1)
        for part in ("init", "optimizer"):
            check_part(f"Table({self.name!r}).{part}", part, getattr(self, part))
        if len(set(self.features)) != len(self.features):
            raise ConfigError(
                f"Table({self.name!r}).features is {self.features!r}; name each once."
            )
        if isinstance(self.pooling, tuple):
            self._check_first()
        else:
            checks.choice("Table", "pooling", self.pooling, POOLINGS)
        checks.choice("Table", "dtype", self.dtype, DTYPES)
        check_dist_type("Table", self.dist_type, self.rows)
        if self.segments and sum(s.dim for s in self.segments) != self.dim:
            raise ConfigError(
                f"Table({self.name!r}).segments have {sum(s.dim for s in self.segments)} columns "
                f"in all; dim is {self.dim}."
            )
        if self.segments and (self.init is not None or self.optimizer is not None):
            raise ConfigError(
                f"Table({self.name!r}) has segments, and also init or optimizer; give those to the "
                f"segments."
            )

    def _check_first(self) -> None:
        if len(self.pooling) != 2 or self.pooling[0] != "first" or type(self.pooling[1]) is not int:
            raise ConfigError(
                f"Table({self.name!r}).pooling is {self.pooling!r}; write ('first', n) with a "
                f"whole number."
            )
        checks.whole("Table", "pooling[1]", self.pooling[1], least=1)

    def with_defaults(self, **defaults: object) -> Table:
        """Returns a copy whose None settings come from `defaults`; segments do not change."""
        own = ("init", "optimizer") if self.segments else ()
        missing = {
            name: value
            for name, value in defaults.items()
            if getattr(self, name) is None and name not in own
        }
        return replace(self, **missing)

    def resolve(
        self,
        seed: int | None = None,
        not_finite: str = "reject",
        slot_key: int | None = None,
    ) -> TableConfig:
        """Returns the resolved configuration of the table."""
        codec = {"fp32": None, "fp16": Fp16(), "bf16": Bf16()}[self.dtype]
        init, optimizer = self.init or Uniform(0.05), self.optimizer or Adagrad()
        segments = tuple(self.segments) or (Segment(self.dim, init, optimizer),)
        if codec is not None:
            segments = tuple(
                s if s.compressor is not None else replace(s, compressor=codec) for s in segments
            )
        return TableConfig(
            self.name,
            segments,
            seed=seed,
            initial_capacity=max(1, self.rows or 1),
            not_finite=not_finite,
            admit=self.admit,
            evict=self.evict,
            slot_key=slot_key,
        )
