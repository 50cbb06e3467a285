"""The operations of maintenance: their names, those of Iceberg's procedures, and the orders in which they run."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping


class Operation(enum.StrEnum):
    """The maintenance operations on a table, in the canonical order."""

    EXPIRE_ROWS = "expire_rows"
    COMPACT = "compact"
    REWRITE_DELETES = "rewrite_deletes"
    REWRITE_MANIFESTS = "rewrite_manifests"
    COMPUTE_STATISTICS = "compute_statistics"
    RECOVERY_POINTS = "recovery_points"
    EXPIRE_SNAPSHOTS = "expire_snapshots"
    REMOVE_ORPHANS = "remove_orphans"
    CHECK = "check"

    @classmethod
    def _missing_(cls, value: object) -> Operation | None:
        """Accept the name of the Iceberg procedure that does the same, such as `rewrite_data_files`."""
        name = _PROCEDURES.get(str(value))
        return None if name is None else cls(name)


_PROCEDURES: Mapping[str, str] = {
    "rewrite_data_files": "compact",
    "rewrite_position_delete_files": "rewrite_deletes",
    "remove_orphan_files": "remove_orphans",
    "compute_table_stats": "compute_statistics",
}


ON_POOL = frozenset({Operation.EXPIRE_ROWS, Operation.COMPACT, Operation.REWRITE_DELETES})  # always Spark's work

ORDERS: Mapping[str, tuple[Operation, ...]] = {
    "canonical": tuple(Operation),
    "seaweedfs": (
        Operation.EXPIRE_ROWS,
        Operation.COMPACT,
        Operation.REWRITE_DELETES,
        Operation.RECOVERY_POINTS,
        Operation.EXPIRE_SNAPSHOTS,
        Operation.REMOVE_ORPHANS,
        Operation.REWRITE_MANIFESTS,
        Operation.COMPUTE_STATISTICS,
        Operation.CHECK,
    ),
}


def in_order(operations: Collection[Operation]) -> tuple[Operation, ...]:
    """Return the operations in the canonical order, each once."""
    return tuple(operation for operation in Operation if operation in operations)
