"""A rewritten table through Iceberg's Java planner and commit, called in Spark's JVM by py4j."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from icewright.adapters.engines.arrow.table import FileGroup, FilesChanged, RewrittenGroup
from icewright.adapters.engines.arrow.tasks import DeleteFile, DeleteKind, FileSlice, SortField
from icewright.adapters.engines.failures import root_cause
from icewright.core.errors import CommitConflict
from icewright.core.kernel import OLDER_SPEC, PARTITION_VALUE
from icewright.core.predicates import quoted
from icewright.core.runs import JOB_ID
from icewright.core.steps import RewriteDataFiles
from icewright.core.table import MAIN, TableRef

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_CONFLICTS = {"CommitFailedException": CommitConflict, "ValidationException": FilesChanged}
_ATTEMPTS = 5  # of a commit with the starting sequence number, each on the latest metadata
_NOT_JSON = ("NaN", "Infinity", "-Infinity")  # Iceberg's JSON parser of partition values rejects these


class _Java:
    """Classes and methods of the JVM, looked up once: each py4j lookup costs as much as a call."""

    def __init__(self, session: Any) -> None:  # noqa: ANN401 - PySpark's private attributes are used
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
        self.metadata = iceberg.TableMetadata.buildFrom

    def plain(self, value: Any) -> Any:  # noqa: ANN401 - a Java map or collection
        """Return a Java map or collection as Python values, in one call."""
        return json.loads(self.to_json(value))


_java = lru_cache(maxsize=1)(_Java)


class IcebergTable:
    """A branch of a table loaded by the application's catalog; `where` filters the files that are planned.

    The handle of a group is the Java planner's group and its partition as JSON single values.
    """

    def __init__(self, session: SparkSession, ref: TableRef, where: str | None, branch: str | None = None) -> None:
        self._java = _java(session)
        # the catalogs are in the session's configuration, which the JVM looks for in the session of its own thread
        self._java.activate(self._java.session)
        self._name = ".".join(quoted(part) for part in ref.parts)
        self._table = self._java.load(self._java.session, self._name)
        self._spec = self._table.spec()  # at loading: a concurrent commit may change the default spec
        self._snapshot: int | None = None
        self._where, self._branch = where, branch or MAIN

    @cached_property
    def properties(self) -> Mapping[str, str]:
        """Return the table's properties as Spark has loaded them."""
        return dict(self._java.plain(self._table.properties()))

    @property
    def location(self) -> str:
        """Return the table's location, without a slash at the end."""
        return str(self._table.location())

    @cached_property
    def has_row_ids(self) -> bool:
        """Return whether rows have ids (format version 3)."""
        return bool(self._java.has_lineage(self._table))

    @cached_property
    def schema(self) -> Mapping[str, Any]:
        """Return the current schema as the spec's JSON."""
        return self._json(self._table.schema())

    @cached_property
    def sort_order(self) -> tuple[int, tuple[SortField, ...]] | None:
        """Return the id and fields of the table's sort order; None when the table is unsorted."""
        order = json.loads(self._java.order_json(self._table.sortOrder()))
        fields = ((f["source-id"], f["direction"] == "desc", f["null-order"] == "nulls-last") for f in order["fields"])
        return (order["order-id"], tuple(fields)) if order["fields"] else None

    def older_fields(self) -> Mapping[int, Mapping[str, Any]]:
        """Return dropped top-level columns by id, each in its latest form."""
        now = {field["id"] for field in self.schema["fields"]}
        older = self._table.schemas()
        return {
            field["id"]: field
            for number in sorted(older)
            for field in self._json(older[number])["fields"]
            if field["id"] not in now
        }

    def storage(self) -> Mapping[str, str]:
        """Return the FileIO properties of the table, vended credentials included."""
        return dict(self._java.plain(self._table.io().properties()))

    def plan(self, step: RewriteDataFiles) -> list[FileGroup]:
        """Return the file groups that `rewrite_data_files` would rewrite."""
        snapshot = self._table.snapshot(self._branch)
        if snapshot is None:
            return []
        self._snapshot = int(snapshot.snapshotId())
        if (spec_id := step.options.get("output-spec-id")) is not None:
            self._spec = self._table.specs()[int(spec_id)]
        planner = self._java.planner(self._table, self._expression(self._where), self._snapshot, False)
        valid_options = self._java.plain(planner.validOptions())
        planner.init({name: value for name, value in step.options.items() if name in valid_options})
        groups = planner.plan().groups()
        try:
            return [self._group(group) for group in _iterate(groups)]
        finally:
            groups.close()

    def output_prefix(self, group: FileGroup, number: int) -> str:
        """Return the path prefix of a bin's outputs, from the table's location provider."""
        name = f"{number:05d}-{uuid.uuid4()}"
        provider = self._table.locationProvider()
        if self._spec.isUnpartitioned():
            output_prefix = provider.newDataLocation(f"{name}.parquet")
        else:
            output_prefix = provider.newDataLocation(self._spec, group.handle[0].info().partition(), f"{name}.parquet")
        return str(output_prefix).removesuffix(".parquet")

    def commit(self, done: Sequence[RewrittenGroup], *, starting_sequence: bool, job_id: str) -> None:
        """Replace the files of the groups by their outputs through Iceberg's RewriteDataFilesCommitManager."""
        from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - the service starts without a JVM

        properties = {JOB_ID: job_id}
        spec_id = int(self._spec.specId())
        groups, specs = self._java.hash_set(), self._table.specs()
        try:
            for group, entries in done:
                java, partition = group.handle
                files = self._java.hash_set()
                for entry in entries:
                    content_file = {**entry, "spec-id": spec_id, "partition": partition}
                    files.add(self._java.file(self._java.read_tree(json.dumps(content_file)), specs))
                java.setOutputFiles(files)
                groups.add(java)
        except Exception:
            self.discard(str(entry["file-path"]) for _, entries in done for entry in entries)
            raise
        try:
            if starting_sequence:
                self._commit_with_starting_sequence(groups, properties)
            else:
                self._java.committer(self._table, self._snapshot, False, properties, self._branch).commitFileGroups(
                    groups
                )
        except Py4JJavaError as error:
            if conflict := _CONFLICTS.get(_simple_name(error)):
                raise conflict(root_cause(str(error))) from error
            raise  # what the table does not refer to is left to orphan removal

    def _commit_with_starting_sequence(self, groups: Any, properties: Mapping[str, str]) -> None:  # noqa: ANN401
        """Commit outputs that are as old as the plan, so that equality deletes of later commits apply to them.

        Iceberg's commit would drop such deletes where all data beside the outputs is newer (its issue 10312). So the
        snapshot is looked at before it is committed, on exactly the metadata that it was made for.
        """
        from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - the service starts without a JVM

        sequence = int(self._table.snapshot(self._snapshot).sequenceNumber())
        rewrite = self._table.newRewrite().validateFromSnapshot(self._snapshot).dataSequenceNumber(sequence)
        for group in _iterate(groups):
            for file in (*_iterate(group.rewrittenFiles()), *_iterate(group.danglingDVs())):
                rewrite.deleteFile(file)
            for file in _iterate(group.addedFiles()):
                rewrite.addFile(file)
        for name, value in properties.items():
            rewrite.set(name, value)
        rewrite.toBranch(self._branch)
        operations = self._table.operations()
        for attempt in range(_ATTEMPTS):
            snapshot = rewrite.apply()
            base = operations.current()
            if snapshot.parentId() != base.ref(self._branch).snapshotId():  # a writer in this JVM shares the operations
                raise FilesChanged(f"{self._name}: a writer committed while the snapshot was made")
            dropped = _iterate(snapshot.removedDeleteFiles(self._table.io()))
            if any(f.equalityFieldIds() is not None and int(f.dataSequenceNumber()) > sequence for f in dropped):
                raise FilesChanged(f"{self._name}: equality deletes came that the commit would drop")
            try:
                operations.commit(base, self._java.metadata(base).setBranchSnapshot(snapshot, self._branch).build())
            except Py4JJavaError as error:
                if _simple_name(error) != "CommitFailedException" or attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    def discard(self, paths: Iterable[str]) -> None:
        """Delete outputs that will not be committed."""
        for path in paths:
            self._table.io().deleteFile(path)

    def remove_dangling_deletes(self) -> None:
        """Remove delete files that apply to no data file any more. Raises `CommitConflict`."""
        from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - the service starts without a JVM

        self._table.refresh()
        try:
            self._java.actions(self._java.session).removeDanglingDeleteFiles(self._table).execute()
        except Py4JJavaError as error:
            if conflict := _CONFLICTS.get(_simple_name(error)):
                raise conflict(root_cause(str(error))) from error
            raise

    def _json(self, schema: Any) -> Mapping[str, Any]:  # noqa: ANN401
        read: Mapping[str, Any] = json.loads(self._java.schema_json(schema))
        return read

    def _expression(self, where: str | None) -> Any:  # noqa: ANN401
        """Return the Iceberg expression of a `where` text, parsed as Spark's procedure parses it."""
        if where is None:
            return self._java.always()
        converter = self._java.converter
        resolved = converter.collectResolvedSparkExpression(self._java.session, self._name, where)
        return converter.convertToIcebergExpression(resolved)

    def _group(self, group: Any) -> FileGroup:  # noqa: ANN401
        """Return the planner's group, converted through one JSON document to save py4j round trips."""
        tasks = group.fileScanTasks()
        response = self._java.tasks(self._table.specs()).withFileScanTasks(tasks).build()
        response_json = json.loads(self._java.tasks_json(response))
        deletes = response_json.get("delete-files", ())
        delete_files = [_delete_file(entry) for entry in deletes]  # each once: many data files share them
        entries = [task["data-file"] for task in response_json["file-scan-tasks"]]
        numbers = [0] * len(entries)
        if self.has_row_ids:
            numbers = [int(task.file().dataSequenceNumber()) for task in _iterate(tasks)]
        output = int(group.outputSpecId())
        unsupported = next(
            (reason for entry in (*entries, *deletes) if (reason := _unsupported_reason(entry, output)) is not None),
            None,
        )
        values = entries[0]["partition"]
        return FileGroup(
            handle=(group, values),
            files=tuple(
                _file_slice(
                    task["data-file"], number, [delete_files[i] for i in task.get("delete-file-references", ())]
                )
                for task, number in zip(response_json["file-scan-tasks"], numbers, strict=True)
            ),
            outputs=int(group.expectedOutputFiles()),
            split_bytes=int(group.inputSplitSize()),
            constants={} if unsupported is not None else self._constants(values),
            unsupported=unsupported,
        )

    def _constants(self, values: Sequence[Any]) -> Mapping[int, Any]:
        """Return identity partition values by source field id."""
        by_field = zip(self._fields, values, strict=True)
        return {field["source-id"]: value for field, value in by_field if field["transform"] == "identity"}

    @cached_property
    def _fields(self) -> Sequence[Mapping[str, Any]]:
        """Return the fields of the partition spec."""
        fields: Sequence[Mapping[str, Any]] = json.loads(self._java.spec_json(self._spec))["fields"]
        return fields


def _simple_name(error: Any) -> str:  # noqa: ANN401 - a Py4JJavaError
    return str(error.java_exception.getClass().getSimpleName())


def _iterate(iterable: Any) -> Iterator[Any]:  # noqa: ANN401 - a Java iterable, which py4j may not convert
    iterator = iterable.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _unsupported_reason(entry: Mapping[str, Any], output_spec: int) -> str | None:
    """Return why only Spark's own engine can rewrite a file; None when Arrow can."""
    if entry["content"] == "data" and entry["spec-id"] != output_spec:
        return OLDER_SPEC()
    if any(value in _NOT_JSON for value in entry["partition"]):
        return PARTITION_VALUE()
    if entry["file-format"] not in ("parquet", "puffin"):
        return f"{entry['file-path']} is {entry['file-format']}"
    return f"{entry['file-path']} is encrypted" if entry.get("key-metadata") else None


def _file_slice(entry: Mapping[str, Any], sequence_number: int, deletes: Sequence[DeleteFile]) -> FileSlice:
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


def _delete_file(entry: Mapping[str, Any]) -> DeleteFile:
    path = entry["file-path"]
    if entry["file-format"] == "puffin":
        offset, length = entry["content-offset"], entry["content-size-in-bytes"]
        return DeleteFile(DeleteKind.VECTOR, path, offset, length, entry["record-count"])
    if entry["content"] == "equality-deletes":
        return DeleteFile(DeleteKind.EQUALITY, path, equality_ids=tuple(entry["equality-ids"]))
    return DeleteFile(DeleteKind.POSITION, path)
