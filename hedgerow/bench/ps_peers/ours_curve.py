"""Our own servers with CURVE: all bytes encrypted, clients proved."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ...ps.curve import new_keys
from ..peers.serve import serve
from .ours import OurServers


class OurServersCurve(OurServers):
    """Keys are made for the run."""

    def fill(self) -> None:
        """New keys first."""
        folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self._keys = folder / "keys"
        new_keys(self._keys)
        super().fill()

    def options(self, server: int) -> list[str]:
        """The folder of keys."""
        return ["--keys", str(self._keys)]

    def client_keys(self) -> Path:
        """The same folder."""
        return self._keys


if __name__ == "__main__":
    serve(OurServersCurve)
