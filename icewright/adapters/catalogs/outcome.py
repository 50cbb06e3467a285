"""The error of a request to a catalog's server whose outcome is unknown."""

from __future__ import annotations


class RequestOutcomeUnknown(Exception):
    """Raised when a request may have reached the server and no answer came back: the commit may have been made."""
