"""Convert policies that Apache Polaris serves for a table to settings.

Its types and contents are those of Polaris's schemas of 2025-02-03. What a policy says of an operation and cannot be
understood switches the operation off for the table: who wrote it wanted something else than the defaults.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from icewright.core.knob import Knob
from icewright.core.policy import (
    ENABLED,
    KNOBS,
    MAX_REF_AGE,
    MEGABYTE,
    MIN_SNAPSHOTS,
    ORPHAN_AGE,
    PREFIX_MISMATCH,
    RETENTION,
    Operation,
)
from icewright.core.rewriting import MAX_CONCURRENT_GROUPS, STRATEGY, TARGET_FILE_SIZE

_TYPES: Mapping[str, tuple[Operation, ...]] = {
    "system.data-compaction": (Operation.COMPACT, Operation.REWRITE_DELETES),
    "system.metadata-compaction": (Operation.REWRITE_MANIFESTS,),
    "system.orphan-file-removal": (Operation.REMOVE_ORPHANS,),
    "system.snapshot-expiry": (Operation.EXPIRE_SNAPSHOTS,),
}
_LATEST_SECONDS = 10**11  # a later Unix time is told in milliseconds
_HOURS = 24


@dataclass(frozen=True, slots=True)
class PolarisPolicy:
    """One policy as served; `content` is its parsed JSON, None when it is not JSON."""

    type: str
    name: str
    content: object
    inherited: bool = False


@dataclass(frozen=True, slots=True)
class Served:
    """The settings of a catalog's own policies, the stronger first, each rule in words."""

    rules: tuple[tuple[str, Mapping[str, Any]], ...] = ()


def served(policies: Sequence[PolarisPolicy], now: datetime, note: str = "") -> Served:
    """Return the policies as knobs; of one type the table's own, else the first, counts. Each rule has the `note`."""
    rules: list[tuple[str, Mapping[str, Any]]] = []
    seen: set[str] = set()
    for policy in sorted(policies, key=lambda p: p.inherited):
        operations = _TYPES.get(policy.type)
        if operations is None or policy.type in seen:
            continue
        seen.add(policy.type)
        read = _Reading(policy.type, operations, now)
        read.content(policy.content)
        name = f"Polaris {policy.type} {policy.name}{', inherited' if policy.inherited else ''}"
        notes = "; ".join((*([note] if note else ()), *read.faults, *read.notes))
        rules.append((f"{name}: {notes}" if notes else name, read.settings))
    return Served(tuple(rules))


@dataclass
class _Reading:
    """The conversion of one policy to settings."""

    type: str
    operations: tuple[Operation, ...]
    now: datetime
    settings: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def content(self, content: object) -> None:
        """Convert the whole policy; a fault disables its operations."""
        if not isinstance(content, Mapping) or not isinstance(content.get("enable"), bool):
            self.faults.append("its content does not say enable: true or false")
        else:
            for key, value in content.items():
                self._field(str(key), value)
            for operation in self.operations:
                self.settings[ENABLED[operation].name] = content["enable"]
        if self.faults:
            self.settings = {ENABLED[operation].name: False for operation in self.operations}

    def _field(self, key: str, value: object) -> None:
        if key in ("enable", "version"):
            return
        if key == "config" and isinstance(value, Mapping):
            for name, custom in value.items():
                self._custom(str(name), custom)
        elif key == "target_file_size_bytes":  # of drafts of the schema
            self._custom(key, value)
        elif key == "max_orphan_file_age_in_days" and self.type == "system.orphan-file-removal":
            self._set(ORPHAN_AGE, key, value, lambda days: max(days * _HOURS, ORPHAN_AGE.minimum or 0))
        elif key == "older_than" and self.type == "system.orphan-file-removal":
            self._set(ORPHAN_AGE, key, value, self._age)
        else:
            self.notes.append(f"{key} is left out: Icewright does not know it")

    def _custom(self, name: str, value: object) -> None:
        """Convert a property of `config`: one of Polaris's own examples, or a knob of the operation."""
        plain = name.replace("-", "_")
        match (self.operations[0], plain):
            case (Operation.COMPACT, "compaction_strategy"):
                words = {"bin-pack": "binpack", "z-order": "zorder"}
                self._set(STRATEGY, name, words.get(str(value), value))
            case (Operation.COMPACT, "target_file_size_bytes"):
                self._set(TARGET_FILE_SIZE, name, value, lambda size: size / MEGABYTE)
            case (Operation.REMOVE_ORPHANS, "prefix_mismatch_mode"):
                self._set(PREFIX_MISMATCH, name, str(value).lower())
            case (Operation.COMPACT, "max_concurrent_file_group_rewrites"):
                self._set(MAX_CONCURRENT_GROUPS, name, value)
            case (Operation.EXPIRE_SNAPSHOTS, "min_snapshot_to_keep" | "min_snapshots_to_keep"):
                self._set(MIN_SNAPSHOTS, name, value)
            case (Operation.EXPIRE_SNAPSHOTS, "max_snapshot_age_days"):
                self._set(RETENTION, name, value, lambda days: days * _HOURS)
            case (Operation.EXPIRE_SNAPSHOTS, "max_ref_age_days"):
                self._set(MAX_REF_AGE, name, value, lambda days: days * _HOURS)
            case (operation, _) if (knob := KNOBS.get(f"{operation}.{plain}")) and plain != "enabled":
                self._set(knob, name, value)
            case _:
                self.notes.append(f"config.{name} is left out: Icewright does not know it")

    def _set(self, knob: Knob[Any], name: str, value: object, convert: Callable[[float], float] | None = None) -> None:
        try:
            if convert is not None:
                value = convert(float(str(value)))
            self.settings[knob.name] = knob.parse(value)
        except (ValueError, OverflowError):
            self.faults.append(f"{name} cannot be taken for {knob.name}, so nothing is done")

    def _age(self, instant: float) -> float:
        """Return the least age in hours of a file that is older than a Unix time; never under the knob's own bound."""
        seconds = instant / 1000 if instant > _LATEST_SECONDS else instant
        hours = math.ceil((self.now - datetime.fromtimestamp(seconds, UTC)).total_seconds() / 3600)
        return max(hours, int(ORPHAN_AGE.minimum or 0))
