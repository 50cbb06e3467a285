"""Iceberg's own planner and commit, in the JVM of a Spark application, reached through py4j."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from icewright.adapters.engines.arrow.group import DeleteFile, DeleteKind, FileSlice, SortField
from icewright.adapters.engines.arrow.table import Done, FileGroup
from icewright.core.predicates import quoted
from icewright.core.runs import JOB_ID
from icewright.core.steps import RewriteDataFiles
from icewright.core.table import TableRef

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_NOT_JSON = ("NaN", "Infinity", "-Infinity")  # which Iceberg's parser of partition values does not take


class _Java:
    """Classes and methods of an application's JVM: looking one up is a question to it, as dear as a call."""

    def __init__(self, session: Any) -> None:  # noqa: ANN401 - with what PySpark keeps to itself
        java, self.session = session._jvm, session._jsparkSession  # noqa: SLF001 - there is no other way to Iceberg
        iceberg, spark = java.org.apache.iceberg, java.org.apache.spark.sql
        responses = iceberg.rest.responses
        mapper = iceberg.util.JsonUtil.mapper()
        self.to_json, self.read_tree = mapper.writeValueAsString, mapper.readTree
        self.order_json, self.schema_json = iceberg.SortOrderParser.toJson, iceberg.SchemaParser.toJson
        self.spec_json, self.tasks_json = (
            iceberg.PartitionSpecParser.toJson,
            responses.FetchScanTasksResponseParser.toJson,
        )
        self.tasks = responses.FetchScanTasksResponse.builder
        self.file = iceberg.ContentFileParser.fromJson
        self.has_lineage = iceberg.TableUtil.supportsRowLineage
        self.planner, self.committer = (
            iceberg.actions.BinPackRewriteFilePlanner,
            iceberg.actions.RewriteDataFilesCommitManager,
        )
        self.always = iceberg.expressions.Expressions.alwaysTrue
        self.converter = spark.execution.datasources.SparkExpressionConverter
        self.load = iceberg.spark.Spark3Util.loadIcebergTable
        self.actions = iceberg.spark.actions.SparkActions.get
        self.activate = spark.classic.SparkSession.setActiveSession
        self.hash_set = java.java.util.HashSet

    def plain(self, value: Any) -> Any:  # noqa: ANN401 - a Java map or collection
        """Return the same of Python's, in one call."""
        return json.loads(self.to_json(value))


_java = lru_cache(maxsize=1)(_Java)


class IcebergTable:
    """A table as the application's catalog loads it now; `where` narrows what is planned.

    What a group has planned is the planner's own group, and the partition as JSON single values.
    """

    def __init__(self, session: SparkSession, ref: TableRef, where: str | None) -> None:
        self._java = _java(session)
        # the catalogs are in the session's configuration, which the JVM looks for in the session of its own thread
        self._java.activate(self._java.session)
        self._name = ".".join(quoted(part) for part in ref.parts)
        self._table = self._java.load(self._java.session, self._name)
        self._spec = self._table.spec()  # of the plan: a commit may meet another one
        self._snapshot: int | None = None
        self._where = where

    @cached_property
    def properties(self) -> Mapping[str, str]:
        """Return the table's properties as Spark has loaded them."""
        return dict(self._java.plain(self._table.properties()))

    @property
    def location(self) -> str:
        """Return the table's location, without a slash at the end."""
        return str(self._table.location())

    @cached_property
    def lineage(self) -> bool:
        """Return whether rows have ids (format version 3)."""
        return bool(self._java.has_lineage(self._table))

    @cached_property
    def schema(self) -> Mapping[str, Any]:
        """Return the current schema as the spec's JSON."""
        return self._json(self._table.schema())

    @cached_property
    def sort_order(self) -> tuple[int, tuple[SortField, ...]] | None:
        """Id and fields of the table's sort order; None when it has none."""
        order = json.loads(self._java.order_json(self._table.sortOrder()))
        fields = ((f["source-id"], f["direction"] == "desc", f["null-order"] == "nulls-last") for f in order["fields"])
        return (order["order-id"], tuple(fields)) if order["fields"] else None

    def older_fields(self) -> Mapping[int, Mapping[str, Any]]:
        """Top-level columns of older schemas that the current one has not, each as it was last."""
        now = {field["id"] for field in self.schema["fields"]}
        older = self._table.schemas()
        return {
            field["id"]: field
            for number in sorted(older)
            for field in self._json(older[number])["fields"]
            if field["id"] not in now
        }

    def storage(self) -> Mapping[str, str]:
        """By which properties the table's files are opened, credentials that the catalog vends too."""
        return dict(self._java.plain(self._table.io().properties()))

    def plan(self, step: RewriteDataFiles) -> list[FileGroup]:
        """Return what `rewrite_data_files` would rewrite, group by group."""
        snapshot = self._table.currentSnapshot()
        if snapshot is None:
            return []
        self._snapshot = int(snapshot.snapshotId())
        planner = self._java.planner(self._table, self._expression(self._where), self._snapshot, False)
        known = self._java.plain(planner.validOptions())
        planner.init({name: value for name, value in step.options.items() if name in known})
        groups = planner.plan().groups()
        try:
            return [self._group(group) for group in _each(groups)]
        finally:
            groups.close()

    def place(self, group: FileGroup, number: int) -> str:
        """Return how the paths of a bin's outputs begin, as the table's location provider wants them."""
        name = f"{number:05d}-{uuid.uuid4()}"
        provider = self._table.locationProvider()
        if self._spec.isUnpartitioned():
            place = provider.newDataLocation(f"{name}.parquet")
        else:
            place = provider.newDataLocation(self._spec, group.planned[0].info().partition(), f"{name}.parquet")
        return str(place).removesuffix(".parquet")

    def commit(self, done: Sequence[Done], *, starting_sequence: bool, job_id: str) -> None:
        """One commit of groups with the entries of their outputs, by Iceberg's own means for rewrites.

        Conflicts are validated since the plan, and the outputs of a commit that failed are removed.
        """
        committer = self._java.committer(self._table, self._snapshot, starting_sequence, {JOB_ID: job_id})
        spec_id = int(self._spec.specId())
        groups, specs = self._java.hash_set(), self._table.specs()
        try:
            for group, entries in done:
                java, partition = group.planned
                files = self._java.hash_set()
                for entry in entries:
                    whole = {**entry, "spec-id": spec_id, "partition": partition}
                    files.add(self._java.file(self._java.read_tree(json.dumps(whole)), specs))
                java.setOutputFiles(files)
                groups.add(java)
        except Exception:
            self.discard(str(entry["file-path"]) for _, entries in done for entry in entries)
            raise
        committer.commitOrClean(groups)

    def discard(self, paths: Iterable[str]) -> None:
        """Remove outputs that nobody will commit."""
        for path in paths:
            self._table.io().deleteFile(path)

    def remove_dangling_deletes(self) -> None:
        """Drop delete files that apply to nothing any more."""
        self._table.refresh()
        self._java.actions(self._java.session).removeDanglingDeleteFiles(self._table).execute()

    def _json(self, schema: Any) -> Mapping[str, Any]:  # noqa: ANN401
        read: Mapping[str, Any] = json.loads(self._java.schema_json(schema))
        return read

    def _expression(self, where: str | None) -> Any:  # noqa: ANN401
        """Return the filter as the procedure reads it."""
        if where is None:
            return self._java.always()
        converter = self._java.converter
        resolved = converter.collectResolvedSparkExpression(self._java.session, self._name, where)
        return converter.convertToIcebergExpression(resolved)

    def _group(self, group: Any) -> FileGroup:  # noqa: ANN401
        """Return what the planner chose, in one call: each question to the JVM takes longer than its answer."""
        tasks = group.fileScanTasks()
        response = self._java.tasks(self._table.specs()).withFileScanTasks(tasks).build()
        said = json.loads(self._java.tasks_json(response))
        deletes = said.get("delete-files", ())
        entries = [task["data-file"] for task in said["file-scan-tasks"]]
        numbers = (
            [int(task.file().dataSequenceNumber()) for task in _each(tasks)] if self.lineage else [0] * len(entries)
        )
        output = int(group.outputSpecId())
        unfit = next((why for one in (*entries, *deletes) if (why := _unfit(one, output)) is not None), None)
        values = entries[0]["partition"]
        return FileGroup(
            planned=(group, values),
            files=tuple(
                _piece(task["data-file"], number, [_delete(deletes[i]) for i in task.get("delete-file-references", ())])
                for task, number in zip(said["file-scan-tasks"], numbers, strict=True)
            ),
            outputs=int(group.expectedOutputFiles()),
            split_bytes=int(group.inputSplitSize()),
            constants={} if unfit is not None else self._constants(values),
            unfit=unfit,
        )

    def _constants(self, values: Sequence[Any]) -> Mapping[int, Any]:
        """Return the values of identity partition fields, by their source."""
        by_field = zip(self._fields, values, strict=True)
        return {field["source-id"]: value for field, value in by_field if field["transform"] == "identity"}

    @cached_property
    def _fields(self) -> Sequence[Mapping[str, Any]]:
        """Return the fields of the partition spec."""
        fields: Sequence[Mapping[str, Any]] = json.loads(self._java.spec_json(self._spec))["fields"]
        return fields


def _each(found: Any) -> Iterator[Any]:  # noqa: ANN401 - a Java iterable, which py4j does not always know for one
    iterator = found.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _unfit(entry: Mapping[str, Any], output_spec: int) -> str | None:
    """Return why only Spark's own path reads a file."""
    if entry["content"] == "data" and entry["spec-id"] != output_spec:
        return "files of an older partition spec are partitioned anew"
    if any(value in _NOT_JSON for value in entry["partition"]):
        return "a partition value is not a number"
    if entry["file-format"] not in ("parquet", "puffin"):
        return f"{entry['file-path']} is {entry['file-format']}"
    return f"{entry['file-path']} is encrypted" if entry.get("key-metadata") else None


def _piece(entry: Mapping[str, Any], sequence_number: int, deletes: Sequence[DeleteFile]) -> FileSlice:
    return FileSlice(
        path=entry["file-path"],
        bytes=entry["file-size-in-bytes"],
        file_bytes=entry["file-size-in-bytes"],
        records=entry["record-count"],
        sequence_number=sequence_number,
        first_row_id=entry.get("first-row-id"),
        deletes=tuple(deletes),
        split_offsets=tuple(entry.get("split-offsets", ())),
    )


def _delete(entry: Mapping[str, Any]) -> DeleteFile:
    path = entry["file-path"]
    if entry["file-format"] == "puffin":
        offset, length = entry["content-offset"], entry["content-size-in-bytes"]
        return DeleteFile(DeleteKind.VECTOR, path, offset, length, entry["record-count"])
    if entry["content"] == "equality-deletes":
        return DeleteFile(DeleteKind.EQUALITY, path, equality_ids=tuple(entry["equality-ids"]))
    return DeleteFile(DeleteKind.POSITION, path)
