"""The documentation site builds without a warning, and asks no other host for anything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FETCHED = re.compile(
    r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"(https?:)?//[^\"]*\"[^>]*>"
)
# What pages may say of the package: names of its doors, and of modules that a command runs.
DOORS = "data|models|planner|serving|errors"
PRIVATE = re.compile(rf"^(?:from|import) hedgerow\.(?!(?:{DOORS})\b)", re.M)
# Where names of Monolith are, which only pages about it may import.
OF_MONOLITH = re.compile(r"^from hedgerow\.monolith\b.*$", re.M)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(build, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.xdist_group("site")
def test_every_page_is_built(site: Path) -> None:
    pages = sorted((ROOT / "docs").rglob("*.md"))
    for page in pages:
        built = site / page.relative_to(ROOT / "docs").with_suffix(".html")
        assert built.is_file(), page
    assert len(pages) > 30
    text = (site / "reference" / "cli.html").read_text(encoding="utf-8")
    assert "hedgerow ps-status" in text
    assert "EmbeddingBags" in (site / "reference" / "modules.html").read_text(encoding="utf-8")


@pytest.mark.xdist_group("site")
def test_pages_fetch_nothing_from_other_hosts(site: Path) -> None:
    for page in site.rglob("*.html"):
        for tag in FETCHED.finditer(page.read_text(encoding="utf-8")):
            assert 'rel="canonical"' in tag[0], (page, tag[0])


def test_pages_import_public_names_only() -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        if page.parent.name == "coming-from" and page.name.startswith("monolith"):
            text = OF_MONOLITH.sub("", text)
        if "notes" not in page.parts:
            assert not PRIVATE.search(text), page


def test_files_that_pages_name_exist() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    names = {"/" + line for line in tracked.stdout.splitlines()}
    for page in (ROOT / "docs" / "architecture.md", ROOT / "docs" / "internals.md"):
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"`([a-z_/]+\.(?:py|h|cpp))`", text):
            assert any(one.endswith("/" + name) for one in names), (page.name, name)
