"""Manifests rewritten in the service: every entry is kept with its numbers, and no writer is overrun."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import ManifestEntry

from icewright.core.errors import CommitConflict, Refused
from icewright.core.policy import Operation
from icewright.core.runs import OperationState
from icewright.core.steps import Due, RewriteManifests
from icewright.flow.evaluate import evaluate_table
from icewright.ports import StepRequest
from tests.cases.house import BY_PART, EXPIRE, KNOBS_OF, MANIFESTS, NAME, House, ref


def entries(house: House) -> dict[str, tuple[Any, ...]]:
    """What PyIceberg reads of each live entry: content, numbers and all that is said of the file."""
    table = house.icebergs["lake"].load_table(("sales", "orders"))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    found: dict[str, tuple[Any, ...]] = {}
    for manifest in snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io):
            assert entry.data_file.file_path not in found
            found[entry.data_file.file_path] = (manifest.content, *_said(entry))
    return found


def _said(entry: ManifestEntry) -> tuple[Any, ...]:
    file = entry.data_file
    metrics = (file.column_sizes, file.value_counts, file.null_value_counts, file.lower_bounds, file.upper_bounds)
    about = (file.content, file.partition, file.record_count, file.file_size_in_bytes, file.sort_order_id)
    numbers = (entry.snapshot_id, entry.sequence_number, entry.file_sequence_number)
    return (*numbers, *about, *metrics, file.split_offsets, file.equality_ids)


@pytest.mark.cases(34, 48, 49, "T13", "T14")
def test_numbers_that_equality_deletes_count_by(house: House) -> None:
    """Merged, appended to and merged again: each entry keeps the sequence number by which deletes find it."""
    craft = house.craft()
    at = [house.clock.now() - timedelta(hours=h) for h in (500, 400, 300, 200)]
    for number, when in enumerate(at):
        deletes = [craft.equality_deletes({"id": [number]})] if number % 2 else []
        craft.commit(when, [craft.data({"id": [number], "part": ["x"]})], deletes=deletes)
    house.publish(craft)
    before = entries(house)
    assert sorted((said[0], said[2]) for said in before.values()) == [(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (1, 4)]
    assert house.run(MANIFESTS).state is OperationState.COMMITTED
    assert entries(house) == before
    table = house.icebergs["lake"].load_table(("sales", "orders"))
    table.append(pa.table({"id": [9], "part": ["y"]}))
    later = entries(house)
    assert {said[2] for path, said in later.items() if path not in before} == {6}
    assert house.run(MANIFESTS).state is OperationState.COMMITTED
    assert entries(house) == later
    assert all(str(s.manifest_list).startswith("file:///") for s in house.metadata().snapshots)


def _append(house: House) -> None:
    table = house.icebergs["lake"].load_table(("sales", "orders"))
    table.append(table.scan().to_arrow().slice(0, 1))


def _delete(house: House) -> None:
    house.icebergs["lake"].load_table(("sales", "orders")).delete("part = 'p0'")


def _tag(house: House) -> None:
    table = house.icebergs["lake"].load_table(("sales", "orders"))
    table.manage_snapshots().create_tag(table.snapshots()[0].snapshot_id, "late").commit()


def _drop(house: House) -> None:
    house.unregister(NAME)


def _replace(house: House) -> None:
    house.unregister(NAME)
    house.table(salt="another", hours=(50, 40))


def _rename(house: House) -> None:
    house.icebergs["lake"].rename_table(("sales", "orders"), ("sales", "renamed"))


OTHERS: dict[str, Callable[[House], None]] = {
    f.__name__.strip("_"): f for f in (_append, _delete, _tag, _drop, _replace, _rename)
}


@pytest.mark.cases(6, 75, 82, 84, "T1")
@pytest.mark.parametrize(
    ("other", "operation"),
    [
        *((other, MANIFESTS) for other in ("append", "delete", "replace")),
        *((other, EXPIRE) for other in ("tag", "drop", "rename")),
    ],
)
def test_a_plan_that_the_table_has_left_behind(house: House, other: str, operation: Operation) -> None:
    """Whoever appends, deletes, tags, drops, replaces or renames after the plan: no commit of ours, no file lost."""
    craft = house.craft()
    house.commits(craft, [400, 300, 200], replacing=False)
    house.publish(craft)
    house.detect()
    runtime = house.runtime(KNOBS_OF[operation])
    evaluation = evaluate_table(runtime, ref(NAME), house.clock.now())
    verdict, base = evaluation.verdicts[operation], evaluation.facts.metadata
    assert isinstance(verdict, Due)
    job_id = runtime.store.claim(base.ref, base.table_uuid, (operation,), runtime.trigger, house.clock.now())
    assert job_id is not None
    OTHERS[other](house)
    files = house.files()
    with pytest.raises((CommitConflict, Refused)):  # under its new name the table reads the same files
        runtime.engine.run(StepRequest(job_id, operation, verdict.work.steps[0], base))
    assert house.files() == files


@pytest.mark.cases(42)
def test_specs_stay_apart(house: House) -> None:
    """Files of two specs: each manifest that is written holds files of one, and every row is found by its partition."""
    craft = house.craft(spec=BY_PART)
    house.commits(craft, [400, 300, 200], replacing=False)
    house.publish(craft)
    table = house.icebergs["lake"].load_table(("sales", "orders"))
    with table.update_spec() as update:
        update.remove_field("part")
    for _ in range(2):
        table.append(table.scan().to_arrow().slice(0, 2))
    rows, before = house.read()["main"], entries(house)
    assert house.run(MANIFESTS).state is OperationState.COMMITTED
    assert (house.read()["main"], entries(house)) == (rows, before)
    current = house.metadata().current_snapshot
    assert current is not None
    assert sorted(m.spec_id for m in house.app.runtime.files.manifests(current)) == [0, 1]
    fresh = house.icebergs["lake"].load_table(("sales", "orders"))
    for number in range(3):
        expected = sum(f"'p{number}'" in row for row in rows)
        assert fresh.scan(row_filter=f"part = 'p{number}'").to_arrow().num_rows == expected > 0


@pytest.mark.cases(42)
def test_manifests_without_a_live_file(house: House) -> None:
    """Manifests of a spec whose entries are all deleted are merged into none."""
    craft = house.craft(spec=BY_PART)
    house.commits(craft, [400, 300, 200], replacing=False)
    house.publish(craft)
    house.icebergs["lake"].load_table(("sales", "orders")).delete("id >= 0")
    base = house.metadata()
    step = RewriteManifests(spec_ids=(0,), target_bytes=8 << 20, by_spark=False, use_caching=False)
    outcome = house.app.runtime.engine.run(StepRequest("job", MANIFESTS, step, base))
    assert (outcome.state, outcome.metrics["manifests_written"]) == (OperationState.COMMITTED, 0)
    current = house.metadata().current_snapshot
    assert current is not None
    assert house.app.runtime.files.manifests(current) == ()
    assert house.read()["main"] == []


@pytest.mark.cases(84)
def test_counts_and_files_before_are_those_after(house: House) -> None:
    """The old snapshots and their manifests stay, totals are equal, and orphan removal finds nothing to take."""
    craft = house.craft()
    house.commits(craft, [400, 300, 200, 100], replacing=False)
    folder = house.publish(craft)
    files, read, before = house.files(), house.read(), house.metadata()
    assert house.run(MANIFESTS).summary == "rewrote 4 manifests into 1 (4 entries)"
    after = house.metadata()
    assert files <= house.files()
    assert read.items() <= house.read().items()
    old, new = before.current_snapshot, after.current_snapshot
    assert old is not None
    assert new is not None
    totals = {k: v for k, v in old.summary.items() if k.startswith("total-")}
    assert totals
    assert totals.items() <= new.summary.items()
    assert (new.operation, new.parent_id) == ("replace", old.snapshot_id)
    house.grow_old(folder)
    house.finds([])
