"""One deed, once for every call of a port at which a fault may strike; what was wrong afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from hypothesis import settings

from icewright.core.runs import OperationState
from icewright.flow.reconcile import reconcile_interrupted
from icewright.testing import FixedClock
from tests.faults.interceptors import Call, opened
from tests.faults.judging import Want, differs, ledger_lies, lost, state_of, untrue
from tests.faults.lakehouse import Lakehouse, build, make_old
from tests.faults.operations import REF, FaultOperation, do, open_ends
from tests.faults.reading import read
from tests.faults.storage_errors import FAULTS, Fault, Once, Place
from tests.nightly import NIGHTLY

MOST, LONG = 8 if NIGHTLY else 3, 300


@dataclass
class Trial:
    """One run in bad weather, and whatever was wrong with it or after it."""

    struck: str
    said: str = ""
    lost: list[str] = field(default_factory=list)  # what can be read no more
    untrue: list[str] = field(default_factory=list)  # what the result or the ledger says and is not so
    unfinished: list[str] = field(default_factory=list)  # what the next start and a second run do not bring about

    def __str__(self) -> str:
        wrong = "; ".join([*self.lost, *self.untrue, *self.unfinished][:3])
        return f"{self.struck}: {wrong} (it said: {self.said[:200]})"


@dataclass
class Sweeps:
    """Runs operations in one lakehouse, from the same beginning each time."""

    workspace: Lakehouse
    now: datetime
    wants: dict[FaultOperation, Want] = field(default_factory=dict, repr=False)
    swept: dict[tuple[FaultOperation, str], list[Trial]] = field(default_factory=dict, repr=False)
    #: What was on disk and in the databases before an end that was well: that end need not be looked at again.
    proved: set[str] = field(default_factory=set, repr=False)

    def want(self, action: FaultOperation) -> Want:
        """What the deed does, undisturbed."""
        if action not in self.wants:
            self.workspace.restore()
            before, files, calls = read(self.workspace), self.workspace.files(), list[str]()

            def note(call: Call) -> object:
                calls.append(str(call))
                return call.go()

            with opened(self.workspace.home, FixedClock(self.now), note) as app:
                done = do(app.runtime, action)
            assert done.outcome is None or done.outcome.state is OperationState.COMMITTED, done.said
            gone = frozenset(files - self.workspace.files())
            self.wants[action] = Want(action, tuple(calls), before, read(self.workspace), gone)
        return self.wants[action]

    def sweep(self, action: FaultOperation, kind: str) -> list[Trial]:
        """The fault at every call that it fits, of many at some; done once a session."""
        if (action, kind) not in self.swept:
            fault, calls = FAULTS[kind], self.want(action).calls
            moments = some([n for n, call in enumerate(calls) if fault.fits(call)])
            self.swept[action, kind] = [self.trial(action, fault, n) for n in moments]
        return self.swept[action, kind]

    def struck(self, action: FaultOperation, fault: Fault, moment: int) -> tuple[Trial, FixedClock]:
        """The fault at one call, and what was wrong right after it."""
        want, clock = self.want(action), FixedClock(self.now)
        trial = Trial(f"call {moment}, {want.calls[moment]}")
        self.workspace.restore()
        place = Place(self.workspace, clock, action, want.after.snapshots & want.before.snapshots)
        outcome = None
        try:
            with opened(self.workspace.home, clock, Once(fault, moment, place)) as app:
                done = do(app.runtime, action)
                trial.said, outcome = done.said, done.outcome
        except Exception as error:  # noqa: BLE001 - an error is an answer too, as nothing is said then
            trial.said = f"{type(error).__name__}: {error}"
        now = read(self.workspace)
        trial.lost += lost(want, now)
        if outcome is not None and not fault.overtaken:
            trial.untrue += untrue(want, now, outcome, self.workspace.files(), fault)
        trial.untrue += [] if fault.deletes_lie else ledger_lies(self.workspace, want)
        return trial, clock

    def trial(self, action: FaultOperation, fault: Fault, moment: int) -> Trial:
        """The fault at one call; then the next start, a second run, and a scan for what was left behind."""
        trial, clock = self.struck(action, fault, moment)
        state = state_of(self.workspace, self.want(action), read(self.workspace))
        if not trial.lost and state not in self.proved:
            clock.advance(minutes=1)
            self.next_start(action, clock, trial)
            if not (trial.lost or trial.unfinished):
                self.proved.add(state)
        return trial

    def next_start(self, action: FaultOperation, clock: FixedClock, trial: Trial) -> None:
        """Another process settles what it finds, does the deed, and removes what is left; in good weather."""
        want = self.want(action)
        with opened(self.workspace.home, clock) as app:
            reconcile_interrupted(replace(app.runtime, process_has_ended=lambda _: True))
            trial.unfinished += open_ends(app.runtime)
            trial.lost += lost(want, read(self.workspace))
            app.runtime.store.tables.pause(REF, None)  # whoever looked at a broken invariant says so
            clock.advance(minutes=10)  # after which a deletion that failed is tried again
            reconcile_interrupted(replace(app.runtime, process_has_ended=lambda _: True))
            again = do(app.runtime, action)
            if again.outcome and again.outcome.state not in (OperationState.COMMITTED, OperationState.SKIPPED):
                trial.unfinished.append(f"the second run {again.said}")
            now = read(self.workspace)
            trial.lost += lost(want, now)
            trial.unfinished += differs(want, now)
            make_old(self.workspace.folder)
            do(app.runtime, FaultOperation.ORPHANS)
            trial.unfinished += open_ends(app.runtime)
        now = read(self.workspace)
        trial.lost += lost(want, now)
        trial.unfinished += [f"{path} is left" for path in sorted(self.workspace.files() - now.reached)]


def some(moments: Sequence[int]) -> list[int]:
    """All of few moments; of many a few, evenly spread, unless the profile of Hypothesis is the long one."""
    if len(moments) <= MOST or settings.default.max_examples >= LONG:  # type: ignore[union-attr]
        return list(moments)
    return [moments[round(i * (len(moments) - 1) / (MOST - 1))] for i in range(MOST)]


def prepare(home: Path) -> Sweeps:
    """A lakehouse that the state store knows."""
    workspace, now = build(home), datetime.now(UTC)
    with opened(workspace.home, FixedClock(now)) as app:
        app.runtime.store.tables.record_listing("lake", app.runtime.catalogs["lake"].pointers(), now)
    workspace.save()
    return Sweeps(workspace, now)


def prepare_unsettled(home: Path) -> Sweeps:
    """The same, with an expiry that committed and then never came to its deletions, as the storage was away."""
    sweeps = prepare(home)
    calls = sweeps.want(FaultOperation.EXPIRE).calls
    sweeps.struck(FaultOperation.EXPIRE, FAULTS["unavailable from then on"], calls.index("files.delete"))
    sweeps.workspace.save()
    return Sweeps(sweeps.workspace, sweeps.now)
