"""What runs in processes of their own: a life that ends by SIGKILL at a given moment, and the life after it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from icewright.core.runs import OperationState
from icewright.flow.reconcile import reconcile_interrupted
from icewright.testing import FixedClock
from tests.faults.interceptors import WRITES, Call, opened
from tests.faults.judging import Want, differs, lost
from tests.faults.lakehouse import Lakehouse, make_old
from tests.faults.operations import FaultOperation, do, open_ends
from tests.faults.reading import read
from tests.nightly import NIGHTLY


@dataclass
class Mortal:
    """A hook: the process is killed at a moment, counted from 0.

    There is a moment after each call that writes, as between two of them nothing durable happens; nightly there is one
    before each call too. A bulk deletion happens file by file, with a moment before each nightly, else before the
    first, the second and the last; its report is put together again.
    """

    moment: int
    last_words: Callable[[str], None]
    count: int = 0

    def __call__(self, call: Call) -> Any:
        """Count, and die."""
        if NIGHTLY:
            self._pass(f"before {call}")
        done = self._one_by_one(call) if str(call) == "files.delete" else call.go()
        if str(call) in WRITES:
            self._pass(f"after {call}")
        return done

    def _one_by_one(self, call: Call) -> Any:
        report = call.on([])
        last = len(call.paths) - 1
        for number, path in enumerate(call.paths):
            if NIGHTLY or number in (0, 1, last):
                self._pass(f"before the deletion of file {number}")
            one = call.on([path])
            report = replace(report, deleted=report.deleted + one.deleted, failures={**report.failures, **one.failures})
        return report

    def _pass(self, where: str) -> None:
        if self.count == self.moment:
            self.last_words(where)
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1


def live(home: Path, action: FaultOperation, now: datetime, moment: int, words: Path) -> None:
    """One life: it ends at the moment, or by itself when the work is done before."""
    with opened(home, FixedClock(now), Mortal(moment, lambda where: _write(words, where))) as app:
        said = do(app.runtime, action).said
    _write(words, f"the end: {said}")


def live_on(home: Path, action: FaultOperation, now: datetime, want: Want, words: Path) -> None:
    """The next life: settles what it finds, works as usual, removes what is old and unreached, and works once more."""
    workspace, clock = Lakehouse(home), FixedClock(now + timedelta(seconds=1))
    wrong: list[str] = []
    with opened(home, clock) as app:
        said = "; ".join(reconcile_interrupted(app.runtime))
        wrong += [f"after settling: {one}" for one in (*lost(want, read(workspace)), *open_ends(app.runtime))]
        again = do(app.runtime, action)
        if again.outcome and again.outcome.state not in (OperationState.COMMITTED, OperationState.SKIPPED):
            wrong.append(f"the second run {again.said}")
        now_read = read(workspace)
        wrong += [f"after the second run: {one}" for one in (*lost(want, now_read), *differs(want, now_read))]
        wrong += [f"{path} waits for a scan" for path in sorted(want.gone & workspace.files())]
        make_old(workspace.folder)
        do(app.runtime, FaultOperation.ORPHANS)
        wrong += [f"after the scan: {one}" for one in (*lost(want, read(workspace)), *open_ends(app.runtime))]
        wrong += [f"{path} is left" for path in sorted(workspace.files() - read(workspace).reached)]
        files = workspace.files()
        for more in (action, FaultOperation.ORPHANS):
            do(app.runtime, more)
        wrong += [f"the second cycle found {path}" for path in sorted(files ^ workspace.files()) if "metadata" in path]
    _write(words, "\n".join([said, *wrong]))


def _write(words: Path, text: str) -> None:
    fresh = words.with_suffix(".part")
    fresh.write_text(text, encoding="utf-8")
    fresh.rename(words)
