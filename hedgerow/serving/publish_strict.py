"""`hr.serving.publish_strict`: a model's changed rows by the original's rule, to compare with."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from ..core.errors import DtypeError
from ..discovery.targets import Targets
from ..nn.following import row_shards
from ..sync.strict_publisher import StrictPublisher


def publish_strict(
    model: nn.Module,
    to: Targets | str | Sequence[str],
    *,
    served_as: str,
    every: str | float = "10s",
) -> StrictPublisher:
    """As the original pushes: replica after replica, each row once, lost if that fails.

    `start()` it, or use it in a `with`. It sends no deletions and no dense weights, and any server
    that speaks TensorFlow Serving's protocol takes its calls. `hr.publish` loses nothing.

    >>> import hedgerow as hr
    >>> bags = hr.EmbeddingBags([hr.Table("user", 2)])
    >>> with hr.serving.publish_strict(bags, "127.0.0.1:1", served_as="ps_0") as publisher:
    ...     [len(result.responses) for result in publisher.push()]
    [0]
    """
    if not isinstance(model, nn.Module):
        raise DtypeError(f"publish_strict of a {type(model).__name__}; pass an nn.Module.")
    return StrictPublisher(row_shards(model), to, served_as=served_as, every=every)
