"""Builders of tables and facts: each has defaults, and takes every field by keyword."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from icewright.core import table
from icewright.core.effective import Knobs
from icewright.core.layering import Policy, parse_settings
from icewright.core.policy import MEGABYTE
from icewright.core.simulation.scenario import policy_failures, read_policy_tests
from icewright.core.sizes import FileHistogram
from icewright.core.verdicts import thresholds

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
REF = table.TableRef("lake", ("sales",), "orders")
UUID = "0b7a3b8e-6a8f-4d3e-9d1c-5f0a2c4e6b18"
LOCATION = "s3://lake/sales/orders"
SCHEMA: Mapping[str, Any] = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "required": True, "type": "long"},
        {"id": 2, "name": "region", "required": False, "type": "string"},
        {"id": 3, "name": "ts", "required": False, "type": "timestamptz"},
    ],
}


def snapshot(
    snapshot_id: int = 1, *, age: float = 0, parent_id: int | None = None, now: datetime = NOW, **overrides: Any
) -> table.Snapshot:
    """Return an append, `age` hours old; without `parent_id` it is the first of its line."""
    built = table.Snapshot(
        snapshot_id=snapshot_id,
        parent_id=parent_id,
        sequence_number=snapshot_id,
        timestamp=now - timedelta(hours=age),
        manifest_list=f"{LOCATION}/metadata/snap-{snapshot_id}.avro",
        operation="append",
        summary={"operation": "append"},
    )
    return replace(built, **overrides)


def lineage(ages: Sequence[float], *, first_id: int = 1, parent_id: int | None = None) -> tuple[table.Snapshot, ...]:
    """Return snapshots of these ages in hours, each the parent of the next, with ids that count up from `first_id`."""
    snapshots: list[table.Snapshot] = []
    for snapshot_id, age in enumerate(ages, first_id):
        snapshots.append(
            snapshot(snapshot_id, age=age, parent_id=snapshots[-1].snapshot_id if snapshots else parent_id)
        )
    return tuple(snapshots)


def spec(spec_id: int = 0, /, **transforms: str) -> table.PartitionSpec:
    """Return a partition spec over columns of `SCHEMA`: `spec(region="identity", ts="day")`."""
    ids = {column["name"]: column["id"] for column in SCHEMA["fields"]}
    return table.PartitionSpec(
        spec_id,
        tuple(
            table.PartitionField(
                ids[column], 1000 + i, column if transform == "identity" else f"{column}_{i}", transform
            )
            for i, (column, transform) in enumerate(transforms.items())
        ),
    )


def metadata(
    ages: Sequence[float] = (24, 2), *, refs: Sequence[table.SnapshotRef] = (), **overrides: Any
) -> table.TableMetadata:
    """Return a table whose main branch has one snapshot for each age in hours, oldest first, with ids from 1.

    `refs` come in addition to main, which is created unless they name it. With `snapshots` the history is used
    unchanged, and main points to the last one unless `current_snapshot_id` names another.
    """
    snapshots: tuple[table.Snapshot, ...] = overrides.pop("snapshots", None) or lineage(ages)
    last = snapshots[-1].snapshot_id if snapshots else None
    current: int | None = overrides.pop("current_snapshot_id", last)
    if current is not None and table.MAIN not in {ref.name for ref in refs}:
        refs = (table.SnapshotRef(table.MAIN, table.RefKind.BRANCH, current), *refs)
    built = table.TableMetadata(
        ref=REF,
        metadata_location=f"{LOCATION}/metadata/00001-a.metadata.json",
        metadata_length=10_000,
        table_uuid=UUID,
        location=LOCATION,
        format_version=2,
        last_updated=max((s.timestamp for s in snapshots), default=NOW),
        last_sequence_number=max((s.sequence_number for s in snapshots), default=0),
        current_snapshot_id=current,
        snapshots=snapshots,
        refs=tuple(refs),
        metadata_log=(),
        statistics=(),
        partition_statistics=(),
        properties={},
        specs=(spec(),),
        default_spec_id=0,
        schema=SCHEMA,
        sort_order=None,
    )
    return replace(built, **overrides)


def knobs(settings: Mapping[str, object] | None = None, /, **named: object) -> Knobs:
    """Return knobs as a rule of the platform sets them, such as `knobs({"compact.min_input_files": 3})`."""
    checked = parse_settings("knobs", {**(settings or {}), **named})
    return Policy(command=checked).knobs_for(REF, None)


def histogram(files: int, file_bytes: float) -> FileHistogram:
    """Return the histogram of `files` files of one size."""
    bucket = sum(file_bytes >= limit * MEGABYTE for limit in FileHistogram.LIMITS_MB)
    return FileHistogram(tuple(files * (i == bucket) for i in range(len(FileHistogram.LIMITS_MB) + 1)))


def partition(
    *values: Any, files: int = 10, mb: float = 1, sizes: table.Thresholds | None = None, **overrides: Any
) -> table.PartitionFacts:
    """Return a partition of `files` data files of `mb` megabytes and 1000 rows, without deletes, a day old."""
    sizes = sizes or thresholds(Knobs())
    file_bytes = int(mb * MEGABYTE)
    candidates = files if not sizes.min_bytes <= file_bytes <= sizes.max_bytes else 0
    built = table.PartitionFacts(
        spec_id=0,
        values=values,
        data_files=files,
        data_bytes=files * file_bytes,
        records=files * 1000,
        candidate_files=candidates,
        candidate_bytes=candidates * file_bytes,
        histogram=histogram(files, file_bytes),
        position_delete_files=0,
        equality_delete_files=0,
        deletion_vectors=0,
        mergeable_deletes=0,
        dangling_position_deletes=0,
        dangling_equality_deletes=0,
        deleted_rows=0,
        max_deletes_of_a_file=0,
        max_delete_ratio_of_a_file=0.0,
        last_write=NOW - timedelta(days=1),
    )
    return replace(built, **overrides)


def manifests(count: int = 1, *, mb: float = 0.01, entries: int | None = None, **overrides: Any) -> table.ManifestFacts:
    """Return the facts of `count` data manifests of `mb` megabytes, with ten entries each by default."""
    total = count * 10 if entries is None else entries
    built = table.ManifestFacts(0, table.ManifestContent.DATA, count, int(count * mb * MEGABYTE), total, count)
    return replace(built, **overrides)


def facts(
    *partitions: table.PartitionFacts,
    of: table.TableMetadata | None = None,
    by: Knobs | None = None,
    manifests_of: Sequence[table.ManifestFacts] | None = None,
    **overrides: Any,
) -> table.TableFacts:
    """Return the facts of the table `of` with these partitions (none: empty), by the thresholds of the knobs `by`."""
    built = table.TableFacts(
        metadata=of or metadata(),
        thresholds=thresholds(by or Knobs()),
        partitions=partitions,
        manifests=(manifests(),) if manifests_of is None else tuple(manifests_of),
        delete_files=sum(p.delete_files + p.dangling_delete_files for p in partitions),
        deleted_rows=sum(p.deleted_rows for p in partitions),
    )
    return replace(built, **overrides)


def check_policy(document: object, policy: Policy | None = None) -> None:
    """Run the policy tests of a document, as `icewright config test` reads it; AssertionError names what differs."""
    failures = [
        f"{test.name}: {failure}" for test in read_policy_tests(document) for failure in policy_failures(test, policy)
    ]
    if failures:
        raise AssertionError("\n".join(failures))
