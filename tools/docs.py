"""Makes the pictures of the documentation: a page of a plan, opened in a browser that is cut off.

Run as `python tools/docs.py [FOLDER]`; writes build/docs/plan.html and FOLDER/plan.png
(docs/images/ if not given), and exits 1 if the page does not show what it should. Without a
browser it says so.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
PLAN = ("--ranks", "16", "--local-ranks", "8", "--hbm", "40GiB", "--host", "800GiB")
CLOSED = "default-src 'none'; style-src 'unsafe-inline'"  # the page's own word to the browser
SHOWN = ("proven optimal", "item_hist", "Where each table lives", "What it costs", "today")


def make_page(path: Path) -> None:
    """The page of the plan of examples/tables.toml."""
    command = [sys.executable, "-m", "hedgerow", "plan", str(ROOT / "examples" / "tables.toml")]
    done = subprocess.run(
        [*command, *PLAN, "--keep-hbm", "1.5GiB", "--html", str(path)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode:
        sys.exit(f"docs: hedgerow plan failed:\n{done.stderr}")


def browse(browser: str, page: Path, *options: str) -> str:
    """What the browser prints of a page, with every host switched off."""
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", *options, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode:
        sys.exit(f"docs: {browser} failed:\n{done.stderr}")
    return done.stdout


def main() -> int:
    """0 if the page is as it should be, or there is no browser to tell."""
    page = ROOT / "build" / "docs" / "plan.html"
    make_page(page)
    print(f"docs: wrote {page.relative_to(ROOT)}")
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        print(f"docs: SKIPPED: none of {', '.join(BROWSERS)} is here: the page was not opened.")
        print("docs: SKIPPED: make docs-deps installs chromium-headless-shell")
        return 0
    seen = browse(browser, page, "--dump-dom")
    missing = [word for word in SHOWN if word not in seen]
    if missing or seen.count("<svg") != 3 or "<script" in seen or CLOSED not in seen:
        print(f"docs: the page lacks {missing}, has not 3 pictures, or is open to scripts")
        return 1
    folder = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT / "docs" / "images"
    shot = folder / "plan.png"
    browse(browser, page, "--window-size=1340,1480", f"--screenshot={shot}")
    if not shot.is_file() or shot.read_bytes()[1:4] != b"PNG":
        print(f"docs: {browser} wrote no picture to {shot}")
        return 1
    print(f"docs: the page opens without network and scripts; its picture is {shot}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
