"""Knobs that a table sets by its own properties: ours by name, and Iceberg's that mean the same.

Who writes to a table sets its properties, and is not who runs the platform: properties set what harms nobody else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from icewright.core.effective import Ignored, Knobs
from icewright.core.knob import Knob, ValueKind, is_listed, written
from icewright.core.numbers import positive_number
from icewright.core.policy import (
    CONFIRM_HOURS,
    DELETE_FILES,
    ENABLED,
    MAX_DELETE_RATIO,
    MAX_PIN_AGE,
    MAX_REF_AGE,
    MEGABYTE,
    MIN_SNAPSHOTS,
    ORDER,
    ORPHAN_AGE,
    ORPHAN_MODE,
    PRESET,
    PROPERTIES_ALLOW,
    PUBLISH_HOURS,
    READER_PINS,
    RENAMED,
    RETENTION,
    VACUUM_ENABLED,
    WINDOWS,
    WRITER_STATE_DAYS,
    find_knob,
)
from icewright.core.rewriting import (
    APPLY_DELETES,
    DANGLING,
    DELETE_FILE_THRESHOLD,
    DELETE_RATIO_THRESHOLD,
    GROWTH,
    HOT_MAX_HOURS,
    HOT_MINUTES,
    HOT_PARTITIONS,
    MANIFEST_DELETED,
    MAX_FILE_SIZE_RATIO,
    MAX_OVERLAP,
    MIN_DELETE_FILES,
    MIN_FILE_SIZE_RATIO,
    MIN_INPUT_FILES,
    MIN_MANIFESTS,
    PARTIAL_PROGRESS,
    REMOVE_DANGLING,
    SORT_ORDER,
    STRATEGY,
    TARGET_FILE_SIZE,
    TARGET_MANIFEST,
)
from icewright.core.table import TableMetadata

_ICEBERG: Mapping[str, tuple[Knob[Any], float]] = {
    "history.expire.max-snapshot-age-ms": (RETENTION, 3_600_000),
    "history.expire.min-snapshots-to-keep": (MIN_SNAPSHOTS, 1),
    "history.expire.max-ref-age-ms": (MAX_REF_AGE, 3_600_000),
    "write.target-file-size-bytes": (TARGET_FILE_SIZE, MEGABYTE),
    "commit.manifest.target-size-bytes": (TARGET_MANIFEST, MEGABYTE),
}
# What only says how the table's own files and snapshots are laid out and kept. What costs others (memory, concurrency,
# cooldowns, importance, queries), reaches other places or deletes what no snapshot of the table named is not in it.
_COMPACTION: tuple[Knob[Any], ...] = (
    *(TARGET_FILE_SIZE, MIN_FILE_SIZE_RATIO, MAX_FILE_SIZE_RATIO, MIN_INPUT_FILES, STRATEGY, SORT_ORDER, MAX_OVERLAP),
    *(APPLY_DELETES, DELETE_FILE_THRESHOLD, DELETE_RATIO_THRESHOLD, REMOVE_DANGLING, PARTIAL_PROGRESS),
    *(HOT_PARTITIONS, HOT_MINUTES, HOT_MAX_HOURS, PUBLISH_HOURS, GROWTH),
)
_SNAPSHOTS: tuple[Knob[Any], ...] = (RETENTION, MIN_SNAPSHOTS, MAX_REF_AGE, READER_PINS)
_OTHERS: tuple[Knob[Any], ...] = (
    *(PRESET, ORDER, MIN_DELETE_FILES, DANGLING, MIN_MANIFESTS, TARGET_MANIFEST, MANIFEST_DELETED),
)
# What may be set to the side of caution alone: no more, or no less, than the rules say.
_NO_MORE: tuple[Knob[Any], ...] = (*ENABLED.values(), VACUUM_ENABLED, DELETE_FILES, ORPHAN_MODE, MAX_DELETE_RATIO)
_NO_LESS: tuple[Knob[Any], ...] = (ORPHAN_AGE, CONFIRM_HOURS, MAX_PIN_AGE, WRITER_STATE_DAYS)
_HARMLESS, _AT_MOST, _AT_LEAST = (
    frozenset(knob.name for knob in knobs) for knobs in ((*_COMPACTION, *_SNAPSHOTS, *_OTHERS), _NO_MORE, _NO_LESS)
)
_SHOWN = 100  # characters of a value that is ignored


def by_property(knob: Knob[Any]) -> str:
    """Return whether a table property may set the knob where no rule allows more: yes, no, or a condition."""
    if knob.name in _AT_MOST:
        return "false" if knob.kind is ValueKind.FLAG else "at most what the rules say"
    if knob.name in _AT_LEAST:
        return "at least what the rules say"
    if knob is WINDOWS:
        return "where no rule does"
    return "yes" if knob.name in _HARMLESS else "no"


@dataclass(frozen=True, slots=True)
class Allowance:
    """The rules for settings that the properties of one table may change."""

    rules: Knobs  # what holds for the table without its properties

    def refusal(self, knob: Knob[Any], value: Any) -> str:  # noqa: ANN401 - any knob's value
        """Return why a property may not set the knob to this value; blank when it may."""
        if knob is PROPERTIES_ALLOW:
            return "rules alone set what the properties of a table may set"
        opened = self.rules[PROPERTIES_ALLOW]
        if knob.name in _HARMLESS or (opened is not None and _opens(opened, knob)):
            return ""
        why = f"a table property may not set {knob.name}"
        if knob.name in _AT_MOST | _AT_LEAST:
            property_rank, rule_rank = (_rank(knob, v) for v in (value, self.rules[knob]))
            if property_rank == rule_rank or (property_rank < rule_rank) is (knob.name in _AT_MOST):
                return ""
            beyond = "above" if knob.name in _AT_MOST else "below"
            why = f"{why} {beyond} {written(self.rules[knob])}, which the rules say"
        elif knob is WINDOWS:
            if not self.rules.is_set(WINDOWS):
                return ""
            why = f"{why} where a rule does"
        return f"{why}; a rule opens it by `properties.allow: {knob.name}`"


def _rank(knob: Knob[Any], value: Any) -> Any:  # noqa: ANN401 - any knob's value
    """Return how far a value goes; choices go from the least to the most."""
    return knob.choices.index(value) if knob.kind is ValueKind.CHOICE else value


@dataclass(frozen=True, slots=True)
class Properties:
    """The content of a table's properties: knobs with the property that sets them, what is ignored, and faults."""

    settings: Mapping[str, tuple[str, Any]]
    ignored: tuple[Ignored, ...]
    faults: tuple[str, ...]


def from_properties(metadata: TableMetadata, allowance: Allowance) -> Properties:
    """Read the knobs that the table's own properties set; a named preset comes last, since the others win over it.

    Ours are `icewright.<knob>`; of Iceberg's own, those that mean the same as a knob.
    """
    settings: dict[str, tuple[str, Any]] = {}
    ignored: list[Ignored] = []
    faults: list[str] = []
    for name, (knob, divisor) in _ICEBERG.items():
        if (text := metadata.properties.get(name)) is not None:
            if not positive_number(text):
                faults.append(f"table property {name}: {text!r} is not a whole number above 0")
            else:
                settings[knob.name] = (name, knob.saturate(positive_number(text) / divisor))
    for name, text in metadata.properties.items():
        if name.startswith("icewright."):
            own = find_knob(name.removeprefix("icewright."))
            if own is None:
                faults.append(f"table property {name}: there is no such knob")
                continue
            try:
                value = own.parse(text)
            except ValueError as error:
                if by_property(own) != "no" or not allowance.refusal(own, None):
                    faults.append(f"table property {name}: {error}")
                    continue
                value = None  # no value of it would count
            if reason := allowance.refusal(own, value):
                ignored.append(Ignored(name, _cut(text), own.name, reason))
            else:
                settings[own.name] = (name, value)
    if PRESET.name in settings:
        settings[PRESET.name] = settings.pop(PRESET.name)
    return Properties(settings, tuple(ignored), tuple(faults))


def _opens(patterns: str, knob: Knob[Any]) -> bool:
    """Return whether an allow-list has the knob, by its name or an earlier one."""
    names = (knob.name, *(old for old, new in RENAMED.items() if new == knob.name))
    return any(is_listed(patterns, name) for name in names)


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
