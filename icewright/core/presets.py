"""Named sets of knobs; what the same rule says by name wins over them."""

from __future__ import annotations

from collections.abc import Mapping

PRESETS: Mapping[str, Mapping[str, object]] = {
    "iceberg": {},
    "seaweedfs": {
        "compact.target_file_size_mb": 256,
        "compact.min_input_files": 5,
        "expire_snapshots.retention_hours": 168,
        "expire_snapshots.min_snapshots_to_keep": 5,
        "remove_orphans.older_than_hours": 72,
        "rewrite_manifests.min_manifests": 5,
        "deletion.delay_hours": 0,
        "order": "seaweedfs",
    },
    "streaming": {
        "compact.cooldown_minutes": 30,
        "compact.hot_minutes": 60,
        "expire_snapshots.retention_hours": 48,
        "expire_snapshots.min_snapshots_to_keep": 20,
        "rewrite_manifests.cooldown_minutes": 60,
    },
    "compliance": {
        "compact.delete_file_threshold": 1,
        "compact.delete_ratio_threshold": 0,
        "compact.hot_partitions": "include",
        "execute.publish_hours": 0,
        # a delete is applied within hours, and what it was applied to goes within a day of it: that leaves four hours
        "expire_snapshots.retention_hours": 20,
        "expire_snapshots.min_snapshots_to_keep": 1,
        # a manifest keeps the least and greatest values of a file that was taken out of it
        "rewrite_manifests.deleted_entries": True,
        # erased rows lie on disk until their files are gone, and a file that could not be deleted becomes an orphan
        "deletion.delay_hours": 0,
        "remove_orphans.mode": "delete",
        "remove_orphans.older_than_hours": 24,
        "remove_orphans.every_hours": 24,
    },
}
