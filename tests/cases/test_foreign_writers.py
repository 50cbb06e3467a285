"""Tables as other writers leave them: read rightly, or refused with the reason, and never with a file lost."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import fastavro
import pytest

from icewright.app.demo.craft import Craft
from icewright.core.policy import Operation
from icewright.core.runs import JobState, OperationState
from icewright.core.table import ManifestContent
from tests.cases.workspace import EXPIRE, KNOBS_OF, MANIFESTS, NAME, ORPHANS, Workspace, edit

Fields = list[dict[str, Any]]


def rewrite(
    path: Path, *, schema: Callable[[dict[str, Any]], None] = lambda _: None, header: Mapping[str, str] | None = None
) -> None:
    """Write an Avro file of Iceberg anew, as a writer that says its schema or header otherwise would have."""
    with path.open("rb") as source:
        reader = fastavro.reader(source)
        records: list[Any] = list(reader)
        said = json.loads(reader.metadata["avro.schema"])
        known = {k: v for k, v in reader.metadata.items() if not k.startswith("avro.")}
    names = [field["name"] for field in said["fields"]]
    schema(said)
    if len(names) == len(said["fields"]):  # some may have other names now
        records = [
            {f["name"]: record[name] for f, name in zip(said["fields"], names, strict=True)} for record in records
        ]
    out = io.BytesIO()
    parsed = fastavro.parse_schema(said)
    fastavro.writer(out, parsed, records, codec="deflate", metadata=dict(known if header is None else header))
    path.write_bytes(out.getvalue())


def without(*numbers: int) -> Callable[[dict[str, Any]], None]:
    """A schema that lacks the top fields of these ids."""

    def change(schema: dict[str, Any]) -> None:
        schema["fields"] = [f for f in schema["fields"] if f.get("field-id") not in numbers]

    return change


def renamed(schema: dict[str, Any]) -> None:
    """Counts of a manifest list under the names of earlier releases."""
    for field in schema["fields"]:
        field["name"] = field["name"].replace("_files_count", "_data_files_count")


def without_ids(node: Any) -> None:
    """A schema without any field id."""
    if isinstance(node, dict):
        for name in ("field-id", "element-id", "key-id", "value-id"):
            node.pop(name, None)
        for value in node.values():
            without_ids(value)
    if isinstance(node, list):
        for value in node:
            without_ids(value)


def with_deletes(workspace: Workspace) -> Craft:
    """A table of three commits, the last of which has an equality delete as well."""
    craft = workspace.craft()
    workspace.commits(craft, [400, 300], replacing=False)
    at = workspace.clock.now() - timedelta(hours=200)
    added = craft.data({"id": [7], "part": ["new"]})
    craft.commit(at, [added], deletes=[craft.equality_deletes({"id": [0]})])
    workspace.publish(craft)
    return craft


def lists(craft: Craft) -> list[Path]:
    """The manifest lists, oldest first."""
    return [Path(s["manifest-list"].removeprefix("file://")) for s in craft.snapshots]


def contents(workspace: Workspace) -> list[tuple[ManifestContent, int, int]]:
    """Of each manifest of the current snapshot what the list calls it, its files, and how many of them are deletes."""
    metadata, files = workspace.metadata(), workspace.app.runtime.files
    assert metadata.current_snapshot is not None
    found = []
    for manifest in files.manifests(metadata.current_snapshot):
        kinds = files.entries([manifest])["content"].to_pylist()
        found.append((manifest.content, len(kinds), sum(kind > 0 for kind in kinds)))
    return sorted(found)


LISTS: dict[str, Callable[[Path], None]] = {
    "no header at all": lambda path: rewrite(path, header={}),
    "no format version": lambda path: rewrite(path, header={"snapshot-id": "1"}),
    "earlier names": lambda path: rewrite(path, schema=renamed),
    "no sequence numbers": lambda path: rewrite(path, schema=without(516)),
}


@pytest.mark.cases(48)
@pytest.mark.parametrize("how", LISTS)
def test_manifest_lists_of_other_writers(workspace: Workspace, how: str) -> None:
    """Headers left out and fields under earlier names: the same files are live, and deletes stay deletes."""
    craft = with_deletes(workspace)
    before = contents(workspace)
    for path in lists(craft):
        LISTS[how](path)
    assert contents(workspace) == before
    workspace.finds([])
    done = workspace.job(MANIFESTS, EXPIRE)
    assert [o.state for o in done.outcomes] == [OperationState.COMMITTED] * 2, done
    assert contents(workspace) == [(ManifestContent.DATA, 3, 0), (ManifestContent.DELETES, 1, 1)]


@pytest.mark.cases(48)
@pytest.mark.parametrize("operation", KNOBS_OF)
def test_a_list_that_does_not_say_which_manifests_hold_deletes(workspace: Workspace, operation: Operation) -> None:
    """Without the column `content` a delete manifest looks like data: it is told by itself, or the run is refused."""
    craft = with_deletes(workspace)
    for path in lists(craft):
        rewrite(path, schema=without(517), header={})
    files = workspace.files()
    done = workspace.run(operation)
    assert all(deletes in (0, number) for _, number, deletes in contents(workspace)), "deletes and data in one manifest"
    if done.state is OperationState.COMMITTED:
        said = {content for content, _, deletes in contents(workspace) if deletes}
        assert operation != MANIFESTS or said == {ManifestContent.DELETES}, done
    else:
        assert done.reason
        assert workspace.files() == files


@pytest.mark.cases(48)
@pytest.mark.parametrize("operation", [EXPIRE, ORPHANS])
@pytest.mark.parametrize("what", ["list", "manifest", "path of the manifest"])
def test_files_without_field_ids(workspace: Workspace, what: str, operation: Operation) -> None:
    """What cannot be resolved by field id is not guessed and not taken for nothing: failed with the file's name."""
    craft = workspace.craft()
    first, *_ = workspace.commits(craft, [400, 300, 200], replacing=False)
    workspace.publish(craft)
    broken = lists(craft)[-1] if what == "list" else Path(str(first.row["manifest_path"]).removeprefix("file://"))
    rewrite(broken, schema=_no_path if "path" in what else without_ids)
    for path in lists(craft) if what != "list" else ():
        _length(path, broken)
    workspace.grow_old(craft.folder)
    files = workspace.files()
    job = workspace.job(operation)
    assert workspace.files() >= files, "a file was lost"
    assert (job.state, broken.name in job.summary) == (JobState.FAILED, True), job


def _no_path(schema: dict[str, Any]) -> None:
    fields: Fields = schema["fields"]
    if data := next((f for f in fields if f["name"] == "data_file"), None):
        fields = data["type"]["fields"]
    for field in fields:
        if field["name"] in ("manifest_path", "file_path"):
            del field["field-id"]


def _length(path: Path, manifest: Path) -> None:
    """Let a manifest list say how long the manifest is now."""
    with path.open("rb") as source:
        reader = fastavro.reader(source)
        rows: list[Any] = list(reader)
        schema, header = reader.writer_schema, {k: v for k, v in reader.metadata.items() if not k.startswith("avro.")}
    for row in rows:
        if row["manifest_path"].endswith(manifest.name):
            row["manifest_length"] = manifest.stat().st_size
    with path.open("wb") as out:
        fastavro.writer(out, schema, rows, metadata=header)


def _null_schema_ids(document: dict[str, Any]) -> None:
    for snapshot in document["snapshots"]:
        snapshot["schema-id"] = None


def _bare_snapshots(document: dict[str, Any]) -> None:
    for snapshot in document["snapshots"]:
        del snapshot["schema-id"], snapshot["summary"]


def _no_refs(document: dict[str, Any]) -> None:
    for field in ("refs", "snapshot-log", "metadata-log"):
        document.pop(field, None)


def _nulls(document: dict[str, Any]) -> None:
    document |= dict.fromkeys(("statistics", "partition-statistics", "metadata-log", "snapshot-log"))


METADATA = {f.__name__.strip("_"): f for f in (_null_schema_ids, _bare_snapshots, _no_refs, _nulls)}


@pytest.mark.cases(48)
@pytest.mark.parametrize("how", METADATA)
def test_metadata_of_other_writers(workspace: Workspace, how: str) -> None:
    """Null schema ids, and fields that are null or left out: worked on like any table, or failed with the reason."""
    craft = workspace.craft()
    live = workspace.commits(craft, [400, 300, 200], replacing=False)
    folder = workspace.publish(craft, METADATA[how])
    workspace.plant(folder, "data/orphan.parquet")
    files, (path,) = workspace.files(), folder.glob("metadata/*.metadata.json")
    job = workspace.job(MANIFESTS, EXPIRE, ORPHANS)
    if job.state is JobState.FAILED:
        assert path.name in job.summary
        assert workspace.files() == files
        return
    assert [o.state for o in job.outcomes] == [OperationState.COMMITTED] * 3, job
    assert all(f.path.exists() for manifest in live for f in manifest.files)
    assert not (folder / "data/orphan.parquet").exists()
    assert len(workspace.read()["main"]) == 3


@pytest.mark.cases(48, "T17")
def test_unreadable_metadata_is_told(workspace: Workspace) -> None:
    """No JSON, half of it, another document, or nothing at all: failed with the file's name, nothing touched."""
    workspace.table()
    path = workspace.metadata_file()
    whole = path.read_text()
    for broken in ("", whole[: len(whole) // 2], "[]", '{"format-version": 2}', whole.replace('"location"', '"place"')):
        path.write_text(broken)
        files = workspace.files()
        job = workspace.job(EXPIRE, ORPHANS, MANIFESTS)
        assert (job.state, path.name in job.summary) == (JobState.FAILED, True), job
        assert workspace.files() == files


@pytest.mark.cases(48)
def test_a_format_from_the_future(workspace: Workspace) -> None:
    """A format version that is newer than all that is known is left alone, with the reason."""
    workspace.table()
    edit(workspace.metadata_file(), lambda document: document.update({"format-version": 4, "of-the-future": 1}))
    files = workspace.files()
    for outcome in workspace.job(EXPIRE, ORPHANS, MANIFESTS, name=NAME).outcomes:
        assert (outcome.state, outcome.reason) == (OperationState.SKIPPED, "format version 4 is newer than 3")
    assert workspace.files() == files
