"""What every source yields, and what every source can do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..core import checks
from ..core.errors import InputError
from ..core.id_batch import IdBatch
from ..core.shapes import Float32


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Some samples: numbers, ids, labels, and weights where the data has them.

    It unpacks as `dense, ids, labels`. Labels are NaN where the data has none. `keys` is an Arrow
    table of the columns that say which sample each is, where the source was asked for some.

    >>> import torch
    >>> from hedgerow import IdBatch
    >>> ids = IdBatch.from_lists({"user": [[7], [8]]})
    >>> dense, ids, labels = Batch(torch.zeros(2, 0), ids, torch.tensor([1.0, 0.0]))
    >>> dense.shape, labels.tolist()
    (torch.Size([2, 0]), [1.0, 0.0])
    """

    dense: Float32[Tensor, "samples columns"]
    ids: IdBatch
    labels: Float32[Tensor, "samples"]
    weights: Float32[Tensor, "samples"] | None = None
    keys: Any | None = None

    def __post_init__(self) -> None:
        checks.tensor("labels", self.labels, torch.float32, (None,), device=None)
        samples = len(self.labels)
        checks.tensor("dense", self.dense, torch.float32, (samples, None), device=None)
        if self.weights is not None:
            checks.tensor("weights", self.weights, torch.float32, (samples,), device=None)
        if self.ids.names and self.ids.samples != samples:
            raise InputError(
                f"ids have {self.ids.samples} samples and labels {samples}; they must agree."
            )

    def __iter__(self) -> Iterator[Any]:
        return iter((self.dense, self.ids, self.labels))

    @property
    def samples(self) -> int:
        """Samples of the batch."""
        return len(self.labels)

    def part(self, start: int, stop: int) -> Batch:
        """The samples from `start` to before `stop`: what one of several processes takes."""
        ids = self.ids.part(start, stop) if self.ids.names else self.ids
        weights = None if self.weights is None else self.weights[start:stop]
        keys = None if self.keys is None else self.keys.slice(start, stop - start)
        return Batch(self.dense[start:stop], ids, self.labels[start:stop], weights, keys)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """The same batch on another device."""
        weights = self.weights
        return Batch(
            self.dense.to(device, non_blocking=non_blocking),
            self.ids.to(device, non_blocking=non_blocking),
            self.labels.to(device, non_blocking=non_blocking),
            None if weights is None else weights.to(device, non_blocking=non_blocking),
            self.keys,
        )

    def pin_memory(self) -> Batch:
        """The same batch in memory that a GPU reads directly."""
        weights = None if self.weights is None else self.weights.pin_memory()
        return Batch(
            self.dense.pin_memory(),
            self.ids.pin_memory(),
            self.labels.pin_memory(),
            weights,
            self.keys,
        )


@runtime_checkable
class Source(Protocol):
    """Batches in a fixed order, from any position. Not thread-safe.

    Iteration goes on where the last one stopped; after the end it begins anew. What `state_dict`
    gives between two batches makes a source of the same settings yield exactly the rest.

    >>> import hedgerow as hr
    >>> isinstance(hr.data.clicks(batch_size=8, steps=3), Source)
    True
    """

    def __iter__(self) -> Iterator[Batch]: ...

    def state_dict(self) -> dict[str, Any]:
        """The position, as plain values."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to a position that `state_dict` gave."""
        ...


def check_state(
    state: Mapping[str, Any], position: tuple[str, ...], settings: Mapping[str, Any]
) -> None:
    """`state` holds counts under the names of `position`, and was taken with the same settings."""
    wanted = {*position, *settings}
    if not isinstance(state, Mapping) or set(state) != wanted:
        raise InputError(
            f"{state!r} is no position of this source; it must hold {', '.join(sorted(wanted))}, "
            f"as state_dict() gives them."
        )
    for name in position:
        checks.count(f"state[{name!r}]", state[name])
    for name, value in settings.items():
        if state[name] != value:
            raise InputError(
                f"the position was taken with {name} = {state[name]!r}, and this source has "
                f"{value!r}: the rest would not be the same. Make the source with the old setting."
            )
