"""Rows that Spark deleted, erased from each file: compaction, expiry and a certificate that DuckDB agrees with."""

from __future__ import annotations

import duckdb
import pytest

from icewright.core.erasure import RowPlace
from icewright.core.paths import key
from icewright.flow.detect import detect
from icewright.flow.erase import certificate, certified, erase
from tests.integration.bench import Bench
from tests.integration.tables import backdate_all, create, insert
from tests.nightly import nightly

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_spark")]

MERGE_ON_READ = {"write.delete.mode": "merge-on-read", "write.update.mode": "merge-on-read"}


@pytest.mark.parametrize("version", [nightly(2), 3])
def test_rows_that_deletes_hide_are_gone_from_every_file(bench: Bench, version: int) -> None:
    """The rows that are left are those that Spark shows; a nested column and a dropped one say which go."""
    name = f"test.erased_{version}"
    columns = "id BIGINT, person STRUCT<email: STRING>, note STRING"
    quoted = create(bench, name, columns, properties=MERGE_ON_READ, version=version)
    insert(bench, quoted, *(f"({n}, struct('{n % 3}@x.org'), 'n{n}'), ({n + 50}, NULL, 'ann')" for n in range(6)))
    bench.sql(f"ALTER TABLE {quoted} DROP COLUMN note")
    bench.sql(f"DELETE FROM {quoted} WHERE person.email = '1@x.org' OR id = 55")  # noqa: S608 - quoted
    backdate_all(bench, name, 30, 3)
    rows = sorted(bench.sql(f"SELECT id, person.email FROM {quoted}"))  # noqa: S608 - quoted
    detect(bench.runtime, ["lake"])
    predicate = "person.email = '1@x.org' or (id = 55 and note = 'ann')"
    before = erase(bench.runtime, bench.ref(name), predicate, dry_run=True)
    assert [step.place for step in before.steps] == [RowPlace.MASKED, RowPlace.SNAPSHOT]
    assert sum(one.rows for one in before.after.found) == 3
    result = erase(bench.runtime, bench.ref(name), predicate)
    # in an hour the snapshot of the compaction goes, whose manifests keep the least and greatest values of its inputs
    assert {(one.file, one.places) for one in result.after.found} == {("manifest", (RowPlace.SNAPSHOT,))}
    backdate_all(bench, name, 30, 3)
    result = erase(bench.runtime, bench.ref(name), predicate)
    assert result.after.is_clean, result
    assert sorted(bench.sql(f"SELECT id, person.email FROM {quoted}")) == rows  # noqa: S608 - quoted
    files = [str(path) for path in bench.folder(name).rglob("*.parquet")]
    assert sorted(key(file["path"]) for file in certificate(certified(result), b"key")["files"]) == sorted(files)
    found = duckdb.execute("SELECT count(*) FROM read_parquet(?) WHERE person.email = '1@x.org' OR id = 55", [files])
    assert found.fetchall() == [(0,)]
