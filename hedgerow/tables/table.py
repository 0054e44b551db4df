"""What users write for one table; with the module's defaults it becomes a `TableConfig`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace

from ..core import checks
from ..core.errors import ConfigError
from ..routing.dist_types import check_dist_type
from .admission import Admission
from .compressors import Bf16, Fp16
from .config import Segment, TableConfig, check_part
from .expiry import Eviction
from .initializers import Initializer, Uniform
from .optimizer_base import Optimizer
from .optimizers import Adagrad

POOLINGS = ("sum", "mean", "sqrtn", "max", "none")
DTYPES = ("fp32", "fp16", "bf16")


@dataclass(frozen=True)
class Table:
    """One table of a module: a name, a width, and the features whose ids own its rows.

    `features` is the table's name if not given; several share the rows. `pooling` is how the ids of
    a sample become one vector: "sum", "mean", "sqrtn" (the sum over the root of the number of ids),
    "max", ("first", n): the first n vectors, or "none". `dtype` is what rows look like to the
    model; they are trained in fp32. `dist_type` is the rule by which ranks share the ids:
    "hash_roundrobin", "roundrobin", or "continuous", which needs `rows`; else `rows` is a hint for
    the planner and for the room to start with. `segments` cuts a row into parts with initializers
    and optimizers of their own, whose dims add up to `dim`; otherwise there is one. What is None
    comes from the module.

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
    admit: Admission | None = None
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
                f"Table({self.name!r}) has segments, and init or optimizer beside them; segments "
                f"bring their own."
            )

    def _check_first(self) -> None:
        if len(self.pooling) != 2 or self.pooling[0] != "first" or type(self.pooling[1]) is not int:
            raise ConfigError(
                f"Table({self.name!r}).pooling is {self.pooling!r}; write ('first', n) with a "
                f"whole number."
            )
        checks.whole("Table", "pooling[1]", self.pooling[1], least=1)

    def with_defaults(self, **defaults: object) -> Table:
        """Itself, with what is None taken from `defaults`; segments keep their own."""
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
        """The table with everything spelled out."""
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
