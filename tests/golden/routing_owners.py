"""Vectors of owners: keys of 64 and of 32 bits, and how evenly patterns of keys are spread."""

from __future__ import annotations

import re

import pytest
import torch

from hedgerow.core.hashing import mix64
from hedgerow.routing.router import Router

from .routing_area import AREA
from .runner import Case


@AREA.handles("routing_int64", "cases")
def owners_of_64_bits(case: Case) -> None:
    c = case.take(("world", "mode", "owners"), ("block", "local_keys"))
    keys = torch.tensor(case.document["keys"])
    router = Router(c["mode"], c["world"], rows=case.document["table_rows"])
    by_torch = router.places_by_torch(keys)
    for owners in (router.owners(keys), by_torch[0]):
        assert owners.tolist() == c["owners"]
    if c["mode"] == "continuous":
        assert router.block == c["block"]
    expected = c["local_keys"] if c["mode"] == "continuous" else keys.tolist()
    for local in (router.local_keys(keys), by_torch[1]):
        assert local.tolist() == expected
    mixed = [f"{key % 2**64:016x}" for key in mix64(keys).tolist()]
    assert mixed == case.document["mix"]


@AREA.handles("routing_int32", "cases")
def owners_of_32_bits(case: Case) -> None:
    """A number has one owner, whatever its width: ours is the widened column."""
    c = case.take(("world", "mode", "block", "owners_as_int32", "owners_as_int64", "disagree"))
    keys = torch.tensor(case.document["keys"], dtype=torch.int32)
    router = Router(c["mode"], c["world"], rows=c["block"] * c["world"])
    for owners in (
        router.owners(keys),
        router.owners(keys.long()),
        router.places_by_torch(keys)[0],
    ):
        assert owners.tolist() == c["owners_as_int64"]
    differ = zip(c["owners_as_int32"], c["owners_as_int64"], strict=True)
    assert sum(one != other for one, other in differ) == c["disagree"]  # the file means what we do


def pattern_of(pattern: str, world: int, count: int, offset: int) -> torch.Tensor:
    """The keys that a pattern names; one that is not known fails."""
    i = torch.arange(count)
    if re.fullmatch(r"i\+\w+", pattern):
        return i + offset
    known = {
        "(i*1000)+7": i * 1000 + 7,
        "i*world": i * world,
        "i*world+1": i * world + 1,
        "i*world*world": i * world * world,
        "i<<20": i << 20,
        "i<<40": i << 40,
        "slot<<48 | i": 5 << 48 | i,
    }
    assert pattern in known, f"no such pattern: {pattern}"
    return known[pattern]


@AREA.handles("imbalance", "cases")
def imbalance(case: Case) -> None:
    c = case.take(
        (
            "pattern",
            "world",
            "count",
            "roundrobin",
            "hash_roundrobin",
            "imbalance_rr",
            "imbalance_hash",
            "max_over_min_hash",
        )
    )
    keys = pattern_of(c["pattern"], c["world"], c["count"], case.document["offset"])
    for mode, name in (("roundrobin", "imbalance_rr"), ("hash_roundrobin", "imbalance_hash")):
        counts = Router(mode, c["world"]).owners(keys).bincount(minlength=c["world"])
        assert counts.tolist() == c[mode]
        spread = int(counts.max() - counts.min()) / (c["count"] / c["world"])
        assert spread == pytest.approx(c[name], abs=1e-5)
        if mode == "hash_roundrobin":
            ratio = int(counts.max()) / int(counts.min())
            assert ratio == pytest.approx(c["max_over_min_hash"], rel=1e-9)
            assert spread < 0.30
            assert ratio < 1.50
