"""`hedgerow agent`: speaks for the server beside it, and tells it who else is there."""

from __future__ import annotations

from typing import Annotated

import typer

from ..core.errors import InputError

_Zk = Annotated[str, typer.Option(help="ZooKeeper: HOST:PORT, several with commas.")]
_Bzid = Annotated[str, typer.Option(help="The tree in ZooKeeper: letters, digits, - and _.")]
_Server = Annotated[str, typer.Option(help="HOST:PORT of the server, as others reach it.")]
_Listen = Annotated[str, typer.Option(help="HOST:PORT of the agent; port 0 takes a free one.")]
_BaseName = Annotated[
    str | None, typer.Option(help="First generation: the model's name in the tree.")
]
_Type = Annotated[str, typer.Option("--type", help="First generation: ps, entry or dense.")]
_Task = Annotated[int, typer.Option(help="First generation: which server this is, from 0.")]
_Replica = Annotated[
    int | None,
    typer.Option(help="Which replica; if not given, REPLICA_ID, or made of MY_POD_NAME."),
]
_Place = Annotated[
    str | None, typer.Option(help="First generation: IDC:CLUSTER; the tree then has places.")
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
    """Register a server in ZooKeeper, with its state, until SIGTERM.

    Prints the address that it listens on as one line. Entry models find their row servers there:
    `hedgerow serve --ps-from agent:HOST:PORT`. Give --base-name for the first generation of trees,
    or --container, --model and --layout for the second.
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
