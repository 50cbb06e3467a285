"""What an installation of Icewright brings, by the metadata of the packages that are installed here."""

from __future__ import annotations

from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def brought(asked_for: str) -> dict[str, Distribution]:
    """Every distribution that a requirement such as `icewright[all]` brings, by name."""
    found: dict[str, Distribution] = {}
    waiting = [Requirement(asked_for)]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        asked = waiting.pop()
        key = canonicalize_name(asked.name), frozenset(asked.extras)
        if key in seen:
            continue
        seen.add(key)
        try:
            found[key[0]] = distribution(asked.name)
        except PackageNotFoundError:
            continue  # of another system, or an extra that is not in the lock
        for text in found[key[0]].requires or ():
            requirement = Requirement(text)
            extras = asked.extras or {""}
            if requirement.marker is None or any(requirement.marker.evaluate({"extra": e}) for e in extras):
                waiting.append(requirement)
    return found


def megabytes(one: Distribution) -> float:
    """The size of the files that a distribution installed, without what Python made of them while it ran."""
    files = [Path(str(one.locate_file(file))) for file in one.files or () if "__pycache__" not in file.parts]
    return sum(file.stat().st_size for file in files if file.is_file()) / 10**6
