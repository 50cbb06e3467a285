"""Removes secrets from what is logged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, unquote

HIDDEN = "***"
SHORTEST = 4  # a value of fewer characters is no secret, as it occurs in too many words
_CONTAINER = r"(?<!\babfs://)(?<!\babfss://)(?<!\bwasb://)(?<!\bwasbs://)"  # what Azure's locations name before `@`
_USERINFO = re.compile(rf"(?<=://){_CONTAINER}[^\s/'\"<>]*@")


class Redaction:
    """Removes secrets from texts: values of environment variables and files, and user information in URLs."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets if len(secret) >= SHORTEST for form in _forms(secret)}
        longest_first = sorted(forms, key=len, reverse=True)
        self._secrets = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def text(self, text: str) -> str:
        """Return the text with every secret replaced."""
        redacted = self._secrets.sub(HIDDEN, text) if self._secrets is not None else text
        return _USERINFO.sub(f"{HIDDEN}@", redacted) if "@" in redacted else redacted

    def value(self, value: Any) -> Any:  # noqa: ANN401 - any logged value
        """Return a logged value with secrets removed at any depth; other objects are turned into text first."""
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
    """Return the text without values that came from environment or files, the short ones too, however it is quoted."""
    for secret in sorted(secrets, key=len, reverse=True):
        for form in (secret, repr(secret)[1:-1]):
            text = text.replace(form, HIDDEN)
    return text


def _forms(secret: str) -> set[str]:
    """Return the forms in which a secret and its lines may appear: plain, quoted by Python or JSON, URL-encoded.

    A secret that is given URL-encoded is hidden in its decoded form, too.
    """
    texts = {secret, unquote(secret), *(line.strip() for line in secret.splitlines())}
    forms = {form for text in texts for form in (text, repr(text)[1:-1], json.dumps(text)[1:-1])}
    forms |= {quote(text, safe=safe) for text in texts for safe in ("", "/")}
    return {form for form in forms if len(form) >= SHORTEST}
