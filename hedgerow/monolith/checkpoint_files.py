"""Names of the original's table files: finds the files of a base name and proves the set whole."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core import checks
from ..core.errors import FileDamagedError, FileMissingError, InputError

_NUMBERED = re.compile(r"(?P<base>.+)-(?P<i>\d{5,})-of-(?P<n>\d{5,})", re.DOTALL)
_META = ".meta"


@dataclass(frozen=True, slots=True)
class FileSet:
    """The files of one base name, in order. Only files of several tables have metadata."""

    base: Path
    files: tuple[Path, ...]
    metas: tuple[Path, ...]

    @property
    def is_multi(self) -> bool:
        """Whether rows of several tables stand in each file."""
        return bool(self.metas)


def numbered(base: Path, i: int, n: int) -> Path:
    """File `i` of `n`.

    >>> numbered(Path("user"), 0, 2).name
    'user-00000-of-00002'
    """
    return base.with_name(f"{base.name}-{i:05d}-of-{n:05d}")


def meta_base(base: Path) -> Path:
    """The base name of the metadata of `base`.

    >>> meta_base(Path("all")).name
    'all.meta'
    """
    return base.with_name(base.name + _META)


def file_name(table: str) -> str:
    """The name under which a table's files stand in a folder.

    >>> file_name("ps:0/user")
    'ps-0-user'
    """
    return table.replace(":", "-").replace("/", "-")


def find_files(base: str | Path) -> FileSet:
    """The files of `base`; all n of n must be there, with one n. Left-over others are ignored."""
    base = Path(base)
    files = _whole_set(base)
    if not files:
        raise FileMissingError(
            f"no files {base.name}-*-of-* in {base.parent}; give the base name that the original "
            f"saved under, for example model.ckpt-100.assets/user."
        )
    metas = _whole_set(meta_base(base))
    if metas and len(metas) != len(files):
        raise FileDamagedError(
            f"{base} has {len(files)} files and {len(metas)} files of metadata; every file must "
            f"have one. Copy the missing ones."
        )
    return FileSet(base, files, metas)


def find_bases(folder: Path) -> list[Path]:
    """The base names in a folder, in order, without those of metadata."""
    matches = (_NUMBERED.fullmatch(path.name) for path in _listed(folder))
    names = {match["base"] for match in matches if match}
    metas = {name + _META for name in names}
    return [folder / name for name in sorted(names - metas)]


def first_base(folder: str | Path, names: Sequence[str]) -> Path:
    """The first of a table's names that has files: its shared name, then others it once had."""
    if not names:
        raise InputError("names is empty; give the table's shared name, then its other names.")
    folder = Path(folder)
    there = {base.name for base in find_bases(folder)}
    for name in names:
        if file_name(name) in there:
            return folder / file_name(name)
    raise FileMissingError(
        f"table {names[0]!r} has no files in {folder} under any of its names: {', '.join(names)}. "
        f"Found: {', '.join(sorted(there)) or 'none'}."
    )


def file_count(rows: int, files: int = -1) -> int:
    """Files to write: as many as asked for, or for -1 one a million rows, 1 to 4.

    >>> file_count(10), file_count(2_500_000), file_count(10**9), file_count(10, 7)
    (1, 2, 4, 7)
    """
    if files == -1:
        return min(max(rows // 1_000_000, 1), 4)
    return checks.count("files", files, least=1)


def _listed(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _whole_set(base: Path) -> tuple[Path, ...]:
    """Files 0..n-1 of n, or none at all; anything else is an error."""
    found: dict[int, set[int]] = {}
    for path in _listed(base.parent):
        match = _NUMBERED.fullmatch(path.name)
        if match and match["base"] == base.name and path == numbered(base, *_place(match)):
            i, n = _place(match)
            found.setdefault(n, set()).add(i)
    if not found:
        return ()
    if len(found) > 1:
        raise FileDamagedError(
            f"files of {base} say that they are one of {', '.join(map(str, sorted(found)))}; all "
            f"must say the same. Remove those of an older save."
        )
    ((n, seen),) = found.items()
    if len(seen) != n or max(seen) >= n:  # never walks up to a hostile n
        absent = next(i for i in range(len(seen) + 1) if i not in seen)
        wrong = f"lacks {numbered(base, absent, n).name}" if absent < n else "has too many files"
        raise FileDamagedError(f"{base} {wrong}: {len(seen)} of {n} files are there. Copy them.")
    return tuple(numbered(base, i, n) for i in range(n))


def _place(match: re.Match[str]) -> tuple[int, int]:
    return int(match["i"]), int(match["n"])
