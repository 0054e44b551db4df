"""Looks for changed keys at all sources of a publisher at once: one that is away holds up none."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from ..core.errors import HedgerowError
from ..tables.touched import Touched
from .pending import Pass
from .source import RowSource

Deliver = Callable[[int, Mapping[str, Touched] | None, Pass], None]
"""Called by a source's thread: its place, what it took (None: marks were lost), and the pass."""

_log = logging.getLogger("hedgerow")


class Looks:
    """Takes the changed keys of sources, each in a thread of its own. Owns a lock.

    Passes are counted. A source that is asked while it still works at an older pass looks once more
    afterwards. A look that failed tells nothing: the next pass brings what it left.

    >>> import torch, hedgerow as hr
    >>> from hedgerow.sync.source import HostSource
    >>> table = hr.HostTable(hr.TableConfig("user", (hr.Segment(1, hr.Zeros(), hr.Sgd(lr=1.0)),)))
    >>> def deliver(place, taken, found_by):
    ...     print(taken["user"].ids)
    >>> looks = Looks([HostSource([table])], deliver)
    >>> _ = table.assign(torch.tensor([7]), torch.ones(1, 1))
    >>> looks.ask(timeout_s=30)
    tensor([7])
    1
    >>> looks.close()
    """

    def __init__(self, sources: Sequence[RowSource], deliver: Deliver) -> None:
        self._sources, self._deliver = tuple(sources), deliver
        self._changed = threading.Condition()
        self._asked = self.failures = 0
        self._answered = [0] * len(sources)  # of each: the last pass that it looked for
        self._errors = [""] * len(sources)
        self._began_s = [time.monotonic()] * len(sources)  # of each: the last look that succeeded
        self._incarnations = [source.incarnation for source in sources]
        self._ended = False
        self._threads = [
            threading.Thread(target=self._run, args=(place,), name="source", daemon=True)
            for place in range(len(sources))
        ]

    @property
    def asked(self) -> int:
        """The number of the last pass."""
        return self._asked

    @property
    def error(self) -> str:
        """Why a source's last look failed; empty if none did."""
        return next((one for one in self._errors if one), "")

    def ask(self, timeout_s: float) -> int:
        """Begins a pass and waits for those who answer in time; its number."""
        with self._changed:
            for thread in self._threads if not self._ended else ():
                if thread.ident is None:
                    thread.start()
            self._asked += 1
            number = self._asked
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._ended or min(self._answered) >= number, timeout_s)
            return number

    def close(self) -> None:
        """Asks no more; returns when no source is asked any longer."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _run(self, place: int) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or self._asked > self._answered[place])
                if self._ended:
                    return
                number = self._asked
            error = self._look(place, number)
            with self._changed:
                self.failures += bool(error)
                self._errors[place], self._answered[place] = error, number
                self._changed.notify_all()

    def _look(self, place: int, number: int) -> str:
        """One look; why it failed, or nothing."""
        source, began_s = self._sources[place], time.monotonic()
        try:
            taken = source.take()
            lost = source.incarnation != self._incarnations[place]
            found_by = Pass(number, self._began_s[place], began_s)
            self._incarnations[place] = ""  # until they are delivered, its marks count as lost
            self._deliver(place, None if lost else taken, found_by)
            self._began_s[place], self._incarnations[place] = began_s, source.incarnation
        except (HedgerowError, OSError) as error:
            if not self._errors[place]:
                _log.warning("shard %d of the trainer: %s", source.shard, error)
            return str(error) or type(error).__name__
        except Exception as error:  # one bad look must not end all publishing
            _log.exception("a look at shard %d of the trainer failed", source.shard)
            return repr(error)
        return ""
