"""A batch, the protocol of a source of batches, and the base class of the package's sources."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from ..core import checks
from ..core.errors import InputError, StateError
from ..core.id_batch import IdBatch
from ..core.process_state import JobRank, job_rank
from ..core.shapes import Float32


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Dense columns, ids and labels of some samples, with weights if the data has them.

    A batch unpacks as `dense, ids, labels`. Labels are NaN if the data has none. `keys` is an Arrow
    table of the columns that identify the samples, if the source was given `keys`.

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
        """The number of samples."""
        return len(self.labels)

    def part(self, start: int, stop: int) -> Batch:
        """Returns the samples from `start` to before `stop`, such as the share of a process."""
        ids = self.ids.part(start, stop) if self.ids.names else self.ids
        weights = None if self.weights is None else self.weights[start:stop]
        keys = None if self.keys is None else self.keys.slice(start, stop - start)
        return Batch(self.dense[start:stop], ids, self.labels[start:stop], weights, keys)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """Returns the batch on another device."""
        weights = self.weights
        return Batch(
            self.dense.to(device, non_blocking=non_blocking),
            self.ids.to(device, non_blocking=non_blocking),
            self.labels.to(device, non_blocking=non_blocking),
            None if weights is None else weights.to(device, non_blocking=non_blocking),
            self.keys,
        )

    def pin_memory(self) -> Batch:
        """Returns the batch in pinned memory, which a GPU reads directly."""
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

    Iteration continues where the last one stopped, and starts again after the end. If
    `load_state_dict` of a source with equal settings gets the result of `state_dict`, that source
    yields exactly the remaining batches.

    >>> import hedgerow as hr
    >>> isinstance(hr.data.clicks(batch_size=8, steps=3), Source)
    True
    """

    def __iter__(self) -> Iterator[Batch]: ...

    def state_dict(self) -> dict[str, Any]:
        """Returns the position as plain values."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Moves to a position that `state_dict` returned."""
        ...


def check_state(
    state: Mapping[str, Any], position: tuple[str, ...], settings: Mapping[str, Any]
) -> None:
    """Raises unless `state` has counts for the names in `position` and equal settings."""
    wanted = {*position, *settings}
    if not isinstance(state, Mapping) or set(state) != wanted:
        raise InputError(
            f"{state!r} is no position of this source; it must hold {', '.join(sorted(wanted))}, "
            f"as the result of state_dict() does."
        )
    for name in position:
        checks.count(f"state[{name!r}]", state[name])
    for name, value in settings.items():
        if state[name] != value:
            raise InputError(
                f"the position was taken with {name} = {state[name]!r}, and this source has "
                f"{value!r}: its batches would differ. Make the source with the old setting."
            )


_whole: ContextVar[bool] = ContextVar("whole_batches", default=False)


@contextmanager
def whole_batches() -> Iterator[None]:
    """Returns a context in which every source yields whole batches on every rank.

    The caller divides the batches itself.

    >>> import hedgerow as hr
    >>> with whole_batches():
    ...     next(iter(hr.data.clicks(batch_size=8, steps=1))).samples
    8
    """
    token = _whole.set(True)
    try:
        yield
    finally:
        _whole.reset(token)


class BatchSource(IterableDataset[Batch]):
    """Base class of the package's sources.

    If a source runs on one of several ranks or in one of several DataLoader workers, `share` must
    be called first. Otherwise every rank and worker would read all samples, and iteration raises
    `StateError`.

    >>> import hedgerow as hr
    >>> from torch.utils.data import DataLoader
    >>> source = hr.data.clicks(batch_size=8, steps=3)
    >>> [batch.samples for batch in DataLoader(source, batch_size=None)]
    [8, 8, 8]

    A DataLoader with its default `batch_size=1` yields the same batches.
    """

    _told: JobRank | None = None
    _follows = False  # whether to use the rank of the process that reads
    _workers = 1
    _sender = JobRank()  # the rank of the process that sent this copy to a worker

    def share(
        self, rank: int | None = None, of: int | None = None, *, workers: int | None = None
    ) -> Self:
        """Selects part `rank` of `of` equal parts of every batch, and returns the source.

        Without `rank` and `of`, it uses those of this process in its job; outside a job it yields
        whole batches. The parts of all ranks together are the batch, and their sizes differ by at
        most one sample. `share(0, 1)` yields whole batches on every rank.

        `workers` is the `num_workers` of a DataLoader. Worker w then yields the batches w, w +
        workers and so on, so the DataLoader yields every batch once and in order.

        >>> import hedgerow as hr
        >>> [batch.samples for batch in hr.data.clicks(batch_size=9, steps=2).share(0, 2)]
        [4, 4]
        """
        if (rank is None) != (of is None):
            raise InputError(f"share has rank {rank} and of {of}; give both, or neither.")
        if rank is None or of is None:
            self._told, self._follows = job_rank(), True
        else:
            count = checks.count("of", of, least=1)
            if checks.count("rank", rank) >= count:
                raise InputError(f"share has rank {rank} of {of}; rank must lie in 0..{of - 1}.")
            self._told, self._follows = JobRank(rank, count), False
        self._workers = 1 if workers is None else checks.count("workers", workers, least=1)
        return self

    def __iter__(self) -> Iterator[Batch]:
        return self._taken(self._rank_here(), *self._worker_here())

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Returns the position as plain values."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Moves to a position that `state_dict` returned."""

    @abstractmethod
    def _numbered(self) -> Iterator[tuple[int, Callable[[], Batch]]]:
        """Yields the number of each batch from the position on, and a function that makes it."""

    def _taken(self, part: JobRank, worker: int, workers: int) -> Iterator[Batch]:
        for number, make in self._numbered():
            if number % workers != worker:
                continue
            batch = make()
            if part.count > 1:
                n = batch.samples
                batch = batch.part(n * part.rank // part.count, n * (part.rank + 1) // part.count)
            yield batch

    def __getstate__(self) -> dict[str, Any]:
        """Adds the rank of this process, because a spawned worker does not know its job."""
        here = job_rank()
        return {**self.__dict__, "_sender": here if here.count > 1 else self._sender}

    def _rank_here(self) -> JobRank:
        told = self._told
        if _whole.get():
            if told is not None and told.count > 1:
                raise StateError(
                    f"this source was set to read part {told.rank} of {told.count} of every "
                    f"batch, and its reader divides whole batches itself; call share(0, 1)."
                )
            return JobRank()
        if told is not None and not self._follows:
            return told
        here = job_rank()
        if here.count == 1 and get_worker_info() is not None:
            here = self._sender
        if told is not None:  # a worker may not know the rank of its parent process
            return here if here.count > 1 else told
        if here.count > 1:
            raise StateError(
                f"this source is read on rank {here.rank} of {here.count} without source.share(): "
                f"every rank would train on the same samples. Call source.share() to read "
                f"this rank's part of every batch, or source.share(0, 1) to read all of it here."
            )
        return here

    def _worker_here(self) -> tuple[int, int]:
        worker = get_worker_info()
        if worker is None or worker.num_workers == 1:
            return 0, 1
        if worker.num_workers != self._workers:
            known = f"of {self._workers} workers" if self._workers > 1 else "of no workers"
            raise StateError(
                f"this source is read in worker {worker.id} of the {worker.num_workers} of a "
                f"DataLoader and was told {known}: samples would be read more than once or not at "
                f"all. Call source.share(workers={worker.num_workers}), or give the DataLoader "
                f"num_workers=0."
            )
        return worker.id, worker.num_workers

    def _check_position(self) -> None:
        """Raises in one of several workers, whose position says nothing about the other workers."""
        worker = get_worker_info()
        if worker is not None and worker.num_workers > 1:
            raise StateError(
                f"the position of worker {worker.id} of {worker.num_workers} is not that of the "
                f"whole source; read with num_workers=0 or 1 to save and load positions."
            )


def _one_batch(batches: list[Batch], *, collate_fn_map: Any = None) -> Batch:
    """Returns the single batch that a DataLoader without `batch_size=None` collates."""
    if len(batches) != 1:
        raise InputError(
            f"a DataLoader collects {len(batches)} batches of a source of batches into one. Give "
            f"the DataLoader batch_size=None, and the source the size of its batches."
        )
    return batches[0]


default_collate_fn_map[Batch] = _one_batch
