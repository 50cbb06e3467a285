"""The documentation as a site: every page has its place, every link leads somewhere, nothing comes from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
_FETCHED = re.compile(r"""<(?:script|img|iframe)[^>]+src=["']?(?:https?:)?//|<link[^>]+href=["']?(?:https?:)?//""")


@pytest.mark.external
def test_site_builds_strictly_and_stands_alone(tmp_path: Path) -> None:
    """MkDocs finds no fault, the search index is part of the site, and no page asks another host for anything."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "site" / "search" / "search_index.json").is_file()
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len(list((ROOT / "docs").rglob("*.md")))  # and the page for what is not found
    assert [page.name for page in pages if _FETCHED.search(page.read_text(encoding="utf-8"))] == []
    styles = [*(tmp_path / "site").rglob("*.css")]
    assert [style.name for style in styles if "url(http" in style.read_text(encoding="utf-8")] == []
