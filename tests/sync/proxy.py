"""Stands between a publisher and a replica: cuts their connections, and delays what they say."""

from __future__ import annotations

import socket
import threading
import time


class TcpProxy:
    """Forwards `address` to `server`, "host:port"; threads for each connection."""

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition(":")
        self._server = (host, int(port))
        self.delay_s = 0.0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._closed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Ends all connections at once; new ones are taken."""
        with self._lock:
            ends, self._open = self._open, set()
        for end in ends:
            _end(end)

    def close(self) -> None:
        self._closed.set()
        _end(self._listener)
        self._thread.join()
        self.cut()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._server, timeout=5)
            except OSError:
                _end(near)
                continue
            far.settimeout(None)
            with self._lock:
                self._open |= {near, far}
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(1 << 16):
                if self.delay_s:
                    time.sleep(self.delay_s)
                other.sendall(data)
        except OSError:
            _end(one)
        _end(other)


def _end(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        end.close()  # the other side was first
    else:
        end.close()
