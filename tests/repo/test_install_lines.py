"""What the README and the docs tell people to type can be typed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
INSTALL = re.compile(r"pip install ([^\s`]+)")


def test_the_readme_activates_before_it_calls_hedgerow() -> None:
    lines = [line.strip() for line in (ROOT / "README.md").read_text().splitlines()]
    commands = [k for k, line in enumerate(lines) if line.startswith("hedgerow ")]
    activates = [k for k, line in enumerate(lines) if line.startswith(". .venv/bin/activate")]
    assert commands
    assert activates
    assert activates[0] < commands[0]
    assert lines.index("## Install") < lines.index("## Quick start")


def test_every_install_line_names_what_can_be_installed() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    seen = 0
    for page in PAGES:
        for what in INSTALL.findall(page.read_text()):
            at = f"{page.name}: pip install {what}"
            seen += 1
            if what.strip("'") in (".", "dist/hedgerow-*.whl"):
                continue
            if "hedgerow" not in what:
                continue  # of other projects
            named = re.fullmatch(r"'hedgerow\[([a-z,]+)\]'", what)  # shells read bare brackets
            assert named is not None, at
            assert set(named[1].split(",")) <= set(extras), at
    assert seen >= 5
