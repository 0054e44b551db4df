"""Vectors of what variants cost, in bytes and as the published planner rates their time."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from hedgerow.core.hashing import mix64
from hedgerow.planner.problem.options import Mode, Variant
from hedgerow.planner.sizes.storage import Storage, storage_of
from hedgerow.routing.router import Router
from tests.planner.published_planner import baseline_ms, effective_ratio

from .planner_area import AREA, layout_of, load_of, spec_of, topology_of, variants_of
from .runner import Case, take

_SIZES = ("hbm", "ddr", "hbm_values", "ddr_values", "metadata", "counter", "io")


@AREA.handles("storage", "cases")
def bytes_of_variants(case: Case) -> None:
    c = case.take(
        ("id", "layout", "axis", "table", "topology", "shard_rows", "row_bytes", "variants"),
        ("note",),
    )
    spec, topology = spec_of(c["table"]), topology_of(c["topology"])
    layout, load = layout_of(c["layout"], c["table"]), load_of(c["table"])
    found = []
    for variant in variants_of(c["axis"], spec, topology):
        storage = storage_of(spec, variant, topology, layout, load)
        assert storage.rows_per_rank == c["shard_rows"]
        assert storage.row_bytes == c["row_bytes"]
        found.append(_as_written(variant, storage))
    assert found == c["variants"]


def _as_written(variant: Variant, storage: Storage) -> dict[str, str | int]:
    sizes = {name: getattr(storage, name) for name in _SIZES}
    return {"mode": str(variant.mode), "load_factor": variant.load_factor, **sizes}


@AREA.handles("baseline_perf", "cases")
def times_of_variants(case: Case) -> None:
    c = case.take(("id", "table", "topology", "variants"), ("note", "layout", "axis"))
    spec, topology, load = spec_of(c["table"]), topology_of(c["topology"]), load_of(c["table"])
    expected = [
        take(row, ("mode", "load_factor", "effective_ratio", "ms")) for row in c["variants"]
    ]
    # The axis stands in some files only; what is listed says it as well.
    known = {"HBM_ONLY", "HOST_ONLY"}.isdisjoint(row["mode"] for row in expected)
    tried = variants_of(c.get("axis", "grid" if known else "modes"), spec, topology)
    assert [(str(v.mode), v.load_factor) for v in tried] == [
        (row["mode"], row["load_factor"]) for row in expected
    ]
    for row in expected:
        variant = Variant(Mode(row["mode"]), row["load_factor"])
        assert effective_ratio(variant) == Fraction(row["effective_ratio"])
        ms = baseline_ms(spec, variant, topology, load)
        assert ms == pytest.approx(row["ms"], rel=1e-9, abs=0)


@AREA.handles("routing", "cases")
def owners_of_keys(case: Case) -> None:
    c = case.take(("id", "world", "block", "owners"), ("note",))
    rows = [
        take(row, ("key", "mix64", "continuous", "roundrobin", "hash_roundrobin"))
        for row in c["owners"]
    ]
    keys = torch.tensor([int(row["key"]) for row in rows])
    assert [key % 2**64 for key in mix64(keys).tolist()] == [int(row["mix64"]) for row in rows]
    for rule in ("continuous", "roundrobin", "hash_roundrobin"):
        router = Router(rule, c["world"], rows=c["block"] * c["world"])
        assert router.owners(keys).tolist() == [row[rule] for row in rows]
