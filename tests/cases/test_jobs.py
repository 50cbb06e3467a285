"""Jobs over real tables: one at a time, in order, on the table that was meant, and never in each other's way."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from icewright.core.runs import JobState, OperationState
from icewright.flow.cycle import CycleResult, run_cycle
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from icewright.flow.runtime import Runtime
from tests.cases.workspace import EXPIRE, KNOBS_OF, MANIFESTS, NAME, ORPHANS, Workspace, edit, ref

NO_SPARK = {"compact.enabled": False, "rewrite_deletes.enabled": False}
SETTINGS = {**NO_SPARK, **{k: v for knobs in KNOBS_OF.values() for k, v in knobs.items()}}


def busy(workspace: Workspace, name: str = NAME) -> None:
    """Make a table with something to do for each operation."""
    craft = workspace.craft(name)
    workspace.commits(craft, [900, 800, 700, 600, 500, 400], replacing=False)
    workspace.plant(workspace.publish(craft), "data/orphan.parquet")


@pytest.mark.cases(80, 81, "T23")
def test_operations_in_order_and_one_job_at_a_time(workspace: Workspace) -> None:
    """Manifests, expiry, orphans, whatever order is asked for; meanwhile nobody else gets the table."""
    busy(workspace)
    workspace.detect()
    heard: list[Any] = []
    runtime = workspace.runtime(SETTINGS)

    def tell(kind: str, details: Any) -> None:
        if kind == "operation_started":
            other = execute(runtime, Request(ref(NAME), (ORPHANS,), manual=True))
            heard.append((details["operation"], other.state, other.reason.partition(":")[0]))

    job = execute(replace(runtime, emit=tell), Request(ref(NAME), (ORPHANS, EXPIRE, MANIFESTS), manual=True))
    assert [o.state for o in job.outcomes] == [OperationState.COMMITTED] * 3, job
    held = (JobState.SKIPPED, "another job holds the table")
    assert heard == [(operation, *held) for operation in (MANIFESTS, EXPIRE, ORPHANS)]
    assert len(workspace.app.runtime.store.jobs.list()) == 1


@pytest.mark.cases(82)
@pytest.mark.parametrize("what", ["dropped", "renamed", "replaced"])
def test_a_table_that_went_after_it_was_detected(workspace: Workspace, what: str) -> None:
    """Skipped with the reason, no job is started, and no file of either table is touched."""
    busy(workspace)
    workspace.detect()
    uuid = workspace.metadata().table_uuid
    if what == "renamed":
        workspace.icebergs["lake"].rename_table(("sales", "orders"), ("sales", "renamed"))
    else:
        workspace.unregister(NAME)
    if what == "replaced":
        workspace.table(salt="another", place="pond")
    files = workspace.files()
    job = execute(workspace.runtime(SETTINGS), Request(ref(NAME), (EXPIRE, ORPHANS), uuid))
    assert (job.state, job.job_id, job.outcomes) == (JobState.SKIPPED, None, ())
    assert ("uuid changed" if what == "replaced" else "does not know this table") in job.reason
    assert workspace.files() == files


def cycle(runtime: Runtime) -> CycleResult:
    """One pass over both catalogs, forced past the cooldown."""
    return run_cycle(runtime, ["lake", "pond"], force=True)


@pytest.mark.cases(88, 90, "T8", "T17", "T22")
def test_a_broken_table_hinders_no_other(workspace: Workspace) -> None:
    """A policy that cannot be read, a lost manifest list, a lost metadata file: named, and the others are done."""
    for name in ("sales.policy", "sales.list", "sales.metadata", "sales.it's `odd`"):
        busy(workspace, name)
    edit(
        workspace.metadata_file("sales.policy"),
        lambda d: d["properties"].update({"icewright.compact.strategy": "very"}),
    )
    (workspace.metadata_file("sales.metadata")).unlink()
    current = workspace.metadata("sales.list").current_snapshot
    assert current is not None
    (workspace.home / "warehouse/sales/list/metadata" / str(current.manifest_list).rpartition("/")[2]).unlink()
    result = cycle(workspace.runtime(SETTINGS))
    errors = dict(result.errors)
    assert errors.keys() == {"lake.sales.policy", "lake.sales.list", "lake.sales.metadata"}
    assert "'very' is not one of" in errors["lake.sales.policy"]
    assert all("is missing" in errors[f"lake.sales.{name}"] for name in ("list", "metadata"))
    assert {(job.ref.name, job.state) for job in result.jobs} == {("it's `odd`", JobState.SUCCEEDED)}


@pytest.mark.cases(90)
def test_one_operation_that_fails_hides_no_other(workspace: Workspace) -> None:
    """An old manifest list is lost: expiry and orphans fail by its name, manifests are rewritten all the same."""
    busy(workspace)
    first = workspace.metadata().snapshots[0].manifest_list
    assert first is not None
    (workspace.home / "warehouse/sales/orders/metadata" / first.rpartition("/")[2]).unlink()
    job = workspace.job(EXPIRE, ORPHANS, MANIFESTS)
    states = {o.operation: o.state for o in job.outcomes}
    assert states == {
        MANIFESTS: OperationState.COMMITTED,
        EXPIRE: OperationState.FAILED,
        ORPHANS: OperationState.FAILED,
    }
    assert job.state is JobState.PARTIAL
    assert job.summary.count(first) == 2


@pytest.mark.cases(85, 86, 93, "T21")
def test_a_table_that_has_not_changed_is_not_read(workspace: Workspace) -> None:
    """After a pass nothing is due; spoilt manifests go unnoticed, as none is read until somebody commits."""
    busy(workspace)
    runtime = workspace.runtime(SETTINGS)
    first = cycle(runtime)
    assert (first.due, first.run, first.errors) == (1, 1, ()), first
    files, jobs = workspace.files(), len(runtime.store.jobs.list())
    for path in workspace.files(workspace.home / "warehouse/sales/orders/metadata"):
        if path.suffix == ".avro":
            path.write_bytes(b"?" * path.stat().st_size)
    workspace.clock.advance(hours=2)
    second = cycle(runtime)
    assert (second.tables, second.changed, second.due, second.run, second.errors) == (1, 0, 0, 0, ())
    assert (workspace.files(), len(runtime.store.jobs.list())) == (files, jobs)
    with workspace.icebergs["lake"].load_table(("sales", "orders")).transaction() as transaction:
        transaction.set_properties({"owner": "somebody"})
    third = cycle(runtime)
    assert [table for table, _ in third.errors] == [f"lake.{NAME}"]


@pytest.mark.cases(86)
def test_a_new_snapshot_or_setting_is_a_change(workspace: Workspace) -> None:
    """What was judged is judged anew when the table or its policy moves, and by the newer metadata."""
    workspace.table(hours=(400, 300))
    quiet = {**NO_SPARK, "remove_orphans.enabled": False, "expire_snapshots.min_snapshots_to_keep": 2}
    assert (cycle(workspace.runtime(quiet)).due, cycle(workspace.runtime(quiet)).changed) == (0, 0)
    workspace.clock.advance(hours=1)
    assert cycle(workspace.runtime(quiet | {"expire_snapshots.min_snapshots_to_keep": 3})).changed == 1
    table = workspace.icebergs["lake"].load_table(("sales", "orders"))
    table.append(table.scan().to_arrow())
    workspace.clock.advance(hours=1)
    result = cycle(workspace.runtime(quiet))
    assert (result.changed, result.due, result.run) == (1, 1, 1)
    said = workspace.app.runtime.store.tables.evaluation(ref(NAME))
    assert said is not None
    assert str(workspace.metadata().current_snapshot_id) in json.dumps(said)
    assert len(workspace.metadata().snapshots) == 2


@pytest.mark.cases(86, "T21")
def test_time_alone_makes_a_quiet_table_due(workspace: Workspace) -> None:
    """Nobody commits any more, and yet its snapshots are expired once they are old enough."""
    workspace.table(hours=(20, 10))
    runtime = workspace.runtime({**SETTINGS, "remove_orphans.enabled": False, "rewrite_manifests.enabled": False})
    assert (cycle(runtime).due, len(workspace.metadata().snapshots)) == (0, 2)
    workspace.clock.advance(hours=5)
    result = cycle(runtime)
    assert (result.due, [job.state for job in result.jobs]) == (1, [JobState.SUCCEEDED])
    assert len(workspace.metadata().snapshots) == 1
