"""The owner of a key is a pure function of the key and the rule."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.core.errors import ConfigError, DtypeError
from hedgerow.routing.router import Router

IDS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=50)


def _mix(key: int) -> int:
    mask = 2**64 - 1
    key ^= key >> 33
    key = key * 0xFF51AFD7ED558CCD & mask
    key ^= key >> 33
    key = key * 0xC4CEB9FE1A85EC53 & mask
    return key ^ key >> 33


@given(IDS, st.integers(1, 9))
def test_owners_are_unsigned_remainders(ids: list[int], shards: int) -> None:
    tensor = torch.tensor(ids, dtype=torch.int64)
    unsigned = [key % 2**64 for key in ids]
    assert Router("roundrobin", shards).owners(tensor).tolist() == [u % shards for u in unsigned]
    hashed = Router("hash_roundrobin", shards).owners(tensor).tolist()
    assert hashed == [_mix(u) % shards for u in unsigned]


def _by_torch(router: Router, ids: list[int]) -> list[int]:
    return router._owners_by_torch(torch.tensor(ids, dtype=torch.int64)).tolist()


@given(IDS, st.one_of(st.integers(2, 300), st.integers(2**62, 2**63 - 1)), st.booleans())
def test_torch_tells_the_same_owners(ids: list[int], shards: int, rank0_empty: bool) -> None:
    ids = [*ids, -1, -(2**63), 2**63 - 1, 0]
    for rule in ("roundrobin", "hash_roundrobin"):
        router = Router(rule, shards, rank0_empty)
        assert _by_torch(router, ids) == router.owners(torch.tensor(ids)).tolist()


@pytest.mark.parametrize("shards", [1, 2, 3, 2**31, 2**62, 2**62 + 1, 2**63 - 1])
def test_torch_tells_the_owners_of_the_edges(shards: int) -> None:
    ids = [0, 1, -1, -2, -(2**63), -(2**63) + 1, 2**63 - 1, -shards, shards]
    assert _by_torch(Router("roundrobin", shards), ids) == [id % 2**64 % shards for id in ids]


def test_owners_have_a_form_without_values() -> None:
    router = Router("hash_roundrobin", 7)
    shapes = router.owners(torch.empty(5, dtype=torch.int64, device="meta"))
    assert (shapes.shape, shapes.dtype, shapes.device.type) == ((5,), torch.int64, "meta")
    with pytest.raises(DtypeError, match="one-dimensional"):
        router.owners(torch.empty(5, 2, dtype=torch.int64, device="meta"))


def test_owners_can_be_compiled() -> None:
    router = Router("roundrobin", 10)
    compiled = torch.compile(router.owners, fullgraph=True, backend="aot_eager")
    ids = torch.tensor([9, 10, -1, -(2**63)])
    assert compiled(ids).tolist() == router.owners(ids).tolist() == [9, 0, 5, 8]


@given(IDS, st.integers(2, 9), st.sampled_from(["roundrobin", "hash_roundrobin"]))
def test_an_empty_rank_0_owns_nothing(ids: list[int], shards: int, rule: str) -> None:
    tensor = torch.tensor(ids, dtype=torch.int64)
    owners = Router(rule, shards, rank0_empty=True).owners(tensor)
    rest = Router(rule, shards - 1).owners(tensor)
    assert owners.tolist() == (rest + 1).tolist()


def test_a_record_survives_json() -> None:
    router = Router("hash_roundrobin", 4, rank0_empty=True)
    assert Router.from_dict(router.to_dict()) == router


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("modulo", 2), "dist_type is 'modulo'"),
        (("roundrobin", 0), "shards is 0"),
        (("roundrobin", 1, True), "leaves no owner"),
    ],
)
def test_rules_that_cannot_be_are_refused(values: tuple, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Router(*values)


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(DtypeError, match="int64"):
        Router("roundrobin", 2).owners(torch.tensor([1], dtype=torch.int32))
