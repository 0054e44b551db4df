"""Monolith's sync step: who is called in which order, what is told, and what is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch

from hedgerow.core.errors import InputError, NameTakenError
from hedgerow.monolith.sync.dummy_server import DummySyncServer
from hedgerow.monolith.sync.strict import (
    ChangedRows,
    StrictClient,
    StrictTargets,
    push_request,
    strict_step,
)
from hedgerow.serving.row_signatures import ps_model
from hedgerow.sync.metrics import BYTE_SIZE, FID_COUNT, LATENCY, PushTags
from hedgerow.tables.host import HostTable
from hedgerow.wire import push as push_messages
from hedgerow.wire.codec import to_bytes
from hedgerow.wire.messages import parameter_sync

from ..serving.serving import host_tables, serving
from ..support import table_config

NOWHERE = "127.0.0.1:1"
NONE = torch.empty(0, dtype=torch.int64)


def config(targets: Sequence[str], **more: object) -> parameter_sync.ClientConfig:
    return parameter_sync.ClientConfig(targets=list(targets), **more)


def table(dim: int = 2) -> HostTable:
    return HostTable(table_config(dim=dim))


@contextmanager
def receivers(count: int) -> Iterator[list[tuple[str, DummySyncServer]]]:
    made = [DummySyncServer("localhost:0") for _ in range(count)]
    try:
        yield [(f"localhost:{int(one.get_port())}", one) for one in made]
    finally:
        for one in made:
            one.shutdown()


def rows(name: str, *ids: int, dim: int = 2) -> ChangedRows:
    return ChangedRows(name, torch.tensor(ids, dtype=torch.int64), torch.ones(len(ids), dim))


def test_every_target_gets_every_part_in_order_and_tells_its_rows() -> None:
    with receivers(2) as started:
        targets = StrictTargets()
        addresses = sorted(address for address, _ in started)
        found = strict_step(
            config(addresses[::-1], model_name="ps_0", signature_name="hashtable_assign"),
            targets,
            [rows("b", 1, 2, 3), rows("a", 7)],
            limit_bytes=60,
        )
        told = [(one.target, one.status_code, one.update_num) for one in found.responses]
        each = [rows for target, _, rows in told if target == addresses[0]]
        assert len(each) > 1
        assert sum(each) == 4
        assert told == [(address, 0, n) for address in addresses for n in each]
        for _, server in started:
            assert [push.model_name for push in server.received] == ["ps_0"] * len(each)
            assert list(server.received[0].inputs) == ["a_id", "a_value", "b_id", "b_value"]
            got = torch.cat([push.inputs["b_id"] for push in server.received])
            assert got.tolist() == [1, 2, 3]
        targets.close()


def test_nothing_changed_calls_nobody_and_tells_nothing() -> None:
    targets = StrictTargets()
    found = strict_step(config([NOWHERE]), targets, [ChangedRows("t", NONE, torch.empty(0, 2))])
    assert push_messages.result_json(found) == "{}"
    assert targets.addresses == (NOWHERE,)
    assert targets.push(NOWHERE, parameter_sync.PushRequest()) == parameter_sync.PushResponse(
        target=NOWHERE
    )
    targets.close()


def test_a_dead_replica_is_told_and_the_others_still_get_their_rows() -> None:
    with receivers(1) as ((address, server),):
        targets = StrictTargets()
        found = strict_step(config([address, NOWHERE], timeout_in_ms=5000), targets, [rows("t", 1)])
        by_target = {one.target: one for one in found.responses}
        dead, alive = by_target[NOWHERE], by_target[address]
        assert (dead.status_code, dead.update_num) == (14, 0)
        assert dead.error_message
        assert (alive.status_code, alive.update_num, alive.error_message) == (0, 1, "")
        (first, *_) = json.loads(push_messages.result_json(found))["responses"]
        assert list(first) == ["status_code", "error_message", "target", "update_num"]
        assert len(server.received) == 1
        ok = PushTags("", "", address, "OK")
        assert targets.metrics.read(FID_COUNT, ok).total == 1
        assert targets.metrics.read(BYTE_SIZE, ok).total > 0
        assert targets.metrics.read(LATENCY, ok).count == 1
        assert targets.metrics.read(LATENCY, PushTags("", "", NOWHERE, "KO")).count == 1
        targets.close()


def test_targets_are_replaced_kept_ones_stay_and_places_count_only_if_all_have_one() -> None:
    place = parameter_sync.ClientConfig.TargetExtraInfo
    targets = StrictTargets()
    targets.replace(
        config(
            ["a:1", "b:1", "a:1"],
            targets_extra_info=[
                place(idc="x", cluster="y", replica_id=3),
                place(),
                place(idc="z", cluster="z", replica_id=4),
            ],
        )
    )
    kept = targets._channels["a:1"]
    assert targets.addresses == ("a:1", "b:1")
    found = targets.stands("a:1"), targets.stands("b:1")
    assert [(one.idc, one.replica_id) for one in found] == [("x:y", 3), ("NA", -1)]
    targets.replace(config(["c:1", "a:1"], targets_extra_info=[place(idc="x", cluster="y")]))
    assert targets.addresses == ("a:1", "c:1")
    assert targets._channels["a:1"] is kept
    assert targets.stands("a:1").idc == "NA"
    targets.close()
    assert targets.addresses == ()


def test_a_config_without_timeout_waits_a_second() -> None:
    request = push_request(config([]), [rows("t", 1)])
    assert request.timeout_in_ms == 1000
    assert request.HasField("timeout_in_ms")


def test_several_updates_of_a_row_are_one_push_of_its_last_value() -> None:
    with receivers(1) as ((address, server),):
        client, own = StrictClient("c"), table()
        client.attach("t", own)
        for _ in range(3):
            own.apply_gradients(torch.tensor([4]), torch.ones(1, 2))
        own.assign(torch.tensor([9]), torch.ones(1, 2))  # marks nothing, as in Monolith
        client.step(to_bytes(config([address])))
        (push,) = server.received
        assert push.inputs["t_id"].tolist() == [4]
        assert torch.equal(push.inputs["t_value"], own.lookup(torch.tensor([4])).rows_of())
        own.reinitialize(torch.tensor([9]))
        client.step(to_bytes(config([address])))
        assert server.received[1].inputs["t_id"].tolist() == [9]
        client.close()


def test_monolith_rule_loses_the_keys_of_a_push_that_failed() -> None:
    """What our publisher is for."""
    with receivers(1) as ((address, server),):
        client, own = StrictClient("c"), table()
        client.attach("t", own)
        own.apply_gradients(torch.tensor([4]), torch.ones(1, 2))
        (failed,) = client.step(to_bytes(config([NOWHERE]))).responses
        assert failed.status_code == 14
        assert not client.step(to_bytes(config([address]))).responses  # nothing is left to push
        assert not server.received
        client.close()


def test_a_multi_table_goes_to_a_serving_model_in_one_raw_call() -> None:
    served = host_tables(a=2, b=1)
    with serving(ps_model("ps_0", served, shared_name="Multi_0")) as server:
        client, tables = StrictClient("c"), {"a": table(2), "b": table(1)}
        client.attach_multi("Multi_0", tables)
        tables["a"].apply_gradients(torch.tensor([1, 2]), torch.ones(2, 2))
        (told,) = client.step(to_bytes(config([server.address], model_name="ps_0"))).responses
        assert (told.status_code, told.error_message, told.update_num) == (0, "", 2)
        ids = torch.tensor([1, 2])
        trained = tables["a"].lookup(ids).rows
        assert torch.equal(served.table(0).lookup(ids).rows, trained)
        client.close()


def test_a_client_holds_plain_tables_or_one_multi_table() -> None:
    plain = StrictClient("plain")
    plain.attach("t", table())
    with pytest.raises(NameTakenError, match="'t'"):
        plain.attach("t", table())
    with pytest.raises(InputError, match="plain tables or one multi table"):
        plain.attach_multi("m", {"t": table()})
    multi = StrictClient("multi")
    multi.attach_multi("m", {"t": table()})
    with pytest.raises(InputError, match="plain tables or one multi table"):
        multi.attach("t", table())
    with pytest.raises(NameTakenError, match="second"):
        multi.attach_multi("n", {"t": table()})


def test_damaged_bytes_are_no_config_and_take_no_keys() -> None:
    with receivers(1) as ((address, server),):
        client, own = StrictClient("c"), table()
        client.attach("t", own)
        own.apply_gradients(torch.tensor([4]), torch.ones(1, 2))
        with pytest.raises(InputError, match="ClientConfig"):
            client.step(b"\xff")
        client.step(to_bytes(config([address])))
        assert len(server.received) == 1
        client.close()
