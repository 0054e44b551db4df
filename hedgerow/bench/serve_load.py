"""Load on a prediction server: clients that ask one after the other, each on its connection."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

PREDICT = "/tensorflow.serving.PredictionService/Predict"
_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),  # or all clients would share one connection
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
]


@dataclass(frozen=True, slots=True)
class Load:
    """What came of it: requests in a second, the median and the 99th percentile of their times."""

    rps: float
    p50_ms: float
    p99_ms: float


class Clients:
    """So many clients of one server, connected; single-owner."""

    def __init__(self, address: str, count: int) -> None:
        import grpc

        self._channels = [grpc.insecure_channel(address, options=_OPTIONS) for _ in range(count)]
        self._calls: list[Any] = [channel.unary_unary(PREDICT) for channel in self._channels]

    def ask(self, request: bytes) -> bytes:
        """One answer, by the first client."""
        return self._calls[0](request, timeout=60)

    def load(self, request: bytes, seconds: float) -> Load:
        """All clients ask for so long; a failed request ends the measurement."""
        times: list[list[float]] = [[] for _ in self._calls]
        errors: list[Exception] = []
        start = threading.Barrier(len(self._calls) + 1)
        threads = [
            threading.Thread(target=_work, args=(call, request, seconds, start, own, errors))
            for call, own in zip(self._calls, times, strict=True)
        ]
        for thread in threads:
            thread.start()
        start.wait()
        begin_s = time.perf_counter()
        for thread in threads:
            thread.join()
        took_s = time.perf_counter() - begin_s
        if errors:
            raise errors[0]
        spent = sorted(one for own in times for one in own)
        return Load(
            len(spent) / took_s,
            1e3 * spent[len(spent) // 2],
            1e3 * spent[min(len(spent) - 1, len(spent) * 99 // 100)],
        )

    def close(self) -> None:
        """Ends the connections."""
        for channel in self._channels:
            channel.close()


def _work(
    call: Any,
    request: bytes,
    seconds: float,
    start: threading.Barrier,
    times: list[float],
    errors: list[Exception],
) -> None:
    try:
        call(request, timeout=60)  # connects
    except Exception as error:
        errors.append(error)
    start.wait()
    end_s = time.perf_counter() + seconds
    while not errors and time.perf_counter() < end_s:
        begin_s = time.perf_counter()
        try:
            call(request, timeout=60)
        except Exception as error:
            errors.append(error)
            return
        times.append(time.perf_counter() - begin_s)
