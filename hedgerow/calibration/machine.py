"""The machine that is measured: its processor's name and its free memory."""

from __future__ import annotations

import platform
from pathlib import Path


def cpu_name() -> str:
    """Returns the name of the processor."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def free_bytes(root: Path = Path("/")) -> int | None:
    """Returns the available memory, within the container's limit; None if it is unknown."""
    limits = [_meminfo(root / "proc/meminfo"), _cgroup(root / "sys/fs/cgroup")]
    known = [limit for limit in limits if limit is not None]
    return min(known, default=None)


def _meminfo(path: Path) -> int | None:
    if not path.exists():
        return None
    for line in path.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup(folder: Path) -> int | None:
    limit, used = folder / "memory.max", folder / "memory.current"
    if not (limit.exists() and used.exists()) or limit.read_text().strip() == "max":
        return None
    return int(limit.read_text()) - int(used.read_text())
