"""`hedgerow serve`: exported models, answered over gRPC and HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import InputError
from .log_lines import shown_log

_Folder = Annotated[
    Path,
    typer.Argument(
        help="What `hr.serving.export` wrote: a version (BASE/entry/3), the versions of one model "
        "(BASE/entry), or a folder of models (BASE)."
    ),
]
_Name = Annotated[
    str | None, typer.Option(help="The model's name for clients; the folder's if not given.")
]
_Grpc = Annotated[str, typer.Option(help="HOST:PORT for gRPC; port 0 takes a free one.")]
_Http = Annotated[str, typer.Option(help="HOST:PORT for REST, health and metrics; 'off' for none.")]
_Policy = Annotated[
    str,
    typer.Option(
        help="`latest` (new versions replace old ones), `latest_once`, `all`, `specific:3,4`."
    ),
]
_Ps = Annotated[
    list[str] | None,
    typer.Option(
        help="Addresses of the servers of ps_0, then of ps_1 and so on; repeatable, replicas of "
        "one with commas. For a model exported with `servers`."
    ),
]
_PsFrom = Annotated[
    str | None,
    typer.Option(
        help="Who tells these servers instead of --ps: file:PATH, agent:HOST:PORT, "
        "zk:HOSTS/BZID/BASE_NAME or zk2:HOSTS/BZID/MODEL."
    ),
]
_Tls = Annotated[
    tuple[Path, Path] | None, typer.Option(help="PEM files of the certificate and its key.")
]
_ClientCa = Annotated[
    Path | None, typer.Option(help="PEM file; clients must show a certificate it signed.")
]
_GraceS = Annotated[float, typer.Option(help="How long requests under way may take after SIGTERM.")]

_Follow = Annotated[
    list[str] | None,
    typer.Option(
        help="HOST:PORT where a publisher listens (`hr.publish(..., listen=)`); repeatable. It "
        "then keeps the rows and weights served here fresh."
    ),
]
_AcceptPushes = Annotated[
    bool,
    typer.Option(
        "--accept-pushes",
        help="Let every client change rows and weights (`hr.publish(..., to=)`); `--follow` does, "
        "too. Without it the server only answers.",
    ),
]
_Insecure = Annotated[bool, typer.Option("--insecure", help="Listen off loopback without TLS.")]
_AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        help="A name under which HTTP clients reach this server, beside its address and the "
        "machine's own names; repeatable, '*' for any."
    ),
]
_Trust = Annotated[
    Path | None,
    typer.Option(help="File of a key (`hedgerow keys bundle`): load only bundles it signed."),
]
_TrustUnsigned = Annotated[
    bool,
    typer.Option(
        "--trust-unsigned",
        help="Load bundles without a signature, although other machines reach this server.",
    ),
]
_TrustOld = Annotated[
    bool,
    typer.Option(
        "--trust-old",
        help="Load bundles of release 0.1, too. Their files can run code: only from makers whom "
        "you trust.",
    ),
]
_Typed = Annotated[
    bool, typer.Option("--typed", help="Answer in typed values: some clients read nothing else.")
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
    """Serve exported models until SIGTERM, which lets requests under way end.

    Prints each address it listens on as one line. gRPC speaks TensorFlow Serving's and KServe's
    protocols; HTTP has `/v1/models/NAME:predict`, `/healthz` and `/metrics`.
    """
    from ..serving.process import Access, ServePlan, find_models, stop_by_signals
    from ..serving.process import serve as run
    from ..serving.tls import Tls

    if client_ca is not None and tls is None:
        raise InputError("--client-ca asks for certificates, which needs --tls CERTIFICATE KEY.")
    if ps and ps_from is not None:
        raise InputError("--ps and --ps-from both tell the row servers; give one of them.")
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
