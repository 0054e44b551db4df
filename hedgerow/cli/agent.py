"""`hedgerow agent`: registers a server in ZooKeeper, and answers queries for other servers."""

from __future__ import annotations

from typing import Annotated

import typer

from ..core.errors import InputError

_Zk = Annotated[str, typer.Option(help="Addresses of ZooKeeper: HOST:PORT, comma-separated.")]
_Bzid = Annotated[str, typer.Option(help="The tree in ZooKeeper: letters, digits, - and _.")]
_Server = Annotated[str, typer.Option(help="HOST:PORT at which clients reach the server.")]
_Listen = Annotated[str, typer.Option(help="HOST:PORT of the agent; port 0 selects a free one.")]
_BaseName = Annotated[
    str | None, typer.Option(help="First generation: the model's name in the tree.")
]
_Type = Annotated[str, typer.Option("--type", help="First generation: ps, entry or dense.")]
_Task = Annotated[int, typer.Option(help="First generation: the server's number, from 0.")]
_Replica = Annotated[
    int | None,
    typer.Option(help="The replica's number; default: REPLICA_ID, or a hash of MY_POD_NAME."),
]
_Place = Annotated[
    str | None, typer.Option(help="First generation: IDC:CLUSTER, if the tree has data centres.")
]
_Container = Annotated[
    str | None, typer.Option(help="Second generation: CLUSTER:ID of this container.")
]
_Model = Annotated[str | None, typer.Option(help="Second generation: the model.")]
_Layout = Annotated[str | None, typer.Option(help="Second generation: the layout to serve.")]
_Only = Annotated[
    list[str] | None,
    typer.Option(help="Sub graphs of the layout, as in 'ps_{i}; i % 2 == 1'; repeatable."),
]


def agent(
    zk: _Zk,
    bzid: _Bzid,
    server: _Server,
    listen: _Listen = "127.0.0.1:0",
    base_name: _BaseName = None,
    server_type: _Type = "ps",
    task: _Task = 0,
    replica: _Replica = None,
    place: _Place = None,
    container: _Container = None,
    model: _Model = None,
    layout: _Layout = None,
    only: _Only = None,
) -> None:
    """Register a server and its state in ZooKeeper until SIGTERM.

    Prints the agent's address as one line. Entry models look up their row servers there:
    `hedgerow serve --ps-from agent:HOST:PORT`. Pass --base-name for a tree of the first generation,
    or --container, --model and --layout for one of the second.
    """
    from ..discovery.layouts import LayoutFilter
    from ..discovery.paths import Container, replica_id_of
    from ..launch import env
    from ..serving.agent import AgentPlan, ContainerPlan, ReplicaPlan, run_agent
    from ..serving.process import stop_by_signals

    if base_name is not None and container is None:
        idc, _, cluster = (place or "").partition(":")
        serves: ReplicaPlan | ContainerPlan = ReplicaPlan(
            base_name=base_name,
            server_type=server_type,
            task=task,
            replica=replica_id_of(env.current()) if replica is None else replica,
            idc=idc or None,
            cluster=cluster or None,
        )
    elif base_name is None and container is not None and model is not None and layout is not None:
        parts = container.partition(":")
        serves = ContainerPlan(
            container=Container(parts[0], parts[2]),
            model_name=model,
            layout=layout,
            only=tuple(LayoutFilter(one) for one in only or ()),
        )
    else:
        raise InputError("give --base-name, or --container with --model and --layout.")
    plan = AgentPlan(hosts=zk, bzid=bzid, server=server, listen=listen)
    run_agent(plan, serves, lambda line: typer.echo(line), stop_by_signals())
