"""API tokens: made once, shown once, and known afterwards by their digest alone."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from hashlib import sha256

from icewright.core.permissions import Grant
from icewright.ports.access import TokenRow

PREFIX = "iw"  # by which scanners for leaked secrets know it
_ID_BYTES, _SECRET_BYTES = 6, 32


def digest(secret: str) -> str:
    """Return what is kept of a secret of 256 random bits; nothing slower is needed to keep such a one."""
    return sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def new_token(
    grants: Sequence[Grant], name: str, author: str, now: datetime, days: int | None = None
) -> tuple[str, TokenRow]:
    """Return the token for its bearer, and what is kept of it."""
    token_id = secrets.token_hex(_ID_BYTES)
    text = f"{PREFIX}_{token_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    expires = now + timedelta(days=days) if days is not None else None
    return text, TokenRow(token_id, digest(text), name, tuple(grants), author, now, expires)


def token_id(text: str) -> str | None:
    """Return which token a text says that it is; None when it is none of ours."""
    prefix, _, rest = text.partition("_")
    found, _, secret = rest.partition("_")
    right = prefix == PREFIX and secret and len(found) == 2 * _ID_BYTES
    return found if right and all(c in "0123456789abcdef" for c in found) else None


def proven(row: TokenRow | None, text: str, now: datetime) -> TokenRow | None:
    """The token, when the text is that one and it still opens anything; compared in the same time whatever it is."""
    same = hmac.compare_digest(digest(text), row.digest if row is not None else digest(""))
    return row if row is not None and same and row.holds(now) else None
