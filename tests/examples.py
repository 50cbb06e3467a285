"""How many examples a property is tried on."""

from __future__ import annotations

from hypothesis import settings


def examples(count: int) -> settings:
    """Return the settings of a property that takes its time: so many examples, in `make test-fast` its few."""
    few = settings.get_current_profile_name() == "fast"
    return settings(max_examples=min(count, settings().max_examples) if few else count)
