"""Our own servers with durability `log`: a push is on the disk before it is answered."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ..peers.serve import serve
from .ours import OurServers


class OurServersLog(OurServers):
    """Logs go to a temporary folder."""

    def fill(self) -> None:
        """A folder first."""
        self._folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        super().fill()

    def options(self, server: int) -> list[str]:
        """A log of its own."""
        return ["--checkpoint", str(self._folder / str(server)), "--durability", "log"]


if __name__ == "__main__":
    serve(OurServersLog)
