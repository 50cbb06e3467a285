"""Vacuum in bad weather: what cannot be read is left alone, crashes converge, whoever commits meanwhile loses none."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import obstore
import pyarrow as pa
import pytest
import requests

from icewright.app.bootstrap import Application
from icewright.core.errors import AccessDenied, CatalogUnavailable
from icewright.core.runs import JobState
from icewright.core.table import TableRef
from icewright.flow.adopt import adopt
from icewright.flow.cycle import run_cycle
from icewright.flow.reconcile import reconcile_interrupted
from icewright.flow.vacuum import vacuum
from icewright.ports import WAITING
from tests.vacuum.test_scenarios import VACUUM_ALONE
from tests.vacuuming import NessieWorkspace, summaries

pytestmark = pytest.mark.external

ANY_RATIO = "policy: [{set: {deletion.delay_hours: 0, remove_orphans.max_delete_ratio: 1}}]\n"


@dataclass
class Interceptor:
    """Anything, with some of its methods watched: the watcher runs before the call."""

    inner: Any
    watched: Mapping[str, Callable[..., None]]

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        watcher = self.watched.get(name)
        if watcher is None:
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            watcher(*args, **kwargs)
            return found(*args, **kwargs)

        return call


def _tapped(app: Application, part: str, **watched: Callable[..., None]) -> None:
    """Watch the storage or the ledger that vacuum deletes by."""
    one = app.engines.vacuums["lake"]
    watching: Any = {part: Interceptor(getattr(one.deletion, part), watched)}
    one.deletion = replace(one.deletion, **watching)


def _old(workspace: NessieWorkspace) -> None:
    """All commits are older than the cut-off."""
    workspace.cutoff("PT24H")  # the clock of the house is two days ahead


def test_access_denied_is_a_partial_failure_that_touches_nothing(workspace: NessieWorkspace) -> None:
    """The other table is vacuumed all the same."""
    workspace.rest_table("shut", 3)
    workspace.rest_table("open", 3)
    _old(workspace)
    before = {f for f in workspace.files() if "/shut_" in f}

    def denied(path: str) -> None:
        if "/shut_" in path:
            raise AccessDenied(f"{path} may not be read")

    with workspace.opened() as app:
        catalog: Any = app.runtime.catalogs["lake"]
        catalog.files = Interceptor(catalog.files, {"read": denied})
        result = vacuum(app.runtime, "lake")
    assert result.state is JobState.PARTIAL, summaries(result)
    counts = result.counts
    assert (counts.num_access_denied, counts.num_not_found, counts.num_partial_failures) == (1, 0, 1)
    assert {f for f in workspace.files() if "/shut_" in f} == before
    assert (result.files > 0, "1 day" in result.cutoff) == (True, True)


@pytest.mark.cases(12)
@pytest.mark.parametrize("which", ["metadata", "snap-"])
def test_a_missing_file_is_a_partial_failure_that_touches_nothing(workspace: NessieWorkspace, which: str) -> None:
    """Be it the metadata file or the manifest list of the head."""
    workspace.rest_table("torn", 3)
    workspace.rest_table("whole", 3)
    head = workspace.metadata("torn")
    gone = workspace.content("torn").metadata_location if which == "metadata" else head["snapshots"][0]["manifest-list"]
    obstore.delete(workspace.bucket, gone.removeprefix("s3://lake/"))
    _old(workspace)
    before = {f for f in workspace.files() if "/torn_" in f}
    result = workspace.vacuum()
    assert result.state is JobState.PARTIAL, summaries(result)
    counts = result.counts
    assert (counts.num_access_denied, counts.num_not_found, counts.num_partial_failures) == (0, 1, 1)
    assert {f for f in workspace.files() if "/torn_" in f} == before
    assert gone in "".join(summaries(result))
    assert result.files > 0


@pytest.mark.cases(13)
@pytest.mark.parametrize("native", [False, True])
def test_a_crash_between_commit_and_deletion_is_finished_at_the_next_start(
    workspace: NessieWorkspace, *, native: bool
) -> None:
    """The ledger has what was planned; a fresh proof goes before the deletion."""
    if native:
        table = workspace.native_table("t")
        for number in range(3):
            workspace.native_append(table, number)
    else:
        workspace.rest_table("t", 3)
    _old(workspace)

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    with workspace.opened() as app:
        _tapped(app, "files", delete=crash)
        with pytest.raises(KeyboardInterrupt):
            vacuum(app.runtime, "lake")
        (job,) = app.runtime.store.jobs.list()
        planned = {r["path"] for r in app.runtime.store.ledger.files(job.job_id) if r["state"] in WAITING}
    assert planned
    with workspace.opened() as app:
        beside = app.engines.vacuums["lake"]
        head = beside.survey(app.runtime.clock.now()).tables[0].heads[0].content
        read = beside.contents.metadata(head)
        said = reconcile_interrupted(app.runtime)
        assert beside.contents.metadata(head) is read  # a vacuum that goes on meanwhile keeps what it has read
        states = {r["state"] for r in app.runtime.store.ledger.files(job.job_id)}
    assert states == {"deleted"}, said
    assert not {p.removeprefix("s3://lake/") for p in planned} & workspace.files()
    assert workspace.rest_rows("t", "main") == [0, 1, 2]
    assert workspace.vacuum().files == 0


def test_a_crash_before_the_sweep_converges(workspace: NessieWorkspace) -> None:
    """What the expiry left is found by the next run."""
    table = workspace.native_table("t")
    for number in range(3):
        workspace.native_append(table, number)
    _old(workspace)

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    with workspace.opened() as app:
        _tapped(app, "files", listing=crash)
        with pytest.raises(KeyboardInterrupt):
            vacuum(app.runtime, "lake")
    assert len(workspace.metadata("t")["snapshots"]) == 1
    result = workspace.vacuum()
    assert result.state is JobState.SUCCEEDED
    assert result.counts.num_expired_snapshots == 2
    assert len([f for f in workspace.files() if "/snap-" in f]) == 1


def test_the_server_is_away(workspace: NessieWorkspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is guessed: the command fails, and no file is touched."""
    workspace.rest_table("t", 3)
    _old(workspace)
    before = workspace.files()

    def away(*_: Any, **__: Any) -> Sequence[Any]:
        raise requests.ConnectionError("refused")

    with workspace.opened() as app:
        monkeypatch.setattr(requests.Session, "request", away)
        with pytest.raises(CatalogUnavailable, match="is the server up"):
            vacuum(app.runtime, "lake")
        monkeypatch.undo()
    assert workspace.files() == before


@pytest.mark.cases(110)
def test_files_that_an_unreadable_table_borrowed_stay(workspace: NessieWorkspace) -> None:
    """They lie in the place of the table that wrote them, which has let them go, and were once seen to be borrowed."""
    lender, borrower = workspace.native_table("lender"), workspace.native_table("borrower")
    lender.append(pa.table({"id": [0]}))
    borrower.add_files(lender.inspect.files()["file_path"].to_pylist())
    lender.overwrite(pa.table({"id": [1]}))
    lender.overwrite(pa.table({"id": [2]}))
    for table in (lender, borrower):
        workspace.put(table)
    _old(workspace)
    workspace.vacuum(dry_run=True)
    key = workspace.metadata("borrower")["snapshots"][-1]["manifest-list"].removeprefix("s3://lake/")
    whole = bytes(obstore.get(workspace.bucket, key).bytes())
    obstore.put(workspace.bucket, key, whole[:40])
    result = workspace.vacuum(extra=ANY_RATIO)
    assert result.counts.num_partial_failures > 0, summaries(result)
    obstore.put(workspace.bucket, key, whole)
    assert workspace.vacuum(extra=ANY_RATIO).files > 0  # the other file that the lender let go
    assert [workspace.rest_rows(name, "main") for name in ("lender", "borrower")] == [[2], [0]]


@pytest.mark.cases(151)
def test_files_that_hardly_are_the_tables_wait_for_a_word(workspace: NessieWorkspace) -> None:
    """A vacuum by itself deletes no photograph, and nothing in a folder without files of the table, or a new place."""
    table = workspace.native_table("grabbing")
    for number in range(3):
        workspace.native_append(table, number)
    _old(workspace)
    photo = f"{table.location().removeprefix('s3://lake/')}/data/photo.jpg"
    hidden = f"{table.location().removeprefix('s3://lake/')}/data/reports/0.parquet"
    victim = f"nessie/{workspace.space}-others/data/part-0.parquet"
    for key in (photo, hidden, victim):
        obstore.put(workspace.bucket, key, b"x")

    extra = VACUUM_ALONE.replace("0}}", "0, remove_orphans.max_delete_ratio: 1}}")

    def by_itself() -> str:
        workspace.clock.advance(days=1)
        with workspace.opened(extra=extra) as app:
            return run_cycle(app.runtime, ["lake"]).jobs[0].summary

    before = workspace.files()
    summary = by_itself()
    assert ("photo.jpg" in summary, "[unnamed_files]" in summary) == (True, True), summary
    assert workspace.files() >= before
    obstore.delete(workspace.bucket, photo)
    summary = by_itself()
    assert ("/data/reports," in summary, "[unnamed_files]" in summary) == (True, True), summary
    assert workspace.files() >= before - {photo}
    obstore.delete(workspace.bucket, hidden)
    document = workspace.metadata("grabbing") | {"location": f"s3://lake/nessie/{workspace.space}-others"}
    location = f"{table.location()}/metadata/00099-moved.metadata.json"
    obstore.put(workspace.bucket, location.removeprefix("s3://lake/"), json.dumps(document).encode())
    workspace.native().drop_table(table.name())
    workspace.put(workspace.native().register_table(table.name(), location))
    summary = by_itself()
    assert "[moved_location]" in summary, summary
    assert victim in workspace.files()
    with workspace.opened() as app:
        adopt(app.runtime, TableRef("lake", (workspace.space,), "grabbing"))
    summary = by_itself()
    assert "removed 1 file" in summary, summary
    assert victim not in workspace.files()
