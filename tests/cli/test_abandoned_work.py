"""A job on real files that hangs, is given up, and comes back: it commits, deletes and records nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial, partialmethod
from typing import Any

import pytest

from icewright.adapters.files import local
from icewright.app.bootstrap import application, read_config
from icewright.app.demo.tables import metrics
from icewright.app.worker import Worker
from icewright.core.runs import JobState
from icewright.flow.cycle import detect_and_evaluate
from icewright.flow.queue import Planning
from tests.cli.workspace import Workspace

pytestmark = [pytest.mark.external, pytest.mark.cases(115)]
SECONDS = 60.0  # that a thread may hang before a broken test ends
POLICY = "policy: [{set: {remove_orphans.enabled: false, rewrite_manifests.enabled: false, deletion.delay_hours: 0}}]\n"


class HangOnce:
    """Wraps a function whose first call with a fitting path returns only when the test releases it."""

    def __init__(self, wrapped: Callable[..., Any], fits: Callable[[str], bool], after: int = 0) -> None:
        self.wrapped, self.fits, self.after = wrapped, fits, after
        self.reached, self.released = threading.Event(), threading.Event()

    def __call__(self, *arguments: Any) -> Any:
        """Call the wrapped function, and hang before or after it."""
        path = next(one for one in arguments if isinstance(one, str))
        if self.fits(path) and not self.reached.is_set():
            if self.after:
                self.after -= 1
                return self.wrapped(*arguments)
            self.reached.set()
            self.released.wait(SECONDS)
        return self.wrapped(*arguments)


@pytest.mark.parametrize(
    ("name", "fits", "after"),
    [
        ("read", lambda path: path.endswith(".avro"), 0),
        ("write", lambda path: path.endswith(".metadata.json"), 0),
        ("_delete_file", lambda _: True, 3),
    ],
    ids=["reading", "committing", "deleting"],
)
def test_a_thread_that_comes_back_changes_nothing(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, name: str, fits: Callable[[str], bool], after: int
) -> None:
    """Whatever the table, the files and the store are when the job is given up, they are when its thread has ended."""
    workspace.write(POLICY)
    workspace.make(partial(metrics, commits=20, rows_per_file=2))
    with application(read_config(workspace.path), kind="service") as app:
        runtime = app.runtime
        detect_and_evaluate(runtime, ["lake"])
        assert Planning(runtime).due() == 1
        (job,) = runtime.store.jobs.list()
        owner = local if name == "_delete_file" else local.LocalStorage
        call = HangOnce(getattr(owner, name), fits, after)
        monkeypatch.setattr(owner, name, partialmethod(call) if owner is local.LocalStorage else call)
        seconds = [0.0]
        worker = Worker(runtime, 1, lambda: None, lambda: seconds[0])
        threads = set(threading.enumerate())
        assert worker.start_queued() == 1
        assert call.reached.wait(SECONDS)
        seconds[0] = 20.0
        worker.give_up_all()

        def state() -> tuple[object, ...]:
            pointer = runtime.catalogs["lake"].load(job.ref).metadata_location
            table, ended = runtime.store.tables.get(job.ref), runtime.store.jobs.get(job.job_id)
            ledger = [(row["path"], row["state"]) for row in runtime.store.ledger.files(job.job_id)]
            return workspace.files(), pointer, table, ended, runtime.store.runs.list(job.job_id), ledger

        before = state()
        assert worker.busy == 0
        ended = runtime.store.jobs.get(job.job_id)
        assert ended is not None
        assert ended.state is JobState.CANCELLED
        assert "its thread hangs in icewright.adapters.files." in ended.summary
        call.released.set()
        for thread in set(threading.enumerate()) - threads:
            thread.join(SECONDS)
        files, *rest = state()
        assert rest == list(before[1:])
        assert before[0] <= files  # type: ignore[operator]
        written = files - before[0]  # type: ignore[operator]
        assert len(written) == (1 if name == "write" else 0), "a file that no table names"
