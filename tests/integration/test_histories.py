"""Random histories: whatever writers did to a table, maintenance in-service does to it what Spark's procedures do.

`pytest --hypothesis-profile=long` plays 300 of them in batches; a batch is the same each time, so that one which failed
is played again by its id under that profile.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, seed, settings

from icewright.core.integrity import CheckLevel, FileFault
from icewright.core.policy import Operation
from icewright.core.runs import OperationState
from icewright.core.table import MAIN, RefKind
from tests.integration.bench import Bench, make_old, paths, spark_time
from tests.integration.expiring import expired
from tests.integration.histories import WEIGHTS, History, Plan, plans
from tests.integration.planting import plant, remove
from tests.integration.playing import long_examples
from tests.integration.tables import create, insert
from tests.nightly import NIGHTLY

pytestmark = [
    pytest.mark.spark,
    pytest.mark.usefixtures("quick_spark"),
    pytest.mark.filterwarnings("ignore:Delete operation did not match any records:UserWarning"),
    pytest.mark.filterwarnings("ignore:Merge on read is not yet supported:UserWarning"),
]

LONG = settings.get_current_profile_name() == "long"
HISTORIES = settings().max_examples if LONG else 25 if NIGHTLY else 12
BATCH = 9  # after its tenth example Hypothesis turns to variations of earlier ones
BATCHES = [min(BATCH, HISTORIES - start) for start in range(0, HISTORIES, BATCH)]
MANIFESTS: Mapping[str, object] = {"rewrite_manifests.min_manifests": 2}
_ORPHANS = (
    "data/orphan.parquet",
    "data/a+b c.parquet",
    "data/part=a/orphan.parquet",
    "data/part=x%2Fy%3D%25/é.parquet",
    "data/é=%20/x#y?.parquet",
    "data/deep/er/file",
    "metadata/gone-m0.avro",
    "metadata/snap-1-1-gone.avro",
    "metadata/gone.stats",
)
_HIDDEN = ("_hidden/x.parquet", "data/.tmp/x.parquet", "data/_temporary/0/x", "data/.part-0")
_HINT = "data/version-hint.text"
_YOUNG = ("data/young.parquet", "metadata/young-m0.avro")
OF_ITS_OWN, EXPIRED, REWRITTEN = "orphans of its own", "expired", "manifests rewritten"  # in `happened`
Rows = Counter[tuple[int, int | None, int | None]]  # hash, row id, last updated sequence number


def read(history: History, versions: Iterable[str]) -> dict[str, Rows]:
    """The rows of each version, in one statement; those of format v3 with their lineage."""
    lineage = "_row_id, _last_updated_sequence_number" if history.version > 2 else "NULL, NULL"
    found: dict[str, Rows] = {version: Counter() for version in versions}
    parts = [
        f"SELECT '{version}', xxhash64(to_json(struct(*), map('ignoreNullFields', 'false'))), {lineage} "  # noqa: S608
        f"FROM {history.quoted} VERSION AS OF " + (version if version.isdecimal() else f"'{version}'")
        for version in found
    ]
    for version, *row in history.bench.sql(" UNION ALL ".join(parts)):
        found[version][tuple(row)] += 1
    return found


def same_rows(before: Rows, after: Rows) -> bool:
    """Whether the rows are equal, and each that had an id has it still; a row of v2 may have been given one."""
    known = Counter({row: count for row, count in before.items() if row[1] is not None})
    return after >= known and _hashes(after - known) == _hashes(before - known)


def _hashes(rows: Rows) -> Counter[int]:
    return Counter(row[0] for row in rows.elements())


def entries(history: History) -> Counter[str]:
    """Everything that Spark says of each live entry, but whether it is new."""
    rows = history.bench.sql(
        "SELECT to_json(struct(snapshot_id, sequence_number, file_sequence_number, data_file)) AS e "  # noqa: S608
        f"FROM {history.quoted}.entries WHERE status < 2"
    )
    return Counter(row["e"] for row in rows)


def manifests_rewritten(history: History) -> bool:
    """Icewright's rewrite keeps every entry; those of v3, where Spark does the work, are judged by their rows."""
    before = entries(history) if history.version < 3 else None
    done = history.bench.run(history.name, Operation.REWRITE_MANIFESTS, MANIFESTS)
    assert done.state in (OperationState.COMMITTED, OperationState.SKIPPED), done
    assert before is None or done.state is OperationState.SKIPPED or entries(history) == before
    return done.state is OperationState.COMMITTED


def manifests_rewritten_amid(history: History) -> bool:
    """In the middle of a history every row is as it was too."""
    before = read(history, [MAIN])[MAIN]
    changed = manifests_rewritten(history)
    assert same_rows(before, read(history, [MAIN])[MAIN])
    return changed


def planted(history: History) -> frozenset[str]:
    """Most files made old, and orphans planted: old, young and hidden ones; those that must be found."""
    bench, name = history.bench, history.name
    folder = bench.folder(name)
    young = sorted(bench.files(name))[:: 3 + history.plan.keep]
    make_old(folder)
    for path in young:
        Path(path).touch()
    found = plant(folder, *_ORPHANS[history.plan.keep % 2 :: 2])
    plant(folder, *_HIDDEN, _HINT)
    plant(folder, *_YOUNG, days=0.5)
    plant(folder, "data/future.parquet", days=-5)
    return paths(map(str, found))


def orphans_removed(history: History) -> bool:
    """Icewright finds what Spark finds but for the rules that it adds, and removes exactly that."""
    bench, name = history.bench, history.name
    must = planted(history)
    files = bench.files(name)
    cutoff = spark_time(datetime.now(UTC) - timedelta(hours=24, minutes=1))
    rows = bench.call("remove_orphan_files", name, f"older_than => {cutoff}, dry_run => true")
    theirs = paths(row["orphan_file_location"] for row in rows if not row["orphan_file_location"].endswith(".crc"))
    said = remove(bench, name, dry_run=True)
    assert said.state is OperationState.COMMITTED, said
    assert bench.files(name) == files
    ours = paths(file.path for file in said.files)
    added = paths([f"{bench.folder(name)}/{_HINT}"])  # kept by Icewright in any folder, by Spark in metadata/ alone
    assert ours == theirs - added, (sorted(ours - theirs), sorted(theirs - ours))
    assert must <= ours
    done = remove(bench, name)
    assert done.state is OperationState.COMMITTED, done
    assert paths(file.path for file in done.files) == ours
    assert paths(files - bench.files(name)) == ours
    return ours > must


def faults_of(history: History) -> Iterator[FileFault]:
    """What the deepest check finds; files of statistics are made up here."""
    faults = history.bench.app.runtime.engine.check(history.bench.ref(history.name), CheckLevel.ROWS).faults
    return (fault for fault in faults if fault.file != "statistics")


def check(bench: Bench, plan: Plan) -> Counter[str]:
    """Play the history, then look for orphans, expire and rewrite manifests; what happened."""
    history = History(bench, plan, manifests_rewritten_amid)
    name, happened = history.name, history.happened
    try:
        history.play()
        faults = list(faults_of(history))
        metadata = bench.metadata(name)
        tags = {ref.name: str(ref.snapshot_id) for ref in metadata.refs if ref.kind is RefKind.TAG}
        before = read(history, [version for version in bench.versions(name) if version not in tags])
        before |= {tag: before[snapshot] for tag, snapshot in tags.items()}
        happened[OF_ITS_OWN] += orphans_removed(history)
        happened[EXPIRED] += bool(expired(bench, name, plan.hours, plan.keep))
        happened[REWRITTEN] += manifests_rewritten(history)
        assert [*faults, *faults_of(history)] == []
        after = read(history, bench.versions(name))
        assert same_rows(before[MAIN], after.pop(MAIN))
        for version in after.keys() & before.keys():
            assert after[version] == before[version], version
        commits = 1 if history.version < 3 else len(metadata.specs)  # Spark rewrites spec by spec
        assert len(after.keys() - before.keys()) <= commits
        return happened
    finally:
        folder = bench.lake.folder(name)
        bench.lake.catalog.drop_table(name)
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def happened() -> Counter[str]:
    """What happened in the histories of all batches."""
    return Counter()


@pytest.mark.cases(1, 2, 3, 4, 7, 9, 10, 11, 13, 17, 19, 38, 39, 42, 43, 47, 51, 52, 53, 59, 60, 66, 68, 73)
@pytest.mark.parametrize(("batch", "size"), list(enumerate(BATCHES)))
def test_histories(batch: int, size: int, bench: Bench, happened: Counter[str]) -> None:
    """After any history Icewright finds the orphans, expires and keeps what Spark does, and a check finds no fault."""

    @seed(batch)
    @long_examples(size)
    @given(plan=plans())
    def play(plan: Plan) -> None:
        happened.update(check(bench, plan), histories=1)

    play()


def test_histories_were_rich(happened: Counter[str]) -> None:
    """Nearly every kind of step took place, and each kind of maintenance had something to do in many histories."""
    if happened["histories"] < HISTORIES:
        pytest.skip(f"only some of the batches ran: {happened['histories']} of {HISTORIES} histories")
    missing = sorted(kind for kind in WEIGHTS if not happened[kind])
    assert len(missing) < len(WEIGHTS) / 5, missing
    for maintenance in (OF_ITS_OWN, EXPIRED, REWRITTEN):
        assert happened[maintenance] > HISTORIES / 3, happened


@pytest.mark.cases(42)
def test_manifests_of_a_spec_that_holds_no_file_any_more(bench: Bench, new_name: Callable[[str], str]) -> None:
    """Manifests that list nothing but deleted files, all that a former spec has, are rewritten into none."""
    name = new_name("emptied")
    properties = {"commit.manifest-merge.enabled": "false"}
    quoted = create(bench, name, "id int, part string, n int", "part", properties)
    insert(bench, quoted, "(1, 'a', 1)", "(2, 'b', 1)")
    bench.sql(f"ALTER TABLE {quoted} ADD PARTITION FIELD n")
    bench.sql(f"INSERT OVERWRITE {quoted} VALUES (3, 'c', 1)")  # noqa: S608 - quoted
    read = bench.read(name)
    done = bench.run(name, Operation.REWRITE_MANIFESTS, MANIFESTS)
    assert done.state in (OperationState.COMMITTED, OperationState.SKIPPED), done
    assert bench.read(name) == read
