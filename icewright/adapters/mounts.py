"""Which file system a local path lies on, without asking that file system: it may hang."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

_MOUNTS = Path("/proc/self/mounts")
_ESCAPED = re.compile(r"\\([0-7]{3})")


def mounts() -> frozenset[str]:
    """Return where file systems are mounted; none where the kernel does not tell."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return frozenset()
    return frozenset(_ESCAPED.sub(lambda code: chr(int(code[1], 8)), line.split(" ")[1]) for line in lines)


def mount_of(path: str, mounted: frozenset[str]) -> str:
    """Return the mount below which a path lies; `/` where none of them is above it."""
    above = posixpath.normpath(path)
    while above not in mounted and above != (parent := posixpath.dirname(above)):
        above = parent
    return above if above in mounted else "/"
