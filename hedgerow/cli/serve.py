"""`hedgerow serve`: serves exported models over gRPC and HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import InputError
from .log_lines import shown_log

_Folder = Annotated[
    Path,
    typer.Argument(
        help="A folder that `hr.serving.export` wrote: a version (BASE/entry/3), all versions of a "
        "model (BASE/entry), or several models (BASE)."
    ),
]
_Name = Annotated[
    str | None, typer.Option(help="The model's name for clients; default: the folder's name.")
]
_Grpc = Annotated[str, typer.Option(help="HOST:PORT for gRPC; port 0 selects a free one.")]
_Http = Annotated[str, typer.Option(help="HOST:PORT for REST, health and metrics, or 'off'.")]
_Policy = Annotated[
    str,
    typer.Option(
        help="`latest` (new versions replace old ones), `latest_once`, `all`, `specific:3,4`."
    ),
]
_Ps = Annotated[
    list[str] | None,
    typer.Option(
        help="Addresses of the servers of ps_0, then of ps_1 and so on; repeatable; replicas are "
        "comma-separated. For a model exported with `servers`."
    ),
]
_PsFrom = Annotated[
    str | None,
    typer.Option(
        help="Where to look up these servers instead of --ps: file:PATH, agent:HOST:PORT, "
        "zk:HOSTS/BZID/BASE_NAME or zk2:HOSTS/BZID/MODEL."
    ),
]
_Tls = Annotated[
    tuple[Path, Path] | None, typer.Option(help="PEM files of the certificate and its key.")
]
_ClientCa = Annotated[
    Path | None, typer.Option(help="PEM file of the authority for client certificates (mTLS).")
]
_GraceS = Annotated[float, typer.Option(help="Seconds for requests in flight after SIGTERM.")]

_Follow = Annotated[
    list[str] | None,
    typer.Option(
        help="HOST:PORT where a publisher listens (`hr.publish(..., listen=)`); repeatable. The "
        "publisher then keeps rows and weights fresh."
    ),
]
_AcceptPushes = Annotated[
    bool,
    typer.Option(
        "--accept-pushes",
        help="Let every client change rows and weights (`hr.publish(..., to=)`). Implied by "
        "`--follow`.",
    ),
]
_Insecure = Annotated[bool, typer.Option("--insecure", help="Listen beyond loopback without TLS.")]
_AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        help="A further host name of this server for HTTP clients, beside its address and the "
        "machine's own names; repeatable; '*' for any."
    ),
]
_Trust = Annotated[
    Path | None,
    typer.Option(help="File of a key (`hedgerow keys bundle`): load only bundles signed with it."),
]
_TrustUnsigned = Annotated[
    bool,
    typer.Option(
        "--trust-unsigned",
        help="Load bundles without a signature even if other machines can reach this server.",
    ),
]
_TrustOld = Annotated[
    bool,
    typer.Option(
        "--trust-old",
        help="Also load bundles of release 0.1. Their files can run code: use it only if you trust "
        "who made them.",
    ),
]
_Typed = Annotated[
    bool, typer.Option("--typed", help="Answer with typed values, for clients that need them.")
]


def serve(
    folder: _Folder,
    name: _Name = None,
    grpc: _Grpc = "127.0.0.1:8500",
    http: _Http = "127.0.0.1:8501",
    policy: _Policy = "latest",
    ps: _Ps = None,
    ps_from: _PsFrom = None,
    tls: _Tls = None,
    client_ca: _ClientCa = None,
    grace_s: _GraceS = 10.0,
    typed: _Typed = False,
    follow: _Follow = None,
    accept_pushes: _AcceptPushes = False,
    insecure: _Insecure = False,
    allow_host: _AllowHost = None,
    trust: _Trust = None,
    trust_unsigned: _TrustUnsigned = False,
    trust_old: _TrustOld = False,
) -> None:
    """Serve exported models until SIGTERM, then finish the requests in flight.

    Prints each address as one line. gRPC serves TensorFlow Serving's and KServe's protocols. HTTP
    serves `/v1/models/NAME:predict`, `/healthz` and `/metrics`.
    """
    from ..serving.process import Access, ServePlan, find_models, stop_by_signals
    from ..serving.process import serve as run
    from ..serving.tls import Tls

    if client_ca is not None and tls is None:
        raise InputError("--client-ca asks for certificates, which needs --tls CERTIFICATE KEY.")
    if ps and ps_from is not None:
        raise InputError("--ps and --ps-from both name the row servers; give one of them.")
    plan = ServePlan(
        models=find_models(folder, name, policy),
        grpc=grpc,
        http=None if http == "off" else http,
        tls=None if tls is None else Tls(*tls, client_ca),
        row_servers=tuple(tuple(one.split(",")) for one in ps or ()),
        ps_from=ps_from,
        grace_s=grace_s,
        compat="typed" if typed else None,
        follow=tuple(follow or ()),
        access=Access(
            accept_pushes=accept_pushes,
            insecure=insecure,
            hosts=tuple(allow_host or ()),
            trust=trust,
            trust_unsigned=trust_unsigned,
            trust_old=trust_old,
        ),
    )
    with shown_log():
        run(plan, lambda line: typer.echo(line), stop_by_signals())
