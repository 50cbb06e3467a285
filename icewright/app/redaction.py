"""Redact secrets from log lines and error messages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, unquote

HIDDEN = "***"
SHORTEST = 4  # shorter values are no secrets and occur in ordinary words
_USERINFO = re.compile(r"(?<=://)[^\s/'\"<>]*@")


class Redaction:
    """Replaces configured secrets, and user info of URLs, in texts."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets if len(secret) >= SHORTEST for form in _forms(secret)}
        longest_first = sorted(forms, key=len, reverse=True)
        self._secrets = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def text(self, text: str) -> str:
        """Return the text with every secret replaced."""
        shown = self._secrets.sub(HIDDEN, text) if self._secrets is not None else text
        return _USERINFO.sub(f"{HIDDEN}@", shown) if "@" in shown else shown

    def value(self, value: Any) -> Any:  # noqa: ANN401 - whatever is logged
        """Return a log value with all nested texts redacted; other objects become their redacted text."""
        match value:
            case None | bool() | int() | float():
                return value
            case str():
                return self.text(str(value))
            case Mapping():
                return {self.text(str(key)): self.value(inner) for key, inner in value.items()}
            case list() | tuple() | set() | frozenset():
                return [self.value(inner) for inner in value]
        return self.text(str(value))


def without(secrets: Iterable[str], text: str) -> str:
    """Return the text without the given secrets, plain or quoted by `repr`, even short ones."""
    for secret in sorted(secrets, key=len, reverse=True):
        for form in (secret, repr(secret)[1:-1]):
            text = text.replace(form, HIDDEN)
    return text


def _forms(secret: str) -> set[str]:
    """Return the forms of a secret: plain, quoted by Python or JSON, URL-encoded, and each line.

    The URL-decoded form is included, because clients log decoded credentials.
    """
    texts = {secret, unquote(secret), *(line.strip() for line in secret.splitlines())}
    forms = {form for text in texts for form in (text, repr(text)[1:-1], json.dumps(text)[1:-1])}
    forms |= {quote(text, safe=safe) for text in texts for safe in ("", "/")}
    return {form for form in forms if len(form) >= SHORTEST}
