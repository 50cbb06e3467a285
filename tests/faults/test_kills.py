"""Processes that are killed at any moment of an operation that deletes or commits, and the process after them.

A server that has everything imported forks one process for each moment; the process runs the operation by the public
wiring until SIGKILL ends it there, before or after a call of a port. Then another process starts: it settles what it
finds and works as usual. Moments that leave the same files and the same databases behind share that second process.
"""

from __future__ import annotations

import itertools
import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.faults import crashes
from tests.faults.interceptors import WRITES
from tests.faults.judging import Want, ledger_lies, lost, state_of
from tests.faults.operations import FaultOperation
from tests.faults.reading import read
from tests.faults.sweeping import Sweeps, prepare, prepare_unsettled
from tests.nightly import nightly

pytestmark = [pytest.mark.chaos, pytest.mark.external]

SLOTS = 2
KILLED = -9
MISSED = 255  # what multiprocessing says when its server did not tell it how a process ended
CONTEXT = multiprocessing.get_context("forkserver")
# what a life imports on demand takes half of its time
CONTEXT.set_forkserver_preload([crashes.__name__, "icewright.app.engines"])


def outlive(function: Any, *arguments: Any) -> int | None:
    """Run a function in a process of its own; how that ended."""
    process = CONTEXT.Process(target=function, args=arguments)
    process.start()
    process.join(120)
    code = process.exitcode
    process.close()
    return code


@dataclass
class Graveyard:
    """All moments of a deed, shared between a few lakehouses that are alike."""

    action: FaultOperation
    moments: Any = field(default_factory=itertools.count)
    over: threading.Event = field(default_factory=threading.Event)
    seen: set[str] = field(default_factory=set)
    killed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def work(self, sweeps: Sweeps) -> None:
        """Kill at one moment after the other until a process outlives them all."""
        want, home = sweeps.want(self.action), sweeps.workspace.home
        words = home.with_name(f"{home.name}-words")
        while not self.over.is_set():
            sweeps.workspace.restore()
            code = outlive(crashes.live, home, self.action, sweeps.now, next(self.moments), words)
            where = words.read_text(encoding="utf-8")
            if code not in (KILLED, MISSED) or where.startswith("the end"):
                self.over.set()
                self.wrong += (
                    [] if code in (0, MISSED) and where.startswith("the end") else [f"ended by {code}, {where}"]
                )
                return
            self.killed.append(where)
            self.wrong += [f"killed {where}: {one}" for one in self._next(sweeps, want, words)]

    def _next(self, sweeps: Sweeps, want: Want, words: Path) -> list[str]:
        """What is wrong after the death, and after the next life; the latter is not looked at twice."""
        now = read(sweeps.workspace)
        wrong = [*lost(want, now), *ledger_lies(sweeps.workspace, want)]
        if (state := state_of(sweeps.workspace, want, now)) in self.seen:
            return wrong
        self.seen.add(state)
        code = outlive(crashes.live_on, sweeps.workspace.home, self.action, sweeps.now, want, words)
        said, *more = words.read_text(encoding="utf-8").split("\n")
        wrong += [] if code == 0 else [f"the next life ended by {code}"]
        return [*wrong, *(f"{one} (settled: {said})" for one in more)]


@pytest.fixture(scope="module")
def lakehouses(tmp_path_factory: pytest.TempPathFactory) -> list[Sweeps]:
    """One for each process that may run at a time."""
    return [prepare(tmp_path_factory.mktemp("kills") / "home") for _ in range(SLOTS)]


@pytest.fixture(scope="module")
def unsettled_lakehouses(tmp_path_factory: pytest.TempPathFactory) -> list[Sweeps]:
    """The same, with planned deletions that wait."""
    return [prepare_unsettled(tmp_path_factory.mktemp("kills") / "home") for _ in range(SLOTS)]


@pytest.mark.cases(13, 74)
@pytest.mark.parametrize(
    "action",
    [
        nightly(action) if action in (FaultOperation.STATISTICS, FaultOperation.RESTORE) else action
        for action in FaultOperation
    ],
)
def test_killed_at_any_moment(
    lakehouses: list[Sweeps], unsettled_lakehouses: list[Sweeps], action: FaultOperation
) -> None:
    """No readable file is gone; the next process finishes or undoes, frees the table, and leaves nothing to find."""
    graveyard = Graveyard(action)
    houses = unsettled_lakehouses if action is FaultOperation.SETTLE else lakehouses
    writes = [sum(call in WRITES for call in sweeps.want(action).calls) for sweeps in houses]
    with ThreadPoolExecutor(SLOTS) as pool:
        list(pool.map(graveyard.work, houses))
    assert not graveyard.wrong, "\n".join(graveyard.wrong)
    assert len(graveyard.killed) >= max(writes)
