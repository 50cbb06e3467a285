"""`icewright vacuum`."""

from __future__ import annotations

from functools import partial

from icewright.app.demo.rot import uploads
from tests.cli.house import House


def test_vacuum_prints_one_document(house: House) -> None:
    """Counts, megabytes and metrics under the names that users of vacuum know."""
    house.make(partial(uploads, old=3, young=2))
    before = house.files()
    dry = house("vacuum", "lake", "--dry-run", "--json")
    assert dry.code == 0, dry.err
    assert house.files() == before
    said = house("vacuum", "lake", "--json").json
    assert said["deleted_files_count"] == dry.json["deleted_files_count"] == len(before - house.files()) > 0
    assert {"num_tables", "num_total_snapshots", "num_table_expiry", "num_expired_snapshots"} <= said["metrics"].keys()
    assert {"num_access_denied", "num_not_found", "num_partial_failures", "commit_scan_time"} <= said["metrics"].keys()
    assert isinstance(said["deleted_files_total_size_mb"], int)


def test_vacuum_of_an_unknown_catalog(house: House) -> None:
    """Exit code 2, and the catalogs that there are."""
    house.make(partial(uploads, old=3, young=2))
    said = house("vacuum", "sea")
    assert said.code == 2
    assert "there is: lake" in said.err


def test_vacuum_for_people(house: House) -> None:
    """The table of the answer."""
    house.make(partial(uploads, old=3, young=2))
    said = house("vacuum", "lake")
    assert said.code == 0, said.err
    assert "deleted_files_count" in said.out
