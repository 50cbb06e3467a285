"""The outcome of a request to a catalog's server, where no answer says what became of it."""

from __future__ import annotations


class RequestOutcomeUnknown(Exception):
    """Raised when a request may have reached the server and no answer came back: the commit may have been made."""
