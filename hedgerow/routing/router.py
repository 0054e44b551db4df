"""`Router`: which shard owns a key, under each routing rule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from .. import native
from ..core import checks
from ..core.errors import ConfigError, DtypeError
from ..core.hashing import mix64, signed64
from ..core.records import Record
from ..core.shapes import Bool, Int32, Int64

SUPPORTED_DIST_TYPES = ("continuous", "roundrobin", "hash_roundrobin")
"""The values of `dist_type`; the position in this tuple is the code of the rule."""


def check_dist_type(owner: str, dist_type: str, rows: int | None) -> None:
    """Raises if `dist_type` is unknown, or needs `rows` and has none.

    >>> check_dist_type("Table", "roundrobin", None)
    """
    checks.choice(owner, "dist_type", dist_type, SUPPORTED_DIST_TYPES)
    if rows is not None:
        checks.whole(owner, "rows", rows)
    if dist_type == "continuous" and not rows:
        raise ConfigError(
            f"{owner}.dist_type is 'continuous' and rows is {rows}; this rule splits the ids from "
            f"0 to rows into equal ranges; pass rows=, the number of ids."
        )


def codes(dist_types: Iterable[str]) -> Int32[Tensor, "features"]:
    """Returns one code per feature: 0 continuous, 1 roundrobin, 2 hash_roundrobin.

    >>> codes(["hash_roundrobin", "continuous"])
    tensor([2, 0], dtype=torch.int32)
    """
    words = list(dist_types)
    for word in words:
        checks.choice("codes", "dist_type", word, SUPPORTED_DIST_TYPES)
    return torch.tensor([SUPPORTED_DIST_TYPES.index(word) for word in words], dtype=torch.int32)


_LEAST_INT64 = -(2**63)  # flipping the top bit maps unsigned order to signed order


def unsigned_order(keys: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
    """Returns numbers whose signed order is the unsigned order of `keys`.

    >>> unsigned_order(torch.tensor([0, -1])).tolist() == [-(2**63), 2**63 - 1]
    True
    """
    return keys ^ _LEAST_INT64


def unsigned_below(keys: Int64[Tensor, "n"], limit: int) -> Bool[Tensor, "n"]:
    """Returns which keys are below a limit, as unsigned numbers.

    >>> unsigned_below(torch.tensor([5, -1]), 2**64 - 1).tolist()
    [True, False]
    """
    return unsigned_order(keys) < signed64(limit ^ 2**63)


def unsigned_divide(
    keys: Int64[Tensor, "n"], by: int
) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "n"]]:
    """Returns quotient and remainder of unsigned keys; `by` is in 1..2^63-1.

    >>> quotient, rest = unsigned_divide(torch.tensor([9, -1]), 10)
    >>> quotient.tolist(), rest.tolist()
    ([0, 1844674407370955161], [9, 5])
    """
    half = (keys >> 1) & (2**63 - 1)  # the mask turns the arithmetic shift into a logical one
    quotient = half.div(by, rounding_mode="floor") << 1
    rest = keys - quotient * by  # below twice `by`, so it may exceed the largest int64
    over = ~unsigned_below(rest, by)
    return quotient + over, torch.where(over, rest - by, rest)


@dataclass(frozen=True)
class Router(Record):
    """Assigns keys to `shards`. Every 64-bit pattern is a key, read as an unsigned number.

    - `roundrobin`: the key modulo the number of shards.
    - `hash_roundrobin`: as `roundrobin` after mixing the bits, so that patterns in the ids do not
      put too many keys on one shard.
    - `continuous`: every shard gets an equal range of the keys from 0 to `rows`. Larger keys go by
      modulo.

    `bounds` replaces the rule. It holds the first key of every shard, and optionally the end of the
    last shard; keys from the end on go by modulo. With `rank0_empty`, shard 0 owns no keys.

    >>> Router("roundrobin", 10).owners(torch.tensor([9, 10, -1])).tolist()
    [9, 0, 5]
    >>> Router("continuous", 2, rows=100).owners(torch.tensor([0, 49, 50, 101])).tolist()
    [0, 0, 1, 1]
    >>> Router("continuous", 2, bounds=[0, 10, 100]).owners(torch.tensor([9, 10, 102])).tolist()
    [0, 1, 0]
    >>> Router("roundrobin", 10, rank0_empty=True).owners(torch.tensor([0, 9])).tolist()
    [1, 1]
    """

    kind = "router"
    dist_type: str
    shards: int
    _: KW_ONLY
    rows: int | None = None
    bounds: Sequence[int] | None = None
    rank0_empty: bool = False

    def __post_init__(self) -> None:
        checks.whole("Router", "shards", self.shards, least=1)
        checks.switch("Router", "rank0_empty", self.rank0_empty)
        if self.rank0_empty and self.shards == 1:
            raise ConfigError(
                "Router.rank0_empty with 1 shard leaves no owner; use 2 shards or more."
            )
        if self.bounds is not None:
            checks.choice("Router", "dist_type", self.dist_type, SUPPORTED_DIST_TYPES)
            object.__setattr__(self, "bounds", self._checked_bounds(self.bounds))
        else:
            check_dist_type("Router", self.dist_type, self.rows)
        if self.dist_type != "continuous" or self.bounds is not None:
            object.__setattr__(self, "rows", None)  # unused then; None keeps equal rules equal
        if self.rows is not None and self.rows + self.shards >= 2**63:
            raise ConfigError(f"Router.rows is {self.rows}; with the shards it must be below 2^63.")

    def _checked_bounds(self, given: Sequence[int]) -> tuple[int, ...]:
        bounds = tuple(given)
        for number in bounds:
            if type(number) is not int or not 0 <= number < 2**64:
                raise ConfigError(f"Router.bounds has {number!r}; a bound is a key in 0..2^64-1.")
        if not bounds or bounds[0] != 0 or list(bounds) != sorted(bounds):
            raise ConfigError(f"Router.bounds is {bounds}; it must be sorted and begin with 0.")
        if len(bounds) not in (self.shards, self.shards + 1):
            raise ConfigError(
                f"Router.bounds has {len(bounds)} numbers; {self.shards} shards need "
                f"{self.shards}, or {self.shards + 1} with the end of the last."
            )
        if self.rank0_empty:
            raise ConfigError("Router.bounds with rank0_empty; let bounds begin with 0, 0 instead.")
        return bounds

    @property
    def code(self) -> int:
        """The code of the rule: 0 continuous, 1 roundrobin, 2 hash_roundrobin."""
        return SUPPORTED_DIST_TYPES.index(self.dist_type)

    @property
    def formula(self) -> str:
        """The owner of a key as a formula, where `id` is its 64 bits as an unsigned number.

        >>> Router("hash_roundrobin", 8).formula
        'mix64(id) mod 8'
        >>> Router("continuous", 4, rows=100).formula
        'id div 25 if id < 100, else id mod 4'
        """
        owning, added = self._owning, " + 1" if self.rank0_empty else ""
        if self.bounds is not None:
            return f"the range of id among {', '.join(map(str, self.bounds))}, else id mod {owning}"
        if self.dist_type == "continuous":
            end = self.block * owning
            return f"id div {self.block}{added} if id < {end}, else id mod {owning}{added}"
        hashed = "mix64(id)" if self.dist_type == "hash_roundrobin" else "id"
        return f"{hashed} mod {owning}{added}"

    @property
    def renames(self) -> bool:
        """Whether `local_keys` differ from the keys."""
        return self.bounds is not None or self.dist_type == "continuous"

    @property
    def block(self) -> int:
        """The number of keys in every shard's range under `continuous`; 0 under other rules."""
        return 0 if self.rows is None else -(-self.rows // self._owning)

    @property
    def _owning(self) -> int:
        return self.shards - self.rank0_empty

    def numbers(self) -> tuple[int, int, int]:
        """Returns numbers for the core: owning shards, empty shards before them, keys per range."""
        return self._owning, int(self.rank0_empty), self.block

    def owners(self, ids: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """Returns the shard of each key, on the device of the keys.

        int32 keys are widened first.
        """
        if _by_torch(ids):
            return self.places_by_torch(ids)[0]
        keys = widened("ids", ids)
        owners = torch.empty_like(keys)
        self._route(keys, owners.data_ptr(), 0)
        return owners

    def local_keys(self, ids: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """Returns the keys as a dense table of their owner would number them.

        Under `continuous` and `bounds`, keys are counted from the start of their owner's range. A
        key beyond all ranges becomes key div shards. Under `continuous` that is beyond the range,
        too; under `bounds` it may equal another local key. Other rules do not change the keys.
        Tables of this package keep global keys under every rule.

        >>> Router("continuous", 2, rows=100).local_keys(torch.tensor([49, 50, 101])).tolist()
        [49, 0, 50]
        """
        if _by_torch(ids):
            return self.places_by_torch(ids)[1]
        keys = widened("ids", ids)
        if not self.renames:
            return keys.clone()
        local = torch.empty_like(keys)
        self._route(keys, 0, local.data_ptr())
        return local

    def _route(self, keys: Tensor, owners_at: int, local_at: int) -> None:
        owning, skipped, block = self.numbers()
        bounds = self.bounds or ()
        native.route(
            keys.data_ptr(),
            len(keys),
            self.code,
            owning,
            skipped,
            block,
            bounds,
            owners_at,
            local_at,
        )

    def places_by_torch(
        self, ids: Int64[Tensor, "n"]
    ) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "n"]]:
        """Returns owners and local keys by torch operations, also in compiled graphs."""
        keys = _plain(ids)
        if not self.renames:
            hashed = mix64(keys) if self.dist_type == "hash_roundrobin" else keys
            return unsigned_divide(hashed, self._owning)[1] + int(self.rank0_empty), keys
        beyond_local, beyond = unsigned_divide(keys, self._owning)
        if self.bounds is not None:
            inside, owners, local = self._between_bounds(keys)
        else:
            inside = unsigned_below(keys, self.block * self._owning)
            owners, local = unsigned_divide(keys, self.block)
        owners = torch.where(inside, owners, beyond) + int(self.rank0_empty)
        return owners, torch.where(inside, local, beyond_local)

    def _between_bounds(self, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        bounds = torch.tensor([signed64(b) for b in self.bounds or ()], device=keys.device)
        owners = torch.searchsorted(unsigned_order(bounds), unsigned_order(keys), right=True) - 1
        return owners < self.shards, owners, keys - bounds[owners]


def widened(name: str, keys: Tensor) -> Int64[Tensor, "n"]:
    """Returns CPU keys as int64.

    int32 keys keep their sign, so that equal numbers have equal owners.
    """
    if isinstance(keys, Tensor) and keys.dtype == torch.int32:
        checks.tensor(name, keys, torch.int32, (None,))
        return keys.long()
    checks.tensor(name, keys, torch.int64, (None,))
    return keys


def _by_torch(ids: object) -> bool:
    return isinstance(ids, Tensor) and (torch.compiler.is_compiling() or ids.device.type != "cpu")


def _plain(ids: Tensor) -> Tensor:
    if ids.dtype not in (torch.int64, torch.int32) or ids.dim() != 1:
        raise DtypeError(
            f"ids has dtype {ids.dtype} and shape {tuple(ids.shape)}; it must be int64 or int32 "
            f"and one-dimensional."
        )
    return ids.long()
