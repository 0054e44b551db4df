"""`hr.publish`: what a model in training learns, sent to the replicas that serve it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from ..core.errors import DtypeError, InputError
from ..core.units import parse_seconds
from ..discovery.targets import Targets
from ..sync.publisher import MOST_PENDING, Publisher
from ..sync.source import RowSource
from ..wire.rpc import Trust
from .dense_watch import DenseWatch
from .row_sources import row_sources


class ModelPublisher(Publisher):
    """A publisher of a model: its rows, and its dense weights if that was asked for."""

    dense: DenseWatch | None = None

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Sends what has changed until now; whether all replicas have it before the time is over.

        Call it between two steps: the dense weights are copied here.
        """
        if self.dense is not None:
            self.dense.copy_now()
        return super().flush(timeout_s)

    def stop(self, timeout_s: float = 5.0) -> bool:
        """Sends what is left, for at most `timeout_s`, and ends; whether all was sent."""
        try:
            return super().stop(timeout_s)
        finally:
            if self.dense is not None:
                self.dense.close()


def publish(
    model: nn.Module,
    to: Targets | str | Sequence[str] = (),
    *,
    every: str | float = "1s",
    listen: str | None = None,
    dense_every: str | float | None = None,
    served_as: str | None = None,
    most_pending: int = MOST_PENDING,
    tls: Trust | None = None,
) -> ModelPublisher:
    """Keeps replicas of a model fresh while it trains; started, to be stopped or used in a `with`.

    `to` is an address, a list of them, or an object with `current()` that knows them. At `listen`
    replicas announce themselves: `hedgerow serve BUNDLE --follow HOST:PORT`. Every `every` the rows
    that changed go to each of them, those that were deleted too. What a replica lacks is kept until
    it has it; above `most_pending` keys, and after a restart, it gets all rows again.

    Dense weights are sent only with `dense_every`, at most so often: then those that a replica
    answers with are at most `dense_every` and one `every` older than its rows; else they stay those
    of its bundle. `served_as` picks one of several models of a server by its name. On several ranks
    each calls it, for the rows it owns; give `dense_every` on rank 0 alone.

    >>> import hedgerow as hr
    >>> bags = hr.EmbeddingBags([hr.Table("user", 2)])
    >>> with hr.publish(bags, listen="127.0.0.1:0", every="200ms") as publisher:
    ...     publisher.status().pending_rows
    0
    """
    if not isinstance(model, nn.Module):
        raise DtypeError(f"publish of a {type(model).__name__}; pass an nn.Module.")
    if not to and listen is None:
        raise InputError("publish without to= and listen=; say where replicas are.")
    watch = None if dense_every is None else DenseWatch(model, parse_seconds(dense_every))
    sources: list[RowSource] = []
    try:
        sources = row_sources(model)
        made = ModelPublisher(
            sources,
            to,
            every=every,
            listen=listen,
            model=served_as,
            most_pending=most_pending,
            trust=tls,
            dense=(lambda: None) if watch is None else watch.state,
        )
    except BaseException:  # else the model would collect marks that nobody ever takes
        for source in sources:
            source.close()
        if watch is not None:
            watch.close()
        raise
    made.dense = watch
    made.start()
    return made
