"""Heavy steps on Spark: one statement a step, its effect read back from the table's own metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from icewright.adapters.engines.spark import procedures
from icewright.adapters.engines.spark.pool import SparkPool
from icewright.adapters.engines.spark.predicate import checked
from icewright.core import cost
from icewright.core.errors import CommitConflict, EngineUnavailable, TerminalError
from icewright.core.operations import compact
from icewright.core.policy import Operation
from icewright.core.runs import FileFate, Outcome, committed, skipped
from icewright.core.steps import ExpireSnapshots, RewriteDataFiles, RewriteManifests, RewritePositionDeletes
from icewright.core.table import ManifestContent, TableMetadata
from icewright.ports import Assignment, Catalog, Clock, Files

SparkStep = RewriteDataFiles | RewritePositionDeletes | RewriteManifests | ExpireSnapshots
_CONFLICTS = ("CommitFailedException", "ValidationException", "conflicting files", "Cannot commit")


class ProcedureFailed(TerminalError):
    """A procedure raised; the message is the JVM's, cut to what tells."""


@dataclass(frozen=True)
class SparkEngine:
    """Runs steps on the pool of the table's catalog."""

    pools: Mapping[str, SparkPool]  # by catalog
    files: Files
    clock: Clock

    def run(self, catalog: Catalog, assignment: Assignment, step: SparkStep) -> Outcome:
        """Do the step, or list the files that it would rewrite."""
        base = assignment.base
        if assignment.dry_run:
            return self._preview(assignment, step)
        statements = _statements(base, step)
        self.pools[base.ref.catalog].session()  # its start is nobody's cost
        started = self.clock.now()
        rows = [self._execute(base, statement) for statement in statements]
        after = catalog.load(base.ref)
        seconds = (self.clock.now() - started).total_seconds()
        return _outcome(step, rows, self._replaced(base, after), base, after, statements, seconds)

    def _execute(self, base: TableMetadata, statement: str) -> dict[str, Any]:
        from py4j.protocol import Py4JError  # noqa: PLC0415 - the service starts without a JVM
        from pyspark.errors import PySparkException

        try:
            with self.pools[base.ref.catalog].room() as session:
                return session.sql(statement).collect()[0].asDict()
        except PySparkException as error:
            words = _telling(str(error))
            if any(sign in str(error) for sign in _CONFLICTS):
                raise CommitConflict(f"{base.ref}: a writer committed in between: {words}") from error
            raise ProcedureFailed(f"{base.ref}: {words}") from error
        except (Py4JError, ConnectionError) as error:
            raise EngineUnavailable(f"{base.ref}: Spark died while it worked: {_telling(str(error))}") from error

    def _preview(self, assignment: Assignment, step: SparkStep) -> Outcome:
        fates: tuple[FileFate, ...] = ()
        notes: tuple[str, ...] = ()
        match step:
            case RewriteDataFiles() | RewritePositionDeletes():
                fates = self.files.candidates(assignment.base, step)
                if isinstance(step, RewriteDataFiles) and step.user_where is not None:
                    notes = ("compact.where narrows these to files that may hold such rows",)
            case RewriteManifests():
                snapshot = assignment.base.current_snapshot
                listed = self.files.manifests(snapshot) if snapshot else ()
                fates = tuple(
                    FileFate(m.path, m.length, "manifest")
                    for m in listed
                    if m.content is ManifestContent.DATA and m.spec_id in step.spec_ids
                )
            case ExpireSnapshots():
                raise ProcedureFailed("Spark's expire_snapshots has no dry run: set expire_snapshots.engine to service")
        summary = f"would rewrite {len(fates)} file(s)"
        statements = _statements(assignment.base, step)
        return committed(assignment.operation, summary, {}, fates, statements=statements, notes=notes)

    def _replaced(self, base: TableMetadata, after: TableMetadata) -> tuple[FileFate, ...]:
        """The files that the new `replace` snapshots removed, read from their own manifests."""
        new = [s for s in after.snapshots if s.snapshot_id not in base.by_id and s.operation == "replace"]
        fates: dict[str, FileFate] = {}
        for snapshot in new:
            own = [m for m in self.files.manifests(snapshot) if m.added_snapshot_id == snapshot.snapshot_id]
            for row in self.files.entries([m for m in own if m.deleted_files]).to_pylist():
                if row["status"] == 2 and row["snapshot_id"] == snapshot.snapshot_id:  # noqa: PLR2004 - DELETED
                    kind = ("data", "position deletes", "equality deletes")[row["content"]]
                    if row["format"] == "PUFFIN":
                        kind = "deletion vectors"
                    fates[row["path"]] = FileFate(row["path"], row["bytes"], kind)
        return tuple(fates[path] for path in sorted(fates))


def _statements(base: TableMetadata, step: SparkStep) -> tuple[str, ...]:
    match step:
        case RewriteDataFiles():
            user = None if step.user_where is None else checked(base, step.user_where)
            both = [f"({text})" for text in (user, step.where) if text is not None]
            return (procedures.rewrite_data_files(base.ref, step, " and ".join(both) or None),)
        case RewritePositionDeletes():
            return (procedures.rewrite_position_delete_files(base.ref, step),)
        case RewriteManifests():
            return tuple(procedures.rewrite_manifests(base.ref, step, spec_id) for spec_id in step.spec_ids)
        case ExpireSnapshots():
            return (procedures.expire_snapshots(base.ref, step),)
    assert_never(step)


def _outcome(
    step: SparkStep,
    rows: list[dict[str, Any]],
    replaced: tuple[FileFate, ...],
    base: TableMetadata,
    after: TableMetadata,
    statements: tuple[str, ...],
    seconds: float,
) -> Outcome:
    row = {name: sum(int(r[name] or 0) for r in rows) for name in rows[0]}
    common = {"duration_ms": round(seconds * 1000), "gb_hours": round(cost.gb_hours(seconds, cost.SPARK_MEMORY_GB), 9)}
    more: dict[str, Any] = {"statements": statements}
    match step:
        case RewriteDataFiles():
            merged, written = row["rewritten_data_files_count"], row["added_data_files_count"]
            if not merged and not replaced:
                return skipped(Operation.COMPACT, compact.NOTHING, **more)
            if row["failed_data_files_count"]:
                more["notes"] = (f"{row['failed_data_files_count']} data files could not be rewritten",)
            bins = _bins(base, after)
            metrics = {
                "files_merged": merged,
                "files_written": written,
                "bins": bins,
                "files_left": max(0, step.files - merged),
                "bytes_rewritten": row["rewritten_bytes_count"],
                "delete_files_removed": sum(f.kind != "data" for f in replaced),
            }
            summary = f"compacted {merged} files into {written} (across {bins} bins)"
            return committed(Operation.COMPACT, summary, metrics | common, replaced, **more)
        case RewritePositionDeletes():
            merged, written = row["rewritten_delete_files_count"], row["added_delete_files_count"]
            if not merged:
                return skipped(Operation.REWRITE_DELETES, "no delete files eligible for rewriting", **more)
            summary = f"rewrote {merged} position delete files into {written}"
            metrics = {"files_rewritten": merged, "files_written": written}
            return committed(Operation.REWRITE_DELETES, summary, metrics | common, replaced, **more)
        case RewriteManifests():
            merged, written = row["rewritten_manifests_count"], row["added_manifests_count"]
            if not merged:
                return skipped(Operation.REWRITE_MANIFESTS, "no manifests to rewrite", **more)
            entries = _entries(after)
            summary = f"rewrote {merged} manifests into {written} ({entries} entries)"
            metrics = {"manifests_rewritten": merged, "manifests_written": written, "entries_total": entries}
            return committed(Operation.REWRITE_MANIFESTS, summary, metrics | common, **more)
        case ExpireSnapshots():
            snapshots, files = len(set(base.by_id) - set(after.by_id)), sum(row.values())
            summary = f"expired {snapshots} snapshot(s), deleted {files} unreferenced file(s)"
            metrics = {"snapshots_expired": snapshots, "files_deleted": files, "bytes_deleted": 0}
            return committed(Operation.EXPIRE_SNAPSHOTS, summary, metrics | common, **more)
    assert_never(step)


def _bins(base: TableMetadata, after: TableMetadata) -> int:
    """Partitions whose data files the new `replace` snapshots changed: Iceberg plans a file group for each."""
    new = [s for s in after.snapshots if s.snapshot_id not in base.by_id and s.operation == "replace"]
    rewrites = [s for s in new if "deleted-data-files" in s.summary]  # dropping dangling deletes is a commit of its own
    return sum(int(s.summary.get("changed-partition-count", "0")) for s in rewrites)


def _entries(after: TableMetadata) -> int:
    snapshot = after.current_snapshot
    return int(snapshot.summary.get("entries-processed", "0")) if snapshot else 0


def _telling(message: str) -> str:
    """The first line of a JVM error that says something, without the stack."""
    lines = [line.strip() for line in message.splitlines() if line.strip() and not line.strip().startswith("at ")]
    causes = [line for line in lines if line.startswith("Caused by:")]
    return (causes[-1].removeprefix("Caused by: ") if causes else lines[0] if lines else "no message")[:500]
