"""How much memory is free, so that a benchmark is refused instead of killed."""

from __future__ import annotations

from pathlib import Path


def free_bytes(root: Path = Path("/")) -> int | None:
    """Memory that can be taken now, within the limit of the container; None where nobody says."""
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
