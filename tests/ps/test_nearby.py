"""The local socket beside a server's address."""

from __future__ import annotations

import sys

import pytest
import torch

from hedgerow.core.errors import ConfigError
from hedgerow.ps.nearby import nearby_name, nearest
from hedgerow.ps.remote_shard import RemoteShard
from hedgerow.ps.server import Server
from hedgerow.ps.service import Service
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.initializers import Zeros
from hedgerow.tables.optimizers import Sgd
from hedgerow.tables.store import TableKeys

from .servers import server_thread

CONFIGS = {"item": TableConfig("any", (Segment(2, Zeros(), Sgd(lr=1.0)),))}
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="names of sockets are Linux's")


@pytest.mark.parametrize(
    "address", ["tcp://10.0.0.1:7000", "tcp://localhost:7000", "ipc:///tmp/x", "nothing", ""]
)
def test_only_loopback_addresses_have_one(address: str) -> None:
    assert nearby_name(address) is None
    assert nearest(address) == address


@ON_LINUX
def test_a_server_listens_at_both_and_the_name_goes_with_it() -> None:
    with server_thread(name="0/1") as server:
        name = nearest(server.address)
        assert name == nearby_name(server.address)
        for address in (server.address, name):
            shard = RemoteShard(address, CONFIGS)
            keys = TableKeys.of_one(torch.tensor([7]))
            shard.start_assign(keys, torch.tensor([1.0, 2.0])).wait()
            assert shard.start_lookup(keys).wait().rows.tolist() == [1.0, 2.0]
            shard.close()
        address = server.address
    assert nearest(address) == address


@ON_LINUX
def test_a_name_that_somebody_else_has_is_refused_as_a_taken_port_is() -> None:
    import zmq

    with zmq.Context() as context, context.socket(zmq.ROUTER) as other:
        other.bind("tcp://127.0.0.1:0")
        address = other.getsockopt(zmq.LAST_ENDPOINT).decode().rstrip("\0")
        other.unbind(address)
        name = nearby_name(address)
        assert name is not None
        other.bind(name)
        with pytest.raises(ConfigError, match="cannot listen at ipc://@hedgerow-ps-"):
            Server(Service(), listen=address)
