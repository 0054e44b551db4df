"""Stands between clients and a server and loses, delays, doubles and reorders their messages."""

from __future__ import annotations

import heapq
import queue
import random
import threading
import time
from dataclasses import dataclass
from typing import Any

import zmq

TICK_MS = 5


@dataclass
class Mischief:
    """How often a message meets each fate; both ways."""

    drop: float = 0.0
    delay: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    delay_s: float = 0.05


class Proxy:
    """Clients connect to `address`. One thread; `mischief` may be changed at any time."""

    def __init__(self, server: str, seed: int = 0) -> None:
        self._server = server
        self._random = random.Random(seed)
        self.mischief = Mischief()
        self.done: dict[str, int] = {}
        self._orders: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._later: list[tuple[float, int, Any, list[bytes]]] = []
        self._held: tuple[Any, list[bytes]] | None = None
        self._number = 0
        self._context = zmq.Context()
        self._front = self._bind("tcp://127.0.0.1:0")
        self.address = self._front.getsockopt(zmq.LAST_ENDPOINT).decode().rstrip("\0")
        self._backs: dict[bytes, Any] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _bind(self, address: str) -> Any:
        front = self._context.socket(zmq.ROUTER)
        front.setsockopt(zmq.LINGER, 0)
        try:
            front.bind(address)
        except zmq.ZMQError:
            front.close()
            raise
        return front

    def cut(self) -> None:
        """Ends all connections; clients may come again at once."""
        self._orders.put("cut")

    def close(self) -> None:
        self._orders.put("stop")
        self._thread.join()
        self._context.destroy(linger=0)

    def _run(self) -> None:
        while self._obey():
            poller = zmq.Poller()
            poller.register(self._front, zmq.POLLIN)
            for back in self._backs.values():
                poller.register(back, zmq.POLLIN)
            ready = dict(poller.poll(TICK_MS))
            if self._front in ready:
                client, *frames = self._front.recv_multipart()
                self._pass((client, "in"), frames)
            for client, back in list(self._backs.items()):
                if back in ready:
                    self._pass((client, "out"), back.recv_multipart())
            self._release()

    def _obey(self) -> bool:
        while not self._orders.empty():
            if self._orders.get() == "stop":
                return False
            for back in self._backs.values():
                back.close(0)
            self._backs.clear()
            self._front.close(0)
            self._front = self._rebind()
            self._later.clear()
            self._held = None
        return True

    def _rebind(self) -> Any:
        while True:
            try:
                return self._bind(self.address)
            except zmq.ZMQError:
                time.sleep(0.005)  # the old one is not quite gone

    def _pass(self, way: Any, frames: list[bytes]) -> None:
        mischief, chance = self.mischief, self._random.random()
        for fate in ("drop", "delay", "duplicate", "reorder"):
            chance -= getattr(mischief, fate)
            if chance < 0:
                self.done[fate] = self.done.get(fate, 0) + 1
                getattr(self, f"_{fate}")(way, frames)
                return
        self._forward(way, frames)

    def _drop(self, way: Any, frames: list[bytes]) -> None:
        self.done["dropped frames"] = self.done.get("dropped frames", 0) + len(frames)

    def _delay(self, way: Any, frames: list[bytes]) -> None:
        self._number += 1
        due = time.monotonic() + self.mischief.delay_s
        heapq.heappush(self._later, (due, self._number, way, frames))

    def _duplicate(self, way: Any, frames: list[bytes]) -> None:
        self._forward(way, frames)
        self._delay(way, frames)

    def _reorder(self, way: Any, frames: list[bytes]) -> None:
        if self._held is not None:
            self._send(*self._held)
        self._held = (way, frames)

    def _release(self) -> None:
        while self._later and self._later[0][0] <= time.monotonic():
            _, _, way, frames = heapq.heappop(self._later)
            self._send(way, frames)

    def _forward(self, way: Any, frames: list[bytes]) -> None:
        self._send(way, frames)
        if self._held is not None:
            self._send(*self._held)
            self._held = None

    def _send(self, way: Any, frames: list[bytes]) -> None:
        client, direction = way
        if direction == "out":
            self._front.send_multipart([client, *frames])
            return
        if client not in self._backs:
            back = self._context.socket(zmq.DEALER)
            back.setsockopt(zmq.LINGER, 0)
            back.setsockopt(zmq.RECONNECT_IVL, 10)
            back.connect(self._server)
            self._backs[client] = back
        try:
            self._backs[client].send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            self.done["full"] = self.done.get("full", 0) + 1
