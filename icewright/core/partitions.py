"""Partition tuples: their canonical text, their names for people, and whether they are too small."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from typing import Any
from uuid import UUID

from icewright.core.errors import MetadataUnreadable
from icewright.core.table import PartitionSpec, TableFacts, TableMetadata

PartitionKey = tuple[int, tuple[Any, ...]]  # spec id and partition tuple
EPOCH = date(1970, 1, 1)
_MIDNIGHT = datetime(1970, 1, 1)  # noqa: DTZ001 - of timestamps without a zone
_DAY, _MICROSECOND = timedelta(days=1), timedelta(microseconds=1)
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097  # after which the calendar repeats


@dataclass(frozen=True, slots=True)
class DistantTime:
    """A date, or a moment in UTC, beyond the years 1 to 9999, which Iceberg and Spark have and Python has not."""

    number: int  # days or microseconds since 1970
    unit: str  # "days" or "microseconds"

    def __str__(self) -> str:
        """Return it as Spark's literals have it, such as `+10000-01-01`."""
        days, micros = (self.number, 0) if self.unit == "days" else divmod(self.number, _DAY // _MICROSECOND)
        cycles, day = divmod(days, _CYCLE_DAYS)
        moment = _MIDNIGHT + timedelta(days=day, microseconds=micros)
        text = f"{moment.year + cycles * _CYCLE_YEARS:+05d}{moment:-%m-%d}"
        return text if self.unit == "days" else f"{text} {moment:%H:%M:%S.%f}"


def date_of(days: int) -> date | DistantTime:
    """Return the date so many days after 1970-01-01."""
    try:
        return EPOCH + timedelta(days=days)
    except OverflowError:
        return DistantTime(days, "days")


def moment_of(micros: int, zone: tzinfo | None) -> datetime | DistantTime:
    """Return the moment so many microseconds after 1970, in UTC with a zone, else without."""
    try:
        return _MIDNIGHT.replace(tzinfo=zone) + timedelta(microseconds=micros)
    except OverflowError:
        return DistantTime(micros, "microseconds")


_LEAST_PARTITIONS = 50  # below which the number of partitions harms no reader
_TINY = 0.25  # of the target size: a partition below holds one small file, however well it is compacted


@dataclass(frozen=True, slots=True)
class SmallPartitions:
    """The partitions of a table that are too small and too many: no rewrite merges files across them."""

    spec_id: int
    partitions: int
    files: int
    bytes: int
    enough: int  # files of a quarter of the target size that would hold all


def small_partitions(facts: TableFacts) -> SmallPartitions | None:
    """Return the partitions of the newest spec if they are too small; None while they are large or few."""
    spec = max((p.spec_id for p in facts.partitions), default=0)
    partitions = [p for p in facts.partitions if p.spec_id == spec]
    files, size = sum(p.data_files for p in partitions), sum(p.data_bytes for p in partitions)
    tiny = facts.thresholds.target_bytes * _TINY
    if len(partitions) < _LEAST_PARTITIONS or size >= len(partitions) * tiny or not files:
        return None
    return SmallPartitions(spec, len(partitions), files, size, max(1, round(size / tiny)))


def partition_key(spec: PartitionSpec, text: str) -> PartitionKey:
    """Return the partition of this text; days are dates whatever form their writer stored.

    Raises `MetadataUnreadable` when it has more or fewer fields than the spec.
    """
    stored = partition_values(text)
    if len(stored) != len(spec.fields):
        raise MetadataUnreadable(
            f"a manifest of partition spec {spec.spec_id} has partitions of {len(stored)} fields, and the spec has "
            f"{len(spec.fields)}: restore the spec in the table's metadata"
        )
    values = tuple(
        date_of(value) if field.transform == "day" and isinstance(value, int) else value
        for field, value in zip(spec.fields, stored, strict=True)
    )
    return spec.spec_id, values


def partition_name(metadata: TableMetadata, key: PartitionKey) -> str:
    """Return the partition's name for people, such as `day=2026-01-01/region=eu`."""
    spec_id, values = key
    spec = metadata.specs_by_id.get(spec_id)
    if spec is None:
        return f"a partition of the unknown spec {spec_id}"
    named = [f"{f.name}={'null' if v is None else v}" for f, v in zip(spec.fields, values, strict=True)]
    return "/".join(named) or "the table"


def partition_text(values: Iterable[Any]) -> str:
    """Return a partition tuple as canonical JSON; types that JSON lacks are tagged."""
    return json.dumps([_tagged(v) for v in values], ensure_ascii=False, separators=(",", ":"))


def partition_values(text: str) -> tuple[Any, ...]:
    """Return the tuple of a canonical text."""
    return tuple(_untagged(v) for v in json.loads(text))


def _tagged(value: Any) -> Any:  # noqa: ANN401 - any partition value
    match value:
        case datetime():
            return {"timestamp": value.isoformat()}
        case date():
            return {"date": value.isoformat()}
        case time():
            return {"time": value.isoformat()}
        case timedelta():
            return {"duration": value // timedelta(microseconds=1)}
        case Decimal():
            return {"decimal": str(value)}
        case bytes():
            return {"binary": value.hex()}
        case DistantTime(number, unit):
            return {unit: number}
    return value


def _untagged(value: Any) -> Any:  # noqa: ANN401 - any partition value
    if not isinstance(value, dict):
        return value
    ((tag, text_value),) = value.items()
    match tag:
        case "timestamp":
            return datetime.fromisoformat(text_value)
        case "date":
            return date.fromisoformat(text_value)
        case "time":
            return time.fromisoformat(text_value)
        case "duration":
            return timedelta(microseconds=text_value)
        case "decimal":
            return Decimal(text_value)
        case "uuid":
            return UUID(text_value)
        case "binary":
            return bytes.fromhex(text_value)
        case "days" | "microseconds":
            return DistantTime(text_value, tag)
    raise ValueError(f"unknown tag {tag} in a partition tuple")
