"""Vectors of the factories: what a call builds, over real servers and ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import pytest
import torch

from hedgerow.monolith import distributed_ps_factory as door
from hedgerow.monolith.distributed_ps_factory import trainer_choice
from hedgerow.monolith.layouts import OutConfig, Slice
from hedgerow.monolith.sync.clients import DummySyncClient
from hedgerow.monolith.tables.describe import chain, is_remote, shards_of, shared_names
from hedgerow.monolith.tables.merged import MergedMultiTypeTable
from hedgerow.monolith.tables.multi_hash_table import _converted
from hedgerow.monolith.tables.partitioned import PartitionedTable
from hedgerow.monolith.test_utils import generate_test_hash_table_config
from hedgerow.ps.remote_shard import RemoteShard
from hedgerow.sharding.exchange import LocalExchange
from hedgerow.tables.config import TableConfig
from tests.ps.servers import server_thread

from .runner import Case, take
from .tables_area import AREA

DIM = 4
SAME = "same as with no clients; only client 0 is used"


@contextmanager
def server_addresses(count: int) -> Iterator[dict[str, list[str]]]:
    with ExitStack() as running:
        started = [running.enter_context(server_thread(name=f"{i}/{count}")) for i in range(count)]
        yield {"ps": [one.address for one in started]}


def config_of(letter: str) -> TableConfig:
    """Equal letters, equal configs; different letters differ in their rate."""
    return generate_test_hash_table_config(DIM, learning_rate=ord(letter) / 1000)


@contextmanager
def _built(call: str, args: dict[str, Any], **more: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    """What a call of the door gives on one rank, and its arguments."""
    args = dict(args)
    world, rank = args.pop("world_size", 1), args.pop("rank", 0)
    configs = {slot: config_of(letter) for slot, letter in args.pop("slots").items()}
    clients = args.pop("sync_clients", None)
    if clients is not None:
        args["sync_clients"] = [DummySyncClient() for _ in range(clients)]
    if "partitioned" in call:
        args["feature_name_to_config"] = configs
        args["layout_configs"] = {
            slot: OutConfig("CONCAT", (Slice(slot, 0, DIM),)) for slot in configs
        }
    else:
        args["slot_to_config"] = configs
        if "in_worker" in call:
            args["hash_filter"] = None
        else:
            args["hash_filters"] = [None] * max(args["num_ps"], 1)
    exchange = LocalExchange.of(world)[rank]
    with ExitStack() as running:
        servers = None
        if args.get("num_ps") and not args.get("enable_gpu_emb"):
            servers = running.enter_context(server_addresses(args["num_ps"]))
        running.enter_context(door.cluster(servers, exchange=exchange))
        built = getattr(door, call)(**args, **more)
        try:
            yield built, args
        finally:
            for shard in shards_of(built):
                assert isinstance(shard, RemoteShard)
                shard.close()


@AREA.handles("factory", "rows")
def factory_call(case: Case) -> None:
    c = case.take(("call", "args", "expect"))
    known = (
        *("num_ps", "shard_num", "world_size", "rank", "sync_clients", "enable_gpu_emb"),
        *("use_native_multi_hash_table", "transfer_float16", "reduce_network_packets"),
    )
    args = take(c["args"], ("slots",), known)
    if c["expect"] == SAME:
        _same_as_without(c["call"], args)
        return
    if "error" in c["expect"]:
        e = take(c["expect"], ("error", "why"))
        numbers = [str(args[name]) for name in ("num_ps", "sync_clients") if name in args]
        numbers += [str(args[name]) for name in ("shard_num", "world_size") if name in args]
        with (
            pytest.raises({"ValueError": ValueError}[e["error"]]) as raised,
            _built(c["call"], args),
        ):
            pass
        assert all(number in str(raised.value) for number in numbers), e["why"]
        return
    with _built(c["call"], args) as (built, _):
        _same(built, c["expect"])


def _same(built: Any, expect: dict[str, Any]) -> None:
    optional = ("sub_tables", "lookup_rpcs_per_step", "shards", "local", "lookup")
    e = take(expect, ("chain", "tables", "rpc", "merged"), optional)
    assert chain(built) == e["chain"]
    assert shared_names(built) == e["tables"]
    assert is_remote(built) == e["rpc"]
    if isinstance(built, PartitionedTable):
        assert built.is_merged == e["merged"]
        assert (built.shards.count, built.is_local, built.path) == (
            e["shards"],
            e["local"],
            e["lookup"],
        )
    else:
        assert isinstance(built, MergedMultiTypeTable) == e["merged"]
    if "sub_tables" in e:
        assert list(built.names) == e["sub_tables"]
    if "lookup_rpcs_per_step" in e:
        assert _lookup_requests(built) == e["lookup_rpcs_per_step"]


def _lookup_requests(built: Any) -> int:
    """Requests of one step whose ids are on all servers."""
    start = RemoteShard.start_lookup
    with mock.patch.object(RemoteShard, "start_lookup", autospec=True, side_effect=start) as asked:
        built.lookup({slot: torch.arange(100) for slot in built.names})
    return asked.call_count


def _same_as_without(call: str, args: dict[str, Any]) -> None:
    with (
        _built(call, args) as (built, given),
        _built(call, {**args, "sync_clients": 0}) as (
            plain,
            _,
        ),
    ):
        assert built.sync_clients == (given["sync_clients"][0],)
        assert plain.sync_clients == (None,)
        assert (chain(built), shared_names(built)) == (chain(plain), shared_names(plain))


@AREA.handles("factory", "trainer_choice")
def choice_of_the_trainer(case: Case) -> None:
    c = case.take(("full_sync", "fused_layout", "native", "factory"))
    chosen = trainer_choice(
        full_sync=c["full_sync"], fused_layout=c["fused_layout"], native=c["native"]
    )
    assert str(chosen) == c["factory"]


@AREA.handles("factory", "cache")
def conversions(case: Case) -> None:
    c = case.take(("rule", "shards", "expect_conversions"))
    assert c["rule"].startswith("one cached-config conversion per distinct slot->config mapping")
    none = [None] * c["shards"]
    make = door.MultiHashTableFactory(none, none)
    before = _converted.cache_info().misses
    configs = {"of this test": config_of("Q")}
    for shard in range(c["shards"]):
        make(shard, dict(configs))
    assert _converted.cache_info().misses - before == c["expect_conversions"]
