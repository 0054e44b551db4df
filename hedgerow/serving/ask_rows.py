"""Rows for an entry model from the servers that hold them: all servers are asked at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack

from .channels import Pending
from .client import decoded, predict_method, predict_request
from .deadline import shortest_s
from .model import ServingError, Tensors
from .replicas import Replicas

RAW_LOOKUP = "raw_lookup"
DEADLINE_S = 1.0


def ask_rows(
    replicas: Replicas,
    *,
    signature: str = RAW_LOOKUP,
    deadline_s: float = DEADLINE_S,
    model_name: str | None = None,
) -> Callable[[Mapping[str, Tensors]], Mapping[str, Tensors]]:
    """What `load_bundle(..., ask=)` takes: inputs by sub graph ("ps_0") in, their outputs out.

    `model_name` is for servers that serve a sub graph as "model:ps_0".

    >>> with Replicas({}) as replicas:
    ...     ask_rows(replicas)({})
    {}
    """

    def ask(inputs: Mapping[str, Tensors]) -> Mapping[str, Tensors]:
        timeout_s = shortest_s(deadline_s)
        if timeout_s <= 0:
            raise ServingError("DEADLINE_EXCEEDED", "the request has no time left to ask for rows.")
        prefix = f"{model_name}:" if model_name is not None and replicas.named else ""
        with ExitStack() as stack:
            pending = {
                name: _begin(replicas, prefix + name, given, signature, timeout_s, stack)
                for name, given in inputs.items()
            }
            return {name: _outputs(name, one) for name, one in pending.items()}

    return ask


def _begin(
    replicas: Replicas,
    name: str,
    given: Tensors,
    signature: str,
    timeout_s: float,
    stack: ExitStack,
) -> Pending:
    key, served = replicas.target(name, 0, name)
    addresses = replicas.choose(key)
    if not addresses:
        raise ServingError(
            "UNAVAILABLE",
            f"no remote server available for model {served!r}, signature {signature!r}: no "
            f"address is known under {key!r}.",
        )
    (channel,) = stack.enter_context(replicas.channels(addresses))
    request = predict_request(served, signature, given, (), None)
    pending = channel.begin(predict_method(), request, timeout_s)
    stack.callback(pending.cancel)  # of the others, when one fails
    return pending


def _outputs(name: str, pending: Pending) -> Tensors:
    found = pending.answer().outputs
    return {alias: decoded(alias, found[alias], name) for alias in found}
