"""Create and verify API tokens, of which only digests are stored."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from hashlib import sha256

from icewright.core.permissions import Grant
from icewright.ports.access import TokenRow

PREFIX = "iw"  # recognised by scanners for leaked secrets
_ID_BYTES, _SECRET_BYTES = 6, 32


def digest(secret: str) -> str:
    """Return the SHA-256 of a secret; 256 random bits need no slow password hash."""
    return sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def new_token(
    grants: Sequence[Grant], name: str, author: str, now: datetime, days: int | None = None
) -> tuple[str, TokenRow]:
    """Return a new token's text, and the row to store."""
    token_id = secrets.token_hex(_ID_BYTES)
    text = f"{PREFIX}_{token_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    expires = now + timedelta(days=days) if days is not None else None
    return text, TokenRow(token_id, digest(text), name, tuple(grants), author, now, expires)


def token_id(text: str) -> str | None:
    """Return the id that a token text claims, None when the text is no token."""
    prefix, _, remainder = text.partition("_")
    claimed_id, _, secret = remainder.partition("_")
    right = prefix == PREFIX and secret and len(claimed_id) == 2 * _ID_BYTES
    return claimed_id if right and all(c in "0123456789abcdef" for c in claimed_id) else None


def proven(row: TokenRow | None, text: str, now: datetime) -> TokenRow | None:
    """Return the row when the text is its token and is still valid; the comparison takes constant time."""
    matches = hmac.compare_digest(digest(text), row.digest if row is not None else digest(""))
    return row if row is not None and matches and row.is_valid(now) else None
