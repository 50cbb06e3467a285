"""Iceberg's procedures as SQL statements of quoted names and typed literals, and their result rows as metrics."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from icewright.core.predicates import quoted, text_literal
from icewright.core.steps import ExpireRows, ExpireSnapshots, RewriteDataFiles, RewriteManifests, RewritePositionDeletes
from icewright.core.table import PartitionSpec, TableRef


def call(ref: TableRef, procedure: str, arguments: Mapping[str, str]) -> str:
    """Return `CALL catalog.system.procedure(table => ..., ...)`; the arguments are SQL already."""
    table = ".".join(quoted(part) for part in ref.parts)
    listed = ", ".join(f"{name} => {value}" for name, value in {"table": text_literal(table), **arguments}.items())
    return f"CALL {quoted(ref.catalog)}.system.{procedure}({listed})"


def delete_rows(ref: TableRef, step: ExpireRows) -> str:
    """Return the `DELETE` of the step's rows; Iceberg drops whole files where the filter covers them."""
    return f"DELETE {_rows(ref, step)}"


def one_row(ref: TableRef, step: ExpireRows) -> str:
    """Return the query of whether the step has rows to delete: the commit of none would be an empty snapshot."""
    return f"SELECT 1 {_rows(ref, step)} LIMIT 1"


def _rows(ref: TableRef, step: ExpireRows) -> str:
    table = ".".join(quoted(part) for part in ref.parts)
    return f"FROM {table} WHERE {step.where}"


def rewrite_data_files(ref: TableRef, step: RewriteDataFiles, where: str | None) -> str:
    """Return the call that compacts the partitions of the step's `where`, all by default."""
    arguments = {"strategy": text_literal(step.strategy), "options": _options(step.options)}
    if step.sort_order is not None:
        arguments["sort_order"] = text_literal(step.sort_order)
    if where is not None:
        arguments["where"] = text_literal(where)
    if step.branch is not None:
        arguments["branch"] = text_literal(step.branch)
    return call(ref, "rewrite_data_files", arguments)


def rewrite_position_delete_files(ref: TableRef, step: RewritePositionDeletes) -> str:
    """Return the call that merges the partitions' position deletes and drops dangling ones."""
    arguments = {"options": _options(step.options)}
    if step.where is not None:
        arguments["where"] = text_literal(step.where)
    return call(ref, "rewrite_position_delete_files", arguments)


def rewrite_manifests(ref: TableRef, step: RewriteManifests, spec: PartitionSpec) -> str:
    """Return the call that rewrites the manifests of one spec."""
    arguments = {"use_caching": "true" if step.use_caching else "false", "spec_id": str(spec.spec_id)}
    if fields := step.fields_of(spec):
        arguments["sort_by"] = f"array({', '.join(map(text_literal, fields))})"
    return call(ref, "rewrite_manifests", arguments)


def expire_snapshots(ref: TableRef, step: ExpireSnapshots) -> str:
    """Return the call that expires exactly the planned snapshots: Spark's own rules ignore pins."""
    arguments = {
        "older_than": _timestamp(datetime.fromtimestamp(0, UTC)),  # no snapshot expires for its age alone
        "snapshot_ids": f"array({', '.join(map(str, step.snapshot_ids))})",
        "max_concurrent_deletes": str(step.max_concurrent_deletes),
    }
    return call(ref, "expire_snapshots", arguments)


def _timestamp(moment: datetime) -> str:
    return f"timestamp'{moment.isoformat(sep=' ')}'"


def _options(options: Mapping[str, str]) -> str:
    pairs = (f"{text_literal(name)}, {text_literal(value)}" for name, value in options.items())
    return f"map({', '.join(pairs)})"
