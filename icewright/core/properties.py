"""Knobs that a table sets by its own properties: ours by name, and Iceberg's that mean the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icewright.core.knob import Knob
from icewright.core.policy import (
    KNOBS,
    MAX_REF_AGE,
    MEGABYTE,
    MIN_SNAPSHOTS,
    PRESET,
    RETENTION,
    TARGET_FILE_SIZE,
    TARGET_MANIFEST,
)
from icewright.core.table import TableMetadata

_DIGITS = 25  # of the largest number that a property may say before it simply means "as much as possible"


def _amount(text: str) -> int:
    """A whole number above 0, else 0; more digits than any such number has mean the largest."""
    digits = text.strip().lstrip("0") if text.strip().isdecimal() else ""
    return 10**_DIGITS if len(digits) > _DIGITS else int(digits or "0")


def from_properties(metadata: TableMetadata) -> tuple[dict[str, tuple[str, Any]], list[str]]:
    """Knobs that the table's own properties set, by name with the property that says it, and the faults found.

    Ours are `icewright.<knob>`; of Iceberg's own, those that mean the same as a knob.
    """
    found: dict[str, tuple[str, Any]] = {}
    faults: list[str] = []
    hour_ms = 3_600_000
    iceberg: Mapping[str, tuple[Knob[Any], float]] = {
        "history.expire.max-snapshot-age-ms": (RETENTION, hour_ms),
        "history.expire.min-snapshots-to-keep": (MIN_SNAPSHOTS, 1),
        "history.expire.max-ref-age-ms": (MAX_REF_AGE, hour_ms),
        "write.target-file-size-bytes": (TARGET_FILE_SIZE, MEGABYTE),
        "commit.manifest.target-size-bytes": (TARGET_MANIFEST, MEGABYTE),
    }
    for name, (knob, divisor) in iceberg.items():
        if (text := metadata.properties.get(name)) is not None:
            if not _amount(text):
                faults.append(f"table property {name}: {text!r} is not a whole number above 0")
            else:
                found[knob.name] = (name, knob.saturate(_amount(text) / divisor))
    for name, text in metadata.properties.items():
        if name.startswith("icewright."):
            own = KNOBS.get(name.removeprefix("icewright."))
            if own is None:
                faults.append(f"table property {name}: there is no such knob")
                continue
            try:
                found[own.name] = (name, own.parse(text))
            except ValueError as error:
                faults.append(f"table property {name}: {error}")
    if PRESET.name in found:  # the weakest of its level: what the table says by name wins over it
        found[PRESET.name] = found.pop(PRESET.name)
    return found, faults
