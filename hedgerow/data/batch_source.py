"""The base of the package's sources: which of its batches this process or worker takes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self

from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from ..core import checks
from ..core.errors import InputError, StateError
from ..core.job_rank import JobRank, job_rank
from .batch import Batch

_whole: ContextVar[bool] = ContextVar("whole_batches", default=False)


@contextmanager
def whole_batches() -> Iterator[None]:
    """Within it every source yields whole batches on every rank: the caller divides them itself.

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
    """A source of the package. Each rank of a job and each worker of a DataLoader reads all of it.

    A source that runs on one of several ranks, or in one of several workers, and was not told so by
    `share` raises a `StateError`: otherwise every sample would be read several times.

    >>> import hedgerow as hr
    >>> from torch.utils.data import DataLoader
    >>> source = hr.data.clicks(batch_size=8, steps=3)
    >>> [batch.samples for batch in DataLoader(source, batch_size=None)]
    [8, 8, 8]

    A DataLoader with its default `batch_size=1` yields the same batches.
    """

    _told: JobRank | None = None
    _follows = False  # the rank of the process, where that is known at the time of reading
    _workers = 1
    _sender = JobRank()  # the process that a worker has its copy from

    def share(
        self, rank: int | None = None, of: int | None = None, *, workers: int | None = None
    ) -> Self:
        """Takes part `rank` of `of` equal parts of every batch; returns the source itself.

        Without `rank` and `of` they are those of this process in its job, and plain python reads
        whole batches. The parts of all ranks together are the batch: as many samples each, or one
        more where the batch cannot be divided evenly. `share(0, 1)` reads whole batches on every
        rank.

        With `workers`, the `num_workers` of a DataLoader, worker `w` yields batches w, w + workers,
        and so on, so that the DataLoader yields every batch once and in order.

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
        """The position, as plain values."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to a position that `state_dict` gave."""

    @abstractmethod
    def _numbered(self) -> Iterator[tuple[int, Callable[[], Batch]]]:
        """The number of every batch from the position on, and what makes it."""

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
        """With the rank of this process: a worker that is spawned does not know its job."""
        here = job_rank()
        return {**self.__dict__, "_sender": here if here.count > 1 else self._sender}

    def _rank_here(self) -> JobRank:
        told = self._told
        if _whole.get():
            if told is not None and told.count > 1:
                raise StateError(
                    f"this source was told to read part {told.rank} of {told.count} of every "
                    f"batch, and its reader divides whole batches itself; call share(0, 1)."
                )
            return JobRank()
        if told is not None and not self._follows:
            return told
        here = job_rank()
        if here.count == 1 and get_worker_info() is not None:
            here = self._sender
        if told is not None:  # a worker process may not know the rank of the process it serves
            return here if here.count > 1 else told
        if here.count > 1:
            raise StateError(
                f"this source is read on rank {here.rank} of {here.count} and was not told of "
                f"ranks: every rank would train on the same samples. Call source.share() to read "
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
        """The position in one of several workers says nothing of the other workers."""
        worker = get_worker_info()
        if worker is not None and worker.num_workers > 1:
            raise StateError(
                f"the position of worker {worker.id} of {worker.num_workers} is not that of the "
                f"whole source; read with num_workers=0 or 1 to save and load positions."
            )


def _one_batch(batches: list[Batch], *, collate_fn_map: Any = None) -> Batch:
    """What a DataLoader that was not given `batch_size=None` makes of the batches of a source."""
    if len(batches) != 1:
        raise InputError(
            f"a DataLoader collects {len(batches)} batches of a source of batches into one. Give "
            f"the DataLoader batch_size=None, and the source the size of its batches."
        )
    return batches[0]


default_collate_fn_map[Batch] = _one_batch
