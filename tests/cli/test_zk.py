"""`hedgerow zk` and `hedgerow agent` on a real ZooKeeper."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hedgerow.cli.app import app
from hedgerow.discovery.control import Control
from hedgerow.discovery.layouts import LayoutFilter
from hedgerow.discovery.paths import Container
from hedgerow.discovery.replicas import ZkBackend
from hedgerow.discovery.zookeeper import Session
from hedgerow.serving.agent import AgentPlan, ContainerPlan, ReplicaPlan, run_agent
from hedgerow.serving.remote_rows import Heartbeats
from tests.serving.serving import adding, serving
from tests.zookeeper import ZooKeeperProcess, wait_for

pytestmark = pytest.mark.xdist_group("zookeeper")


def hedgerow(*words: str) -> str:
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_declare_publish_look_unpublish(zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    for name in ("entry", "ps_0", "ps_1"):
        (tmp_path / name).mkdir()
    where = ("--zk", zookeeper.hosts, "--bzid", "demo")
    told = hedgerow("zk", "decl", "ctr", str(tmp_path), *where)
    assert told.splitlines() == [f"declared ctr:{one}" for one in ("entry", "ps_0", "ps_1")]
    hedgerow("zk", "pub", "mix", "ctr:*", *where)
    assert hedgerow("zk", "unpub", "mix", "ctr:ps_*", *where).count("unpublished") == 2
    info = json.loads(hedgerow("zk", "bzid_info", *where))
    assert info["layouts"] == {"mix": {"ctr:entry": None}}
    assert info["saved_models"]["ctr"]["ps_1"]["version_policy"] == "latest_once"


@contextmanager
def agent_of(
    zookeeper: ZooKeeperProcess, server: str, serves: ReplicaPlan | ContainerPlan
) -> Iterator[str]:
    """The address of an agent that speaks for a server."""
    plan = AgentPlan(hosts=zookeeper.hosts, bzid="demo", server=server)
    stop, told = threading.Event(), list[str]()
    thread = threading.Thread(target=run_agent, args=(plan, serves, told.append, stop))
    thread.start()
    try:
        assert wait_for(lambda: bool(told))
        yield told[0].removeprefix("agent ")
    finally:
        stop.set()
        thread.join()


def test_an_agent_tells_the_state_of_its_server(zookeeper: ZooKeeperProcess) -> None:
    serves = ReplicaPlan(base_name="ffm", server_type="ps", task=1, replica=4)
    with (
        serving(adding(1, "ps_1")) as server,
        agent_of(zookeeper, server.address, serves) as address,
        Heartbeats(address) as beats,
    ):
        assert wait_for(lambda: beats.ask() == {"ps:1": [server.address]})
        server.stop()
        assert wait_for(lambda: beats.ask() == {})  # no longer available
    with Session.connect(zookeeper.hosts) as session:
        assert session.client.get_children("/demo/service/ffm/ps:1") == []


@pytest.mark.long
def test_an_agent_registers_its_server_until_sigterm(zookeeper: ZooKeeperProcess) -> None:
    with serving(adding(1, "ps_1")) as server:
        command = [
            *(sys.executable, "-m", "hedgerow", "agent", "--zk", zookeeper.hosts),
            *("--bzid", "demo", "--base-name", "ffm", "--type", "ps", "--task", "1"),
            *("--replica", "4", "--server", server.address),
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                kind, address = process.stdout.readline().split()
                assert kind == "agent"
                with Heartbeats(address) as beats:
                    assert wait_for(lambda: beats.ask() == {"ps:1": [server.address]})
                    server.stop()
                    assert wait_for(lambda: beats.ask() == {})  # no longer available
            finally:
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 0
    with Session.connect(zookeeper.hosts) as session:
        assert session.client.get_children("/demo/service/ffm/ps:1") == []


def test_an_agent_binds_what_its_server_serves_of_a_layout(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    for name in ("ps_0", "ps_1", "ps_2", "ps_3"):
        (tmp_path / name).mkdir()
    serves = ContainerPlan(
        container=Container("default", "pod"),
        model_name="ctr",
        layout="mix",
        only=(LayoutFilter("ps_{i}; i % 2 == 1"),),
    )
    with (
        serving(adding(1, "ctr:ps_0"), adding(1, "ctr:ps_1")) as server,
        Session.connect(zookeeper.hosts) as session,
    ):
        control, trainer = Control(session, "demo"), ZkBackend(session, "demo")
        control.declare("ctr", tmp_path)
        trainer.subscribe_model("ctr")
        with agent_of(zookeeper, server.address, serves):
            assert trainer.addresses("ps") == {}
            control.publish("mix", "ctr:*")
            assert wait_for(lambda: trainer.addresses("ps") == {"ctr:ps_1": [server.address]})
            control.unpublish("mix", "ctr:*")
            assert wait_for(lambda: trainer.addresses("ps") == {})
