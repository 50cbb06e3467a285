"""Repairs of planted faults: what is provably right is done and reads as before, and nothing else is touched."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from threading import Barrier
from typing import Any

import fastavro
import pytest

from icewright.adapters.files.local import LocalStorage
from icewright.core.errors import CommitStateUnknown, Refused
from icewright.core.integrity import CheckLevel, FileFault, FileFaultKind
from icewright.core.repair import RepairKind
from icewright.core.table import SnapshotRef
from icewright.flow.reconcile import reconcile_interrupted
from icewright.flow.repair import RepairResult, repair
from icewright.ports import SetRefs
from tests.cases.conftest import ground, workspace
from tests.cases.tampering import rewrite, tamper_manifest
from tests.cases.test_integrity import DEEPER_FAULTS, changed_entry, changed_row
from tests.cases.test_restore import crash_at, hooked
from tests.cases.workspace import BY_PART, MANIFESTS, NAME, Workspace, edit, ref

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test

__all__ = ["ground", "workspace"]

CORRECTED = (
    "a list counts other rows",
    "a list's bounds leave a partition out",
    "an entry's rows are miscounted",
    "a lower bound is too high",
    "an upper bound is too low",
    "nulls are miscounted",
    "a split offset is inside a row group",
    "a list has no bounds of a partition",
    "a list has no summaries of partitions",
    "a bound is cut",
    "all values are NaN, with a bound",
)


def grown(workspace: Workspace) -> Path:
    """A table that grew by a file with each commit; its folder."""
    craft = workspace.craft(spec=BY_PART)
    workspace.commits(craft, (400, 300, 200, 100), replacing=False)
    return workspace.publish(craft)


def go(workspace: Workspace, **how: bool) -> RepairResult:
    """Repair the table; the dry run said the same before."""
    workspace.detect()
    before = workspace.metadata()
    said = repair(workspace.app.runtime, ref(NAME), dry_run=True, **how)
    assert workspace.metadata() == before
    done = repair(workspace.app.runtime, ref(NAME), **how)
    assert (said.plan, said.report) == (done.plan, done.report)
    return done


def faults_of_main(workspace: Workspace) -> tuple[FileFault, ...]:
    """What a check of the current snapshot finds."""
    head = frozenset({workspace.metadata().current_snapshot_id or 0})
    return workspace.app.runtime.engine.check(ref(NAME), CheckLevel.FOOTERS, head).faults


def lists(folder: Path) -> list[Path]:
    """The manifest lists, the oldest first."""
    return sorted(folder.glob("metadata/snap-*.avro"), key=lambda path: len(records(path)))


def records(path: Path) -> list[Any]:
    """The rows of a manifest list."""
    with path.open("rb") as source:
        return list(fastavro.reader(source))


@pytest.mark.parametrize("fault", CORRECTED)
def test_counts_and_bounds_are_corrected(workspace: Workspace, fault: str) -> None:
    """Main has no fault any more and every version reads as before it; the state before is tagged."""
    folder = grown(workspace)
    rows, head = workspace.read(), workspace.metadata().current_snapshot_id
    totals = {k: v for k, v in workspace.metadata().by_id[head or 0].summary.items() if k.startswith("total-")}
    DEEPER_FAULTS[fault][1](folder)
    assert faults_of_main(workspace)
    done = go(workspace)
    after = workspace.metadata()
    assert done.plan.unrepaired == ()
    assert {action.kind for action in done.plan.actions} == {RepairKind.CORRECT}
    assert faults_of_main(workspace) == ()
    now = workspace.read()
    assert {version: now[version] for version in rows} == rows
    assert [r.snapshot_id for r in after.refs if r.name == done.tag] == [head]
    assert after.current_snapshot is not None
    assert (after.current_snapshot.parent_id, after.current_snapshot.operation) == (head, "replace")
    assert {k: v for k, v in after.current_snapshot.summary.items() if k.startswith("total-")} == totals
    again = go(workspace)
    assert workspace.metadata() == after, again.summary


def test_what_a_rewritten_manifest_has_copied_is_corrected(workspace: Workspace) -> None:
    """A fault concerns all snapshots whose manifests say the same of the file, main's among them."""
    folder = grown(workspace)
    DEEPER_FAULTS["an upper bound is too low"][1](folder)
    assert workspace.run(MANIFESTS).metrics["manifests_written"] == 1
    faults = workspace.app.runtime.engine.check(ref(NAME), CheckLevel.FOOTERS).faults
    assert {fault.snapshot_ids for fault in faults} == {tuple(sorted(workspace.metadata().by_id))}
    done = go(workspace)
    assert ({action.kind for action in done.plan.actions}, done.plan.unrepaired) == ({RepairKind.CORRECT}, ())
    assert faults_of_main(workspace) == ()
    DEEPER_FAULTS["a column that must be there is in no file"][1](folder)
    assert workspace.app.runtime.engine.check(ref(NAME), CheckLevel.FOOTERS).faults


def _misstated(field: str, more: int) -> Callable[[Any], None]:
    """Let an entry, or a manifest list's row, say another length of a file that is whole."""

    def changed(record: Any) -> None:
        record.get("data_file", record)[field] += more

    return changed


@pytest.mark.parametrize("drop_lost", [False, True])
@pytest.mark.parametrize(
    ("tampered", "field", "more"),
    [
        (changed_entry, "file_size_in_bytes", 7),
        (changed_entry, "file_size_in_bytes", -7),
        (changed_row, "manifest_length", 7),
    ],
)
def test_a_whole_file_gets_its_length_and_is_not_dropped(
    workspace: Workspace, tampered: Any, field: str, more: int, drop_lost: bool
) -> None:
    """Its footer, or its manifest's entries, agree with all else that is said of it."""
    folder = grown(workspace)
    rows = workspace.read()["main"]
    tampered(_misstated(field, more))(folder)
    assert {fault.kind for fault in faults_of_main(workspace)} == {FileFaultKind.WRONG_LENGTH}
    done = go(workspace, drop_lost=drop_lost)
    assert ([action.kind for action in done.plan.actions], done.plan.unrepaired) == ([RepairKind.CORRECT], ())
    assert faults_of_main(workspace) == ()
    assert workspace.read()["main"] == rows


def test_a_repair_counts_anew_what_a_writer_miscounted(workspace: Workspace) -> None:
    """Its snapshot has other rows than the one before, whose summary was as wrong as the entry: that is no fault."""
    folder = grown(workspace)

    def miscount(document: Any) -> None:
        summary = document["snapshots"][-1]["summary"]
        summary |= {name: str(int(summary[name]) + 1) for name in ("added-records", "total-records")}

    DEEPER_FAULTS["an entry's rows are miscounted"][1](folder)
    edit(next(folder.glob("metadata/*.metadata.json")), miscount)
    assert go(workspace).plan.unrepaired == ()
    totals = [int(one.summary["total-records"]) for one in workspace.metadata().snapshots]
    assert totals[-1] == totals[-2] - 1
    found = workspace.app.runtime.engine.check(ref(NAME), CheckLevel.FOOTERS).faults
    assert "metadata" not in {one.file for one in found}


def test_no_more_rows_go_than_were_approved(workspace: Workspace) -> None:
    """What was lost since a person saw the count is not dropped."""
    folder = grown(workspace)
    before = workspace.metadata()
    for path in sorted(folder.glob("data/**/*.parquet"))[:2]:
        path.unlink()
    workspace.detect()
    with pytest.raises(Refused, match="main would lose 2 rows, more than the 1 that were approved"):
        repair(workspace.app.runtime, ref(NAME), drop_lost=True, approved_rows=1)
    assert workspace.metadata() == before


@pytest.mark.parametrize("lost", ["data", "manifest"])
def test_what_is_lost_is_dropped_only_when_a_person_says_so(workspace: Workspace, lost: str) -> None:
    """Its rows are counted; main goes on with the others, and the tag leads to the state before."""
    folder = grown(workspace)
    rows, before = workspace.read()["main"], workspace.metadata()
    manifest = records(lists(folder)[-1])[0]
    path = folder / "metadata" / Path(manifest["manifest_path"]).name
    if lost == "data":
        with path.open("rb") as source:
            path = Path(next(fastavro.reader(source))["data_file"]["file_path"].removeprefix("file://"))  # type: ignore[index, call-overload]
    content = path.read_bytes()
    path.unlink()
    refused = go(workspace)
    assert workspace.metadata() == before
    whom = {"data": "them", "manifest": "a manifest of data files"}[lost]  # one of deletes is never dropped
    reason = f"its rows are lost unless the file is put back; --drop-lost lets main go on without {whom}"
    assert [one.reason for one in refused.plan.unrepaired] == [reason]
    done = go(workspace, drop_lost=True)
    assert (done.plan.lost_rows, {action.kind for action in done.plan.actions}) == (1, {RepairKind.DROP})
    assert faults_of_main(workspace) == ()
    path.write_bytes(content)
    now = workspace.read()
    assert len(now["main"]) == len(rows) - 1
    assert set(now["main"]) < set(rows)
    assert now[str(done.tag)] == rows
    summary = workspace.metadata().current_snapshot.summary  # type: ignore[union-attr]
    assert (summary["operation"], summary["deleted-records"], summary["total-records"]) == ("delete", "1", "3")


def test_lost_files_are_asked_for_at_once(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an object store that is far away thousands of files would take minutes one by one."""
    for path in sorted(grown(workspace).glob("data/**/*.parquet"))[:2]:
        path.unlink()
    together, size = Barrier(2, timeout=10), LocalStorage.size

    def asked(storage: LocalStorage, path: str) -> int | None:
        together.wait()  # which ends when both are asked for, and fails when one is waited for
        return size(storage, path)

    monkeypatch.setattr(LocalStorage, "size", asked)
    actions = go(workspace, drop_lost=True).plan.actions
    assert [action.kind for action in actions] == [RepairKind.DROP] * 2


def test_without_its_list_nobody_knows_what_main_needs(workspace: Workspace) -> None:
    """The list is written again; the same repair, asked for once more, drops the file that is lost besides."""
    folder = grown(workspace)
    lists(folder)[-1].unlink()
    min(folder.glob("data/**/*.parquet")).unlink()
    done = go(workspace, drop_lost=True)
    assert [action.kind for action in done.plan.actions] == [RepairKind.REBUILD]
    assert [one.reason.partition(" is known")[0] for one in done.plan.unrepaired] == ["whether main needs it"]
    assert go(workspace, drop_lost=True).plan.lost_rows == 1
    assert faults_of_main(workspace) == ()


def test_what_stays_wrong_in_a_snapshot_whose_list_is_written_again_is_no_failure(workspace: Workspace) -> None:
    """Main has right bounds; the manifest of the snapshot before never changes, and its list is there again."""
    folder = grown(workspace)
    DEEPER_FAULTS["an upper bound is too low"][1](folder)
    lists(folder)[-2].unlink()
    done = go(workspace)
    assert {action.kind for action in done.plan.actions} == {RepairKind.REBUILD, RepairKind.CORRECT}
    assert (done.plan.unrepaired, faults_of_main(workspace)) == ((), ())


def test_a_dry_run_lists_faults_in_the_order_of_the_run(workspace: Workspace) -> None:
    """Lists are written again before main is repaired, which a dry run does at once."""
    folder = grown(workspace)
    for path in (*lists(folder)[:1], *folder.glob("metadata/*-m0.avro")):
        path.write_bytes(b"x" * path.stat().st_size)
    assert [one.fault.file for one in go(workspace).plan.unrepaired] == [*["manifest"] * 4, "manifest list"]


def test_a_file_that_lies_elsewhere_is_not_lost(workspace: Workspace) -> None:
    """The repair says where, and drops nothing; put back, the table has no fault."""
    folder = grown(workspace)
    before = workspace.metadata()
    path = min(folder.glob("data/**/*.parquet"))
    moved = path.rename(folder / "data" / path.name)
    done = go(workspace, drop_lost=True)
    assert [one.reason for one in done.plan.unrepaired] == [f"a file of this name is file://{moved}: put it back"]
    assert (done.plan.actions, workspace.metadata()) == ((), before)
    moved.rename(path)
    assert faults_of_main(workspace) == ()


def _longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def _scrambled(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-60] + b"x" * 52 + path.read_bytes()[-8:])


@pytest.mark.parametrize(
    ("harm", "reason"), [(_longer, "it is longer than it was"), (_scrambled, "another program may be able to read it")]
)
def test_a_file_that_somebody_may_read_is_not_dropped(
    workspace: Workspace, harm: Callable[[Path], None], reason: str
) -> None:
    """Only what is gone or cut is lost for sure; the table stays as it is."""
    folder = grown(workspace)
    before = workspace.metadata()
    harm(min(folder.glob("data/**/*.parquet")))
    done = go(workspace, drop_lost=True)
    assert [one.reason.startswith(reason) for one in done.plan.unrepaired] == [True]
    assert (done.plan.actions, workspace.metadata()) == ((), before)


@pytest.mark.parametrize("numbers", [(0,), (2,), (0, 1, 2), (3,), (2, 3)])
def test_lost_manifest_lists_are_written_again(workspace: Workspace, numbers: tuple[int, ...]) -> None:
    """Each has the rows that it had, by the next snapshot's list or the last one's; the metadata stays as it is."""
    folder = grown(workspace)
    (folder / "metadata" / "left-by-a-failed-writer-m0.avro").write_bytes(b"Obj")
    rows, before = workspace.read(), workspace.metadata()
    paths = [lists(folder)[number] for number in numbers]
    had = [records(path) for path in paths]
    for path in paths:
        path.unlink()
    done = go(workspace)
    assert [action.kind for action in done.plan.actions] == [RepairKind.REBUILD] * len(paths)
    for path, rows_before in zip(paths, had, strict=True):
        assert sorted(records(path), key=str) == sorted(rows_before, key=str)
    assert (workspace.metadata(), workspace.read()) == (before, rows)


def merged(workspace: Workspace, *, delete: bool = False) -> list[list[Path]]:
    """A table whose manifests were merged, or of which each commit deleted the file before: manifests by snapshot."""
    folder = workspace.table(spec=BY_PART) if delete else grown(workspace)
    if not delete:
        assert workspace.run(MANIFESTS).metrics["manifests_written"] == 1
    order = [folder / "metadata" / (s.manifest_list or "").rpartition("/")[2] for s in workspace.metadata().snapshots]
    return [[folder / "metadata" / Path(row["manifest_path"]).name for row in records(path)] for path in order]


def _as_upgraded(folder: Path) -> None:
    """Let all snapshots have the sequence number 0, as those of a table have that was of format v1."""

    def unnumbered(rows: list[Any]) -> None:
        for row in rows:
            row.update({name: 0 for name, value in row.items() if name.endswith("sequence_number") and value})

    for manifest in folder.glob("*-m0.avro"):
        tamper_manifest(folder, manifest, unnumbered)
    for manifest_list in folder.glob("snap-*.avro"):
        rewrite(manifest_list, unnumbered)
    (metadata,) = folder.glob("*.metadata.json")
    edit(metadata, lambda document: [one.update({"sequence-number": 0}) for one in document["snapshots"]])


@pytest.mark.parametrize("lost", ["merged", "new", "deleted", "deleted of v1"])
def test_lost_manifests_are_written_again(workspace: Workspace, lost: str) -> None:
    """One that a rewrite merged, by its manifest; that of the rewrite, by those; one whose file was deleted later.

    Of format v1 too, whose sequence numbers tell no snapshots apart.
    """
    *_, before, last = by_snapshot = merged(workspace, delete=lost.startswith("deleted"))
    if lost == "deleted of v1":
        _as_upgraded(last[0].parent)
    rows, metadata = workspace.read(), workspace.metadata()
    path = {"merged": before[0], "new": last[0]}.get(lost, by_snapshot[0][0])
    length, entries = path.stat().st_size, sorted(map(_stated, records(path)))
    path.unlink()
    done = go(workspace)
    assert [(action.kind, Path(action.path).name) for action in done.plan.actions] == [(RepairKind.REBUILD, path.name)]
    assert (path.stat().st_size, sorted(map(_stated, records(path)))) == (length, entries)
    assert (workspace.metadata(), workspace.read()) == (metadata, rows)
    assert workspace.app.runtime.engine.check(ref(NAME), CheckLevel.FOOTERS).faults == ()


def test_which_commit_added_a_file_of_v1_is_not_guessed(workspace: Workspace) -> None:
    """A lost manifest had the file from an older commit: no sequence number says from which."""
    first = merged(workspace, delete=True)[0][0]

    def older(rows: list[Any]) -> None:
        for row in rows:
            row.update(status=0, snapshot_id=row["snapshot_id"] ^ 1)

    def counted(rows: list[Any]) -> None:
        for row in (row for row in rows if row["manifest_path"].endswith(first.name)):
            for kind in "files_count", "rows_count":
                row[f"existing_{kind}"], row[f"added_{kind}"] = row[f"added_{kind}"], 0
            row["manifest_length"] += 100  # the writer had compressed it less

    _as_upgraded(first.parent)
    tamper_manifest(first.parent, first, older)
    for manifest_list in first.parent.glob("snap-*.avro"):
        rewrite(manifest_list, counted)
    first.unlink()
    assert RepairKind.REBUILD not in {action.kind for action in go(workspace).plan.actions}


def _stated(entry: Any) -> str:
    """An entry in words, without numbers that it may state or inherit."""
    return str({name: value for name, value in entry.items() if not name.endswith("sequence_number")})


@pytest.mark.parametrize(
    "wrong", ["rows", "files", "deleted", "sequence", "bounds", "length", "two", "needed", "elsewhere"]
)
def test_a_manifest_that_nothing_proves_is_not_written(workspace: Workspace, wrong: str) -> None:
    """Lists that say other things, too few bytes, two that are lost, and one that all have leave it as it is.

    Nor one that lies elsewhere: who may commit to the table shall not have files written where he may not.
    """
    *_, before, _last = merged(workspace)
    path = before[0]
    lists_of = [one for one in path.parent.glob("snap-*.avro") if path.name in str(records(one))]

    def change(rows: list[Any]) -> None:
        row = next(row for row in rows if row["manifest_path"].endswith(path.name))
        match wrong:
            case "bounds":
                row["partitions"][0]["lower_bound"] = b"a"
            case "length":
                row["manifest_length"] = 400
            case "elsewhere":
                row["manifest_path"] = f"file://{workspace.home}/pond/{path.name}"
            case _:
                fields = {"rows": "added_rows_count", "files": "added_files_count", "deleted": "deleted_files_count"}
                row[fields.get(wrong, "min_sequence_number")] += 1

    path.unlink()
    if wrong == "two":
        before[1].unlink()
    elif wrong == "needed":
        workspace.metadata_file().write_text(_without_the_rewrite(workspace), encoding="utf-8")
    else:
        for one in lists_of:
            rewrite(one, change)
    done = go(workspace)
    assert RepairKind.REBUILD not in {action.kind for action in done.plan.actions}
    assert path.name in {Path(one.fault.path).name for one in done.plan.unrepaired}
    assert not list(workspace.home.rglob(path.name))


def _without_the_rewrite(workspace: Workspace) -> str:
    document = json.loads(workspace.metadata_file().read_text(encoding="utf-8"))
    gone = document["snapshots"].pop()["snapshot-id"]
    document["current-snapshot-id"] = document["refs"]["main"]["snapshot-id"] = document["snapshots"][-1]["snapshot-id"]
    document["snapshot-log"] = [entry for entry in document["snapshot-log"] if entry["snapshot-id"] != gone]
    return json.dumps(document)


def _replaced(workspace: Workspace) -> Path:
    return workspace.table(spec=BY_PART)


def _doubled(workspace: Workspace) -> Path:
    """Beside the newest manifest lies another attempt of the same commit."""
    folder = grown(workspace)
    (manifest,) = (row for row in records(lists(folder)[-1]) if row["sequence_number"] == 4)
    newest = folder / "metadata" / Path(manifest["manifest_path"]).name
    newest.with_name("another-attempt-m0.avro").write_bytes(newest.read_bytes())
    return folder


@pytest.mark.parametrize(("build", "number"), [(_doubled, -1), (_replaced, 0), (_replaced, -1)])
def test_a_list_that_nothing_proves_is_not_written(
    workspace: Workspace, build: Callable[[Workspace], Path], number: int
) -> None:
    """A commit that also deleted does not tell what was there; nor do two manifests that each may be the one."""
    folder = build(workspace)
    order = [s.manifest_list or "" for s in workspace.metadata().snapshots]
    path = folder / "metadata" / Path(order[number]).name
    path.unlink()
    done = go(workspace)
    assert [one.reason for one in done.plan.unrepaired] == [
        "neither the snapshot before nor one made from it proves what the list had"
    ]
    assert not path.exists()


def test_a_list_elsewhere_is_not_written(workspace: Workspace) -> None:
    """A metadata file may name a place of another table, also through a link in the table's own."""
    folder = grown(workspace)
    path = lists(folder)[1]
    (folder / "link").symlink_to(workspace.home / "pond")
    path.unlink()
    for place in (f"{workspace.home}/pond", f"{folder}/link", f"{folder}/../../../pond"):
        text = re.sub(f'file://[^"]*{path.name}', f"file://{place}/{path.name}", workspace.metadata_file().read_text())
        workspace.metadata_file().write_text(text)
        assert ["in no place of the table" in one.reason for one in go(workspace).plan.unrepaired] == [True], place
    assert not list(workspace.home.rglob(path.name))


@pytest.mark.parametrize("moment", range(4))
def test_a_crash_leaves_the_table_as_it_was_or_repaired(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """Before or after the commit of the tag or of the repair; the same repair asked for again ends it."""
    folder = grown(workspace)
    rows = workspace.read()
    DEEPER_FAULTS["a lower bound is too high"][1](folder)
    workspace.detect()
    with monkeypatch.context() as patched:
        hooked(patched, workspace, crash_at(1 + moment // 2, before=not moment % 2))
        with pytest.raises(KeyboardInterrupt):
            repair(workspace.app.runtime, ref(NAME))
    reconcile_interrupted(workspace.app.runtime)
    assert (faults_of_main(workspace) == ()) is (moment == 3)
    repair(workspace.app.runtime, ref(NAME))
    assert faults_of_main(workspace) == ()
    now = workspace.read()
    assert {version: now[version] for version in rows} == rows


@pytest.mark.parametrize("how", ["overtaken", "lost reply"])
def test_a_writer_in_between_loses_nothing(workspace: Workspace, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """The repair goes on from the head that the writer made, and tags that; a lost reply makes no second commit."""
    folder = grown(workspace)
    before, rows = workspace.metadata(), workspace.read()
    DEEPER_FAULTS["a lower bound is too high"][1](folder)
    target, seen = before.snapshots[-2].snapshot_id, list[Any]()

    def disturbed(commit_: Any, base: Any, change: Any) -> Any:
        seen.append(change)
        if len(seen) != 2:
            return commit_(base, change)
        if how == "overtaken":
            main = next(each for each in base.refs if each.name == "main")
            commit_(base, SetRefs((SnapshotRef("main", main.kind, target),)))
            return commit_(base, change)
        commit_(base, change)
        raise CommitStateUnknown("no answer came")

    workspace.detect()
    hooked(monkeypatch, workspace, disturbed)
    done = repair(workspace.app.runtime, ref(NAME))
    after = workspace.metadata()
    head = target if how == "overtaken" else before.current_snapshot_id
    assert faults_of_main(workspace) == ()
    assert after.current_snapshot is not None
    assert after.current_snapshot.parent_id == head
    assert len(after.snapshots) == len(before.snapshots) + 1
    assert [r.snapshot_id for r in after.refs if r.name == done.tag] == [head]
    assert workspace.read()["main"] == rows[str(head)]
