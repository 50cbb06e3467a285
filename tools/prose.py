"""A small prose linter for the documentation: words that readers stumble over, and sentences that are too long.

Run by `make lint`. Vale would do more, but its package fetches a binary when it first runs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
GENERATED = ("knobs.md", "commands.md", "errors.md", "metrics.md", "prometheus.md", "permissions.md", "alerts.md")
MOST_WORDS = 60  # of one sentence
INSTEAD = {
    r"anew": "again",
    r"for ever": "say until when",
    r"mend(s|ed)?": "fix",
    r"(some|every)body": "name who: a user, a writer, another system",
    r"told": "reported, shown, notified",
    r"to no avail": "without effect",
    r"whoever": "name who",
    r"(is|are) said to": "is passed to",
    r"by hand is": "manual",
    r"goes by": "uses",
    r"rotten": "neglected",
    r"in order to": "to",
    r"utili[sz]e(s|d)?": "use",
    r"simply|obviously|basically": "leave it out",
}
_WORDS = [(re.compile(rf"\b({word})\b", re.IGNORECASE), better) for word, better in INSTEAD.items()]
_NO_PROSE = re.compile(r"`[^`]*`|\[([^\]]*)\]\([^)]*\)|https?://\S+")
_END = re.compile(r"[.!?:;](?:\s|$)")


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield the prose of a Markdown page with the number of its first line; code, tables and comments are left out."""
    code, begun, lines = False, 1, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], 1):
        fence = line.lstrip().startswith("```")
        code ^= fence
        if code or fence or not line.strip() or line.lstrip().startswith(("|", "<", "#", "- ", "* ", "1. ")):
            if lines:
                yield begun, " ".join(lines)
            lines = []
        if not (code or fence or not line.strip() or line.lstrip().startswith(("|", "<"))):
            begun = begun if lines else number
            lines.append(line.strip().lstrip("-*# "))


def faults(path: Path) -> Iterator[str]:
    """Yield what is wrong with the prose of a page."""
    for number, paragraph in paragraphs(path.read_text(encoding="utf-8")):
        prose = _NO_PROSE.sub(lambda found: found[1] or "X", paragraph)
        for pattern, better in _WORDS:
            if found := pattern.search(prose):
                yield f"{path.relative_to(ROOT)}:{number}: {found[0]!r}: write {better!r}"
        for sentence in _END.split(prose):
            if len(sentence.split()) > MOST_WORDS:
                yield f"{path.relative_to(ROOT)}:{number}: a sentence of {len(sentence.split())} words: {sentence[:60]}"


def main() -> int:
    """Print every fault; 1 when there is any."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    found = [fault for page in pages if page.name not in GENERATED for fault in faults(page)]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
