"""An undo whose process ends at any moment: nothing is lost, and the same undo, asked for again, completes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from icewright.core.policy import ENABLED
from icewright.flow.runtime import Runtime
from icewright.flow.undo import undo
from icewright.ports import LedgerState
from tests.cases.test_undo import document, expired, history, settled, states
from tests.cases.workspace import EXPIRE, NAME, Workspace, ref
from tests.faults.interceptors import WRITES, Call, opened
from tests.nightly import NIGHTLY


class Death(BaseException):
    """The process ends here: nothing catches this, and no call comes after it."""


@dataclass
class Mortal:
    """A hook that ends the process after one call of a port, counted from 0.

    On a push it counts the calls that leave something behind: a death after another leaves the same as the one before.
    """

    moment: int
    count: int = 0
    dead: str = ""

    def __call__(self, call: Call) -> Any:
        """Let it happen, and die."""
        if self.dead:
            raise Death
        done = call.go()
        if NIGHTLY or str(call) in WRITES:
            if self.count == self.moment:
                self.dead = str(call)
                raise Death
            self.count += 1
        return done


@contextmanager
def life(workspace: Workspace, moment: int) -> Iterator[tuple[Runtime, Mortal]]:
    """A process of its own, that ends at the moment."""
    mortal = Mortal(moment)
    try:
        with opened(workspace.home, workspace.clock, mortal) as app:
            yield app.runtime, mortal
    except Death:
        pass


def died(workspace: Workspace, moment: int, action: Callable[[Runtime], object]) -> str:
    """Where the process ended that did this; blank when it did not come to the moment."""
    with life(workspace, moment) as (runtime, mortal):
        action(runtime)
    return mortal.dead


@pytest.mark.cases(13)
def test_an_undo_that_dies_at_any_step_is_completed_by_the_next(workspace: Workspace) -> None:
    """Until then nothing is half done: before its commit the files wait, after it all is back to stay."""
    history(workspace)
    before, whole = workspace.read(), document(workspace)
    moments: list[str] = []
    ended: list[tuple[bool, set[str]]] = []
    store = workspace.app.runtime.store
    while True:
        store.rules.put(ref(NAME).parts, {}, "anna", workspace.clock.now(), None)
        job_id = expired(workspace)
        where = died(workspace, len(moments), lambda runtime, job_id=job_id: undo(runtime, job_id))  # type: ignore[misc]
        if not where:
            break
        moments.append(where)
        settled(workspace)
        ended.append((document(workspace) == whole, states(workspace, job_id)))
        undo(workspace.app.runtime, job_id)
        assert document(workspace) == whole, where
        assert states(workspace, job_id) == {LedgerState.UNDONE}, where
        row = store.tables.get(ref(NAME))
        assert row is not None
        assert row.job_id is None, where
        assert store.rules.versions(ref(NAME).parts)[0].settings == {ENABLED[EXPIRE].name: False}, where
    assert workspace.read() == before
    steps = (
        "store.jobs.claim",
        "store.ledger.begin_undo",
        "catalog.commit",
        "store.rules.put",
        "store.ledger.close_removal",
    )
    places = [moments.index(step) for step in (*steps, "store.ledger.end_undo", "store.jobs.finish")]
    assert places == sorted(places)
    committed = moments.index("catalog.commit")
    assert ended[:committed] == [(False, {LedgerState.PLANNED})] * committed
    assert ended[committed:] == [(True, {LedgerState.UNDONE})] * (len(moments) - committed)
