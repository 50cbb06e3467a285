"""What a push does not wait for: long sweeps, rare engines and the demo's own tables run by `make test-nightly`."""

from __future__ import annotations

import os

import pytest

NIGHTLY = os.environ.get("ICEWRIGHT_NIGHTLY", "") not in ("", "0")


def nightly(*values: object, id: str | None = None) -> object:  # noqa: A002 - as pytest names it
    """Return a parameter set that only a nightly run tries."""
    return pytest.param(*values, marks=pytest.mark.nightly, id=id)
