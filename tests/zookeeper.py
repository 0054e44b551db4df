"""A real ZooKeeper for tests: Debian's jars, on loopback, in a folder of its own."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hedgerow.launch.local_job import free_port

JARS = ("/usr/share/java/zookeeper.jar", "/usr/share/java/slf4j-nop.jar")
_START_S = 60


def why_absent() -> str | None:
    """Why there can be no ZooKeeper here; None where it can."""
    if shutil.which("java") is None:
        return "no java"
    missing = [jar for jar in JARS if not Path(jar).exists()]
    return f"no {', '.join(missing)}" if missing else None


class ZooKeeperProcess:
    """One server; `kill` and `start` keep its data and its port."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port("127.0.0.1")
        self.hosts = f"127.0.0.1:{self.port}"
        self._config = folder / "zoo.cfg"
        self._log = folder / "zookeeper.log"
        settings = {
            "tickTime": 500,
            "minSessionTimeout": 1000,
            "dataDir": folder / "data",
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
            "maxClientCnxns": 0,
        }
        self._config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> ZooKeeperProcess:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *("java", "-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                    *("-Xshare:auto", "-cp", ":".join(JARS)),
                    *("org.apache.zookeeper.server.ZooKeeperServerMain", str(self._config)),
                ],
                stdout=log,
                stderr=log,
            )
        end_s = time.monotonic() + _START_S
        while not self._answers():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < end_s, self._log.read_text()
            time.sleep(0.05)
        return self

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def client(self, session_s: float = 10.0, **more: Any) -> Any:
        from kazoo.client import KazooClient

        return KazooClient(self.hosts, timeout=session_s, **more)

    def clear(self) -> None:
        """Removes everything."""
        client = self.client()
        client.start()
        try:
            for name in client.get_children("/"):
                if name != "zookeeper":
                    client.delete(f"/{name}", recursive=True)
        finally:
            client.stop()
            client.close()

    def expire(self, session: Any) -> None:
        """Ends the session of a client from outside: what a pause beyond its timeout does."""
        thief = self.client(client_id=session.client.client_id)
        thief.start()
        thief.stop()
        thief.close()

    def _answers(self) -> bool:
        """A port that is open is not yet a server: `srvr` is answered when it is."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(b"srvr")
                return connection.recv(64).startswith(b"Zookeeper version")
        except OSError:
            return False


def wait_for(holds: Callable[[], bool], timeout_s: float = 30.0) -> bool:
    """Waits until something holds; whether it came to."""
    end_s = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.01)
    return True


def skip_if_absent() -> None:
    """Skips, aloud, where there is no ZooKeeper."""
    why = why_absent()
    if why is not None:
        pytest.skip(f"ZooKeeper is not installed ({why}): make ci-deps")
