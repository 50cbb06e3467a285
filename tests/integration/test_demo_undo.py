"""The demo's own tables after an expiry and its undo: every snapshot, tag and branch is as before, by PyIceberg."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

import pytest

from icewright.app.bootstrap import Application, application, read_config
from icewright.app.demo import tables
from icewright.app.demo.files import local
from icewright.app.demo.lake import Lake
from icewright.core.runs import OperationState
from icewright.flow.detect import detect
from icewright.flow.execute import execute
from icewright.flow.operation import Request
from icewright.flow.reconcile import reconcile_interrupted
from icewright.flow.undo import undo
from tests.cases.test_undo_crashes import Death, Mortal
from tests.cases.workspace import EXPIRE, KNOBS_OF, ref
from tests.faults.interceptors import Call, tapped
from tests.integration.bench import Bench

pytestmark = [pytest.mark.spark, pytest.mark.nightly]


def versions(lake: Lake, name: str) -> Mapping[str, object]:
    """What PyIceberg says of a table's snapshots, tags, branches and statistics; all files that they need are there."""
    table = lake.catalog.load_table(name)
    files: dict[str, list[str]] = {}
    for snapshot in table.metadata.snapshots:
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in files:
                entries = manifest.fetch_manifest_entry(table.io)
                files[manifest.manifest_path] = sorted(entry.data_file.file_path for entry in entries)
    assert all(local(path).exists() for paths in files.values() for path in paths)
    read = table.metadata
    return {"snapshots": read.snapshots, "refs": read.refs, "statistics": read.statistics, "files": files}


@contextmanager
def opened(bench: Bench, hook: Callable[[Call], object] = Call.go) -> Iterator[Application]:
    """A process of its own over the session's catalog, every call of its ports through the hook."""
    with application(read_config(bench.scratch.parent / "icewright.yaml"), kind="tests") as app:
        tapped(app, hook)
        yield app


def expired(bench: Bench, name: str) -> str | None:
    """The job that expired what is old on the table, while its files wait; None where nothing may go."""
    with opened(bench) as app:
        detect(app.runtime, ["lake"])
        policy = replace(app.runtime.policy(), command={**KNOBS_OF[EXPIRE], "deletion.delay_hours": 24})
        runtime = replace(app.runtime, policy=lambda: policy)
        done = execute(runtime, Request(ref(name), (EXPIRE,), manual=True))
    committed = any(one.state is OperationState.COMMITTED for one in done.outcomes)
    return done.job_id if committed else None


def test_the_demos_tables_are_as_before_their_expiry(lake: Lake, bench: Bench) -> None:
    """Each expiry is undone whole; then tables take turns, and a process dies at each step of an undo."""
    names = [one.name.removeprefix("lake.") for one in tables.build(lake, lambda _: None)]
    assert len(names) == 12
    before = {name: versions(lake, name) for name in names}
    jobs = {name: job for name in names if (job := expired(bench, name)) is not None}
    assert len(jobs) == 8, jobs  # the others have nothing to expire, or forbid it
    for name, job in jobs.items():
        assert versions(lake, name) != before[name]
        with opened(bench) as app:
            undo(app.runtime, job)
    assert {name: versions(lake, name) for name in names} == before
    for moment in count():
        name = [*jobs][moment % len(jobs)]
        job = expired(bench, name)
        assert job is not None
        mortal = Mortal(moment)
        try:
            with opened(bench, mortal) as app:
                undo(app.runtime, job)
        except Death:
            pass
        with opened(bench) as app:
            reconcile_interrupted(replace(app.runtime, process_has_ended=lambda _: True))
            undo(app.runtime, job)
        assert versions(lake, name) == before[name], (name, mortal.dead)
        if not mortal.dead:
            break
    assert moment > 12
