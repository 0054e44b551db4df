"""Pushes: rows into requests, requests into parts and calls, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from hedgerow.core.errors import HedgerowError, InputError
from hedgerow.wire import push, tensors
from hedgerow.wire.messages import parameter_sync


def _request(*tables: tuple[str, int, int], multi: bool = False) -> Any:
    request = parameter_sync.PushRequest(model_name="m", signature_name="s")
    for name, rows, dim in tables:
        fids = torch.randint(-(2**63), 2**63 - 1, (rows,))
        push.add_rows(request, name, fids, torch.randn(rows, dim), multi=multi)
    return request


def test_rows_arrive_as_they_were() -> None:
    request = parameter_sync.PushRequest()
    fids, rows = torch.tensor([-(2**63), 0, 2**63 - 1]), torch.randn(3, 4)
    push.add_rows(request, "t", fids, rows)
    for compat in (None, "typed"):
        inputs = push.to_predict(request, compat=compat).inputs  # type: ignore[arg-type]
        assert torch.equal(tensors.to_torch(inputs["t_id"]), fids)
        assert torch.equal(tensors.to_torch(inputs["t_value"]), rows)


@pytest.mark.parametrize("multi", [False, True])
@pytest.mark.parametrize("limit", [1, 50, 333, 1000, 100_000])
@pytest.mark.parametrize("rule", ["balanced", "reference"])
def test_parts_hold_every_row_once_in_order(rule: Any, limit: int, multi: bool) -> None:
    request = _request(("a", 0, 3), ("b", 7, 1), ("c", 23, 4), multi=multi)
    parts = push.split_request(request, limit, rule)
    assert len(parts) == max(1, -(-request.ByteSize() // limit))
    for place, table in enumerate(push.tables_of(request)):
        pieces = [push.tables_of(part)[place] for part in parts]
        assert all(piece.unique_id == table.unique_id for piece in pieces)
        assert all(piece.dim_size == table.dim_size for piece in pieces)
        assert [fid for piece in pieces for fid in piece.fids] == list(table.fids)
        assert [x for piece in pieces for x in piece.embeddings] == list(table.embeddings)
        if rule == "balanced":
            counts = [len(piece.fids) for piece in pieces]
            assert max(counts) - min(counts) <= 1


def test_balanced_parts_of_the_published_size_stay_nearer_to_the_limit() -> None:
    request = parameter_sync.PushRequest(model_name="m")
    push.add_rows(request, "t", torch.arange(100_000), torch.zeros(100_000, 16))
    largest = {
        rule: max(part.ByteSize() for part in push.split_request(request, rule=rule))
        for rule in ("balanced", "reference")
    }
    assert largest["balanced"] <= largest["reference"]
    assert all(size < 1.01 * push.LIMIT_BYTES for size in largest.values())


def test_a_small_request_is_handed_on_as_it_is() -> None:
    request = _request(("t", 2, 2))
    (part,) = push.split_request(request)
    assert part is request
    assert not part.HasField("timeout_in_ms")


def test_parts_have_a_timeout_and_no_name_that_was_not_there() -> None:
    request = parameter_sync.PushRequest()
    request.delta_multi_hash_tables.add(fids=[1, 2], embeddings=[1.0, 2.0, 3.0, 4.0])
    first, second = push.split_request(request, request.ByteSize() - 1)
    assert first.HasField("timeout_in_ms")
    assert first.timeout_in_ms == 1000
    assert not first.HasField("model_name")
    assert not first.delta_multi_hash_tables[0].HasField("dim_size")
    assert list(second.delta_multi_hash_tables[0].embeddings) == [3.0, 4.0]


def test_rows_without_their_values_are_refused() -> None:
    request = parameter_sync.PushRequest()
    request.delta_hash_tables.add(unique_id="t", dim_size=2, fids=[1, 2], embeddings=[1.0] * 3)
    with pytest.raises(InputError, match="'t' has 3 values for 2 rows of 2"):
        push.to_predict(request)
    with pytest.raises(InputError, match="'t' has 3 values for 2 rows"):
        push.split_request(request, 5)
    request.delta_hash_tables[0].dim_size = -1
    with pytest.raises(InputError, match="rows of -1"):
        push.to_predict(request)


def test_wrong_rows_and_rules_are_refused() -> None:
    request = parameter_sync.PushRequest()
    with pytest.raises(HedgerowError, match=r"rows has shape \(2, 3\)"):
        push.add_rows(request, "t", torch.tensor([1]), torch.zeros(2, 3))
    with pytest.raises(HedgerowError, match="fids has dtype"):
        push.add_rows(request, "t", torch.tensor([1.0]), torch.zeros(1, 3))
    assert not request.delta_hash_tables
    with pytest.raises(InputError, match="rule is 'half'"):
        push.split_request(request, rule="half")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="limit_bytes is 0"):
        push.split_request(request, 0)


def test_a_response_that_carries_only_its_target_shows_nothing_else() -> None:
    result = parameter_sync.PushResult(responses=[{"target": "[::1]:1"}])  # type: ignore[list-item]
    assert json.loads(push.result_json(result)) == {"responses": [{"target": "[::1]:1"}]}


def test_a_configuration_with_places_has_both_lists() -> None:
    info = parameter_sync.ClientConfig.TargetExtraInfo
    data = push.config_bytes("ps_0", {"b:1": info(idc="lf"), "a:2": info(replica_id=0)})
    found = push.read_config(data)
    assert (found.signature_name, found.timeout_in_ms) == ("hashtable_assign", 3000)
    assert list(found.targets) == ["b:1", "a:2"]
    assert [place.replica_id for place in found.targets_extra_info] == [-1, 0]


def test_bytes_that_are_no_configuration_are_refused() -> None:
    with pytest.raises(InputError, match=r"no monolith\.parameter_sync\.ClientConfig"):
        push.read_config(b"\xff\xff")
