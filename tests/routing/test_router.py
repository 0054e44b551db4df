"""The owner of a key is a pure function of the key and the rule."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.core.errors import ConfigError, DtypeError
from hedgerow.routing import SUPPORTED_DIST_TYPES
from hedgerow.routing.router import Router, codes
from tests.support import threads

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
    return router.places_by_torch(torch.tensor(ids, dtype=torch.int64))[0].tolist()


@given(IDS, st.one_of(st.integers(2, 300), st.integers(2**62, 2**63 - 2)), st.booleans())
def test_torch_tells_the_same_owners(ids: list[int], shards: int, rank0_empty: bool) -> None:
    ids = [*ids, -1, -(2**63), 2**63 - 1, 0]
    for rule in SUPPORTED_DIST_TYPES:
        router = Router(rule, shards, rows=2**63 - 1 - shards, rank0_empty=rank0_empty)
        assert _by_torch(router, ids) == router.owners(torch.tensor(ids)).tolist()


def _owner(router: Router, key: int) -> tuple[int, int]:
    """The specification, in whole numbers of Python."""
    u, shards = key % 2**64, router.shards
    if router.bounds is not None:
        shard = sum(bound <= u for bound in router.bounds) - 1
        return (shard, u - router.bounds[shard]) if shard < shards else (u % shards, u // shards)
    if router.dist_type == "continuous":
        block = -(-(router.rows or 0) // shards)
        inside = u < block * shards
        return (u // block, u % block) if inside else (u % shards, u // shards)
    return (u if router.dist_type == "roundrobin" else _mix(u)) % shards, u


def _patterns() -> list[int]:
    random = torch.Generator().manual_seed(0)
    drawn = torch.empty(300, dtype=torch.int64).random_(-(2**63), None, generator=random)
    edges = [0, 1, -1, -2, -(2**63), -(2**63) + 1, 2**63 - 1, 2**32, 2**31, -(2**31)]
    return [*edges, *drawn.tolist(), *range(200), *(64 * i for i in range(200))]


@pytest.mark.parametrize("shards", range(1, 65))
def test_core_and_torch_tell_what_the_specification_says(shards: int) -> None:
    keys = _patterns()
    ids = torch.tensor(keys)
    ends = [7 * i // 2 for i in range(shards + 1)]
    for router in (
        Router("roundrobin", shards),
        Router("hash_roundrobin", shards),
        Router("continuous", shards, rows=1000),
        Router("continuous", shards, rows=1),
        Router("continuous", shards, rows=2**40 + 1),
        Router("roundrobin", shards, bounds=ends),
        Router("roundrobin", shards, bounds=ends[:-1]),
        Router("continuous", shards, bounds=[0, *[2**63 + i for i in range(shards)]]),
    ):
        expected = [_owner(router, key) for key in keys]
        owners, local = router.places_by_torch(ids)
        for found in (owners, router.owners(ids)):
            assert found.tolist() == [owner for owner, _ in expected]
        for found in (local, router.local_keys(ids)):
            assert [key % 2**64 for key in found.tolist()] == [key for _, key in expected]


def test_threads_do_not_matter() -> None:
    ids = torch.empty(100_000, dtype=torch.int64).random_(-(2**63), None)
    router = Router("continuous", 7, rows=2**62)
    found = []
    for count in (1, 3):
        with threads(count):
            found.append((router.owners(ids), router.local_keys(ids)))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    expected = router.places_by_torch(ids)
    assert torch.equal(found[0][0], expected[0])
    assert torch.equal(found[0][1], expected[1])


def test_the_last_of_equal_bounds_wins() -> None:
    router = Router("continuous", 4, bounds=[0, 38, 38, 49, 94])
    ids = torch.tensor([37, 38, 48, 49, 93, 94, 119])
    assert router.owners(ids).tolist() == [0, 2, 2, 3, 3, 2, 3]
    assert router.local_keys(ids).tolist() == [37, 0, 10, 0, 44, 23, 29]


def test_keys_of_32_bits_are_widened_with_their_sign() -> None:
    narrow = torch.tensor([0, 5, -1, -(2**31), 2**31 - 1], dtype=torch.int32)
    for rule in SUPPORTED_DIST_TYPES:
        router = Router(rule, 6, rows=10)
        assert torch.equal(router.owners(narrow), router.owners(narrow.long()))
        assert torch.equal(router.local_keys(narrow), router.local_keys(narrow.long()))
        assert torch.equal(router.places_by_torch(narrow)[0], router.owners(narrow))


def test_codes_are_places_in_the_list_of_rules() -> None:
    assert SUPPORTED_DIST_TYPES == ("continuous", "roundrobin", "hash_roundrobin")
    found = codes(["hash_roundrobin", "continuous", "roundrobin"])
    assert (found.tolist(), found.dtype) == ([2, 0, 1], torch.int32)
    assert [Router(rule, 2, rows=4).code for rule in SUPPORTED_DIST_TYPES] == [0, 1, 2]
    with pytest.raises(ValueError, match=r"'modulo'.*continuous, roundrobin, hash_roundrobin"):
        codes(["modulo"])


def test_owners_have_a_form_without_values() -> None:
    router = Router("hash_roundrobin", 7)
    shapes = router.owners(torch.empty(5, dtype=torch.int64, device="meta"))
    assert (shapes.shape, shapes.dtype, shapes.device.type) == ((5,), torch.int64, "meta")
    with pytest.raises(DtypeError, match="one-dimensional"):
        router.owners(torch.empty(5, 2, dtype=torch.int64, device="meta"))


@pytest.mark.parametrize(
    "router",
    [
        Router("roundrobin", 10),
        Router("continuous", 3, rows=10),
        Router("continuous", 3, bounds=[0, 5, 7]),
    ],
)
def test_owners_can_be_compiled(router: Router) -> None:
    compiled = torch.compile(router.owners, fullgraph=True, backend="aot_eager")
    ids = torch.tensor([9, 10, -1, -(2**63)])
    assert compiled(ids).tolist() == router.owners(ids).tolist()


@given(IDS, st.integers(2, 9), st.sampled_from(["roundrobin", "hash_roundrobin"]))
def test_an_empty_rank_0_owns_nothing(ids: list[int], shards: int, rule: str) -> None:
    tensor = torch.tensor(ids, dtype=torch.int64)
    owners = Router(rule, shards, rank0_empty=True).owners(tensor)
    rest = Router(rule, shards - 1).owners(tensor)
    assert owners.tolist() == (rest + 1).tolist()


def test_a_record_survives_json() -> None:
    for router in (
        Router("hash_roundrobin", 4, rank0_empty=True),
        Router("continuous", 4, rows=9),
        Router("continuous", 2, bounds=[0, 2**64 - 1]),
    ):
        assert Router.from_dict(json.loads(json.dumps(router.to_dict()))) == router


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("modulo", 2), "dist_type is 'modulo'"),
        (("roundrobin", 0), "shards is 0"),
    ],
)
def test_rules_that_cannot_be_are_refused(values: tuple, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Router(*values)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank0_empty": True, "shards": 1}, "leaves no owner"),
        ({"rank0_empty": 1}, "rank0_empty is 1"),
        ({"dist_type": "continuous"}, "'continuous' and rows is None.*pass rows="),
        ({"dist_type": "continuous", "rows": 0}, "rows is 0"),
        ({"dist_type": "continuous", "rows": -1}, "rows is -1"),
        ({"dist_type": "continuous", "rows": 2**63 - 1}, "below 2\\^63"),
        ({"dist_type": "modulo"}, "'modulo'.*continuous, roundrobin, hash_roundrobin"),
        ({"bounds": []}, "begin with 0"),
        ({"bounds": [1, 2, 3]}, "begin with 0"),
        ({"bounds": [0, 3, 2]}, "sorted"),
        ({"bounds": [0]}, "has 1 numbers; 3 shards need 3, or 4"),
        ({"bounds": [0, 1, 2, 3, 4]}, "has 5 numbers"),
        ({"bounds": [0, 1, 2**64]}, "0..2\\^64-1"),
        ({"bounds": [0, 1, 2.0]}, "has 2.0"),
        ({"bounds": [0, 1, 2], "rank0_empty": True}, "begin with 0, 0"),
        ({"bounds": [0, 1, 2], "dist_type": "modulo"}, "'modulo'"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Router(**{"dist_type": "roundrobin", "shards": 3, **settings})


def test_rows_belong_to_the_rule_only_where_they_matter() -> None:
    assert Router("roundrobin", 2, rows=10) == Router("roundrobin", 2)
    assert Router("continuous", 2, rows=10) != Router("continuous", 2, rows=11)
    assert hash(Router("continuous", 2, bounds=[0, 4])) == hash(
        Router("continuous", 2, bounds=(0, 4))
    )


def test_other_dtypes_are_refused() -> None:
    for dtype in (torch.int16, torch.float64, torch.uint8):
        with pytest.raises(DtypeError, match="int64"):
            Router("roundrobin", 2).owners(torch.tensor([1], dtype=dtype))
        with pytest.raises(DtypeError, match="int64"):
            Router("roundrobin", 2).places_by_torch(torch.tensor([1], dtype=dtype))
