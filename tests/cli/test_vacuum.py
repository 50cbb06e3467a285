"""`icewright vacuum`."""

from __future__ import annotations

from functools import partial

import pytest

from icewright.app.demo.tables import sessions, uploads
from tests.cli.workspace import Workspace

pytestmark = pytest.mark.external  # makes a lakehouse or a store for each test


def test_vacuum_prints_one_document(workspace: Workspace) -> None:
    """Counts, megabytes and metrics under the names that users of vacuum know."""
    workspace.make(partial(uploads, old=3, young=2))
    before = workspace.files()
    dry = workspace("vacuum", "lake", "--dry-run", "--json")
    assert dry.code == 0, dry.err
    assert workspace.files() == before
    said = workspace("vacuum", "lake", "--yes", "--json").json
    assert said["deleted_files_count"] == dry.json["deleted_files_count"] == len(before - workspace.files()) > 0
    assert {"num_tables", "num_total_snapshots", "num_table_expiry", "num_expired_snapshots"} <= said["metrics"].keys()
    assert {"num_access_denied", "num_not_found", "num_partial_failures", "commit_scan_time"} <= said["metrics"].keys()
    assert isinstance(said["deleted_files_total_size_mb"], int)


def test_vacuum_of_an_unknown_catalog(workspace: Workspace) -> None:
    """Exit code 2, and the catalogs that there are."""
    workspace.make(partial(uploads, old=3, young=2))
    result = workspace("vacuum", "sea", "--yes")
    assert result.code == 2
    assert "there is: lake" in result.err


def test_vacuum_for_people(workspace: Workspace) -> None:
    """What went, or would go by a dry run, on which tables; the others are only counted."""
    workspace.make(partial(uploads, old=3, young=2), partial(sessions, rows_per_file=5))
    dry, done, again = (workspace("vacuum", "lake", option) for option in ("--dry-run", "--yes", "--yes"))
    assert (dry.code, done.code, again.code) == (0, 0, 0), done.err
    assert "Vacuum of lake: dry run, nothing was changed; would delete 6 files, " in dry.out
    assert "Vacuum of lake: deleted 6 files, " in done.out
    assert [name in done.out for name in ("lake.ops.uploads", "lake.web.sessions")] == [True, False]
    assert ("Nothing to do on 1 of 2 tables" in done.out, "Nothing to do on 2 of 2 tables" in again.out) == (True, True)


def test_vacuum_leaves_a_table_for_which_it_is_switched_off(workspace: Workspace) -> None:
    """The table keeps everything, by dry run and run, and the answer says why."""
    workspace.make(partial(uploads, old=3, young=2))
    workspace.write("policy: [{match: lake.ops.*, set: {vacuum.enabled: false, deletion.delay_hours: 0}}]\n")
    before = workspace.files()
    for how in ("--dry-run", "--yes"):
        result = workspace("vacuum", "lake", "--json", how)
        assert result.code == 0, result.err
        (job,) = result.json["jobs"]
        assert (job["state"], job["operations"], job["summary"]) == ("skipped", [], "vacuum.enabled is false")
    assert workspace.files() == before
